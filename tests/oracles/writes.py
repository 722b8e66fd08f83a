#!/usr/bin/env python3
"""The owners of every field, held against a genuine kube-apiserver: every kind's filled object is sent by an ordinary
user as create, update, merge patch, apply and to each of its subresources, to both servers, and what comes back is
compared field by field.

A filled object is seldom valid. The peer's own refusals mend it first: what is not supported becomes what is, what is
forbidden goes. Everything but the base objects is sent with dryRun, so that no controller of either server has a word.

    tests/oracles/writes.py PEER_URL PEER_TOKEN URL TOKEN [KIND…]      KEDGE_UPSTREAM_DATA says where the objects are

The peer runs without the plugins that want controllers or nodes (ServiceAccount); docs/oracles.md says how it is
started. Prints a line for each difference and a summary; ends with 1 if there is one that writes-kept.txt does not
list.
"""
import base64, copy, glob, http.client, json, os, re, ssl, subprocess, sys, time, urllib.parse

DATA = os.environ.get("KEDGE_UPSTREAM_DATA", "../shared/upstream-v1.36")
NAMESPACE = "writes"
# Objects that an earlier run left behind, held by a finalizer of a controller that is not there, are not in the way.
RUN = f"{int(time.time()):x}"
# Values that no refusal spells out, by the last key of their path.
REQUIRED = {
    "name": "x", "image": "x", "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "key": "x",
    "operator": "Exists",
    "driver": "d.example.com", "storage": "1Gi", "path": "/x", "server": "x", "containerPort": 1, "port": 1,
    "mountPath": "/x",
    "restartPolicy": "Always", "restart": "Always", "namespace": NAMESPACE, "provisioner": "p.example.com",
    "handler": "h", "value": 1,
    "addressType": "IPv4", "expression": "true", "selector": {"matchLabels": {"a": "b"}},
    "scaleTargetRef": {"kind": "Deployment", "name": "x"},
    "accessModes": ["ReadWriteOnce"], "matchPolicy": "Equivalent", "operations": ["CREATE"], "apiGroups": ["*"],
    "apiVersions": ["*"], "resources": ["*"],
    "kind": "Kind", "apiGroup": "g.example.com", "apiVersion": "v1", "verbs": ["get"], "type": "x", "hostPort": 1,
    "nodeName": "n",
    "schedule": "* * * * *", "revision": 1, "containers": [{"name": "c", "image": "i"}], "capacity": {"storage": "1Gi"},
}
# Where mending by refusals does not end well: what the object begins with instead of its filled spec.
POD = {"containers": [{"name": "c", "image": "i"}]}
CA = None
SEEDS = {
    "Pod": {"spec": POD},
    "PodTemplate": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}},
    "ReplicationController": {"spec": {"replicas": 2, "selector": {"a": "b"},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}}},
    "Service": {"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}},
    "Node": {"spec": {"unschedulable": True}},
    "PersistentVolume": {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"}}},
    "PersistentVolumeClaim": {"spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}},
    "Namespace": {"spec": {"finalizers": ["kubernetes", "example.com/f"]}},
    "Endpoints": {"subsets": [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 1}]}]},
    "Event": {"involvedObject": {"kind": "Pod", "name": "x", "namespace": NAMESPACE}, "reason": "r", "type": "Normal",
        "message": "m"},
    "CustomResourceDefinition": {"spec": {"group": "g.example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]}},
    "APIService": {"spec": {"group": "g.example.com", "version": "v1", "groupPriorityMinimum": 10,
        "versionPriority": 10}},
    "IPAddress": {"spec": {"parentRef": {"resource": "services", "name": "x", "namespace": NAMESPACE}}},
    "ServiceCIDR": {"spec": {"cidrs": ["198.51.100.0/24"]}},
    "EndpointSlice": {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}], "ports": [{"port": 1}]},
    "HorizontalPodAutoscaler": {"spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "v1", "kind": "ReplicationController", "name": "x"}}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "Ingress": {"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 1}}}}},
    "IngressClass": {"spec": {"controller": "example.com/c"}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    "CronJob": {"spec": {"schedule": "* * * * *", "suspend": True,
        "jobTemplate": {"spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}}}}},
    "Job": {"spec": {"suspend": True, "template": {"spec": {**POD, "restartPolicy": "Never"}}}},
    "ControllerRevision": {"data": {"a": 1}, "revision": 1},
    "StorageClass": {"provisioner": "p.example.com"},
    "CSINode": {"spec": {"drivers": []}},
    "CSIDriver": {"spec": {}},
    "CSIStorageCapacity": {"storageClassName": "x", "capacity": "1Gi"},
    "VolumeAttachment": {"spec": {"attacher": "a.example.com", "nodeName": "n",
        "source": {"persistentVolumeName": "pv"}}},
    "VolumeAttributesClass": {"driverName": "d.example.com", "parameters": {"a": "b"}},
    "PriorityClass": {"value": 7, "description": "d"},
    "RuntimeClass": {"handler": "h"},
    "Lease": {"spec": {"holderIdentity": "h", "leaseDurationSeconds": 5}},
    "ResourceQuota": {"spec": {"hard": {"pods": "5"}}},
    "LimitRange": {"spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}},
    "Secret": {"data": {"a": "Yg=="}, "type": "Opaque"},
    "ConfigMap": {"data": {"a": "b"}},
    "ServiceAccount": {"secrets": [{"kind": "Secret", "name": "s", "fieldPath": "x", "uid": "u"}],
        "imagePullSecrets": [{"name": "p"}]},
    "Role": {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    "ClusterRole": {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]},
    "ClusterRoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]},
    "FlowSchema": {"spec": {"priorityLevelConfiguration": {"name": "workload-low"}, "matchingPrecedence": 7}},
    "PriorityLevelConfiguration": {"spec": {"type": "Limited",
        "limited": {"nominalConcurrencyShares": 3, "limitResponse": {"type": "Reject"}}}},
    "MutatingWebhookConfiguration": {"webhooks": [{"name": "a.example.com",
        "clientConfig": {"url": "https://192.0.2.1/x"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "rules": [{"operations": ["CREATE"], "apiGroups": ["g.example.com"], "apiVersions": ["v1"],
            "resources": ["none"]}]}]},
    "ValidatingAdmissionPolicy": {"spec": {"failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["g.example.com"],
            "apiVersions": ["v1"], "resources": ["none"]}]}, "validations": [{"expression": "true"}]}},
    "ValidatingAdmissionPolicyBinding": {"spec": {"policyName": "x", "validationActions": ["Deny"]}},
    "MutatingAdmissionPolicy": {"spec": {"failurePolicy": "Ignore", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["g.example.com"],
            "apiVersions": ["v1"], "resources": ["none"]}]},
        "mutations": [{"patchType": "JSONPatch",
            "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/a'}]"}}]}},
    "MutatingAdmissionPolicyBinding": {"spec": {"policyName": "x"}},
    "DeviceClass": {"spec": {}},
    "ResourceClaim": {"spec": {}},
    "ResourceClaimTemplate": {"spec": {"spec": {}}},
    "ResourceSlice": {"spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}},
}
for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"):
    SEEDS[kind] = {"spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}}}
    if kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        SEEDS[kind]["spec"]["replicas"] = 2
SEEDS["CertificateSigningRequest"] = {"spec": {"signerName": "example.com/s", "usages": ["client auth"],
    "username": "somebody", "groups": ["system:masters"], "uid": "u", "extra": {"a": ["b"]},
    "request": base64.b64encode(subprocess.run(["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout",
        "/dev/null", "-subj", "/CN=x"], check=True, capture_output=True).stdout).decode()}}
SEEDS["ValidatingWebhookConfiguration"] = SEEDS["MutatingWebhookConfiguration"]
NAMES = {"CustomResourceDefinition": "things.g.example.com", "APIService": "v1.g.example.com",
    "IPAddress": "198.51.100.9"}


class Server:
    def __init__(self, url, token):
        self.at, self.token, self.kept = urllib.parse.urlparse(url), token, None

    def ask(self, method, path, body=None, kind="application/json"):
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", "Content-Type": kind,
            "User-Agent": "writes"}
        for attempt in range(3):
            try:
                if self.kept is None:
                    # Both servers are this machine's own, made for this run.
                    self.kept = http.client.HTTPSConnection(self.at.hostname, self.at.port,
                        context=ssl._create_unverified_context(), timeout=60)
                self.kept.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
                answer = self.kept.getresponse()
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] == b"{" else {"text": text.decode(errors="replace")}
            except (http.client.HTTPException, OSError):
                self.kept = None
                if attempt == 2:
                    raise


