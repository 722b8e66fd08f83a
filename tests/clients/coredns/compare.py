"""compare.py COREDNS KEDGE MANIFEST SCRATCH: genuine CoreDNS and Kedge's DNS, question by question.

Records are compared as sets, with their times to live up to two seconds; the order of addresses is chance. So is the
case of letters: ours is always the asker's, CoreDNS's file and hosts make theirs small. KUBECONFIG
names a server for the Corefile of the cluster; without it only the Corefiles of one plugin are tried."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import cases
import wire

coredns, kedge, manifest, scratch = sys.argv[1:5]
KUBECTL = os.environ.get("KUBECTL", "kubectl")
LIMIT = 30
differences = []
known = {}
n_questions = 0


def free_port():
    """A port that is free for UDP and TCP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(("127.0.0.1", tcp.getsockname()[1]))
            except OSError:
                continue
            return tcp.getsockname()[1]


class Dns:
    """One running server."""

    def __init__(self, kind, corefile, mounts="true"):
        self.port, self.kind = free_port(), kind
        # Ours is a role of the one binary, by its name.
        program = {"genuine": coredns, "ours": os.path.join(scratch, "coredns-role")}[kind]
        if kind == "ours" and not os.path.lexists(program):
            os.mkdir(program)
            os.symlink(kedge, os.path.join(program, "coredns"))
        program = os.path.join(program, "coredns") if kind == "ours" else program
        text = corefile.replace("PORT", str(self.port))
        self.pages = {}
        for page in re.findall(r"PAGE_\w+", text):
            self.pages.setdefault(page, free_port())
            text = text.replace(page, "127.0.0.1:%d" % self.pages[page])
        path = os.path.join(scratch, "Corefile.%s.%d" % (kind, self.port))
        with open(path, "w") as file:
            file.write(text)
        self.log = open(path + ".log", "w+")
        shell = "%s && exec %s -conf %s" % (mounts, program, path)
        self.process = subprocess.Popen(
            ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", shell],
            cwd=scratch, stdout=self.log, stderr=subprocess.STDOUT)

    def wait(self, ready):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if ready(self):
                return
            time.sleep(0.02)
        self.log.seek(0)
        sys.exit("%s does not get ready:\n%s" % (self.kind, self.log.read()[-3000:]))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answers(dns):
    return wire.ask(dns.port, "is.anybody.there.invalid.", "A", limit=0.2) is not None


def is_ready(dns):
    try:
        with urllib.request.urlopen("http://%s/ready" % ("127.0.0.1:%d" % dns.pages["PAGE_READY"]), timeout=1) as page:
            # CoreDNS's page is there before its port.
            return page.status == 200 and answers(dns)
    except OSError:
        return False


def same(theirs, ours):
    if theirs is None or ours is None:
        return theirs is None and ours is None
    if theirs[:2] != ours[:2]:
        return False
    sections = list(zip(theirs[2], ours[2]))
    aliases = [record[1] for record in theirs[2][0]]
    if aliases and set(aliases) == {"CNAME"}:
        # An alias to a name without such records: RFC 2308 wants the SOA record; CoreDNS's file gives the servers.
        del sections[1]
    for one, other in sections:
        pairs = zip(sorted(one, key=repr_key), sorted(other, key=repr_key))
        if len(one) != len(other) or not all(equal(a, b) for a, b in pairs):
            return False
    return True


def repr_key(record):
    return (record[0].lower(), record[1], str(record[3]).lower())


def equal(a, b):
    return repr_key(a) == repr_key(b) and abs(a[2] - b[2]) <= 2


def compare(what, pair, questions):
    global n_questions
    for name, kind in questions:
        theirs, ours = (wire.ask(dns.port, name, kind, edns=True) for dns in pair)
        n_questions += 1
        if same(theirs, ours):
            continue
        asked = "%s: %s %s" % (what, name, kind)
        why = next((why for pattern, why in cases.KNOWN if re.fullmatch(pattern, asked)), None)
        if why:
            known[why] = known.get(why, 0) + 1
        else:
            differences.append("%s: %s %s\n  genuine: %s\n  ours:    %s" % (what, name, kind, theirs, ours))


