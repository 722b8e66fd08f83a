"""What is asked: objects of a cluster with their names, and a Corefile for each plugin."""

OBJECTS = """
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.43.77.10
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: None
  ports: [{name: sql, port: 5432}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: sql, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.42.9.1], hostname: db-0, conditions: {ready: true}}
- {addresses: [10.42.9.2], conditions: {ready: true}}
- {addresses: [10.42.9.3], conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv6
ports: [{name: sql, port: 5432, protocol: TCP}]
endpoints:
- {addresses: ["fd00::9:1"], hostname: db-0, conditions: {ready: true}}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec:
  clusterIP: None
  ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: inside, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: host, namespace: shop}
spec: {type: ExternalName, externalName: node-one}
"""


def cluster_questions():
    svc = "svc.cluster.local."
    names = [
        "web.shop." + svc, "WEB.Shop." + svc, "db.shop." + svc, "db-0.db.shop." + svc, "10-42-9-2.db.shop." + svc,
        "empty.shop." + svc, "none.shop." + svc, "web.nowhere." + svc, "shop." + svc, svc, "cluster.local.",
        "kubernetes.default." + svc, "inside.shop." + svc, "host.shop." + svc, "_http._tcp.web.shop." + svc,
        "_dns._udp.web.shop." + svc, "_none._tcp.web.shop." + svc, "_sql._tcp.db.shop." + svc, "_tcp.web.shop." + svc,
        "*.shop." + svc, "web.*." + svc, "a.web.shop." + svc, "10-1-2-3.shop.pod.cluster.local.",
        "10-1-2-3.nowhere.pod.cluster.local.", "x.shop.pod.cluster.local.", "pod.cluster.local.",
        "shop.pod.cluster.local.", "fd00--1.shop.pod.cluster.local.", "dns-version.cluster.local.", "node-one.",
        "x.cluster.local.", "10-42-9-3.db.shop." + svc,
        # What a search path makes of names.
        "web.shop.shop." + svc, "web.shop.svc.cluster.local.svc.cluster.local.", "example.org.shop." + svc,
    ]
    questions = [(name, kind) for name in names for kind in ("A", "AAAA", "SRV", "TXT", "PTR", "CNAME", "NS", "SOA")]
    reverse = ["10.77.43.10", "1.9.42.10", "2.9.42.10", "3.9.42.10", "44.2.0.192", "1.2.3.99"]
    return questions + [(name + ".in-addr.arpa.", kind) for name in reverse for kind in ("PTR", "A")]


FILES = {
    "db.example.org": """$ORIGIN example.org.
$TTL 300
@ IN SOA ns host 7 3600 600 86400 60
@ NS ns
@ MX 10 mail
ns A 192.0.2.1
mail AAAA 2001:db8::25
www CNAME web
web A 192.0.2.2
web A 192.0.2.3
*.wild TXT "any one"
here.wild A 192.0.2.4
a.deep.wild A 192.0.2.5
*.alias CNAME web
sub NS ns.sub
ns.sub A 192.0.2.6
far CNAME target.outside.test.
gone CNAME none.example.org.
_s._tcp SRV 1 2 80 web
chain1 CNAME chain2
chain2 CNAME chain3
chain3 CNAME web
""",
    "db.outside": """$TTL 300
@ IN SOA ns host 3 3600 600 86400 60
@ NS ns
ns A 198.51.100.1
target A 198.51.100.2
target AAAA 2001:db8::2
alias CNAME target
short 7 A 198.51.100.3
txt TXT "hello"
srv SRV 0 0 443 target
ptr PTR target
""",
    "hosts": "192.0.2.50 one.test one-alias.test\n2001:db8::50 one.test\n192.0.2.51 two.test\n",
}

OUTSIDE = """outside.test:PORT {
  file db.outside
}
inner.test:PORT {
  template ANY ANY {
    rcode NXDOMAIN
    authority "inner.test. 60 IN SOA ns.inner.test. hm.inner.test. (1 60 60 60 60)"
  }
}
.:PORT {
  whoami
}
"""


def each(names, kinds=("A", "AAAA", "TXT")):
    return [(name, kind) for name in names for kind in kinds]


ZONE_NAMES = ["example.org.", "ns.example.org.", "WWW.example.org.", "web.example.org.", "none.example.org.",
              "x.wild.example.org.", "here.wild.example.org.", "deep.wild.example.org.", "b.deep.wild.example.org.",
              "wild.example.org.", "q.alias.example.org.", "sub.example.org.", "h.sub.example.org.",
              "ns.sub.example.org.", "_s._tcp.example.org.", "_tcp.example.org.", "chain1.example.org.", "other.test."]

