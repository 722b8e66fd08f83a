//! Clients that send too much, too slowly, or too often: the server's memory has a bound, and others are served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::fields::Door;
use crate::harness::{SETTLE_LIMIT, Server};

/// What the server may hold at its worst, in kB. It begins with about 60 MB in a build without optimization.
const RSS_KB_MAX: u64 = 512 * 1024;
/// An honest client's slowest request, beside attackers on the same cores.
const HONEST_MAX: Duration = Duration::from_secs(10);
/// How long the attackers go on.
const SIEGE: Duration = Duration::from_secs(15);
const BODY_MAX: usize = 3_000_000;

#[test]
fn attackers_fill_no_memory_and_stop_no_honest_client() {
    let server = Server::start();
    server.until(&["get", "serviceaccount", "default"], SETTLE_LIMIT, |_| true);
    let door = Door::open(&server);
    let over = Arc::new(AtomicBool::new(false));
    let mut enemies = Vec::new();
    for attack in [empty_structs, deep, aliases, empty_messages, doubling_patches, selectors, unknown_fields] {
        for _ in 0..2 {
            let (at, over) = (door.url(""), Arc::clone(&over));
            enemies.push(std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    attack(&at);
                }
            }));
        }
    }
    let held: Vec<TcpStream> = (0..40).map(|_| slow_body(&door.url(""))).chain((0..100).map(|_| watch(&door.url("")))).collect();
    let (began, mut slowest, mut n_honest) = (Instant::now(), Duration::ZERO, 0);
    while began.elapsed() < SIEGE {
        let asked = Instant::now();
        let body = format!(r#"{{"metadata":{{"name":"honest-{n_honest}"}},"data":{{"a":"b"}}}}"#);
        let said = exchange(&door.url(""), "POST", "/api/v1/namespaces/default/configmaps", "application/json", body.as_bytes());
        assert!(said.starts_with("HTTP/1.1 201"), "{said}");
        slowest = slowest.max(asked.elapsed());
        n_honest += 1;
    }
    over.store(true, Ordering::Relaxed);
    for enemy in enemies {
        enemy.join().unwrap();
    }
    drop(held);
    let peak_kb = status_kb(server.pid(), "VmHWM");
    println!(
        "peak {} MB, now {} MB, {n_honest} honest requests, the slowest {slowest:?}",
        peak_kb / 1024,
        status_kb(server.pid(), "VmRSS") / 1024
    );
    assert!(peak_kb < RSS_KB_MAX, "the server held {peak_kb} kB");
    assert!(slowest < HONEST_MAX, "an honest client waited {slowest:?}");
    server.kill_only();
}

fn status_kb(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn connect(at: &str) -> TcpStream {
    let stream = TcpStream::connect(at.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn head(method: &str, path: &str, media: &str, length: usize) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
}

/// One request; what came back, as far as it came. An attacker that is hung up on has failed, which is what is wanted.
fn exchange(at: &str, method: &str, path: &str, media: &str, body: &[u8]) -> String {
    let mut stream = connect(at);
    let _refused = stream.write_all(head(method, path, media, body.len()).as_bytes()).and_then(|()| stream.write_all(body));
    let mut said = Vec::new();
    let _cut = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

const PODS: &str = "/api/v1/namespaces/default/pods?dryRun=All";

/// Security L12: three bytes that become a thousand.
fn empty_structs(at: &str) {
    let body = format!(r#"{{"metadata":{{"name":"x"}},"spec":{{"containers":[{}{{}}]}}}}"#, "{},".repeat(BODY_MAX / 3 - 30));
    exchange(at, "POST", PODS, "application/json", body.as_bytes());
}

fn deep(at: &str) {
    let body = format!(r#"{{"metadata":{{"name":"x"}},"spec":{}"#, "[".repeat(BODY_MAX));
    exchange(at, "POST", PODS, "application/json", body.as_bytes());
    exchange(at, "POST", PODS, "application/yaml", "- ".repeat(BODY_MAX / 2).as_bytes());
}

fn aliases(at: &str) {
    let mut body = "a: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..30 {
        body.push_str(&format!("b{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(",")));
    }
    exchange(at, "POST", PODS, "application/yaml", body.as_bytes());
}

/// The same as [`empty_structs`], in two bytes each.
fn empty_messages(at: &str) {
    let varint = |mut n: usize| {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
            n >>= 7;
        }
        out.push(u8::try_from(n).unwrap());
        out
    };
    let field = |tag: u8, inside: &[u8]| [&[tag << 3 | 2][..], &varint(inside.len()), inside].concat();
    let containers = [2u8 << 3 | 2, 0].repeat(BODY_MAX / 2 - 100);
    let pod = field(2, &containers);
    let kind = [field(1, b"v1"), field(2, b"Pod")].concat();
    let unknown = [field(1, &kind), field(2, &pod)].concat();
    exchange(at, "POST", PODS, "application/vnd.kubernetes.protobuf", &[&b"k8s\0"[..], &unknown].concat());
}

fn doubling_patches(at: &str) {
    let double = r#"{"op":"copy","from":"/metadata","path":"/metadata/annotations/a"},"#.repeat(9_000);
    let body = format!(r#"[{}{{"op":"test","path":"/kind","value":"x"}}]"#, double);
    exchange(at, "PATCH", "/api/v1/namespaces/default?dryRun=All", "application/json-patch+json", body.as_bytes());
    let wide =
        format!(r#"{{"metadata":{{"annotations":{{{}"z":"z"}}}}}}"#, (0..150_000).map(|i| format!(r#""k{i}":"v","#)).collect::<String>());
    exchange(at, "PATCH", "/api/v1/namespaces/default?dryRun=All", "application/merge-patch+json", wide.as_bytes());
}

fn selectors(at: &str) {
    let many: Vec<String> = (0..1500).map(|i| format!("k{i}")).collect();
    exchange(at, "GET", &format!("/api/v1/configmaps?labelSelector=a+in+({})", many.join(",")), "application/json", b"");
}

/// A long name above many unknown fields: told of each, it would be a terabyte.
fn unknown_fields(at: &str) {
    let inner: String = (0..100_000).map(|i| format!(r#""u{i}":0,"#)).collect();
    let long = "k".repeat(1_000_000);
    let body = format!(r#"{{"metadata":{{"name":"x"}},"a":0,"b":0,"{long}":{{{inner}"z":0}}}}"#);
    exchange(at, "POST", PODS, "application/json", body.as_bytes());
}

/// A large body that never comes.
fn slow_body(at: &str) -> TcpStream {
    let mut stream = connect(at);
    stream.write_all(head("POST", PODS, "application/json", BODY_MAX).as_bytes()).unwrap();
    stream.write_all(&vec![b' '; 100_000]).unwrap();
    stream
}

/// A watch that nobody reads.
fn watch(at: &str) -> TcpStream {
    let mut stream = connect(at);
    stream.write_all(head("GET", "/api/v1/configmaps?watch=1", "application/json", 0).as_bytes()).unwrap();
    stream
}
