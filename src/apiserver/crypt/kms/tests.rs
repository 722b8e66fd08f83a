//! Against a small plugin that speaks the real protocol over a unix socket.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tonic::server::Grpc;
use wire::{Body, ConnInfo, Handler};

use super::*;

/// Its keys are numbers; it encrypts by reversing.
#[derive(Default)]
struct Plugin {
    key: AtomicUsize,
    sick: AtomicUsize,
    decrypted: AtomicUsize,
}

/// Answers one call.
async fn unary<Q, A>(
    req: http::Request<Body>,
    answer: impl Fn(Q) -> Result<A, tonic::Status> + Send + Sync + Clone + 'static,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
{
    let service = tower::service_fn(move |req: tonic::Request<Q>| {
        let answer = answer(req.into_inner()).map(tonic::Response::new);
        async move { answer }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).unary(service, req).await.map(wire::body::from_http)
}

struct Face(Arc<Plugin>);

#[async_trait]
impl Handler for Face {
    async fn handle(&self, req: http::Request<Body>, _conn: Arc<ConnInfo>) -> http::Response<Body> {
        let plugin = Arc::clone(&self.0);
        let key_id = format!("key-{}", plugin.key.load(Ordering::SeqCst));
        let reversed = |bytes: Vec<u8>| bytes.into_iter().rev().collect::<Vec<u8>>();
        match req.uri().path() {
            proto::kms::STATUS => {
                let healthz = if plugin.sick.load(Ordering::SeqCst) > 0 { "sick" } else { "ok" }.to_owned();
                unary(req, move |_: proto::kms::StatusRequest| {
                    Ok(proto::kms::StatusResponse {
                        version: "v2".into(),
                        healthz: healthz.clone(),
                        key_id: key_id.clone(),
                    })
                })
                .await
            }
            proto::kms::ENCRYPT => {
                unary(req, move |q: proto::kms::EncryptRequest| {
                    let annotations = HashMap::from([("version.example.com".to_owned(), b"1".to_vec())]);
                    Ok(proto::kms::EncryptResponse {
                        ciphertext: reversed(q.plaintext),
                        key_id: key_id.clone(),
                        annotations,
                    })
                })
                .await
            }
            _ => {
                unary(req, move |q: proto::kms::DecryptRequest| {
                    plugin.decrypted.fetch_add(1, Ordering::SeqCst);
                    match q.annotations.contains_key("version.example.com") {
                        true => Ok(proto::kms::DecryptResponse { plaintext: reversed(q.ciphertext) }),
                        false => Err(tonic::Status::invalid_argument("no annotation")),
                    }
                })
                .await
            }
        }
    }
}

async fn world() -> (Arc<Plugin>, Settings, Group, tempfile::TempDir) {
    let (group, _fatal) = Group::root("test");
    let dir = tempfile::tempdir().unwrap();
    let plugin = Arc::<Plugin>::default();
    let socket = dir.path().join("kms.sock");
    wire::serve::UnixServer::bind(&socket, Arc::new(Face(Arc::clone(&plugin)))).unwrap().start(&group);
    (plugin, Settings { name: "vault".into(), socket, timeout: Duration::from_secs(60) }, group, dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_guards_values_and_is_asked_once_for_a_seed() {
    let (plugin, settings, group, _dir) = world().await;
    let first = Envelope::start(settings.clone(), Rng::from_seed(1), &group).await.unwrap();
    let sealed = |envelope: &Envelope| envelope.seal(b"/registry/a", b"value").unwrap();
    let one = sealed(&first);
    assert!(one.starts_with(b"k8s:enc:kms:v2:vault:") && !one.windows(5).any(|w| w == b"value"));
    let text = one[first.prefix().len()..].to_vec();
    assert_eq!(first.open(b"/registry/a", &text).unwrap(), b"value");
    assert!(first.open(b"/registry/b", &text).is_err(), "a value does not open elsewhere");
    assert_eq!(plugin.decrypted.load(Ordering::SeqCst), 0);

    // A server that starts knows no seed: it asks, and once.
    let second = Envelope::start(settings, Rng::from_seed(2), &group).await.unwrap();
    assert_eq!(second.open(b"/registry/a", &text).unwrap(), b"value");
    assert_eq!(second.open(b"/registry/a", &text).unwrap(), b"value");
    assert_eq!(plugin.decrypted.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_of_the_plugin_means_another_seed_and_a_sick_one_is_said_to_be() {
    let (plugin, settings, group, _dir) = world().await;
    let envelope = Envelope::start(settings, Rng::from_seed(1), &group).await.unwrap();
    let key_of =
        |sealed: Vec<u8>| proto::kms::EncryptedObject::decode(&sealed[envelope.prefix().len()..]).unwrap().key_id;
    assert_eq!(key_of(envelope.seal(b"/a", b"x").unwrap()), "key-0");
    plugin.key.store(1, Ordering::SeqCst);
    envelope.refresh().await.unwrap();
    assert_eq!(key_of(envelope.seal(b"/a", b"x").unwrap()), "key-1");
    plugin.sick.store(1, Ordering::SeqCst);
    assert_eq!(envelope.refresh().await.unwrap_err().to_string(), "got unexpected healthz status: sick");
    assert!(envelope.is_ready(), "for three minutes the seed that is there still seals");
}

#[test]
fn a_key_has_a_name_of_bounded_length() {
    let told = |n: usize| check_key_id(&"k".repeat(n)).map_err(|err| err.to_string());
    assert_eq!(told(0), Err("keyID is empty".to_owned()));
    assert_eq!((told(1), told(1024)), (Ok(()), Ok(())));
    assert_eq!(told(1025), Err("keyID is 1025 bytes, which exceeds the max size of 1024".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_value_that_is_not_whole_or_was_sealed_in_another_way_does_not_open() {
    let (_plugin, settings, group, _dir) = world().await;
    let envelope = Envelope::start(settings, Rng::from_seed(1), &group).await.unwrap();
    let sealed = envelope.seal(b"/a", b"x").unwrap();
    let whole = &sealed[envelope.prefix().len()..];
    let told = |text: &[u8]| envelope.open(b"/a", text).map_err(|err| err.to_string());
    assert_eq!(told(whole), Ok(b"x".to_vec()));
    let mut object = proto::kms::EncryptedObject::decode(whole).unwrap();
    object.encrypted_dek_source_type = 7;
    assert_eq!(told(&object.encode_to_vec()), Err("unknown encryptedDEKSourceType: 7".to_owned()));
    object.encrypted_dek_source_type = OF_SEED;
    object.encrypted_data[0] ^= 1;
    assert_eq!(told(&object.encode_to_vec()), Err("the value does not open with its key".to_owned()));
    assert!(told(&whole[..whole.len() - 1]).is_err());
}
