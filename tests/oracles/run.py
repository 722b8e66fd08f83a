#!/usr/bin/env python3
"""Upstream's published data held against a running server: discovery, OpenAPI, RBAC, pod security, every kind's filled
object in every encoding, Tables and metadata-only forms. Prints one line per difference and a summary; ends with 1 if
there is a difference that docs/oracles.md does not list.

    tests/oracles/run.py KUBECONFIG [PART…]      KEDGE_UPSTREAM_DATA says where the data is
"""
import base64, glob, http.client, json, os, re, ssl, sys, tempfile, urllib.parse

import yaml

DATA = os.environ.get("KEDGE_UPSTREAM_DATA", "../shared/upstream-v1.36")
PROTOBUF = "application/vnd.kubernetes.protobuf"


class Server:
    def __init__(self, path):
        config = yaml.safe_load(open(path))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.where = urllib.parse.urlparse(cluster["server"])
        self.tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile("wb", suffix=".pem") as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]) + b"\n"
                + base64.b64decode(user["client-key-data"]))
            pem.flush()
            self.tls.load_cert_chain(pem.name)
        self.kept = None

    def ask(self, method, path, body=None, headers=None, lines=0):
        headers = dict(headers or {})
        headers.setdefault("Accept", "application/json")
        for attempt in range(2):
            if self.kept is None:
                self.kept = http.client.HTTPSConnection(self.where.hostname, self.where.port, context=self.tls,
                    timeout=60)
            try:
                self.kept.request(method, path, body=body, headers=headers)
                answer = self.kept.getresponse()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError):
                self.kept = None
                if attempt:
                    raise
        if lines:
            got = answer.read1(1 << 20)
            self.kept.close()
            self.kept = None
            return answer.status, answer.headers, got
        return answer.status, answer.headers, answer.read()

    def json(self, path, **more):
        status, _, body = self.ask("GET", path, **more)
        assert status == 200, (path, status, body[:200])
        return json.loads(body)


class Report:
    def __init__(self, kept):
        self.kept, self.new, self.known, self.good = kept, 0, 0, 0

    def same(self, what):
        self.good += 1

    def differ(self, what, why=""):
        line = f"{what}: {why}"
        if any(re.search(k, line) for k in self.kept):
            self.known += 1
            return
        self.new += 1
        print("DIFF", line[:400])

    def check(self, what, ours, theirs):
        if ours == theirs:
            return self.same(what)
        for why in differences(ours, theirs):
            self.differ(what, why)


def differences(a, b, path=""):
    """Every place where two documents differ: one that is known must hide none that is not."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            if key not in a:
                yield f"{path}.{key}: upstream has it ({short(b[key])})"
            elif key not in b:
                yield f"{path}.{key}: only here ({short(a[key])})"
            else:
                yield from differences(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        for at, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, f"{path}[{at}]")
        if len(a) != len(b):
            yield f"{path}: {len(a)} here, {len(b)} upstream"
    elif a != b:
        yield f"{path}: {short(a)} here, {short(b)} upstream"


def short(v):
    return repr(v)[:120]


def discovery(server, report):
    for path in sorted(glob.glob(f"{DATA}/discovery/*.json")):
        name = os.path.basename(path)[:-5]
        theirs = json.load(open(path))
        if name == "aggregated_v2":
            accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            ours = {"api": server.json("/api", headers={"Accept": accept}),
                "apis": server.json("/apis", headers={"Accept": accept})}
            groups = {g["metadata"].get("name", ""): g for part in ours.values() for g in part["items"]}
            wanted = theirs["items"] if "items" in theirs else [g for part in theirs.values() for g in part["items"]]
            for group in wanted:
                key = group["metadata"].get("name", "")
                mine = groups.get(key, {})
                for g in (mine, group):
                    g.get("metadata", {}).pop("creationTimestamp", None)
                report.check(f"discovery aggregated {key or 'core'}", mine, group)
            continue
        url = "/" + name.replace("__", "/")
        ours = server.json(url)
        if name == "api":
            ours.pop("serverAddressByClientCIDRs", None), theirs.pop("serverAddressByClientCIDRs", None)
        if "resources" in theirs:
            key = lambda r: r["name"]
            mine, yours = {key(r): r for r in ours["resources"]}, {key(r): r for r in theirs["resources"]}
            for name in sorted(set(mine) | set(yours)):
                report.check(f"discovery {url} {name}", mine.get(name), yours.get(name))
        else:
            report.check(f"discovery {url}", ours, theirs)


def strip(schema):
    """Without descriptions: those are the dependency's, not the published data's."""
    if isinstance(schema, dict):
        out = {k: strip(v) for k, v in schema.items() if not (k == "description" and isinstance(v, str))}
        # The order of names is nobody's business.
        if isinstance(out.get("required"), list):
            out["required"].sort()
        for key, name in SETS.items():
            if isinstance(out.get(key), list):
                out[key] = {name(item): item for item in out[key]}
        return out
    if isinstance(schema, list):
        return [strip(v) for v in schema]
    return schema


# Lists whose order means nothing: what names an item.
SETS = {
    "parameters": lambda p: f"{p.get('in')} {p.get('name')}", "consumes": str, "produces": str,
    "x-kubernetes-group-version-kind": lambda k: f"{k['group']}/{k['version']} {k['kind']}",
}
METHODS = ("get", "put", "post", "patch", "delete", "head", "options")


def operations(path):
    """A path's operations, each with the parameters that the path has for all."""
    path = strip(path)
    if not isinstance(path, dict):
        return path
    common = path.pop("parameters", {})
    return {name: {**operation, "parameters": {**common, **operation.get("parameters", {})}} if name in METHODS
        else operation for name, operation in path.items()}