def steps(path):
    """`spec.ports[0].name` and `data[a.b]` as keys and positions."""
    out = []
    for word, inner in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        out.append(word or (int(inner) if inner.isdigit() else inner))
    return out


def place(obj, path):
    at = obj
    for step in path:
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            return None
    return at


def remove(obj, path):
    while path:
        parent = place(obj, path[:-1])
        try:
            del parent[path[-1]]
            return True
        except (KeyError, IndexError, TypeError):
            path = path[:-1]
    return False


def mend(obj, cause):
    path = steps(cause.get("field") or "")
    if not path or path[0] == "metadata":
        return bool(path) and remove(obj, path)
    said, wanted = cause.get("message", ""), re.findall(r'"([^"]*)"',
        cause.get("message", "").split("supported values:")[-1])
    parent = place(obj, path[:-1])
    fits = isinstance(parent, dict) or isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent)
    if "supported values:" in said and wanted and fits:
        parent[path[-1]] = wanted[0]
        return True
    if said.startswith("Required value") and isinstance(parent, dict) and REQUIRED.get(path[-1]) not in (None,
        parent.get(path[-1])):
        parent[path[-1]] = REQUIRED[path[-1]]
        return True
    return remove(obj, path)


def mended(peer, url, obj):
    """The object without what the peer refuses of it, or nothing."""
    for _ in range(60):
        status, answer = peer.ask("POST", f"{url}?dryRun=All", obj)
        if status == 201:
            return obj
        causes = (answer.get("details") or {}).get("causes") or []
        if not any([mend(obj, cause) for cause in causes]):
            return None
    return None


