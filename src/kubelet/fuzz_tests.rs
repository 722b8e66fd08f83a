//! Seeded fuzzing of what a node reads from pods, registries and callers: logs, queries, manifests, name server files,
//! names of images. Nothing may panic, and nothing may run for long.

use std::path::{Path, PathBuf};

use base::fuzz::{self, mutated, mutated_text, pick, rounds};
use base::time::Clock;
use base::url::Query;
use futures_util::StreamExt as _;

use crate::logs::{self, LogOptions};
use crate::providers::config;
use crate::server::number;
use crate::settings::Settings;
use crate::sources::manifests::Folder;
use crate::{resolv, stats};

const ROUNDS: u64 = 1_000;

/// The text behind the time is the pod's, and a pod that sees the folder of logs writes all of it.
#[tokio::test]
async fn logs_of_any_bytes_are_read_within_their_limits() {
    let (rng, dir, clock) = (fuzz::rng(1), tempfile::tempdir().unwrap(), Clock::system());
    let folder = dir.path().join("pod/c");
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("0.log");
    let whole = b"2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:01.0Z stderr P tw\n\
        2026-01-01T00:00:01.0Z stderr F:x o\n\n";
    for round in rounds(ROUNDS) {
        std::fs::write(&log, mutated(&rng, &whole.repeat(1 + fuzz::below(&rng, 4)))).unwrap();
        let limit = (rng.below(2) == 0).then(|| rng.below(40));
        let options = LogOptions {
            timestamps: rng.below(2) == 0,
            tail_lines: (rng.below(2) == 0).then(|| rng.below(5)),
            since_seconds: (rng.below(4) == 0).then_some(i64::MAX),
            limit_bytes: limit,
            stream: (rng.below(3) == 0).then(|| "Stdout".to_owned()),
            ..LogOptions::default()
        };
        let lines =
            logs::stream(&log, options, &clock, &logs::watch::Watches::default(), Box::new(|| false)).await.unwrap();
        let read: Vec<_> = lines.collect().await;
        let n: usize = read.iter().flatten().map(|bytes| bytes.len()).sum();
        assert!(limit.is_none_or(|limit| n as u64 <= limit), "round {round}: {n} bytes of {limit:?}");
        let _last_words = logs::last_lines(&log, fuzz::below(&rng, 100)).unwrap();
    }
}

#[test]
fn queries_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(2);
    let whole = "command=sh&command=-c&command=a+b%20c&tailLines=5&sinceTime=2026-01-01T00%3A00%3A00Z&input=1&\
        tty=true&container=c";
    for _ in rounds(ROUNDS * 4) {
        let query =
            Query::parse(&mutated_text(&rng, whole, &["%", "%é", "%4", "&", "=", "+", "-1", "99999999999999999999"]));
        let _any = (query.all("command").count(), query.flag("tty"), number::<u64>(&query, "tailLines").is_ok());
    }
}

#[test]
fn manifests_of_any_words_are_pods_or_refused() {
    let rng = fuzz::rng(3);
    let folder = Folder { dir: PathBuf::new(), node_name: "n".to_owned(), period: std::time::Duration::from_secs(20) };
    let whole = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {a: &x b}}\nspec:\n  \
        containers:\n  - {name: c, image: *x, ports: [{containerPort: 80}]}\n";
    let words =
        ["- ", ": ", "{", "}", "[", "&x ", "*x", "<<: ", "\n", "  ", "!!binary ", "|", ">", "null", "1e999", "---\n"];
    for _ in rounds(ROUNDS) {
        let _any = folder.parse(&mutated_text(&rng, whole, &words));
    }
}

#[test]
fn files_of_the_node_and_names_of_images_are_read_whatever_they_are() {
    let rng = fuzz::rng(4);
    let resolver = "nameserver 10.0.0.1\nsearch a.b c_d .\noptions ndots:5 timeout:x\n# no\n";
    let devices = "  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n lo: 1 2\n";
    let images = ["registry.example:5000/a/b:1@sha256:00", "busybox", "[::1]:80/x", "*.example.org", "*.*.io:8080/a"];
    let words = ["*", ".", ":", "/", "@", "[", "]", "é", "\n", " ", "nameserver ", "search ", "99999999999999999999"];
    for _ in rounds(ROUNDS * 4) {
        let _any = (
            resolv::parse(&mutated_text(&rng, resolver, &words)),
            stats::read::parse_dev(&mutated_text(&rng, devices, &words)),
        );
        let (image, pattern) = (
            mutated_text(&rng, pick::<&str>(&rng, &images), &words),
            mutated_text(&rng, pick::<&str>(&rng, &images), &words),
        );
        let _any = (
            config::Pattern(&pattern).matches(&config::repository(&image)),
            config::parse(&pattern, Path::new("/x")).is_ok(),
        );
    }
}

#[test]
fn settings_of_any_words_are_read_or_refused() {
    let rng = fuzz::rng(5);
    let words = [
        "eviction-hard=memory.available<5%,nodefs.available<1Gi",
        "eviction-soft-grace-period=memory.available=1m30s",
        "image-gc-high-threshold=90",
        "register-with-taints=a/b=c:NoSchedule",
        "tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "streaming-connection-idle-timeout=1.5h",
        "cluster-dns=10.0.0.1,fd00::1",
    ];
    let file = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 5\nevictionHard:\n  \
        memory.available: 5%\nauthentication: {webhook: {cacheTTL: 1m}}\nregisterWithTaints: [{key: a}]\n";
    let more =
        ["=", "<", "%", ",", "-", "e30", ".", "µs", "é", "\n", ": ", "{", "[", "null", "&a ", "*a", "99999999999"];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let named = format!("config={}", path.display());
    for _ in rounds(ROUNDS) {
        let word = mutated_text(&rng, pick::<&str>(&rng, &words), &more);
        std::fs::write(&path, mutated_text(&rng, file, &more)).unwrap();
        let read = Settings::parse([named.as_str()]);
        let _any = (Settings::parse([word.as_str()]).is_ok(), read.map(|settings| settings.in_force().len()));
    }
}