def openapi(server, report):
    theirs = json.load(open(f"{DATA}/openapi/swagger.json"))
    ours = server.json("/openapi/v2")
    shared = {f"#/parameters/{name}": value for name, value in theirs.get("parameters", {}).items()}

    def spelt_out(value):
        """Upstream shares parameters by reference; written out they are the same."""
        if isinstance(value, dict):
            return spelt_out(shared[value["$ref"]]) if isinstance(value.get("$ref"),
                str) and value["$ref"] in shared else {k: spelt_out(v) for k, v in value.items()}
        return [spelt_out(v) for v in value] if isinstance(value, list) else value

    theirs = spelt_out(theirs)
    for part in ("definitions", "paths"):
        for name in sorted(set(ours[part]) | set(theirs[part])):
            plain = operations if part == "paths" else strip
            report.check(f"openapi v2 {part} {name}", plain(ours[part].get(name)), plain(theirs[part].get(name)))
    status, headers, body = server.ask("GET", "/openapi/v2",
        headers={"Accept": "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"})
    report.check("openapi v2 protobuf status", status, 200)
    report.check("openapi v2 protobuf is no JSON", body[:1] != b"{", True)
    index = server.json("/openapi/v3")["paths"]
    for path in sorted(glob.glob(f"{DATA}/openapi/v3/*.json")):
        name = os.path.basename(path)[:-5]
        name = name.removesuffix("_openapi").replace("__", "/")
        if name not in index:
            report.differ(f"openapi v3 {name}", "not in the index")
            continue
        url = index[name]["serverRelativeURL"]
        status, headers, body = server.ask("GET", url)
        doc, want = json.loads(body), json.load(open(path))
        for part in ("schemas",):
            mine, yours = doc["components"].get(part, {}), want["components"].get(part, {})
            for key in sorted(set(mine) | set(yours)):
                report.check(f"openapi v3 {name} {key}", strip(mine.get(key)), strip(yours.get(key)))
        for key in sorted(set(doc["paths"]) | set(want["paths"])):
            report.check(f"openapi v3 {name} {key}", operations(doc["paths"].get(key)),
                operations(want["paths"].get(key)))
        etag = headers.get("ETag")
        again, _, nothing = server.ask("GET", url, headers={"If-None-Match": etag or ""})
        report.check(f"openapi v3 {name} 304", (again, nothing), (304, b""))
        report.check(f"openapi v3 {name} hash", f'hash={(etag or "").strip(chr(34))}' in url, True)
        report.check(f"openapi v3 {name} cache", "immutable" in (headers.get("Cache-Control") or ""), True)


def rbac(server, report):
    for path in sorted(p for p in glob.glob(f"{DATA}/rbac/*.yaml") if "featuregates" not in p):
        for doc in yaml.safe_load_all(open(path)):
            for item in (doc or {}).get("items", []):
                plural = item["kind"].lower() + "s"
                ns = item["metadata"].get("namespace")
                url = "/apis/rbac.authorization.k8s.io/v1/" + (f"namespaces/{ns}/" if ns else "") + plural
                name = item["metadata"]["name"]
                status, _, body = server.ask("GET", f"{url}/{urllib.parse.quote(name)}")
                if status != 200:
                    report.differ(f"rbac {item['kind']} {name}", f"{status}")
                    continue
                ours = json.loads(body)
                for field in ("rules", "aggregationRule", "roleRef", "subjects"):
                    # An aggregated role's rules are made from others.
                    if field == "rules" and "aggregationRule" in item:
                        continue
                    report.check(f"rbac {item['kind']} {name} {field}", ours.get(field) or None, item.get(field)
                        or None)
                for field in ("labels", "annotations"):
                    report.check(f"rbac {item['kind']} {name} {field}", ours["metadata"].get(field),
                        item["metadata"].get(field))