VOLATILE = {("metadata", "uid"), ("metadata", "creationTimestamp"), ("metadata", "resourceVersion")}


def plain(value, path=()):
    """Without what differs from run to run."""
    if isinstance(value, dict):
        out = {}
        for key, child in value.items():
            here = path + (key,)
            if here in VOLATILE:
                out[key] = "set" if child else child
            elif key in ("clusterIP", "clusterIPs") and child not in ("None", ["None"]):
                out[key] = "given"
            elif key in ("time", "lastTransitionTime", "lastUpdateTime",
                "lastPhaseTransitionTime") and isinstance(child, str) and not child.startswith("20" + "0"):
                out[key] = "now"
            else:
                out[key] = plain(child, here)
        return out
    if isinstance(value, list):
        return [plain(v, path + (i,)) for i, v in enumerate(value)]
    if isinstance(value, str):
        value = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID", value)
        return re.sub(r"\b(20[2-9]\d-\d\d-\d\dT[\d:]+Z)\b", "NOW", value)
    return value


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            here = f"{path}.{key}"
            if key not in b:
                yield f"{here}: only upstream ({short(a[key])})"
            elif key not in a:
                yield f"{here}: only here ({short(b[key])})"
            else:
                yield from differences(a[key], b[key], here)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, f"{path}[{at}]")
    elif a != b:
        yield f"{path}: upstream {short(a)}, here {short(b)}"


def short(value):
    return json.dumps(value)[:260]