def run(what, corefile, questions, ready=answers, mounts="true"):
    pair = []
    try:
        for kind in ("genuine", "ours"):
            pair.append(Dns(kind, corefile, mounts))
        for dns in pair:
            dns.wait(ready)
        compare(what, pair, questions)
    finally:
        for dns in pair:
            dns.stop()


def kubectl(*args, text=None):
    return subprocess.run([KUBECTL, *args], input=text, capture_output=True, text=True, check=True).stdout


def cluster():
    """The Corefile of the manifest, unchanged but for its ports, in the place of the pod."""
    kubectl("apply", "-f", "-", text=cases.OBJECTS)
    config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    server = config["clusters"][0]["cluster"]
    host, port = re.match(r"https://(.*):(\d+)", server["server"]).groups()
    account = os.path.join(scratch, "account")
    os.mkdir(account)
    for name, text in (("token", kubectl("-n", "kube-system", "create", "token", "coredns")),
                       ("namespace", "kube-system")):
        with open(os.path.join(account, name), "w") as file:
            file.write(text)
    subprocess.run("echo %s | base64 -d >%s/ca.crt" % (server["certificate-authority-data"], account),
                   shell=True, check=True)
    with open(manifest) as file:
        text = file.read()
    corefile = re.search(r"  Corefile: \|\n(.*?)\n---", text, re.S).group(1)
    corefile = re.sub(r"(?m)^    ", "", corefile).replace("%{CLUSTER_DOMAIN}%", "cluster.local")
    for line, port_of in ((".:53 {", ".:PORT {"), ("health\n", "health PAGE_HEALTH\n"),
                          ("ready\n", "ready PAGE_READY\n"), ("prometheus :9153", "prometheus PAGE_METRICS")):
        assert line in corefile, line
        corefile = corefile.replace(line, port_of, 1)
    etc = os.path.join(scratch, "etc")
    os.mkdir(etc)
    with open(os.path.join(etc, "NodeHosts"), "w") as file:
        file.write("192.0.2.44 node-one\n2001:db8::44 node-one\n")
    with open(os.path.join(scratch, "resolv.conf"), "w") as file:
        file.write("nameserver 127.0.0.9\n")
    corefile = corefile.replace("/etc/coredns/NodeHosts", os.path.join(etc, "NodeHosts"))
    corefile = corefile.replace("/etc/resolv.conf", os.path.join(scratch, "resolv.conf"))
    mounts = ("mount -t tmpfs none /var/run && mkdir -p /var/run/secrets/kubernetes.io && "
              "cp -r %s /var/run/secrets/kubernetes.io/serviceaccount && "
              "export KUBERNETES_SERVICE_HOST=%s KUBERNETES_SERVICE_PORT=%s" % (account, host, port))
    run("the cluster", corefile, cases.cluster_questions(), ready=is_ready, mounts=mounts)


for file, text in cases.FILES.items():
    with open(os.path.join(scratch, file), "w") as out:
        out.write(text)
only = os.environ.get("ONLY")
if os.environ.get("KUBECONFIG") and not only:
    cluster()
# The resolver that the others forward to: genuine, so that nothing is judged by itself.
outside = Dns("genuine", cases.OUTSIDE)
try:
    outside.wait(answers)
    for what, (corefile, questions) in cases.PLUGINS.items():
        if not only or only in what:
            run(what, corefile.replace("OUTSIDE", "127.0.0.1:%d" % outside.port), questions)
finally:
    outside.stop()
for difference in differences:
    print(difference)
for why, n in known.items():
    print("known: %d times %s" % (n, why))
print("%d questions, %d differences" % (n_questions, len(differences)))
sys.exit(1 if differences else 0)
