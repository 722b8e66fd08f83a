//! Key management plugins (KMS v2): a program outside of this server guards the key under which values are sealed.
//!
//! The plugin encrypts one seed; from that come the keys of all values, a fresh one each, so it is asked once a
//! rotation and not once a value. The stored form is upstream's, and so are the times.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use base::chain::Chain;
use base::rng::Rng;
use base::secret::Secret;
use base::sync::Mutex;
use base::task::Group;
use pki::seal::{self, Cipher, Key};
use prost::Message;
use proto::kms as pb;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tracing::{info, warn};
use wire::dial::{self, DialError, Http2};

/// Between two looks at a plugin that is well, and at one that is not.
const LOOK: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long values are sealed with a seed after the plugin was last well.
const STATE_LIFE: Duration = Duration::from_secs(180);
/// A server waits so long for its plugins when it starts.
const START_WAIT: Duration = Duration::from_secs(30);
const START_RETRY: Duration = Duration::from_millis(500);
/// Bounds of what a plugin may say, as upstream's.
const KEY_ID_BYTES_MAX: usize = 1024;
const CIPHERTEXT_BYTES_MAX: usize = 1024;
const ANNOTATIONS_BYTES_MAX: usize = 32 * 1024;
/// Seeds that are remembered; when full, all are forgotten and asked for anew.
const SEEDS_MAX: usize = 1000;
const SEED_BYTES: usize = 32;
/// `encrypted_dek_source_type` of a key, and of a seed.
const OF_KEY: i32 = 0;
const OF_SEED: i32 = 1;

/// Why a plugin does not guard values.
#[derive(Debug, thiserror::Error)]
pub enum KmsError {
    /// It was not well when the server started.
    #[error("the KMS plugin {name} at {} is not ready", socket.display())]
    NotReady {
        /// Its name.
        name: String,
        /// Where it listens.
        socket: PathBuf,
        /// The last that was heard of it.
        source: Box<KmsError>,
    },
    /// Nothing was heard of it yet.
    #[error("it did not answer")]
    Silent,
    /// It took too long.
    #[error("it did not answer in time")]
    Late,
    /// It is not reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It refused a call.
    #[error("{code:?}: {message}")]
    Refused {
        /// Code of gRPC.
        code: tonic::Code,
        /// Its words.
        message: String,
    },
    /// It speaks another version.
    #[error("unsupported API version {0:?}, want v2")]
    Version(String),
    /// It says that it is sick.
    #[error("got unexpected healthz status: {0}")]
    Sick(String),
    /// Its key has no name.
    #[error("keyID is empty")]
    NoKeyId,
    /// Its key has a long name.
    #[error("keyID is {0} bytes, which exceeds the max size of {KEY_ID_BYTES_MAX}")]
    LongKeyId(usize),
    /// A ciphertext that is empty, or too long.
    #[error("a ciphertext of {0} bytes, want 1 to {CIPHERTEXT_BYTES_MAX}")]
    Ciphertext(usize),
    /// It adds too much.
    #[error("its annotations have more than {ANNOTATIONS_BYTES_MAX} bytes")]
    Annotations,
    /// It decrypts to something else than a seed.
    #[error("the plugin decrypted {0} bytes, want {SEED_BYTES}")]
    Seed(usize),
    /// The seed in use is too old.
    #[error("the KMS plugin {0} has not been well for too long")]
    Stale(String),
    /// The configuration that names it is older than this server's start.
    #[error("it is not there")]
    Missing,
    /// A value was not sealed.
    #[error("cannot encrypt")]
    Encrypt,
    /// A stored value is not whole.
    #[error(transparent)]
    Stored(#[from] prost::DecodeError),
    /// A stored value was sealed in another way.
    #[error("unknown encryptedDEKSourceType: {0}")]
    SourceType(i32),
    /// A stored value, or its key, is another than it says.
    #[error("the value does not open with its key")]
    Closed,
}

/// Configuration of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Stands in the prefix of what it guards.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// How long a call may take.
    pub timeout: Duration,
}

/// The seed in use.
struct State {
    seed: Arc<Secret<Vec<u8>>>,
    key_id: String,
    ciphertext: Vec<u8>,
    annotations: HashMap<String, Vec<u8>>,
    until: Instant,
}

