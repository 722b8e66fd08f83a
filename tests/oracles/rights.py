#!/usr/bin/env python3
"""The rights of every identity, held against a genuine kube-apiserver by whole requests: every identity sends every
verb at a selection of resources and subresources (creations by patch, apply and update, watches by path and by query,
upgrades by GET, non-resource paths), and whether it is let in, unknown (401) or refused (403) is compared.

    tests/oracles/rights.py PEER_URL URL [IDENTITY…]

Both servers read the token file that `rights.py --tokens` prints; docs/oracles.md says how they are started. Writes are
dry runs, but for the base objects. Prints a line for each difference and a summary; ends with 1 if there is one that
rights-kept.txt does not list.
"""
import http.client, json, os, re, ssl, sys, time, urllib.parse

NS = "rights"
CONTROLLERS = ("deployment-controller", "namespace-controller", "generic-garbage-collector", "endpointslice-controller",
    "resourcequota-controller", "horizontal-pod-autoscaler", "persistent-volume-binder", "node-controller")
# name: user, groups
WHO = {
    "admin": ("admin", ["system:masters"]),
    "anonymous": None,
    "wrong token": ("", []),
    "bob": ("bob", []),
    "alice": ("alice", ["admins-of-rights"]),
    "eve": ("eve", ["editors-of-rights"]),
    "viv": ("viv", ["viewers-of-rights"]),
    "creator": ("creator", []),
    "patcher": ("patcher", []),
    "updater": ("updater", []),
    "impersonator": ("impersonator", []),
    "account": (f"system:serviceaccount:{NS}:default", ["system:serviceaccounts", f"system:serviceaccounts:{NS}"]),
    "n1": ("system:node:n1", ["system:nodes"]),
    "n2": ("system:node:n2", ["system:nodes"]),
    "not a node": ("system:node:n1", []),
    "nameless node": ("n1", ["system:nodes"]),
    "kube-proxy": ("system:kube-proxy", []),
    "bootstrap": ("system:bootstrap:abcdef",
        ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"]),
    "monitor": ("monitor", ["system:monitoring"]),
    "scheduler": ("system:kube-scheduler", []),
    "controller-manager": ("system:kube-controller-manager", []),
    **{name: (f"system:serviceaccount:kube-system:{name}",
        ["system:serviceaccounts", "system:serviceaccounts:kube-system"]) for name in CONTROLLERS},
}


def token(name):
    return "token-of-" + name.replace(" ", "-")


class Server:
    def __init__(self, url):
        self.at, self.kept = urllib.parse.urlparse(url), {}

    def ask(self, who, method, path, body=None, headers=None):
        """Code and answer. What streams is not read: its connection is given up."""
        headers = {"Accept": "application/json", **(headers or {})}
        if WHO[who] is not None:
            headers["Authorization"] = f"Bearer {'no-such-token' if who == 'wrong token' else token(who)}"
        streams = "watch" in path or "Upgrade" in headers or "follow" in path
        for attempt in range(3):
            try:
                kept = self.kept.pop(who, None) or http.client.HTTPSConnection(self.at.hostname, self.at.port,
                    context=ssl._create_unverified_context(), timeout=30)
                kept.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
                answer = kept.getresponse()
                if streams and answer.status < 400:
                    kept.close()
                    return answer.status, {}
                text = answer.read()
                self.kept[who] = kept
                try:
                    return answer.status, json.loads(text)
                except ValueError:
                    return answer.status, {"message": text[:200].decode(errors="replace")}
            except (http.client.HTTPException, OSError):
                if attempt == 2:
                    raise


def meta(kind, version, name, namespace=None, **more):
    return {"apiVersion": version, "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})},
        **more}


POD = {"containers": [{"name": "c", "image": "i"}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD}
SELECTOR = {"matchLabels": {"a": "b"}}


def pod(name, node, **spec):
    return meta("Pod", "v1", name, NS, spec={**POD, "nodeName": node, **spec})


def volume(name, **source):
    return {"name": name, **source}


def rule(verbs, resources=("*",), groups=("*",), **more):
    return {"verbs": verbs, "apiGroups": list(groups), "resources": list(resources), **more}


def role(name, *rules):
    return meta("ClusterRole", "rbac.authorization.k8s.io/v1", name, rules=list(rules))


def binding(name, role, kind, subject, namespace=None):
    subject = {"kind": kind, "name": subject, "apiGroup": "rbac.authorization.k8s.io"}
    return meta("RoleBinding" if namespace else "ClusterRoleBinding", "rbac.authorization.k8s.io/v1", name, namespace,
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                subjects=[subject])


# (collection, object): what is there before anybody asks.
BASE = [
    ("/api/v1/namespaces", meta("Namespace", "v1", NS)),
    ("/api/v1/namespaces", meta("Namespace", "v1", "other")),
    (f"/api/v1/namespaces/{NS}/serviceaccounts", meta("ServiceAccount", "v1", "default")),
    (f"/api/v1/namespaces/{NS}/serviceaccounts", meta("ServiceAccount", "v1", "of-n1")),
    *[("/api/v1/nodes", meta("Node", "v1", n)) for n in ("n1", "n2")],
    *[(f"/api/v1/namespaces/{NS}/secrets", meta("Secret", "v1", n, stringData={"a": "b"}))
        for n in ("of-n1", "of-n2", "free")],
    *[(f"/api/v1/namespaces/{NS}/configmaps", meta("ConfigMap", "v1", n, data={"a": "b"}))
        for n in ("of-n1", "of-n2", "free")],
    *[("/api/v1/persistentvolumes", meta("PersistentVolume", "v1", f"pv-{n}",
        spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"}, "claimRef": {"namespace": NS, "name": f"of-{n}"}})) for n in ("n1", "n2")],
    *[(f"/api/v1/namespaces/{NS}/persistentvolumeclaims",
        meta("PersistentVolumeClaim", "v1", f"of-{n}", NS, spec={"accessModes": ["ReadWriteOnce"],
        "volumeName": f"pv-{n}", "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}))
            for n in ("n1", "n2")],
    *[(f"/api/v1/namespaces/{NS}/pods", pod(f"of-{n}", n, serviceAccountName="of-n1" if n == "n1" else "default",
        volumes=[
        volume("s", secret={"secretName": f"of-{n}"}), volume("c", configMap={"name": f"of-{n}"}),
        volume("p", persistentVolumeClaim={"claimName": f"of-{n}"})])) for n in ("n1", "n2")],
    (f"/api/v1/namespaces/{NS}/services", meta("Service", "v1", "s",
        spec={"ports": [{"port": 80}], "selector": {"a": "b"}})),
    (f"/api/v1/namespaces/{NS}/limitranges", meta("LimitRange", "v1", "l", spec={"limits": []})),
    (f"/api/v1/namespaces/{NS}/replicationcontrollers",
        meta("ReplicationController", "v1", "r", spec={"replicas": 0, "selector": {"a": "b"}, "template": TEMPLATE})),
    *[(f"/apis/apps/v1/namespaces/{NS}/{kind.lower()}s",
        meta(kind, "apps/v1", "w", spec={"selector": SELECTOR, "template": TEMPLATE}))
            for kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")],
    (f"/apis/apps/v1/namespaces/{NS}/controllerrevisions",
        meta("ControllerRevision", "apps/v1", "w", revision=1, data={"a": 1})),
    (f"/apis/batch/v1/namespaces/{NS}/jobs",
        meta("Job", "batch/v1", "j", spec={"suspend": True, "template": {"spec": {**POD, "restartPolicy": "Never"}}})),
    (f"/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets",
        meta("PodDisruptionBudget", "policy/v1", "b", spec={"maxUnavailable": 1, "selector": SELECTOR})),
    (f"/apis/discovery.k8s.io/v1/namespaces/{NS}/endpointslices",
        meta("EndpointSlice", "discovery.k8s.io/v1", "e", addressType="IPv4", endpoints=[])),
    (f"/apis/networking.k8s.io/v1/namespaces/{NS}/networkpolicies",
        meta("NetworkPolicy", "networking.k8s.io/v1", "n", spec={"podSelector": {}})),
    (f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers",
        meta("HorizontalPodAutoscaler", "autoscaling/v2", "h",
            spec={"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "w", "apiVersion": "apps/v1"}})),
    *[("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        meta("Lease", "coordination.k8s.io/v1", n, spec={"holderIdentity": n})) for n in ("n1", "n2")],
    ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        meta("Lease", "coordination.k8s.io/v1", "l", spec={"holderIdentity": "x"})),
    *[("/apis/storage.k8s.io/v1/csinodes", meta("CSINode", "storage.k8s.io/v1", n, spec={"drivers": []}))
        for n in ("n1", "n2")],
    ("/apis/storage.k8s.io/v1/storageclasses",
        meta("StorageClass", "storage.k8s.io/v1", "sc", provisioner="p.example.com")),
    ("/apis/storage.k8s.io/v1/volumeattachments",
        meta("VolumeAttachment", "storage.k8s.io/v1", "va-n1",
            spec={"attacher": "a.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv-n1"}})),
    ("/apis/storage.k8s.io/v1/volumeattachments",
        meta("VolumeAttachment", "storage.k8s.io/v1", "va-n2",
            spec={"attacher": "a.example.com", "nodeName": "n2", "source": {"persistentVolumeName": "pv-n2"}})),
    *[("/apis/resource.k8s.io/v1/resourceslices",
        meta("ResourceSlice", "resource.k8s.io/v1", f"rs-{n}",
            spec={"driver": "d.example.com", "nodeName": n,
                "pool": {"name": n, "generation": 1, "resourceSliceCount": 1}})) for n in ("n1", "n2")],
    ("/apis/scheduling.k8s.io/v1/priorityclasses", meta("PriorityClass", "scheduling.k8s.io/v1", "pc", value=7)),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        meta("ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "vw", webhooks=[])),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles", role("reader", rule(["get"], ["secrets"], [""]))),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles", role("may-create", rule(["create"]))),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles", role("may-patch", rule(["patch"]))),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles", role("may-update", rule(["update"]))),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles",
        role("may-be", rule(["impersonate"], ["users"], [""], resourceNames=["alice"]))),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding("create", "may-create", "User", "creator")),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding("patch", "may-patch", "User", "patcher")),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding("update", "may-update", "User", "updater")),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding("be", "may-be", "User", "impersonator")),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        binding("boot", "system:node-bootstrapper", "Group", "system:bootstrappers")),
    (f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}/roles",
        meta("Role", "rbac.authorization.k8s.io/v1", "own", rules=[rule(["get"], ["pods"], [""])])),
    *[(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}/rolebindings",
        binding(role, role, "Group", f"{who}-of-rights", NS)) for role,
            who in (("admin", "admins"), ("edit", "editors"), ("view", "viewers"))],
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        meta("CustomResourceDefinition", "apiextensions.k8s.io/v1", "things.r.example.com",
            spec={"group": "r.example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]})),
]
LATE = [(f"/apis/r.example.com/v1/namespaces/{NS}/things", meta("Thing", "r.example.com/v1", "t"))]
# Collection: whose items are asked for by name.
KNOWN = [
    ("/api/v1/nodes", ["n1", "n2"]), ("/api/v1/namespaces", [NS, "other"]),
    ("/api/v1/persistentvolumes", ["pv-n1", "pv-n2"]),
    (f"/api/v1/namespaces/{NS}/pods", ["of-n1", "of-n2"]),
    (f"/api/v1/namespaces/{NS}/secrets", ["of-n1", "of-n2", "free"]),
    (f"/api/v1/namespaces/{NS}/configmaps", ["of-n1", "of-n2", "free"]),
    (f"/api/v1/namespaces/{NS}/persistentvolumeclaims", ["of-n1", "of-n2"]),
    (f"/api/v1/namespaces/{NS}/serviceaccounts", ["default", "of-n1"]), (f"/api/v1/namespaces/{NS}/services", ["s"]),
    ("/api/v1/namespaces/kube-system/configmaps", ["extension-apiserver-authentication"]),
    (f"/api/v1/namespaces/{NS}/limitranges", ["l"]), (f"/api/v1/namespaces/{NS}/replicationcontrollers", ["r"]),
    (f"/api/v1/namespaces/{NS}/events", []), (f"/api/v1/namespaces/{NS}/endpoints", []),
    *[(f"/apis/apps/v1/namespaces/{NS}/{kind}", ["w"])
        for kind in ("deployments", "daemonsets", "statefulsets", "replicasets", "controllerrevisions")],
    (f"/apis/batch/v1/namespaces/{NS}/jobs", ["j"]), (f"/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets", ["b"]),
    (f"/apis/discovery.k8s.io/v1/namespaces/{NS}/endpointslices", ["e"]),
    (f"/apis/networking.k8s.io/v1/namespaces/{NS}/networkpolicies", ["n"]),
    (f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers", ["h"]),
    ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", ["n1", "n2"]),
    ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", ["l"]),
    ("/apis/storage.k8s.io/v1/csinodes", ["n1", "n2"]), ("/apis/storage.k8s.io/v1/storageclasses", ["sc"]),
    ("/apis/storage.k8s.io/v1/volumeattachments", ["va-n1", "va-n2"]),
    ("/apis/resource.k8s.io/v1/resourceslices", ["rs-n1", "rs-n2"]),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", ["pc"]),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", ["vw"]),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles", ["reader", "cluster-admin"]),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ["create"]),
    (f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}/roles", ["own"]),
    (f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}/rolebindings", ["view"]),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ["things.r.example.com"]),
    (f"/apis/r.example.com/v1/namespaces/{NS}/things", ["t"]),
    ("/apis/certificates.k8s.io/v1/certificatesigningrequests", []),
    ("/apis/apiregistration.k8s.io/v1/apiservices", ["v1.apps"]),
    ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", ["exempt"]),
    ("/apis/node.k8s.io/v1/runtimeclasses", []), ("/apis/networking.k8s.io/v1/servicecidrs", ["kubernetes"]),
    ("/apis/storage.k8s.io/v1/csidrivers", []),
]
STREAM = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
DRY = "dryRun=All&fieldManager=m"


def fresh(obj, name):
    """The object as a client would make another one of it."""
    kept = {k: v for k, v in obj.items() if k != "status"}
    kept["metadata"] = {"name": name, **{k: obj["metadata"][k] for k in ("namespace", "labels")
        if k in obj["metadata"]}}
    return kept


def reads(at, names):
    yield "GET", at, None, {}
    yield "GET", f"{at}?watch=true&resourceVersion=0&timeoutSeconds=1", None, {}
    watched = re.sub(r"^(/api/v1|/apis/[^/]+/[^/]+)/", r"\1/watch/", at)
    yield "GET", f"{watched}?resourceVersion=0&timeoutSeconds=1", None, {}
    if "/namespaces/" in at:
        everywhere = re.sub(r"/namespaces/[^/]+/", "/", at)
        yield "GET", everywhere, None, {}
        yield "GET", f"{everywhere}?watch=1&resourceVersion=0&timeoutSeconds=1", None, {}
        yield "GET", f"{everywhere}?fieldSelector=spec.nodeName%3Dn1", None, {}
    for name in names + ["missing"]:
        yield "GET", f"{at}/{name}", None, {}
        yield "HEAD", f"{at}/{name}", None, {}
        yield "GET", f"{watched}/{name}?resourceVersion=0&timeoutSeconds=1", None, {}
        yield "GET", f"{at}?fieldSelector=metadata.name%3D{name}", None, {}
        query = f"fieldSelector=metadata.name%3D{name}&watch=true&resourceVersion=0&timeoutSeconds=1"
        yield "GET", f"{at}?{query}", None, {}
        yield "GET", f"{at}/{name}", None, STREAM


def writes(at, names, stored):
    like = stored.get(f"{at}/{names[0]}") if names else None
    if like:
        new = fresh(like, "new")
        yield "POST", f"{at}?{DRY}", new, JSON
        yield "PUT", f"{at}/new?{DRY}", new, JSON
        yield "PATCH", f"{at}/new?{DRY}", new, APPLY
        yield "PATCH", f"{at}/new?{DRY}", {"metadata": {"labels": {"x": "y"}}}, MERGE
    for name in names:
        obj = stored.get(f"{at}/{name}")
        if obj:
            yield "PUT", f"{at}/{name}?{DRY}", obj, JSON
            yield "PUT", f"{at}/{name}/status?{DRY}", obj, JSON
            yield "PATCH", f"{at}/{name}?{DRY}&force=true", fresh(obj, name), APPLY
        yield "PATCH", f"{at}/{name}?{DRY}", {"metadata": {"annotations": {"x": "y"}}}, MERGE
        yield "PATCH", f"{at}/{name}/status?{DRY}", {"status": {}}, MERGE
        yield "DELETE", f"{at}/{name}?dryRun=All", None, {}
    yield "DELETE", f"{at}?dryRun=All&labelSelector=no%3Done", None, {}


def special(stored):
    pods, v1 = f"/api/v1/namespaces/{NS}/pods", f"/api/v1/namespaces/{NS}"
    for name in ("of-n1", "of-n2", "missing"):
        one = f"{pods}/{name}"
        yield "GET", f"{one}/log", None, {}
        yield "GET", f"{one}/log?follow=true", None, {}
        for sub in ("exec?command=x&stdout=true", "attach?stdout=true", "portforward?ports=80"):
            yield "GET", f"{one}/{sub}", None, STREAM
            yield "POST", f"{one}/{sub}", None, SPDY
            yield "GET", f"{one}/{sub}", None, {}
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            yield method, f"{one}/proxy/x", None, {}
        yield "GET", f"{one}/proxy", None, STREAM
        yield "POST", f"{one}/eviction?dryRun=All", meta("Eviction", "policy/v1", name, NS,
            deleteOptions={"dryRun": ["All"]}), JSON
        yield "POST", f"{one}/binding?dryRun=All", meta("Binding", "v1", name, NS,
            target={"kind": "Node", "name": "n2"}), JSON
        yield "PATCH", f"{one}/ephemeralcontainers?{DRY}", {"spec": {"ephemeralContainers": [{"name": "e",
            "image": "i"}]}}, {"Content-Type": "application/strategic-merge-patch+json"}
        yield "PATCH", f"{one}/resize?{DRY}", {"spec": {}}, MERGE
    for node in ("n1", "n2"):
        for path in ("", "/", "/healthz", "/metrics", "/stats/summary", "/logs/", "/pods", "/configz", "/exec/x",
            "/containerLogs/a/b/c", "/checkpoint/a/b/c"):
            yield "GET", f"/api/v1/nodes/{node}/proxy{path}", None, {}
        yield "POST", f"/api/v1/nodes/{node}/proxy/run/a/b/c", None, {}
        yield "GET", f"/api/v1/nodes/{node}/proxy/exec/x", None, STREAM
        mirror = pod("mirror", node)
        mirror["metadata"] |= {"annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node,
                "uid": stored.get(f"/api/v1/nodes/{node}", {}).get("metadata", {}).get("uid", "u"),
                "controller": True}]}
        yield "POST", f"{pods}?{DRY}", mirror, JSON
        yield "POST", f"{pods}?{DRY}", {**mirror,
            "spec": {**mirror["spec"], "volumes": [volume("s", secret={"secretName": "free"})]}}, JSON
        yield "POST", f"{pods}?{DRY}", pod("plain", node), JSON
        for label in ("kubernetes.io/hostname", "node-restriction.kubernetes.io/a", "topology.kubernetes.io/zone",
            "own.example.com/a", "node-role.kubernetes.io/x", "kubelet.kubernetes.io/a"):
            yield "PATCH", f"/api/v1/nodes/{node}?{DRY}", {"metadata": {"labels": {label: "v"}}}, MERGE
        yield "PATCH", f"/api/v1/nodes/{node}?{DRY}", {"spec": {"taints": [{"key": "a",
            "effect": "NoSchedule"}]}}, MERGE
        yield "PATCH", f"/api/v1/nodes/{node}/status?{DRY}", {"status": {"capacity": {"cpu": "1"}}}, MERGE
        yield "PATCH", f"/api/v1/nodes/{node}?{DRY}", {"metadata": {"ownerReferences": [{"apiVersion": "v1",
            "kind": "Node", "name": "x", "uid": "u"}]}}, MERGE
        yield "POST", f"/api/v1/nodes?{DRY}", meta("Node", "v1", f"{node}"), JSON
    yield "POST", f"/api/v1/nodes?{DRY}", meta("Node", "v1", "n3"), JSON
    for account in ("default", "of-n1"):
        for bound in (None, "of-n1", "of-n2"):
            uid = stored.get(f"{pods}/{bound}", {}).get("metadata", {}).get("uid", "u")
            spec = {"audiences": [], "expirationSeconds": 600,
                **({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": bound, "uid": uid}} if bound else {})}
            yield "POST", f"{v1}/serviceaccounts/{account}/token?dryRun=All", {"apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest", "spec": spec}, JSON
    for name in ("s", "https:s:80"):
        for method in ("GET", "POST"):
            yield method, f"{v1}/services/{name}/proxy/x", None, {}
    for kind in ("deployments", "statefulsets", "replicasets"):
        yield "GET", f"/apis/apps/v1/namespaces/{NS}/{kind}/w/scale", None, {}
        yield "PATCH", f"/apis/apps/v1/namespaces/{NS}/{kind}/w/scale?{DRY}", {"spec": {"replicas": 2}}, MERGE
    yield "PUT", f"/api/v1/namespaces/other/finalize?dryRun=All", stored.get("/api/v1/namespaces/other"), JSON
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for rules in ([rule(["get"], ["pods"], [""])], [rule(["*"])], [rule(["get"], ["secrets"], [""])],
        [rule(["escalate"], ["roles"], ["rbac.authorization.k8s.io"])]):
        for method, tail, kind in (("POST", "", JSON), ("PATCH", "/new", APPLY), ("PUT", "/new", JSON),
            ("PATCH", "/own", MERGE)):
            obj = meta("Role", "rbac.authorization.k8s.io/v1", "new", rules=rules)
            yield method, f"{rbac}/namespaces/{NS}/roles{tail}?{DRY}", {"rules": rules} if kind is MERGE else obj, kind
        yield "POST", f"{rbac}/clusterroles?{DRY}", role("new", *rules), JSON
    for name in ("view", "edit", "admin", "cluster-admin", "reader", "missing"):
        for method, tail, kind in (("POST", "", JSON), ("PATCH", "/new", APPLY), ("PUT", "/new", JSON)):
            yield method, f"{rbac}/namespaces/{NS}/rolebindings{tail}?{DRY}", {**binding("new", name, "User", "bob",
                NS)}, kind
        yield "POST", f"{rbac}/clusterrolebindings?{DRY}", binding("new", name, "User", "bob"), JSON
    csr = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    for signer in ("kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving", "example.com/x"):
        yield "POST", f"{csr}?{DRY}", meta("CertificateSigningRequest", "certificates.k8s.io/v1", "new",
            spec={"request": CSR, "signerName": signer, "usages": ["client auth"]}), JSON
    for kind, group, spec in (("SelfSubjectAccessReview", "authorization.k8s.io",
        {"resourceAttributes": {"verb": "get", "resource": "pods"}}),
            ("SubjectAccessReview", "authorization.k8s.io",
                {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods"}}),
                              ("SelfSubjectRulesReview", "authorization.k8s.io", {"namespace": NS}),
                              ("TokenReview", "authentication.k8s.io", {"token": "x"}),
                              ("SelfSubjectReview", "authentication.k8s.io", {})):
        yield "POST", f"/apis/{group}/v1/{kind.lower()}s", {"apiVersion": f"{group}/v1", "kind": kind,
            "spec": spec}, JSON
    yield "POST", f"/apis/authorization.k8s.io/v1/namespaces/{NS}/localsubjectaccessreviews", {"apiVersion":
        "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview", "metadata": {"namespace": NS},
        "spec": {"user": "bob", "resourceAttributes": {"namespace": NS, "verb": "get", "resource": "pods"}}}, JSON
    for kind in ({"Impersonate-User": "alice"}, {"Impersonate-User": "bob"},
        {"Impersonate-User": "alice", "Impersonate-Group": "system:masters"}, {"Impersonate-Group": "x"},
                 {"Impersonate-User": "system:serviceaccount:rights:default"},
                 {"Impersonate-User": "alice", "Impersonate-Extra-A": "b"},
                 {"Impersonate-User": "alice", "Impersonate-Uid": "7"}, {"Impersonate-User": "system:node:n1"}):
        yield "GET", f"{pods}/of-n1", None, kind
        yield "GET", f"{v1}/secrets/free", None, kind
        yield "GET", "/version", None, kind
    for path in ("/", "/api", "/api/", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1", "/healthz", "/healthz/ping",
        "/livez", "/readyz", "/readyz/etcd", "/metrics", "/metrics/slis", "/version", "/version/", "/openapi/v2",
        "/openapi/v3", "/openapi/v3/api/v1",
                 "/logs", "/logs/", "/debug/pprof/", "/debug/flags/v", "/configz", "/flagz", "/statusz",
                 "/.well-known/openid-configuration", "/openid/v1/jwks", "/nothing", "/apis/none",
                 "/apis/none/v1/things", "/api/v1/nothing", f"{v1}/nothing",
                 f"{pods}/of-n1/nothing", "/api/v1/componentstatuses", "/swagger-2.0.0.pb-v1", "//api/v1/nodes",
                 "/api/v1//nodes", "/api/v1/nodes/", "/api/v1/nodes/n1/", f"/api/v1/namespaces/{NS}/",
                 f"/api/v1/namespaces//pods", "/api/v1/namespaces/%2e%2e/pods",
                 "/api/v1/proxy/nodes/n1/x", f"/api/v1/watch/namespaces/{NS}",
                 "/api/v1/watch/nodes/n1?resourceVersion=0&timeoutSeconds=1", "/api/v1/pods/of-n1"):
        yield "GET", path, None, {}
    for path in ("/healthz", "/version", "/api", "/apis", "/nothing", "/metrics"):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            yield method, path, None, {}


def certificate_request():
    import base64, subprocess
    made = subprocess.run(["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", "/dev/null", "-subj",
        "/O=system:nodes/CN=system:node:n1"], check=True, capture_output=True)
    return base64.b64encode(made.stdout).decode()


CSR = certificate_request()


def judged(code):
    return {401: "unknown", 403: "refused"}.get(code, "let in")


def prepare(server):
    """Base objects as the server stores them, by path."""
    for list_of in (BASE, LATE):
        for at, obj in list_of:
            code, answer = server.ask("admin", "POST", at, obj, JSON)
            began = time.monotonic()
            while code == 404 and time.monotonic() < began + 30:
                # A new definition is served a moment later.
                time.sleep(0.1)
                code, answer = server.ask("admin", "POST", at, obj, JSON)
            if code not in (201, 409):
                sys.exit(f"{server.at.netloc} {at} {obj['metadata']['name']}: {code} {answer.get('message')}")
    out = {}
    for at, names in KNOWN:
        for name in names:
            code, obj = server.ask("admin", "GET", f"{at}/{name}")
            if code == 200:
                obj["metadata"].pop("managedFields", None)
                out[f"{at}/{name}"] = obj
    return out


def questions(stored):
    for at, names in KNOWN:
        yield from reads(at, names)
        yield from writes(at, names, stored)
    yield from special(stored)


def main():
    if sys.argv[1] == "--tokens":
        for name, who in WHO.items():
            if who and who[0]:
                print(f'{token(name)},{who[0]},,"{",".join(who[1])}"')
        return
    peer, here = Server(sys.argv[1]), Server(sys.argv[2])
    listed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rights-kept.txt")
    kept = [line.strip() for line in open(listed) if line.strip()
        and not line.startswith("#")] if os.path.exists(listed) else []
    stored = [prepare(server) for server in (peer, here)]
    common = set(stored[0]) & set(stored[1])
    both = [list(questions({path: obj for path, obj in of.items() if path in common})) for of in stored]
    good = known = new = other = 0
    for who in sys.argv[3:] or list(WHO):
        for theirs, ours in zip(*both):
            began = time.monotonic()
            (a, x), (b, y) = peer.ask(who, *theirs), here.ask(who, *ours)
            if time.monotonic() - began > 3:
                print(f"slow {time.monotonic() - began:.0f} s: {who} {ours[0]} {ours[1]}", file=sys.stderr)
            method, path, body, headers = ours
            how = headers.get("Content-Type", headers.get("Upgrade", "")) or " ".join(f"{k}={v}" for k,
                v in headers.items())
            said = " | ".join((answer.get("message") or "" if isinstance(answer, dict) else "").replace("\n", " ")
                for answer in (x, y))
            line = f"{who}: {method} {path} {how}: upstream {a} {judged(a)}, here {b} {judged(b)}: {said}"
            if judged(a) == judged(b):
                good += 1
                if a != b:
                    other += 1
                    if os.environ.get("RIGHTS_CODES"):
                        print("CODE", line)
            elif any(re.search(k, line) for k in kept):
                known += 1
            else:
                new += 1
                print("DIFF", line, flush=True)
    print(f"rights: {good} agree ({other} of them with another code), {known} kept differences, {new} others")
    sys.exit(1 if new else 0)


main()
