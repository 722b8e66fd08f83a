//! Everything that the language has, held against the program `nft`, and what hostile neighbours do to a transaction.

use crate::NetfilterError;
use crate::look::{self, SetRef, TableRef};
use crate::nft::{apply, would_take};
use crate::oracle::{apart, compare, lacks, listed, nft};
use crate::replay;

/// Sets, maps and chains of a family, with `ADDR`, `FAM` and addresses to be filled in.
const SERVICES: &str = include_str!("testdata/services.nft");
const POLICIES: &str = include_str!("testdata/policies.nft");
const BRIDGE: &str = include_str!("testdata/bridge.nft");

const KP: TableRef<'_> = TableRef { family: "ip", name: "kp" };

fn of_ip6(script: &str) -> String {
    [
        ("dnat ip to 10.42.0.5:80", "dnat ip6 to [fd42::5]:80"),
        (" ip kp", " ip6 kp"),
        ("ipv4_addr", "ipv6_addr"),
        ("127.0.0.0/8", "::1"),
        ("10.43.0.", "fd43::"),
        ("10.42.0.0/24", "fd42::/64"),
        ("10.42.0.0/16", "fd42::/48"),
        ("10.50.0.0/15", "fd50::/47"),
        ("10.42.0.", "fd42::"),
        ("224.0.0.0/4", "ff00::/8"),
        ("0.0.0.0/0", "::/0"),
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("dnat ip to", "dnat ip6 to"),
    ]
    .iter()
    .fold(script.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[test]
fn the_kernel_holds_what_it_holds_after_the_program_nft_got_the_same_script() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    for script in [SERVICES, &of_ip6(SERVICES), POLICIES, BRIDGE] {
        compare(&[script.to_owned()], |script| apply(script).unwrap());
        // Each rule alone, so that the first one that differs is named.
        let (frame, rules): (Vec<&str>, Vec<&str>) = script.lines().partition(|line| !line.starts_with("add rule"));
        for rule in rules {
            let lines: Vec<&str> = frame.iter().copied().chain([rule]).collect();
            compare(&[lines.join("\n") + "\n"], |script| apply(script).unwrap());
        }
    }
}

#[test]
fn changes_and_removals_leave_what_nft_leaves() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    let change = "delete element ip kp service-ips { 10.43.0.1 . tcp . 443 }\nflush chain ip kp svc\n\
                  add rule ip kp svc drop\nadd element ip kp cluster-ips { 10.43.0.9 }\n\
                  delete element ip kp cluster-ips { 10.43.0.1 }\n";
    let sweep = "flush chain ip kp post\nflush chain ip kp mrk\ndelete map ip kp any-address\n";
    // nft joins what touches or overlaps what is there.
    let merge = "add table ip m\nadd set ip m s { type ipv4_addr; flags interval; auto-merge; }\n\
                 add element ip m s { 10.42.1.0/24, 10.42.7.0/24, 10.42.9.1 }\n";
    let merges = ["10.42.0.0/24", "10.42.0.0/22", "10.42.9.1/32", "10.42.9.0/24, 10.42.8.0/24", "0.0.0.0/0", "1.1.1.1"]
        .map(|nets| {
            format!(
                "add set ip m s {{ type ipv4_addr; flags interval; auto-merge; }}\nadd element ip m s {{ {nets} }}\n"
            )
        });
    let scripts = [SERVICES, change, sweep, merge].map(str::to_owned);
    compare(&scripts, |script| apply(script).unwrap());
    for n in 0..=merges.len() {
        let scripts: Vec<String> = [merge.to_owned()].iter().chain(&merges[..n]).cloned().collect();
        compare(&scripts, |script| apply(script).unwrap());
    }
    compare(&[SERVICES.to_owned(), "delete table ip kp\n".to_owned()], |script| apply(script).unwrap());
}

#[test]
fn a_script_that_is_refused_in_the_middle_changes_nothing_and_the_line_is_named() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    apart(|| {
        apply("add table ip t\nadd chain ip t c\n").unwrap();
        let before = listed();
        let script = "add chain ip t d\nadd rule ip t d drop\nadd rule ip t d jump nowhere\nadd chain ip t e\n";
        let refused = apply(script).unwrap_err();
        assert!(refused.is_absent() && refused.is_of_the_script(), "{refused:?}");
        let text = refused.to_string();
        assert!(text.starts_with("the kernel refused \"add rule ip t d jump nowhere\": No such file"), "{text}");
        assert_eq!(listed(), before);
        assert!(apply("add table ip u\nadd rule ip t c drop drop2\n").unwrap_err().to_string().contains("drop2"));
        assert_eq!(listed(), before);
        would_take("add table ip u\n").unwrap();
        assert!(would_take("delete table ip u\n").is_err());
        assert_eq!(listed(), before, "a check changes nothing");
        apply("").unwrap();
    });
}

#[test]
fn a_table_that_somebody_took_away_comes_back_as_it_was() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    for (script, family, name) in [(SERVICES, "ip", "kp"), (POLICIES, "inet", "kp"), (BRIDGE, "bridge", "ks")] {
        apart(move || {
            assert_eq!(replay::copy(TableRef { family, name }).unwrap(), None);
            apply(script).unwrap();
            let (before, copy) = (listed(), replay::copy(TableRef { family, name }).unwrap().unwrap());
            replay::restore(&copy).unwrap();
            assert_eq!(listed(), before, "what is there is not there twice");
            nft(&["flush", "ruleset"], "");
            apply(&format!("add table {family} {name}\nadd chain {family} {name} fresh\n")).unwrap();
            replay::restore(&copy).unwrap();
            apply(&format!("delete chain {family} {name} fresh\n")).unwrap();
            let sorted = |mut all: Vec<String>| {
                all.sort();
                all
            };
            assert_eq!(sorted(listed()), sorted(before));
        });
    }
}