class Report:
    def __init__(self, kept):
        self.kept, self.good, self.known, self.new = kept, 0, 0, 0

    def compare(self, what, theirs, ours):
        (a, x), (b, y) = theirs, ours
        if a != b:
            found = [f": {a} upstream, {b} here: {short(x.get('message'))} | {short(y.get('message'))}"]
        else:
            found = list(differences(plain(x), plain(y)))
        for line in found:
            line = what + line
            if any(re.search(k, line) for k in self.kept):
                self.known += 1
            else:
                self.new += 1
                print("DIFF", line)
        self.good += not found


def address(entry, path):
    """(collection, resource row) of every kind that can be created."""
    return f"{entry}/{path}"


def resources(server):
    out = {}
    entries = ["/api/v1"] + [f"/apis/{v['groupVersion']}" for g in server.ask("GET", "/apis")[1]["groups"]
        for v in g["versions"]]
    for url in entries:
        doc = server.ask("GET", url)[1]
        for r in doc.get("resources", []):
            if "/" not in r["name"] and {"create", "update", "get"} <= set(r["verbs"]):
                subs = [s for s in doc["resources"] if s["name"].startswith(r["name"] + "/")]
                out[(doc["groupVersion"], r["kind"])] = (url, r, subs)
    return out


def change_something(obj):
    """The same with every number, truth and free text of its spec another: for roads that must not care."""
    def other(value):
        if isinstance(value, dict):
            return {k: other(v) for k, v in value.items()}
        if isinstance(value, list):
            return [other(v) for v in value]
        if isinstance(value, bool):
            return not value
        if isinstance(value, (int, float)):
            return value + 1
        return value
    return other(obj)


METADATA = {
    "labels": {"new": "label"}, "annotations": {"new": "annotation"}, "generation": 9,
    "creationTimestamp": "2008-01-01T01:01:01Z",
    "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}],
    "finalizers": ["example.com/f"],
}