PLUGINS = {
    "file": (".:PORT {\n file db.example.org example.org\n whoami\n}\n",
             each(ZONE_NAMES, ("A", "AAAA", "TXT", "MX", "NS", "SOA", "CNAME", "SRV"))),
    "file fallthrough": (".:PORT {\n file db.example.org example.org {\n  fallthrough\n }\n"
                         " forward . OUTSIDE\n}\n",
                         each(["none.example.org.", "far.example.org.", "gone.example.org.", "web.example.org.",
                               "target.outside.test."])),
    "hosts": (".:PORT {\n hosts hosts {\n  192.0.2.60 inline.test\n  ttl 30\n  fallthrough\n }\n whoami\n}\n",
              each(["one.test.", "ONE-alias.test.", "two.test.", "inline.test.", "none.test.",
                    "50.2.0.192.in-addr.arpa."], ("A", "AAAA", "PTR", "MX"))),
    "hosts without fallthrough": ("test:PORT {\n hosts hosts test {\n  no_reverse\n }\n}\n",
                                  each(["one.test.", "none.test."])),
    "template": (r""".:PORT {
  template IN A ip.test {
    match "^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)-(?P<c>[0-9]+)-(?P<d>[0-9]+)\.ip\.test\.$"
    answer "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
    fallthrough
  }
  template IN A hex.test {
    match "^x(?P<b>[a-f0-9]{2})\.hex\.test\.$"
    answer "{{ .Name }} 60 IN A 10.0.0.{{ parseInt .Group.b 16 8 }}"
  }
  template IN ANY alias.test {
    answer "{{ .Name }} 60 {{ .Class }} CNAME ip-1-2-3-4.ip.test."
  }
  template ANY ANY invalid.test {
    rcode NXDOMAIN
    authority "invalid.test. 60 {{ .Class }} SOA ns.invalid.test. hm.invalid.test. (1 60 60 60 60)"
  }
  template IN MX mx.test {
    answer "{{ .Name }} 60 IN MX 10 mail.{{ .Zone }}"
    additional "mail.{{ .Zone }} 60 IN A 192.0.2.9"
    authority "{{ .Zone }} 60 IN NS ns.{{ .Zone }}"
  }
  whoami
}
""", each(["ip-1-2-3-4.ip.test.", "IP-10-20-30-40.ip.test.", "ip-1-2-3-999.ip.test.", "no.ip.test.", "xff.hex.test.",
           "xfff.hex.test.", "a.alias.test.", "b.invalid.test.", "c.mx.test.", "other.test."], ("A", "AAAA", "MX"))),
    "rewrite": (r""".:PORT {
  rewrite name old.test target.outside.test
  rewrite name suffix .sfx.test. .outside.test. answer auto
  rewrite name suffix .plain.test. .outside.test.
  rewrite name prefix pre- tar answer auto
  rewrite name substring middle outside answer auto
  rewrite stop {
    name regex (.*)\.re\.test\.$ {1}.outside.test.
    answer name (.*)\.outside\.test\.$ {1}.re.test.
    answer value (.*)\.outside\.test\.$ {1}.re.test.
  }
  rewrite continue ttl suffix outside.test 20-40
  rewrite continue rcode exact none.outside.test NXDOMAIN NOERROR
  rewrite type MX TXT
  forward . OUTSIDE
}
""", each(["old.test.", "OLD.test.", "target.sfx.test.", "alias.sfx.test.", "target.plain.test.",
           "pre-get.outside.test.", "target.middle.test.", "target.re.test.", "alias.re.test.", "srv.re.test.",
           "ptr.re.test.", "target.outside.test.", "short.outside.test.", "none.outside.test.", "none.re.test.",
           "txt.outside.test."], ("A", "AAAA", "TXT", "SRV", "PTR", "CNAME", "MX"))),
    "rewrite chain": (r""".:PORT {
  rewrite continue name one.test two.test
  rewrite name two.test target.outside.test
  rewrite name bad.test aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.test
  forward . OUTSIDE
}
""", each(["one.test.", "two.test."])),
    "forward and cache": (".:PORT {\n cache 30\n forward . OUTSIDE\n}\n",
                          each(["target.outside.test.", "target.outside.test.", "none.outside.test.",
                                "none.outside.test.", "short.outside.test.", "alias.outside.test."])),
    "forward except": (".:PORT {\n forward outside.test OUTSIDE {\n  except alias.outside.test\n }\n}\n",
                       each(["target.outside.test.", "alias.outside.test.", "other.test."], ("A",))),
    "forward next": (".:PORT {\n forward . OUTSIDE {\n  next NXDOMAIN\n }\n forward . OUTSIDE\n}\n",
                     each(["target.outside.test.", "none.outside.test."], ("A",))),
    "acl": (".:PORT {\n acl blocked.test {\n  block\n }\n acl filtered.test {\n  filter type A net 127.0.0.0/8\n }\n"
            " acl allowed.test {\n  allow net 127.0.0.1\n  block\n }\n"
            " template ANY ANY {\n  answer \"{{ .Name }} 60 IN TXT x\"\n }\n}\n",
            each(["a.blocked.test.", "a.filtered.test.", "a.allowed.test.", "other.test."], ("A", "TXT"))),
    "header": (".:PORT {\n header {\n  response clear aa\n }\n file db.example.org example.org\n}\n",
               each(["web.example.org.", "none.example.org."])),
    "minimal": (".:PORT {\n minimal\n file db.example.org example.org\n}\n",
                each(ZONE_NAMES[:-1], ("A", "MX", "NS", "SRV", "SOA"))),
    "any": (".:PORT {\n any\n file db.example.org example.org\n whoami\n}\n",
            each(["web.example.org.", "x."], ("ANY", "A"))),
    "local": (".:PORT {\n local\n forward . OUTSIDE\n}\n",
              each(["localhost.", "a.localhost.", "localhost.outside.test.", "1.0.0.127.in-addr.arpa.",
                    "2.0.0.127.in-addr.arpa.", "127.in-addr.arpa.", "0.in-addr.arpa.", "x.255.in-addr.arpa.",
                    "target.outside.test."], ("A", "AAAA", "PTR", "SOA", "NS"))),
    "autopath": (".:PORT {\n autopath search.conf\n forward . OUTSIDE\n}\n",
                 each(["target.inner.test.", "target.outside.test.inner.test.", "none.inner.test."],
                      ("A", "AAAA"))),
    "server blocks": ("outside.test:PORT {\n forward . OUTSIDE\n}\nexample.org:PORT {\n file db.example.org\n}\n",
                      each(["target.outside.test.", "web.example.org.", "none.test."], ("A",))),
    "snippets": ("(answers) {\n file db.example.org example.org\n minimal\n}\n.:PORT {\n import answers\n}\n",
                 each(["web.example.org.", "other.test."], ("A",))),
    "reverse zones": ("10.0.0.0/8:PORT {\n template IN PTR {\n  answer \"{{ .Name }} 60 IN PTR a.test.\"\n }\n}\n",
                      each(["1.2.3.10.in-addr.arpa.", "1.2.3.11.in-addr.arpa."], ("PTR", "A"))),
}
FILES["search.conf"] = "search inner.test outside.test\n"

