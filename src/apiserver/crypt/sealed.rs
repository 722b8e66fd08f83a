//! The store with sealed values: everybody above sees them open, the disk never does.

use std::sync::Arc;

use async_trait::async_trait;
use base::chain::Chain;
use base::rng::Rng;
use bytes::Bytes;
use model::reference::GroupResource;
use registry::keys;
use store::error::Error;
use store::watch::{Transform, WatchStream};
use store::{
    Compare, CompareOp, EventBatch, KeyValue, Op, OpReply, RangeReply, RangeRequest, Revision, Storage, Txn, TxnReply,
    WatchRequest,
};
use tokio::sync::watch;
use tracing::error;

use super::config::Provider;
use super::kms::{Envelope, KmsError};
use super::shared::{KEY, SharedConfig, State};

/// Prefix of every sealed value.
const MARK: &[u8] = b"k8s:enc:";

/// Tries to write by the newest configuration, which changes rarely.
const SEAL_TRIES: usize = 4;

/// The keys as they are now; swapped when they are rotated.
pub struct EncryptionKeys {
    now: watch::Sender<Arc<State>>,
    shared: Option<SharedConfig>,
    rng: Rng,
    /// Those that the configuration names.
    plugins: Vec<Arc<Envelope>>,
}

impl EncryptionKeys {
    /// With this configuration; `shared` makes it one with that of the other servers.
    pub fn new(state: State, shared: Option<SharedConfig>, rng: Rng) -> EncryptionKeys {
        EncryptionKeys { now: watch::Sender::new(Arc::new(state)), shared, rng, plugins: Vec::new() }
    }

    /// The same with the plugins that the configuration names.
    pub fn guarded_by(self, plugins: Vec<Arc<Envelope>>) -> EncryptionKeys {
        EncryptionKeys { plugins, ..self }
    }

    /// Whether every plugin is well enough for values to be sealed; `None` without plugins.
    pub fn plugins_ready(&self) -> Option<bool> {
        (!self.plugins.is_empty()).then(|| self.plugins.iter().all(|plugin| plugin.is_ready()))
    }

    fn plugin(&self, name: &str) -> Option<&Envelope> {
        self.plugins.iter().find(|plugin| plugin.name() == name).map(Arc::as_ref)
    }

