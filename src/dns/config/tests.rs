//! Corefiles and what becomes of them: options that are understood, and errors that name the line.

use std::path::Path;

use super::*;
use crate::corefile::parse;

/// Understands one server block for all names whose lines are these.
fn block(lines: &str) -> Result<Block, String> {
    blocks(&format!(". {{\n{lines}\n}}\n")).map(|mut blocks| blocks.remove(0))
}

fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let parsed = parse(Path::new("Corefile"), text, &|_| None).map_err(|err| err.to_string())?;
    let read = |path: &str, _: u64| match path {
        "/etc/resolv.conf" => Ok("# machine\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nsearch x\n".to_owned()),
        "/empty" => Ok(String::new()),
        "/zone" => Ok("$TTL 60\n@ SOA ns host 1 2 3 4 5\n@ NS ns\nns A 192.0.2.1\n".to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    understand(&parsed, &Context { file: "Corefile", port: 1053, read: &read }).map_err(|err| err.to_string())
}

fn zones(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::from_ascii(name).unwrap()).collect()
}

#[test]
fn a_key_is_a_zone_with_a_port_or_a_network() {
    for (key, names, port) in [
        (".", &["."][..], 1053),
        (".:53", &["."], 53),
        ("Example.ORG", &["example.org."], 1053),
        ("dns://example.org:5353", &["example.org."], 5353),
        (":54", &["."], 54),
        ("10.0.0.0/24", &["0.0.10.in-addr.arpa."], 1053),
        ("10.42.0.0/16:53", &["42.10.in-addr.arpa."], 53),
        ("0.0.0.0/0", &["in-addr.arpa."], 1053),
        ("fd00:42::/56", &["0.0.0.0.0.0.2.4.0.0.0.0.d.f.ip6.arpa."], 1053),
        // A prefix that ends within a label is all labels that it holds.
        ("172.16.0.0/15", &["16.172.in-addr.arpa.", "17.172.in-addr.arpa."], 1053),
    ] {
        let wanted: Vec<Zone> = zones(names).into_iter().map(|name| Zone { name, port }).collect();
        assert_eq!(blocks(&format!("{key} {{\n}}\n")).unwrap()[0].zones, wanted, "{key}");
    }
}

#[test]
fn options_have_coredns_defaults_and_take_their_values() {
    let cache = |lines: &str| block(lines).unwrap().cache.unwrap();
    assert_eq!(
        cache("cache"),
        Cache {
            success_entries_max: 9984,
            success_secs: (5, 3600),
            denial_entries_max: 9984,
            denial_secs: (5, 1800),
            ..Cache::usual()
        }
    );
    let own = cache("cache 30 cluster.local {\n success 100 60 1\n denial 50\n }");
    assert_eq!(own.zones, zones(&["cluster.local."]));
    assert_eq!((own.success_entries_max, own.success_secs), (100, (1, 60)));
    assert_eq!((own.denial_entries_max, own.denial_secs), (50, (5, 30)));

    let hosts = |lines: &str| block(lines).unwrap().hosts.unwrap();
    let plain = hosts("hosts");
    assert_eq!((plain.path.to_str(), plain.ttl_secs, plain.reverse), (Some("/etc/hosts"), 3600, true));
    let own = hosts("hosts /h a.org {\n 10.0.0.1 x y\n ttl 7\n reload 500ms\n no_reverse\n fallthrough b.org\n }");
    assert_eq!((own.inline.as_str(), own.ttl_secs, own.reload), ("10.0.0.1 x y\n", 7, Duration::from_millis(500)));
    assert_eq!((own.zones.clone(), own.reverse, own.fall), (zones(&["a.org."]), false, Fall(zones(&["b.org."]))));

    let kubernetes = |lines: &str| block(lines).unwrap().kubernetes.unwrap();
    let plain = kubernetes("kubernetes");
    assert_eq!((plain.pods, plain.ttl_secs, plain.fall), (PodNames::Disabled, 5, Fall::default()));
    let own = kubernetes(
        "kubernetes cluster.local 10.43.0.0/16 {\n pods verified\n endpoint_pod_names\n ttl 0\n \
                          namespaces a b\n fallthrough\n }",
    );
    assert_eq!(own.zones, zones(&["cluster.local.", "43.10.in-addr.arpa."]));
    assert_eq!((own.pods, own.endpoint_names, own.ttl_secs), (PodNames::Verified, EndpointNames::Pods, 0));
    assert_eq!((own.namespaces, own.fall), (vec!["a".to_owned(), "b".to_owned()], Fall::all()));

    let own = block("health :8081 {\n lameduck 5s\n }\nready\nprometheus localhost:9154\nreload\nbind 127.0.0.1 ::1")
        .unwrap();
    let health = Health { addr: "[::]:8081".parse().unwrap(), lameduck: Duration::from_secs(5) };
    assert_eq!(own.health, Some(health));
    assert_eq!((own.ready, own.prometheus), ("[::]:8181".parse().ok(), "127.0.0.1:9154".parse().ok()));
    assert_eq!((own.reload, own.bind.len()), (Some(Duration::from_secs(30)), 2));
}