# Where Kedge answers otherwise, and why that stays.
KNOWN = [
    (r"the cluster: (.*\.)?(svc|shop\.svc|pod|shop\.pod)?\.?cluster\.local\. TXT",
     "a name that exists is denied by CoreDNS for TXT: RFC 8020 lets caches forget all names below it"),
    (r"the cluster: .*\.cluster\.local\. SOA",
     "CoreDNS says that a missing name exists if its SOA record is asked for"),
    (r"the cluster: cluster\.local\. NS",
     "CoreDNS names the Service whose endpoint it is; ours is ns.dns.ZONE anywhere"),
    (r"the cluster: (inside|host)\.shop\.svc\.cluster\.local\. (AAAA|SRV|TXT|PTR|NS)",
     "an alias is one for every type (RFC 1034, 3.6.2)"),
    (r"the cluster: _tcp\.web\.shop\.svc\.cluster\.local\. .*", "a name with names below it exists (RFC 8020)"),
    (r"the cluster: (10-1-2-3|fd00--1)\.shop\.pod\.cluster\.local\. SRV", "a pod has no port 0"),
    (r"the cluster: dns-version\.cluster\.local\. .*", "a name with a TXT record exists"),
    (r"the cluster: .*\.in-addr\.arpa\. A", "CoreDNS fails (SERVFAIL) instead of saying that there is no address"),
    (r"rewrite: pre-get\.outside\.test\. .*", "CoreDNS takes a prefix as whole labels, against its manual"),
    (r"file: deep\.wild\.example\.org\. TXT", "no wildcard is for a name that exists (RFC 4592, 2.2.2)"),
]