    /// The state of now.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.now.borrow())
    }

    /// Tells when something else holds.
    pub fn changes(&self) -> watch::Receiver<Arc<State>> {
        self.now.subscribe()
    }

    /// How it is shared; `None`: an operator's file says what holds.
    pub fn shared(&self) -> Option<&SharedConfig> {
        self.shared.as_ref()
    }

    /// Takes over what lies under [`KEY`], unless something newer came before.
    fn adopt(&self, kv: &KeyValue) {
        let Some(shared) = self.shared.as_ref().filter(|_| kv.mod_revision > self.state().at) else {
            return;
        };
        match shared.open(&kv.value, kv.mod_revision) {
            Ok(state) => {
                shared.keep(&state);
                self.now.send_modify(|now| {
                    if state.at > now.at {
                        *now = Arc::new(state);
                    }
                });
            }
            Err(err) => error!(err = %Chain(&err), "the configuration of encryption in the store cannot be used"),
        }
    }

    /// A value as a state wants it stored; `None` if no rule is about it.
    ///
    /// Errors: the plugin that guards this resource has not been well for too long.
    fn seal(&self, state: &State, key: &[u8], plain: &Bytes) -> Result<Option<Bytes>, Error> {
        let Some((group, resource, _)) = std::str::from_utf8(key).ok().and_then(keys::parse) else { return Ok(None) };
        match state.config.providers(GroupResource { group, resource }).first() {
            Some(Provider::Sealed(cipher, sealing)) => {
                let sealed = sealing.first().and_then(|sealing| cipher.seal(sealing, key, plain, &self.rng));
                // A key's length was checked when it was read.
                Ok(Some(sealed.expect("a key of a checked length seals").into()))
            }
            Some(Provider::Kms(settings)) => {
                let plugin = self.plugin(&settings.name).ok_or(KmsError::Missing);
                let sealed = plugin.and_then(|plugin| plugin.seal(key, plain));
                let refused = |err: KmsError| Error::Io {
                    doing: "failed to encrypt with the KMS plugin",
                    why: Chain(&err).to_string(),
                };
                sealed.map(|sealed| Some(sealed.into())).map_err(refused)
            }
            Some(Provider::Identity) => Ok(Some(plain.clone())),
            None => Ok(None),
        }
    }

    /// Whether a value is open now. What cannot be opened stays as it is: it is no JSON, and reading it fails for
    /// everybody.
    fn try_open(&self, kv: &mut KeyValue) -> bool {
        if !kv.value.starts_with(MARK) {
            return true;
        }
        if kv.key == KEY.as_bytes() {
            self.adopt(kv);
            return true;
        }
        let state = self.state();
        let Some((group, resource, _)) = std::str::from_utf8(&kv.key).ok().and_then(keys::parse) else { return true };
        for provider in state.config.providers(GroupResource { group, resource }) {
            let (cipher, sealing) = match provider {
                Provider::Sealed(cipher, sealing) => (cipher, sealing),
                Provider::Kms(settings) if self.open_by_plugin(&settings.name, kv) => return true,
                Provider::Kms(_) | Provider::Identity => continue,
            };
            for key in sealing {
                let Some(text) = kv.value.strip_prefix(cipher.prefix(&key.name).as_bytes()) else { continue };
                if let Some(plain) = cipher.open(key, &kv.key, text) {
                    kv.value = plain.into();
                    return true;
                }
            }
        }
        false
    }

    fn open(&self, kv: &mut KeyValue) {
        if !self.try_open(kv) {
            error!(key = %String::from_utf8_lossy(&kv.key), "no key opens this stored object");
        }
    }

    /// False if another one sealed it.
    fn open_by_plugin(&self, name: &str, kv: &mut KeyValue) -> bool {
        let Some(plugin) = self.plugin(name) else { return false };
        let Some(text) = kv.value.strip_prefix(plugin.prefix().as_bytes()) else { return false };
        match plugin.open(&kv.key, text) {
            Ok(plain) => kv.value = plain.into(),
            Err(err) => {
                let key = String::from_utf8_lossy(&kv.key);
                error!(%key, plugin = name, err = %Chain(&err), "the KMS plugin does not open this stored object")
            }
        }
        true
    }

    fn open_range(&self, reply: &mut RangeReply) {
        reply.kvs.iter_mut().for_each(|kv| self.open(kv));
    }

    fn open_batch(&self, batch: EventBatch) -> EventBatch {
        let sealed = |kv: &KeyValue| kv.value.starts_with(MARK);
        if !batch.events.iter().any(|e| sealed(&e.kv) || e.prev.as_ref().is_some_and(sealed)) {
            return batch;
        }
        let open = |event: &store::Event| {
            let mut event = event.clone();
            self.open(&mut event.kv);
            if let Some(prev) = &mut event.prev {
                self.open(prev);
            }
            event
        };
        EventBatch { revision: batch.revision, events: batch.events.iter().map(open).collect() }
    }

    fn open_reply(&self, reply: &mut TxnReply) {
        for step in &mut reply.replies {
            match step {
                OpReply::Put { prev } => prev.iter_mut().for_each(|kv| self.open(kv)),
                OpReply::Delete { prev, .. } => prev.iter_mut().for_each(|kv| self.open(kv)),
                OpReply::Range(range) => self.open_range(range),
                OpReply::Txn(inner) => self.open_reply(inner),
            }
        }
    }

    /// Seals what would be written, and says whether a rule is about any of it.
    fn seal_ops(&self, state: &State, ops: &mut [Op]) -> Result<bool, Error> {
        let mut ruled = false;
        for op in ops {
            match op {
                Op::Put { key, value, .. } => {
                    if let Some(sealed) = self.seal(state, key, value)? {
                        (*value, ruled) = (sealed, true);
                    }
                }
                Op::Txn(inner) => {
                    ruled |= self.seal_ops(state, &mut inner.success)?;
                    ruled |= self.seal_ops(state, &mut inner.failure)?;
                }
                Op::Delete { .. } | Op::Range(_) => {}
            }
        }
        Ok(ruled)
    }
}

/// A store whose values are sealed as [`EncryptionKeys`] say.
pub struct Sealed {
    inner: Arc<dyn Storage>,
    keys: Arc<EncryptionKeys>,
}