#[test]
fn resolvers_are_addresses_or_the_servers_of_a_file() {
    let to = |target: &str| {
        block(&format!("forward . {target}"))
            .map(|mut block| block.forwards.remove(0).to.iter().map(|target| target.addr).collect::<Vec<SocketAddr>>())
    };
    let addrs = |texts: &[&str]| Ok(texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>());
    assert_eq!(to("192.0.2.1"), addrs(&["192.0.2.1:53"]));
    assert_eq!(to("dns://192.0.2.1:5353 [2001:db8::1]:54"), addrs(&["192.0.2.1:5353", "[2001:db8::1]:54"]));
    assert_eq!(to("2001:db8::1"), addrs(&["[2001:db8::1]:53"]));
    assert_eq!(to("/etc/resolv.conf"), addrs(&["192.0.2.53:53", "[fe80::1]:53"]));
    assert_eq!(to("/empty"), addrs(&[]), "a machine without resolvers");
    let forward = block(
        "forward 172.16.0.0/15 192.0.2.1 {\n except a.org b.org\n policy sequential\n force_tcp\n \
                         prefer_udp\n max_fails 0\n max_concurrent 9\n health_check 1s\n expire 9s\n }",
    );
    let forward = forward.unwrap().forwards.remove(0);
    assert_eq!(forward.from, zones(&["16.172.in-addr.arpa.", "17.172.in-addr.arpa."]));
    assert_eq!((forward.except, forward.policy), (zones(&["a.org.", "b.org."]), Policy::Sequential));
    assert_eq!(
        (forward.fails_max, forward.concurrent_max, forward.health_check.interval),
        (0, 9, Duration::from_secs(1))
    );
    assert!(forward.force_tcp && forward.prefer_udp);
}

#[test]
fn durations_are_go_s() {
    for (text, millis) in [
        ("0", Some(0)),
        ("5s", Some(5_000)),
        ("500ms", Some(500)),
        ("1m30s", Some(90_000)),
        ("1h0.5s", Some(3_600_500)),
    ] {
        assert_eq!(duration_of(text), millis.map(Duration::from_millis), "{text}");
    }
    for text in ["", "5", "s", "-5s", "1d", "5 s", "1.2.3s", "1e9s", "99999999999999999999h", "5sm"] {
        assert_eq!(duration_of(text), None, "{text}");
    }
}

fn duration_of(text: &str) -> Option<Duration> {
    block(&format!("reload \"{text}\"")).ok().and_then(|block| block.reload)
}