/// One plugin, and what it has encrypted for us.
pub struct Envelope {
    settings: Settings,
    rng: Rng,
    group: Group,
    link: tokio::sync::Mutex<Option<Http2>>,
    state: ArcSwapOption<State>,
    /// By the digest of what the plugin made of them.
    seeds: Mutex<HashMap<[u8; 32], Arc<Secret<Vec<u8>>>>>,
}

/// Connection of a call.
#[derive(Clone)]
struct Way(Http2);

impl tower::Service<http::Request<tonic::body::Body>> for Way {
    type Response = http::Response<wire::Body>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<wire::Body>, DialError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: http::Request<tonic::body::Body>) -> Self::Future {
        self.0.send(req.map(wire::body::from_http))
    }
}

impl Envelope {
    /// Waits for the plugin, has it encrypt a seed, and follows it in `group` from then on.
    ///
    /// Errors: it is not well in time.
    pub async fn start(settings: Settings, rng: Rng, group: &Group) -> Result<Arc<Envelope>, KmsError> {
        let envelope = Arc::new(Envelope {
            settings,
            rng,
            group: group.clone(),
            link: tokio::sync::Mutex::default(),
            state: ArcSwapOption::empty(),
            seeds: Mutex::default(),
        });
        let mut last = KmsError::Silent;
        let ready = timeout(START_WAIT, async {
            while let Err(err) = envelope.refresh().await {
                last = err;
                sleep(START_RETRY).await;
            }
        });
        if ready.await.is_err() {
            let Settings { name, socket, .. } = envelope.settings.clone();
            return Err(KmsError::NotReady { name, socket, source: Box::new(last) });
        }
        let kept = Arc::clone(&envelope);
        group.spawn("kms-plugin", async move { kept.keep().await });
        Ok(envelope)
    }

    /// As the configuration names it.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Prefix of values that it guards.
    pub fn prefix(&self) -> String {
        format!("k8s:enc:kms:v2:{}:", self.settings.name)
    }

    /// Whether values can be sealed now.
    pub fn is_ready(&self) -> bool {
        self.state.load().as_ref().is_some_and(|state| Instant::now() < state.until)
    }

    async fn keep(&self) {
        let mut well = true;
        loop {
            sleep(if well { LOOK } else { LOOK_AGAIN }).await;
            let looked = self.refresh().await;
            well = looked.is_ok();
            if let Err(err) = looked {
                warn!(plugin = %self.settings.name, err = %Chain(&err), "the KMS plugin is not well");
            }
        }
    }