#[test]
fn elements_and_tables_are_read_back() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    apart(|| {
        apply(SERVICES).unwrap();
        let any = SetRef { family: "ip", table: "kp", set: "any-address" };
        assert_eq!(look::comment_of(any, "{ tcp . 80 }").unwrap().as_deref(), Some("abc"));
        assert_eq!(look::comment_of(any, "{ tcp . 81 }").unwrap(), None);
        assert_eq!(look::comment_of(SetRef { table: "gone", ..any }, "{ tcp . 80 }").unwrap(), None);
        assert_eq!(look::elements(any).unwrap()[0].key, [6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(look::elements(SetRef { set: "gone", ..any }).unwrap(), []);
        let timed = look::elements(SetRef { set: "aff-1", ..any }).unwrap();
        assert_eq!((timed.len(), timed[0].timeout_ms), (1, Some(60_000)));
        assert!(timed[0].expires_ms.is_some_and(|ms| (50_000..=55_000).contains(&ms)), "{timed:?}");
        assert!(look::has_chain(KP, "svc").unwrap() && !look::has_chain(KP, "gone").unwrap());
        assert!(!look::has_chain(TableRef { name: "gone", ..KP }, "svc").unwrap());
        let tables: Vec<String> =
            look::tables().unwrap().into_iter().map(|t| format!("{} {}", t.family, t.name)).collect();
        assert_eq!(tables, ["ip kp"]);
        assert_eq!(look::chain_policy(KP, "pre").unwrap(), Some(1));
    });
}

/// A transaction of many messages is sent in one piece, and one of which each message is refused has one answer.
#[test]
fn ten_thousand_elements_and_chains_are_one_transaction() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    apart(|| {
        let mut script =
            "add table ip t\nadd map ip t m { type ipv4_addr . inet_proto . inet_service : verdict; }\n".to_owned();
        let mut elements = Vec::new();
        for n in 0..10_000_u32 {
            let ip = std::net::Ipv4Addr::from(0x0a2b_0000 + n);
            script += &format!("add chain ip t c{n}\nadd rule ip t c{n} meta l4proto tcp dnat ip to {ip}:80\n");
            elements.push(format!("{ip} . tcp . 80 : goto c{n}"));
        }
        let all = format!("{script}add element ip t m {{ {} }}\n", elements.join(", "));
        // dnat needs no hook until the chain is reached.
        let ours = base::time::Stopwatch::start();
        apply(&all).unwrap();
        let ours = ours.elapsed();
        nft(&["delete", "table", "ip", "t"], "");
        let theirs = base::time::Stopwatch::start();
        nft(&["-f", "-"], &all);
        println!("ten thousand chains and elements: {ours:?}, and by the program nft {:?}", theirs.elapsed());
        let one = "add element ip t m { 10.99.0.1 . tcp . 80 : goto c1 }\n";
        let ours = base::time::Stopwatch::start();
        apply(one).unwrap();
        let ours = ours.elapsed();
        let theirs = base::time::Stopwatch::start();
        nft(&["-f", "-"], "delete element ip t m { 10.99.0.1 . tcp . 80 }\n");
        println!("one element beside them: {ours:?}, and by the program nft {:?}", theirs.elapsed());
        let set = SetRef { family: "ip", table: "t", set: "m" };
        assert_eq!(look::elements(set).unwrap().len(), 10_000);
        apply("delete table ip t\n").unwrap();
        let refused = script.split_once('\n').unwrap().1;
        assert!(matches!(apply(refused), Err(NetfilterError::Refused { .. } | NetfilterError::Lost)));
        assert_eq!(look::tables().unwrap(), []);
    });
}

#[test]
fn two_at_once_lose_nothing() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    apart(|| {
        const EACH: usize = 60;
        let frame = "add table ip t\nadd set ip t s { type ipv4_addr; flags interval; auto-merge; }\n";
        std::thread::scope(|scope| {
            // A thread is in its parent's namespace.
            for who in 0..2 {
                scope.spawn(move || {
                    for n in 0..EACH {
                        apply(&format!("{frame}add element ip t s {{ 10.{who}.{}.0/24 }}\n", 2 * n)).unwrap();
                    }
                });
            }
        });
        let set = SetRef { family: "ip", table: "t", set: "s" };
        let begins = look::elements(set).unwrap().into_iter().filter(|held| !held.ends_interval).count();
        assert_eq!(begins, 2 * EACH);
    });
}

#[test]
fn a_flow_of_udp_is_forgotten_and_others_stay() {
    if let Some(why) = lacks() {
        println!("skipped: {why}");
        return;
    }
    apart(|| {
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if !up.is_ok_and(|status| status.success()) {
            println!("skipped: no ip on PATH");
            return;
        }
        // Connections are tracked where a rule asks for them.
        apply(
            "add table ip t\nadd chain ip t o { type filter hook output priority 0; }\n\
             add rule ip t o ct state new accept\n",
        )
        .unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for port in [7001, 7002] {
            socket.send_to(b"x", ("127.0.0.1", port)).unwrap();
        }
        let forget = |port: u16| {
            crate::conntrack::forget_udp(crate::conntrack::Family::V4, |flow| flow.to.port() == port).unwrap()
        };
        assert_eq!([forget(7001), forget(7001), forget(7002)], [1, 0, 1]);
    });
}
