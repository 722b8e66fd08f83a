//! Snapshots in S3: taken, listed, pruned and restored by the program itself, against a bucket of the test's own.

use base::sync::Mutex;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use crate::harness::{Place, SETTLE_LIMIT, Said, Server};

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A bucket `b`; who signs as somebody else is refused. (What a signature is made of, src/cluster/s3 tests.)
fn bucket() -> (String, Objects) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, objects) = (listener.local_addr().unwrap().to_string(), Objects::default());
    let kept = Arc::clone(&objects);
    // Ends with the test's process.
    std::thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap(), &mut kept.lock())));
    (address, objects)
}

fn serve(mut stream: TcpStream, objects: &mut BTreeMap<String, Vec<u8>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // A client that went away is not this side's matter.
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
    let mut body = vec![0; header("content-length: ").parse().unwrap_or(0)];
    if stream.read_exact(&mut body).is_err() {
        return;
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.strip_prefix("/b/").unwrap_or_default().to_owned();
    let signed = header("authorization: ").starts_with("AWS4-HMAC-SHA256 Credential=KEY/");
    let (status, answer) = match method {
        _ if !signed => (403, b"<Error><Code>InvalidAccessKeyId</Code><Message>No.</Message></Error>".to_vec()),
        "PUT" => {
            objects.insert(key, body);
            (200, Vec::new())
        }
        "DELETE" => {
            objects.remove(&key);
            (204, Vec::new())
        }
        _ if query.contains("list-type") => {
            let one = |(key, body): (&String, &Vec<u8>)| {
                format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", body.len())
            };
            (200, format!("<L>{}</L>", objects.iter().map(one).collect::<String>()).into_bytes())
        }
        _ => objects
            .get(&key)
            .map_or((404, b"<Error><Code>NoSuchKey</Code></Error>".to_vec()), |body| (200, body.clone())),
    };
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    let _gone = stream.write_all(&[head.as_bytes(), &answer].concat());
}

/// `kedge snapshot …` on a place's state; the bucket is in the place's configuration file, the keys are in the
/// environment.
fn snapshot(place: &Place, args: &[&str], key: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command.arg("snapshot").args(args).arg(format!("--data-dir={}", place.data_dir().display()));
    command
        .env("KEDGE_CONFIG_FILE", place.path("config.yaml"))
        .env("AWS_ACCESS_KEY_ID", key)
        .env("AWS_SECRET_ACCESS_KEY", "hunter2");
    command.output().unwrap().into()
}

/// An archive's bytes as text.
fn zstd_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&zstd::decode_all(bytes).unwrap()).into_owned()
}

