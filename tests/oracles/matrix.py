#!/usr/bin/env python3
"""Makes src/authz/matrix.tsv anew: asks a genuine kube-apiserver by SubjectAccessReview what every identity of the
table may do with every thing of the table, after the objects of matrix_objects.json were put there, and prints the
table.

    tests/oracles/matrix.py PEER_URL TOKEN > src/authz/matrix.tsv

The peer is started as docs/oracles.md says for rights.py, but with the plugin NodeRestriction off, on an etcd that has
seen nothing else; the token is an administrator's. An identity or a thing is added to the table by a line of its own,
with `-` for its verbs: a thing that the anonymous user has a line for is asked of everybody.
"""
import http.client, json, os, ssl, sys, time, urllib.parse

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/authz")
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
SPECIAL = ["approve", "sign", "attest", "escalate", "bind", "impersonate"]
SPECIAL_OF = ["signers", "users", "roles", "clusterroles", "clustertrustbundles"]
ANONYMOUS = "system:anonymous"


class Peer:
    def __init__(self, url, token):
        at = urllib.parse.urlparse(url)
        # The server is this machine's own, made for this run.
        self.line = http.client.HTTPSConnection(at.hostname, at.port, context=ssl._create_unverified_context(),
            timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json",
            "Accept": "application/json"}

    def ask(self, method, path, body=None):
        self.line.request(method, path, body=None if body is None else json.dumps(body), headers=self.headers)
        answer = self.line.getresponse()
        return answer.status, json.loads(answer.read())


def prepare(peer):
    for obj in json.load(open(f"{HERE}/matrix_objects.json")):
        version = obj["apiVersion"]
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        plural = next(r["name"] for r in peer.ask("GET", root)[1]["resources"] if r["kind"] == obj["kind"]
            and "/" not in r["name"])
        namespace = obj["metadata"].get("namespace")
        code, answer = peer.ask("POST", f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}",
            obj)
        if code not in (201, 409):
            sys.exit(f"{obj['kind']} {obj['metadata']['name']}: {code} {answer.get('message')}")


def allowed(peer, user, groups, thing, verb):
    group, resource, subresource, namespace, name, selector = ("" if part == "-" else part for part in thing)
    about = {"verb": verb, "group": group, "version": "v1", "resource": resource, "subresource": subresource,
        "namespace": namespace, "name": name}
    if selector:
        key, _, value = selector.partition("=")
        about["fieldSelector"] = {"requirements": [{"key": key, "operator": "In", "values": [value]}]}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups.split(","), "resourceAttributes": about}}
    code, answer = peer.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    if code != 201:
        sys.exit(f"{review['spec']}: {code} {answer.get('message')}")
    return answer["status"]["allowed"]


def main():
    peer = Peer(sys.argv[1], sys.argv[2])
    rows = [tuple(line.rstrip("\n").split("\t")) for line in open(f"{HERE}/matrix.tsv")]
    prepare(peer)
    # The node authorizer's graph follows the objects a moment later.
    time.sleep(3)
    everywhere = {row[2:8] for row in rows if row[0] == ANONYMOUS}
    identities = list(dict.fromkeys(row[:2] for row in rows))
    for user, groups in identities:
        own = [row[2:8] for row in rows if row[:2] == (user, groups)]
        for thing in own + sorted(everywhere - set(own)):
            verbs = VERBS + (SPECIAL if thing[1] in SPECIAL_OF else [])
            given = [verb for verb in verbs if allowed(peer, user, groups, thing, verb)]
            if given or thing in own:
                print(user, groups, *thing, ",".join(given) or "-", sep="\t", flush=True)


main()