/// A line that cannot be obeyed is never ignored.
#[test]
fn a_line_that_is_not_understood_is_refused_with_its_place() {
    for (lines, line, wanted) in [
        ("errors\nrewritten name a b", 3, "Unknown directive 'rewritten': the plugins here are "),
        ("view a {\n }", 2, "the plugin 'view' is not in Kedge's DNS: leave the line out"),
        ("loadbalance weighted f", 2, "loadbalance knows the policy round_robin only"),
        ("bind eth99", 2, "not an address, and no interface of this machine: eth99"),
        ("health 8080", 2, "not an address: 8080"),
        ("health :1 :2", 2, "Wrong argument count after 'health'"),
        ("health {\n lame 5s\n }", 3, "unknown property 'lame' of health"),
        ("health {\n lameduck\n }", 3, "Wrong argument count or unexpected line ending after 'lameduck'"),
        ("reload soon", 2, "not a duration: soon"),
        ("cache {\n prefetch 1 10s 99%\n }", 3, "percentage should fall in range [10%, 90%]: 99%"),
        ("cache {\n serve_stale 1h later\n }", 3, "invalid value for serve_stale refresh mode: later"),
        ("cache {\n serve_stale_policy prefer_positive\n }", 3, "the option 'serve_stale_policy' of cache is not in"),
        ("cache {\n servfail 6m\n }", 3, "caching SERVFAIL responses over 5 minutes is not permitted"),
        ("cache {\n success many\n }", 3, "not a number: many"),
        ("cache {\n success\n }", 3, "not a number: "),
        ("hosts {\n ttl -1\n }", 3, "not a number: -1"),
        ("hosts {\n 10.0.0.300 a\n }", 3, "unknown property '10.0.0.300' of hosts"),
        ("kubernetes {\n pods some\n }", 3, "wrong value for pods: some, must be one of: disabled, verified, insecure"),
        ("kubernetes {\n ttl 3601\n }", 3, "ttl must be in range [0, 3600]: 3601"),
        ("kubernetes {\n labels a=b\n }", 3, "unknown property 'labels' of kubernetes"),
        ("kubernetes {\n tls a b\n }", 3, "tls needs three files: certificate, key, CA"),
        ("kubernetes {\n endpoint https://a\n }", 2, "endpoint and tls belong together"),
        ("forward", 2, "forward needs a zone and at least one address or file"),
        ("forward .", 2, "forward has nobody to ask"),
        (
            "forward . https://9.9.9.9",
            2,
            "the transport of \"https://9.9.9.9\" is not supported, only dns:// and tls://",
        ),
        ("forward . resolver.example.org", 2, "not an IP address or file: \"resolver.example.org\""),
        ("forward . /nothing", 2, "cannot read /nothing: "),
        ("forward . 192.0.2.1 {\n health_check\n }", 3, "not a duration: "),
        ("forward . 192.0.2.1 {\n policy best\n }", 3, "unknown policy 'best'"),
        ("forward . 192.0.2.1 {\n doh_method GET\n }", 3, "the option 'doh_method' of forward is not in Kedge's DNS"),
        ("forward . tls://192.0.2.1 {\n tls /none\n }", 2, "tls: "),
        ("rewrite name regex ( a", 2, "not a regular expression: "),
        ("rewrite name regex (.*) {2}.a", 2, "the replacement names the group 2, the expression has 1"),
        ("rewrite name exact a b ansewr auto", 2, "\"ansewr\" stands where only 'answer' may stand"),
        ("rewrite cname exact a b", 2, "the option 'cname' of rewrite is not in Kedge's DNS"),
        ("template IN A {\n answer \"{{ if x }}\"\n }", 3, "\"if\" is not in the templates of Kedge's DNS"),
        ("template IN A {\n expr true\n }", 3, "the option 'expr' of template is not in Kedge's DNS"),
        ("acl {\n deny net *\n }", 3, "unexpected token \"deny\"; expect 'allow', 'block', 'filter' or 'drop'"),
        ("acl {\n block net 10.0.0.0/33\n }", 3, "illegal CIDR notation \"10.0.0.0/33\""),
        ("file /nothing a.org", 2, "cannot read the zone file /nothing: "),
        ("file /empty", 2, "the zone file /empty: no SOA record for ."),
        ("autopath @kubernetes", 2, "autopath @kubernetes needs 'pods verified'"),
        ("log . \"{/meta/label}\"", 2, "the placeholder {/meta/label} is not in Kedge's DNS"),
        ("errors {\n stacktrace\n }", 3, "the option 'stacktrace' of errors is not in Kedge's DNS"),
        ("header {\n query set aa\n }", 3, "the flag aa means nothing in a query"),
        ("forward a..b 192.0.2.1", 2, "\"a..b\" is not a zone: "),
    ] {
        let why = block(lines).unwrap_err();
        let wanted = format!("Corefile:{line} - Error during parsing: {wanted}");
        assert!(why.starts_with(&wanted), "{lines}\n{why}\n{wanted}");
    }
    for (key, wanted) in [
        ("tls://.", "the transport tls:// of \"tls://.\" is not supported, only dns://"),
        (".:dns", "not a port in \".:dns\""),
        (".:65536", "not a port in \".:65536\""),
    ] {
        let why = blocks(&format!("{key} {{\n}}\n")).unwrap_err();
        assert_eq!(why, format!("Corefile:1 - Error during parsing: {wanted}"));
    }
}