    /// Looks at the plugin; if it has another key, it gets another seed.
    async fn refresh(&self) -> Result<(), KmsError> {
        let status: pb::StatusResponse = self.call(pb::STATUS, pb::StatusRequest {}).await?;
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(KmsError::Version(status.version));
        }
        if status.healthz != "ok" {
            return Err(KmsError::Sick(status.healthz));
        }
        check_key_id(&status.key_id)?;
        let until = Instant::now() + STATE_LIFE;
        if let Some(state) = self.state.load_full().filter(|state| state.key_id == status.key_id) {
            let State { seed, key_id, ciphertext, annotations, .. } = &*state;
            let same = State {
                seed: Arc::clone(seed),
                key_id: key_id.clone(),
                ciphertext: ciphertext.clone(),
                annotations: annotations.clone(),
                until,
            };
            self.state.store(Some(Arc::new(same)));
            return Ok(());
        }
        let mut seed = vec![0; SEED_BYTES];
        self.rng.fill(&mut seed);
        let request = pb::EncryptRequest { plaintext: seed.clone(), uid: self.rng.uuid() };
        let made: pb::EncryptResponse = self.call(pb::ENCRYPT, request).await?;
        check_key_id(&made.key_id)?;
        if made.ciphertext.is_empty() || made.ciphertext.len() > CIPHERTEXT_BYTES_MAX {
            return Err(KmsError::Ciphertext(made.ciphertext.len()));
        }
        if made.annotations.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > ANNOTATIONS_BYTES_MAX {
            return Err(KmsError::Annotations);
        }
        let seed = Arc::new(Secret::new(seed));
        self.remember(&made.ciphertext, &made.key_id, Arc::clone(&seed));
        info!(plugin = %self.settings.name, "values are sealed with a new seed of the KMS plugin");
        let pb::EncryptResponse { ciphertext, key_id, annotations } = made;
        self.state.store(Some(Arc::new(State { seed, key_id, ciphertext, annotations, until })));
        Ok(())
    }

    /// The sealed value, prefix included. `context` is the key in the store.
    ///
    /// Errors: the plugin has not been well for too long.
    pub fn seal(&self, context: &[u8], plain: &[u8]) -> Result<Vec<u8>, KmsError> {
        let state = self.state.load_full().filter(|state| Instant::now() < state.until);
        let state = state.ok_or_else(|| KmsError::Stale(self.settings.name.clone()))?;
        let sealed = seal::with_seed(state.seed.expose(), context, plain, &self.rng);
        let encrypted_data = sealed.ok_or(KmsError::Encrypt)?;
        let object = pb::EncryptedObject {
            encrypted_data,
            key_id: state.key_id.clone(),
            encrypted_dek_source: state.ciphertext.clone(),
            annotations: state.annotations.clone(),
            encrypted_dek_source_type: OF_SEED,
        };
        let mut out = self.prefix().into_bytes();
        out.extend(object.encode_to_vec());
        Ok(out)
    }

    /// Opens what was sealed; `text` comes behind the prefix. A seed that is not known is asked for: the thread waits
    /// for that.
    ///
    /// Errors: the plugin does not decrypt it, or the value is not whole.
    pub fn open(&self, context: &[u8], text: &[u8]) -> Result<Vec<u8>, KmsError> {
        let object = pb::EncryptedObject::decode(text)?;
        let known = self.known(&object.encrypted_dek_source, &object.key_id);
        let seed = match known {
            Some(seed) => seed,
            // Once a seed: after a start, a rotation, or a write of another server.
            None => tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.ask(&object)))?,
        };
        let plain = match object.encrypted_dek_source_type {
            OF_SEED => seal::open_with_seed(seed.expose(), context, &object.encrypted_data),
            OF_KEY => {
                let key = Key { name: self.settings.name.clone(), secret: Secret::new(seed.expose().clone()) };
                Cipher::AesGcm.open(&key, context, &object.encrypted_data)
            }
            other => return Err(KmsError::SourceType(other)),
        };
        plain.ok_or(KmsError::Closed)
    }

    async fn ask(&self, object: &pb::EncryptedObject) -> Result<Arc<Secret<Vec<u8>>>, KmsError> {
        let request = pb::DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: self.rng.uuid(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let answer: pb::DecryptResponse = self.call(pb::DECRYPT, request).await?;
        if answer.plaintext.len() != SEED_BYTES {
            return Err(KmsError::Seed(answer.plaintext.len()));
        }
        let seed = Arc::new(Secret::new(answer.plaintext));
        self.remember(&object.encrypted_dek_source, &object.key_id, Arc::clone(&seed));
        Ok(seed)
    }

    fn known(&self, ciphertext: &[u8], key_id: &str) -> Option<Arc<Secret<Vec<u8>>>> {
        self.seeds.lock().get(&digest(ciphertext, key_id)).cloned()
    }

    fn remember(&self, ciphertext: &[u8], key_id: &str, seed: Arc<Secret<Vec<u8>>>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS_MAX {
            seeds.clear();
        }
        seeds.insert(digest(ciphertext, key_id), seed);
    }

    async fn connect(&self) -> Result<Http2, KmsError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let stream = dial::unix(&self.settings.socket).await?;
        let fresh = Http2::begin(stream, &self.settings.name, &self.group).await?;
        Ok(link.insert(fresh).clone())
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, KmsError>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let called = async {
            let mut grpc = Grpc::with_origin(Way(self.connect().await?), http::Uri::from_static("http://localhost"));
            let path = http::uri::PathAndQuery::from_static(path);
            let answer = grpc.unary(tonic::Request::new(message), path, ProstCodec::<Q, A>::default()).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| KmsError::Refused { code: status.code(), message: status.message().to_owned() })
        };
        timeout(self.settings.timeout, called).await.unwrap_or(Err(KmsError::Late))
    }
}

fn digest(ciphertext: &[u8], key_id: &str) -> [u8; 32] {
    Sha256::new().chain_update(key_id).chain_update([0]).chain_update(ciphertext).finalize().into()
}

fn check_key_id(key_id: &str) -> Result<(), KmsError> {
    match key_id.len() {
        0 => Err(KmsError::NoKeyId),
        n if n > KEY_ID_BYTES_MAX => Err(KmsError::LongKeyId(n)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
