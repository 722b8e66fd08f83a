//! Secrets guarded by a key management plugin (KMS v2) that speaks the real protocol over a unix socket.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base::task::Group;
use http::{HeaderValue, Request, Response};
use wire::{Body, ConnInfo};

use crate::harness::{Place, Server};

/// Its key has one name; it encrypts by reversing.
struct Plugin;

#[async_trait::async_trait]
impl wire::Handler for Plugin {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        let (parts, body) = req.into_parts();
        let framed = wire::body::collect(body, 1 << 20).await.unwrap();
        // Five bytes of gRPC's frame, then the message; in both requests that have one its first field are the bytes.
        let sent = field(&framed[5..], 1).unwrap_or_default();
        let reversed: Vec<u8> = sent.into_iter().rev().collect();
        let answer = match parts.uri.path() {
            "/v2.KeyManagementService/Status" => [text(1, b"v2"), text(2, b"ok"), text(3, b"key-1")].concat(),
            "/v2.KeyManagementService/Encrypt" => [text(1, &reversed), text(2, b"key-1")].concat(),
            _ => text(1, &reversed),
        };
        let mut frame = vec![0];
        frame.extend(u32::try_from(answer.len()).unwrap().to_be_bytes());
        frame.extend(answer);
        let mut response = Response::new(wire::body::full(frame));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
        response
    }
}

/// A field of bytes, as protobuf writes it; short ones only.
fn text(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![(tag << 3) | 2, u8::try_from(value.len()).unwrap()];
    out.extend(value);
    out
}

/// The bytes of a field of a message that has only such.
fn field(mut message: &[u8], tag: u8) -> Option<Vec<u8>> {
    while let [head, len, rest @ ..] = message {
        let (value, after) = rest.split_at(usize::from(*len));
        if head >> 3 == tag {
            return Some(value.to_vec());
        }
        message = after;
    }
    None
}

/// The plugin, as long as this value lives.
fn plugin(socket: &Path) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (group, fatal) = Group::root("plugin");
        wire::serve::UnixServer::bind(socket, Arc::new(Plugin)).unwrap().start(&group);
        // It lives as long as the runtime.
        std::mem::forget((group, fatal));
    });
    runtime
}

#[test]
fn a_plugin_guards_secrets_and_they_are_read_again_after_a_restart() {
    let mut place = Place::new(&["--disable=coredns"]);
    let socket = place.path("kms.sock");
    let config = format!(
        "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  \
         providers:\n  - kms: {{apiVersion: v2, name: vault, endpoint: 'unix://{}', timeout: 60s}}\n  \
         - identity: {{}}\n",
        socket.display()
    );
    fs::write(place.path("encryption.yaml"), config).unwrap();
    place
        .flags
        .push(format!("--kube-apiserver-arg=encryption-provider-config={}", place.path("encryption.yaml").display()));
    let _plugin = plugin(&socket);
    let server = Server::start_in(place);
    server.ok(&["create", "secret", "generic", "s", "--from-literal=password=correct-horse"]);
    assert!(server.ok(&["get", "--raw", "/readyz?verbose"]).contains("[+]kms-providers ok"));
    let place = server.stop();
    assert!(!crate::settings::on_disk(&place, "Y29ycmVjdC1ob3JzZQ"), "the value is not on the disk");
    assert!(crate::settings::on_disk(&place, "k8s:enc:kms:v2:vault:"));
    // Another life knows no seed: the plugin gives it.
    let server = Server::start_in(place);
    let value = server.ok(&["get", "secret", "s", "-o", "jsonpath={.data.password}"]);
    assert_eq!(value.trim_end_matches('='), "Y29ycmVjdC1ob3JzZQ");
    server.stop();
}