def roads(name, filled, base, subs):
    """(what, method, path after the object's, content type, body) of every write."""
    meta = {**METADATA, "name": name}
    if "namespace" in base["metadata"]:
        meta["namespace"] = base["metadata"]["namespace"]
    changed = {k: (change_something(v) if k in ("spec",) else v) for k, v in base.items()
        if k not in ("metadata", "status")}
    if "status" in filled:
        changed["status"] = filled["status"]
    same = {k: v for k, v in base.items() if k not in ("metadata", "status")}
    same["status"] = filled.get("status", {})
    for what, body in (("same spec", same), ("changed spec", changed)):
        if "status" not in filled:
            body = {k: v for k, v in body.items() if k != "status"}
        body["metadata"] = meta
        applied = {**body, "metadata": {k: meta[k]
            for k in ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences") if k in meta}}
        versioned = {**body, "metadata": {**meta, "resourceVersion": base["metadata"]["resourceVersion"]}}
        for sub in [""] + [s["name"].split("/")[1] for s in subs if s["kind"] == base["kind"]
            and "update" in s["verbs"]]:
            row = next((s for s in subs if s["name"].endswith("/" + sub)), None)
            tail = f"/{sub}" if sub else ""
            yield f"{what} {sub or 'main'} update", "PUT", tail, "application/json", versioned
            if row is None or "patch" in row["verbs"]:
                yield f"{what} {sub or 'main'} merge", "PATCH", tail, "application/merge-patch+json", body
                yield f"{what} {sub or 'main'} strategic", "PATCH", tail, "application/strategic-merge-patch+json", body
                yield f"{what} {sub or 'main'} apply", "PATCH", tail, "application/apply-patch+yaml", applied
    for delete in ({"metadata": {"deletionTimestamp": "2009-01-01T01:01:01Z"}}, {"metadata": {"uid": "other"}},
        {"metadata": {"deletionGracePeriodSeconds": 3}}, {"metadata": {"generateName": "gen"}}):
        yield f"merge {json.dumps(delete)}", "PATCH", "", "application/merge-patch+json", delete
    for sub in [s for s in subs if s["kind"] == "Scale"]:
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {k: meta[k] for k in ("name", "namespace") if k in meta}, "spec": {"replicas": 5}}
        yield "scale update", "PUT", "/scale", "application/json", scale
        yield "scale merge", "PATCH", "/scale", "application/merge-patch+json", {"spec": {"replicas": 5},
            "metadata": {"labels": {"a": "b"}}, "status": {"replicas": 9}}
        yield "scale apply", "PATCH", "/scale", "application/apply-patch+yaml", scale


def one_kind(peer, here, report, version, kind, at, filled):
    url, row, subs = at
    name = NAMES.get(kind, f"writes-{RUN}")
    where = f"{url}/namespaces/{NAMESPACE}/{row['name']}" if row["namespaced"] else f"{url}/{row['name']}"
    seed = {"apiVersion": version, "kind": kind, "metadata": {"name": name},
        **copy.deepcopy(SEEDS.get(kind, {k: v for k, v in filled.items()
            if k not in ("apiVersion", "kind", "metadata", "status")}))}
    seed = mended(peer, where, seed)
    if seed is None:
        return report.compare(f"{version} {kind} cannot be mended", (0, {}), (1, {}))
    label = f"{version} {kind} "
    # What a creator says of the server's fields.
    created = {**seed, "metadata": {**METADATA,
        **{k: v for k, v in filled["metadata"].items()
            if k in ("uid", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields")},
                "name": name}}
    if "status" in filled:
        created["status"] = filled["status"]
    path = f"{where}?dryRun=All&fieldManager=m"
    report.compare(label + "create", peer.ask("POST", path, created), here.ask("POST", path, created))
    filled_create = mended(peer, where, {**{k: v for k, v in filled.items() if k not in ("metadata", "status")},
        "metadata": {"name": name}})
    if filled_create is not None:
        report.compare(label + "create filled", peer.ask("POST", path, filled_create),
            here.ask("POST", path, filled_create))
    stored = []
    for server in (peer, here):
        server.ask("DELETE", f"{where}/{name}?gracePeriodSeconds=0")
        status, answer = server.ask("POST", f"{where}?fieldManager=base", seed)
        if status != 201:
            return report.compare(label + "base", (201, {}), (status, answer))
        stored.append(server.ask("GET", f"{where}/{name}")[1])
    report.compare(label + "stored", (200, stored[0]), (200, stored[1]))
    both = [list(roads(name, filled, base, subs)) for base in stored]
    for (what, method, tail, media, theirs), (_, _, _, _, ours) in zip(*both):
        query = "?dryRun=All&fieldManager=m" + ("&force=true" if "apply" in media else "")
        # An unchanged status of the filled object may be refused by both: then the refusals are compared.
        report.compare(label + what, peer.ask(method, f"{where}/{name}{tail}{query}", theirs, media),
            here.ask(method, f"{where}/{name}{tail}{query}", ours, media))
    for server in (peer, here):
        server.ask("DELETE", f"{where}/{name}?gracePeriodSeconds=0")


def main():
    peer, here = Server(sys.argv[1], sys.argv[2]), Server(sys.argv[3], sys.argv[4])
    listed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writes-kept.txt")
    kept = [line.strip() for line in open(listed) if line.strip()
        and not line.startswith("#")] if os.path.exists(listed) else []
    report = Report(kept)
    for server in (peer, here):
        server.ask("POST", "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        server.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    theirs, ours = resources(peer), resources(here)
    for path in sorted(glob.glob(f"{DATA}/roundtrip/*.json")):
        filled = json.load(open(path))
        key = (filled.get("apiVersion"), filled.get("kind"))
        if sys.argv[5:] and filled.get("kind") not in sys.argv[5:]:
            continue
        if key in theirs and key in ours:
            one_kind(peer, here, report, *key, theirs[key], filled)
    print(f"writes: {report.good} agree, {report.known} kept differences, {report.new} others")
    sys.exit(1 if report.new else 0)


main()