#[test]
fn snapshots_go_to_a_bucket_and_a_new_machine_restores_from_there() {
    let (address, objects) = bucket();
    let config = |address: &str| {
        format!(
            "etcd-s3: true\netcd-s3-endpoint: {address}\netcd-s3-insecure: true\netcd-s3-bucket: b\n\
             etcd-s3-folder: edge\nnode-name: edge-1\n"
        )
    };
    let place = Place::new(&["--disable=coredns"]);
    std::fs::write(place.path("config.yaml"), "").unwrap();
    let server = Server::start_in(place);
    std::fs::write(server.place.path("config.yaml"), config(&address)).unwrap();
    server.ok(&["create", "configmap", "kept", "--from-literal=a=b"]);
    let saved = snapshot(&server.place, &["save"], "KEY");
    assert!(saved.code == 0 && saved.out.contains("s3://b/edge/on-demand-edge-1-"), "{saved:?}");
    let name = objects.lock().keys().next().unwrap().strip_prefix("edge/").unwrap().to_owned();
    let listed = snapshot(&server.place, &["ls"], "KEY");
    assert_eq!(listed.out.matches(&name).count(), 4, "by name and location, here and there: {listed:?}");

    // One that the bucket does not take is kept here, and the command says so.
    let refused = snapshot(&server.place, &["save", "--name=second"], "OTHER");
    assert!(
        refused.code == 1
            && refused.err.contains("is kept on this machine, but not in S3")
            && refused.err.contains("InvalidAccessKeyId"),
        "{refused:?}"
    );
    assert!(!format!("{refused:?}{saved:?}").contains("hunter2"));
    assert_eq!(
        snapshot(&server.place, &["ls", "--etcd-s3-bucket=other"], "KEY").out.matches("second-edge-1-").count(),
        2
    );
    // The keys in it are sealed, so a reader of the bucket gets none.
    let token = std::fs::read_to_string(server.place.data_dir().join("server/token")).unwrap();
    let archive = zstd_of(&objects.lock().values().next().unwrap().clone());
    assert!(!archive.contains("PRIVATE KEY") && !archive.contains(token.trim()), "keys in the bucket");
    server.stop();

    let new = Place::new(&["--disable=coredns"]);
    std::fs::write(new.path("config.yaml"), config(&address)).unwrap();
    let missing = snapshot(&new, &["restore", "no-such-1"], "KEY");
    assert!(missing.code == 1 && missing.err.contains("NoSuchKey"), "{missing:?}");
    let sealed = snapshot(&new, &["restore", &name], "KEY");
    assert!(sealed.code == 1 && sealed.err.contains("--token-file"), "{sealed:?}");
    std::fs::write(new.path("token"), token).unwrap();
    let restored = snapshot(&new, &["restore", &name, "--token-file", new.path("token").to_str().unwrap()], "KEY");
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(
        std::fs::read_dir(new.data_dir()).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.'))
    );
    std::fs::write(new.path("config.yaml"), "").unwrap();
    let server = Server::start_in(new);
    server.until(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"], SETTLE_LIMIT, |said| said == "b");
    std::fs::write(server.place.path("config.yaml"), config(&address)).unwrap();
    let deleted = snapshot(&server.place, &["delete", &name], "KEY");
    assert!(deleted.code == 0 && objects.lock().is_empty(), "{deleted:?}");
    server.stop();
}

#[test]
fn a_scheduled_snapshot_that_the_bucket_refuses_is_an_event_and_stays_here() {
    let (address, objects) = bucket();
    let mut place = Place::new(&[
        "--disable=coredns",
        "--etcd-snapshot-schedule-cron=@every 2s",
        "--etcd-s3",
        "--etcd-s3-config-secret=bucket",
    ]);
    place.flags.extend(["--etcd-s3-insecure", "--etcd-s3-bucket=b"].map(str::to_owned));
    place.flags.push(format!("--etcd-s3-endpoint={address}"));
    let mut server = Server::start_in(place);
    server.announce("but not in S3");
    let event = |words: &str| {
        server.until(&["get", "events", "-o", "json"], SETTLE_LIMIT * 2, |out| {
            out.contains("SnapshotFailed") && out.contains(words)
        });
    };
    event("cannot read Secret kube-system/bucket");
    let secret = ["create", "secret", "generic", "bucket", "-n", "kube-system"];
    let keys = ["--from-literal=etcd-s3-access-key=KEY", "--from-literal=etcd-s3-secret-key=hunter2"];
    // Whoever writes the Secret does not say where snapshots go.
    server.ok(&[&secret[..], &keys[..], &["--from-literal=etcd-s3-endpoint=198.51.100.1"]].concat());
    event("etcd-s3-endpoint is taken from --etcd-s3-endpoint alone");
    server.ok(&["delete", "secret", "bucket", "-n", "kube-system"]);
    server.ok(&[&secret[..], &keys[..]].concat());
    crate::harness::wait_for("a snapshot in the bucket", SETTLE_LIMIT * 2, || {
        let names: Vec<String> = objects.lock().keys().cloned().collect();
        if names.iter().any(|name| name.starts_with("etcd-snapshot-test-")) {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    });
    assert!(!std::fs::read_to_string(server.place.path("log")).unwrap().contains("hunter2"));
    server.stop();
}