impl Sealed {
    /// Over `inner`.
    pub fn new(inner: Arc<dyn Storage>, keys: Arc<EncryptionKeys>) -> Sealed {
        Sealed { inner, keys }
    }

    async fn carry_out(&self, txn: Txn) -> Result<TxnReply, Error> {
        let mut reply = self.inner.txn(txn).await?;
        self.keys.open_reply(&mut reply);
        Ok(reply)
    }
}

#[async_trait]
impl Storage for Sealed {
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        let mut reply = self.inner.range(request).await?;
        let mut opened = true;
        for kv in &mut reply.kvs {
            opened &= self.keys.try_open(kv);
        }
        if !opened {
            // A reader may be ahead of the stream of changes that brings new keys.
            let newest = self.inner.range(RangeRequest { key: KEY.into(), ..RangeRequest::default() }).await?;
            newest.kvs.iter().for_each(|kv| self.keys.adopt(kv));
            self.keys.open_range(&mut reply);
        }
        Ok(reply)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        for _ in 0..SEAL_TRIES {
            let (state, mut sealed) = (self.keys.state(), txn.clone());
            let ruled =
                self.keys.seal_ops(&state, &mut sealed.success)? | self.keys.seal_ops(&state, &mut sealed.failure)?;
            if !ruled || self.keys.shared.is_none() {
                return self.carry_out(sealed).await;
            }
            // A server that was cut off while keys changed must not write with one that is gone by now.
            let same = Compare::ModRevision { key: KEY.into(), op: CompareOp::Equal, revision: state.at };
            let look = Op::Range(RangeRequest { key: KEY.into(), ..RangeRequest::default() });
            let guarded = Txn { compare: vec![same], success: vec![Op::Txn(Box::new(sealed))], failure: vec![look] };
            let reply = self.carry_out(guarded).await?;
            if let (true, Some(OpReply::Txn(inner))) = (reply.succeeded, reply.replies.into_iter().next()) {
                return Ok(TxnReply { revision: reply.revision, ..*inner });
            }
            if self.keys.state().at == state.at {
                // What lies in the store is of no use here; the log says why.
                break;
            }
        }
        Err(Error::Io {
            doing: "cannot seal a value",
            why: "the configuration of encryption in the store is another than this server's".to_owned(),
        })
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        let keys = Arc::clone(&self.keys);
        Ok(self.inner.watch(request).await?.transformed(Transform(Arc::new(move |batch| keys.open_batch(batch)))))
    }

    async fn progress(&self) -> Result<(), Error> {
        self.inner.progress().await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.compact(at).await
    }

    async fn read_index(&self) -> Result<Revision, Error> {
        self.inner.read_index().await
    }

    fn current_revision(&self) -> Revision {
        self.inner.current_revision()
    }

    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error> {
        self.inner.grant_lease(id, ttl_secs).await
    }

    async fn keep_lease(&self, id: u64) -> Result<(), Error> {
        self.inner.keep_lease(id).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::shared::START;
    use super::*;
    use store::bounds::Bounds;

    fn state(seed: u64) -> State {
        State {
            config: Config::generated(pki::seal::Cipher::Secretbox, &Rng::from_seed(seed)),
            stage: START.to_owned(),
            at: Revision(0),
        }
    }

    #[test]
    fn a_server_knows_a_key_before_it_meets_a_value_sealed_with_it() {
        let (rng, dir) = (Rng::from_seed(5), tempfile::tempdir().unwrap());
        let shared = || SharedConfig::new("s", dir.path().join("file"));
        let (here, there) = (
            EncryptionKeys::new(state(1), Some(shared()), rng.clone()),
            EncryptionKeys::new(state(2), Some(shared()), rng.clone()),
        );
        let kv = |key: &str, value: Bytes, at: u64| KeyValue {
            key: Bytes::from(key.to_owned()),
            value,
            create_revision: Revision(1),
            mod_revision: Revision(at),
            version: 1,
            lease: 0,
        };
        let secret = "/registry/core/secrets/default/a";
        let told = |config: &Config, at| kv(KEY, shared().seal(config, "prepare", &rng).unwrap().into(), at);
        let sealed = || {
            kv(secret, there.seal(&there.state(), secret.as_bytes(), &Bytes::from_static(b"{}")).unwrap().unwrap(), 9)
        };
        assert!(!here.try_open(&mut sealed()));
        let event = |kv: KeyValue| store::Event { kind: store::EventKind::Put, kv, prev: None };
        let batch = EventBatch {
            revision: Revision(9),
            events: vec![event(told(&state(2).config, 8)), event(sealed())].into(),
        };
        assert_eq!(here.open_batch(batch).events[1].kv.value, Bytes::from_static(b"{}"));
        // What was told before is told again to a watch that starts early.
        here.adopt(&told(&state(3).config, 7));
        assert!(here.state().at == Revision(8) && here.try_open(&mut sealed()));
        let foreign =
            SharedConfig::new("other", dir.path().join("file")).seal(&state(4).config, "prepare", &rng).unwrap();
        here.adopt(&kv(KEY, foreign.into(), 20));
        assert_eq!(here.state().at, Revision(8));
    }

    #[test]
    fn secrets_are_sealed_and_others_are_not() {
        let keys = EncryptionKeys::new(state(1), None, Rng::from_seed(2));
        let plain = Bytes::from_static(b"{\"metadata\":{}}");
        let kv = |key: &str| {
            let key = Bytes::from(key.to_owned());
            KeyValue {
                value: keys.seal(&keys.state(), &key, &plain).unwrap().unwrap_or_else(|| plain.clone()),
                key,
                create_revision: Revision(1),
                mod_revision: Revision(1),
                version: 1,
                lease: 0,
            }
        };
        let mut secret = kv("/registry/core/secrets/default/a");
        assert!(secret.value.starts_with(b"k8s:enc:secretbox:v1:secretboxkey:"));
        keys.open(&mut secret);
        assert_eq!(secret.value, plain);
        assert_eq!(kv("/registry/core/configmaps/default/a").value, plain);
    }
    #[tokio::test]
    async fn a_server_that_missed_a_change_of_keys_writes_with_the_new_ones() {
        let (rng, dir) = (Rng::from_seed(7), tempfile::tempdir().unwrap());
        let (group, _reports) = base::task::Group::root("test");
        let config = store::Config {
            dir: dir.path().join("db"),
            bootstrap: store::member::Bootstrap::First,
            network: None,
            rng: rng.clone(),
            bounds: Bounds::SHIPPED,
        };
        let storage: Arc<dyn Storage> = store::store::Store::open(config, &group).await.unwrap();
        let shared = || SharedConfig::new("s", dir.path().join("file"));
        let keys = Arc::new(EncryptionKeys::new(state(1), Some(shared()), rng.clone()));
        let server = Sealed::new(Arc::clone(&storage), Arc::clone(&keys));
        let put = |key: &str, value: Vec<u8>| Txn {
            success: vec![Op::Put { key: Bytes::from(key.to_owned()), value: value.into(), lease: 0, prev_kv: false }],
            ..Txn::default()
        };
        let secret = "/registry/core/secrets/default/a";
        let first = server.txn(put(secret, b"{}".to_vec())).await.unwrap();
        assert!(first.succeeded && matches!(first.replies[..], [OpReply::Put { .. }]));
        // Another server changes the keys; nothing told this one.
        storage.txn(put(KEY, shared().seal(&state(2).config, START, &rng).unwrap())).await.unwrap();
        server.txn(put(secret, b"{}".to_vec())).await.unwrap();
        let stored =
            storage.range(RangeRequest { key: secret.into(), ..RangeRequest::default() }).await.unwrap().kvs.remove(0);
        let others = EncryptionKeys::new(state(2), Some(shared()), rng.clone());
        assert!(others.try_open(&mut stored.clone()) && stored.value.starts_with(MARK));
        // A configuration of another cluster's servers is no use: nothing is written.
        storage
            .txn(put(
                KEY,
                SharedConfig::new("other", dir.path().join("file")).seal(&state(3).config, START, &rng).unwrap(),
            ))
            .await
            .unwrap();
        assert!(server.txn(put(secret, b"{}".to_vec())).await.is_err());
        server.txn(put("/registry/core/configmaps/default/a", b"{}".to_vec())).await.unwrap();
        group.shutdown().await;
    }
}