def pod_security(server, report):
    for level in ("baseline", "restricted"):
        ns = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": f"oracle-{level}", "labels": {
            "pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/enforce-version": "v1.35"}}}
        server.ask("POST", "/api/v1/namespaces", json.dumps(ns), {"Content-Type": "application/json"})
        sa = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}}
        server.ask("POST", f"/api/v1/namespaces/oracle-{level}/serviceaccounts", json.dumps(sa),
            {"Content-Type": "application/json"})
        for path in sorted(glob.glob(f"{DATA}/pod-security/{level}-*/*/*.yaml")):
            verdict = os.path.basename(os.path.dirname(path))
            pod = yaml.safe_load(open(path))
            pod["metadata"].pop("namespace", None)
            pod["metadata"]["name"] = pod["metadata"]["name"].replace("_", "-")
            status, _, body = server.ask("POST", f"/api/v1/namespaces/oracle-{level}/pods?dryRun=All", json.dumps(pod),
                {"Content-Type": "application/json"})
            said = json.loads(body).get("message", "")
            wanted = 201 if verdict == "pass" else 403
            if status == wanted and (wanted == 201 or "violates PodSecurity" in said):
                report.same(path)
            else:
                report.differ(f"pod-security {level} {verdict} {os.path.basename(path)}", f"{status} {said}")


def resources(server):
    """(apiVersion, kind) to (url, namespaced)."""
    out = {}
    groups = ["/api/v1"] + [f"/apis/{v['groupVersion']}" for g in server.json("/apis")["groups"] for v in g["versions"]]
    for url in groups:
        doc = server.json(url)
        for r in doc["resources"]:
            if "/" not in r["name"] and "create" in r["verbs"]:
                out[(doc["groupVersion"], r["kind"])] = (url, r["name"], r["namespaced"], r["verbs"])
    return out


def roundtrip(server, report):
    """Each kind's object is sent in one encoding to a dry-run create with validation out of the way where it can be,
    and read in another.

    A filled object is seldom valid, so most creates are refused; then the refusals must be equal in every encoding:
    they show what was read."""
    known = resources(server)
    for path in sorted(glob.glob(f"{DATA}/roundtrip/*.json")):
        base = path[:-5]
        theirs = json.load(open(path))
        at = known.get((theirs.get("apiVersion"), theirs.get("kind")))
        if at is None:
            continue
        url, plural, namespaced, _ = at
        ns = "namespaces/default/" if namespaced else ""
        for field in ("resourceVersion", "namespace", "uid", "deletionTimestamp"):
            theirs["metadata"].pop(field, None)
        bodies = {
            "application/json": json.dumps(json.load(open(path))).encode(),
            "application/yaml": open(base + ".yaml", "rb").read(),
            PROTOBUF: open(base + ".pb", "rb").read(),
        }
        said = {}
        for kind, body in bodies.items():
            status, _, answer = server.ask("POST", f"{url}/{ns}{plural}?dryRun=All", body, {"Content-Type": kind})
            said[kind] = (status, json.loads(answer).get("message"))
        report.check(f"roundtrip {theirs['apiVersion']} {theirs['kind']} protobuf", said[PROTOBUF],
            said["application/json"])
        report.check(f"roundtrip {theirs['apiVersion']} {theirs['kind']} yaml", said["application/yaml"],
            said["application/json"])


def shapes(server, report):
    """Tables and metadata-only forms of every resource that can be listed, in JSON and protobuf, and of watches."""
    for (version, kind), (url, plural, namespaced, verbs) in sorted(resources(server).items()):
        if "list" not in verbs:
            continue
        for what, accept in (("Table", "application/json;as=Table;v=v1;g=meta.k8s.io"),
                             ("PartialObjectMetadataList",
                                 "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")):
            status, headers, body = server.ask("GET", f"{url}/{plural}", headers={"Accept": accept})
            doc = json.loads(body)
            report.check(f"shape {version} {plural} {what}", (status, doc.get("kind"), doc.get("apiVersion")),
                (200, what, "meta.k8s.io/v1"))
            status, headers, body = server.ask("GET", f"{url}/{plural}",
                headers={"Accept": accept.replace("application/json", PROTOBUF)})
            # A Table has no protobuf form; upstream says so.
            wanted = (406, "application/json", b'{"ap') if what == "Table" else (200, PROTOBUF, b"k8s\0")
            report.check(f"shape {version} {plural} {what} protobuf", (status, headers.get("Content-Type"), body[:4]),
                wanted)
        status, headers, body = server.ask("GET", f"{url}/{plural}", headers={"Accept": PROTOBUF})
        report.check(f"shape {version} {plural} list protobuf", (status, headers.get("Content-Type"), body[:4]),
            (200, PROTOBUF, b"k8s\0"))


PARTS = {"discovery": discovery, "openapi": openapi, "rbac": rbac, "pod-security": pod_security, "roundtrip": roundtrip,
    "shapes": shapes}


def main():
    server = Server(sys.argv[1])
    listed = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kept.txt")
    kept = [line.strip() for line in open(listed) if line.strip()
        and not line.startswith("#")] if os.path.exists(listed) else []
    bad = 0
    for name in sys.argv[2:] or PARTS:
        report = Report(kept)
        PARTS[name](server, report)
        print(f"{name}: {report.good} agree, {report.known} kept differences, {report.new} others")
        bad += report.new
    sys.exit(1 if bad else 0)


main()
