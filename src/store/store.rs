//! The embedded store: opening it, and the [`Storage`] face over Raft and the versions.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use base::chain::Chain;
use base::files::create_private_dir;
use base::task::Group;
use openraft::{BasicNode, Raft, SnapshotPolicy};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};

use crate::error::Error;
use crate::mvcc::apply::Leases;
use crate::mvcc::database::{self, DirLock};
use crate::mvcc::hub::Hub;
use crate::mvcc::index::Index;
use crate::mvcc::past::Past;
use crate::mvcc::read::Reader;
use crate::mvcc::writer::{JOBS, Job, Writer, check_command};
use crate::raft::TypeConfig;
use crate::raft::batch::{self, Proposal};
use crate::raft::command::Command;
use crate::raft::log::{Log, Recent};
use crate::raft::machine::Machine;
use crate::raft::network::Alone;
use crate::watch::WatchStream;
use crate::{Config, RangeReply, RangeRequest, Revision, Storage, Txn, TxnReply, WatchRequest};

/// The embedded store: a member of a Raft group over one SQLite file.
#[derive(Debug)]
pub struct Store {
    cluster_id: u64,
    index: Arc<RwLock<Index>>,
    leases: Arc<Mutex<Leases>>,
    hub: Arc<Hub>,
    reader: Arc<Reader>,
    proposals: mpsc::Sender<Proposal>,
}

impl Store {
    /// Opens the store in `config.dir`, makes it if there is none, and leads when it returns.
    ///
    /// It closes when `group` stops: writes in flight are answered, the database is left as one file.
    /// Errors: `InUse` if another process has it, `NewerSchema`, `Corrupt`, `Io`.
    pub async fn open(config: Config, group: &Group) -> Result<Arc<Store>, Error> {
        let (index, leases, hub) = (Arc::<RwLock<Index>>::default(), Arc::<Mutex<Leases>>::default(), Arc::<Hub>::default());
        let path = database::path_in(&config.dir);
        let (opening, member) = ((index.clone(), leases.clone(), hub.clone(), path.clone(), config.clone()), config.member);
        let (lock, cluster_id, writer) = Group::blocking(move || open_files(opening)).await.map_err(|_| Error::Closed)??;
        let (jobs, job_queue) = mpsc::channel(JOBS);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(job_queue))
            .map_err(Error::io("cannot start the writer thread"))?;
        let log = Log { jobs: jobs.clone(), recent: Recent::default() };
        let raft = start_raft(member, log, path.clone()).await?;
        let (proposals, queue) = batch::queue();
        group.spawn("store-batch", batch::run(raft.clone(), queue));
        let reader = Arc::new(Reader::new(path, index.clone(), hub.clone()));
        let (token, closing_reader) = (group.token(), reader.clone());
        group.spawn_graceful("store-close", async move {
            token.cancelled().await;
            close(raft, jobs, thread, &closing_reader, lock).await;
        });
        info!(rev = hub.revision(), "store opened");
        Ok(Arc::new(Store { cluster_id, index, leases, hub, reader, proposals }))
    }

    /// The number of the cluster, drawn when the store was made.
    pub fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    /// The oldest revision that can be read.
    pub fn floor(&self) -> Revision {
        Revision(self.reader.floor())
    }

    /// Makes a lease of `ttl_secs`. The caller keeps the time and revokes it.
    pub async fn lease_grant(&self, id: u64, ttl_secs: u64) -> Result<TxnReply, Error> {
        self.propose(Command::LeaseGrant { id, ttl_secs }).await
    }

    /// Ends a lease and deletes its keys, all at one revision.
    pub async fn lease_revoke(&self, id: u64) -> Result<TxnReply, Error> {
        self.propose(Command::LeaseRevoke { id }).await
    }

    /// The leases that live: id and time to live in seconds.
    pub fn leases(&self) -> Vec<(u64, u64)> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(id, lease)| (*id, lease.ttl_secs)).collect()
    }

    /// A fingerprint of all keys and their revisions as of now, to compare members at one revision.
    pub fn hash(&self) -> (u64, Revision) {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let revision = self.hub.revision();
        // FNV-1a: the same on every machine and in every version.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for (key, version) in index.range(&[], &[0], revision) {
            for byte in key.iter().copied().chain(version.id.to_be_bytes()).chain(version.version.to_be_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        (hash, Revision(revision))
    }

    async fn propose(&self, command: Command) -> Result<TxnReply, Error> {
        check_command(&command)?;
        let (waiter, answer) = oneshot::channel();
        self.proposals.send(Proposal { command, waiter }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

type Opening = (Arc<RwLock<Index>>, Arc<Mutex<Leases>>, Arc<Hub>, PathBuf, Config);

fn open_files((index, leases, hub, path, config): Opening) -> Result<(DirLock, u64, Writer), Error> {
    create_private_dir(&config.dir).map_err(|err| Error::Io { doing: "cannot open the store", why: Chain(&err).to_string() })?;
    let lock = database::lock_dir(&config.dir)?;
    let conn = database::open_writer(&path, &config.rng)?;
    let cluster_id = database::meta(&conn, &path, "cluster_id")?
        .ok_or_else(|| Error::Corrupt { path: path.clone(), why: "no cluster id".to_owned() })?;
    Ok((lock, cluster_id, Writer::new(conn, path, config.member, index, leases, hub)?))
}

async fn start_raft(member: u64, log: Log, path: PathBuf) -> Result<Raft<TypeConfig>, Error> {
    let config = openraft::Config {
        cluster_name: "kedge".to_owned(),
        // Alone there is nobody to hear a heartbeat or to win an election: no ticks, so that an idle store sleeps.
        enable_tick: false,
        // openraft's clock wakes up at this interval even so. Members that join bring their own intervals.
        heartbeat_interval: 60_000,
        election_timeout_min: 120_000,
        election_timeout_max: 180_000,
        snapshot_policy: SnapshotPolicy::Never,
        ..openraft::Config::default()
    };
    let config = Arc::new(config.validate().map_err(Error::io("cannot start raft"))?);
    let machine = Machine { log: log.clone(), path };
    let raft = Raft::new(member, config, Alone, log, machine).await.map_err(Error::io("cannot start raft"))?;
    if !raft.is_initialized().await.map_err(|_| Error::Closed)? {
        let members = std::collections::BTreeMap::from([(member, BasicNode::default())]);
        raft.initialize(members).await.map_err(Error::io("cannot start raft"))?;
    } else if raft.current_leader().await != Some(member) {
        raft.trigger().elect().await.map_err(Error::io("cannot start raft"))?;
    }
    raft.wait(None).current_leader(member, "alone, this member leads").await.map_err(Error::io("cannot start raft"))?;
    Ok(raft)
}

async fn close(raft: Raft<TypeConfig>, jobs: mpsc::Sender<Job>, thread: std::thread::JoinHandle<()>, reader: &Reader, lock: DirLock) {
    if raft.shutdown().await.is_err() {
        error!("raft ended by a panic");
    }
    reader.close();
    // A closed queue means the thread has ended already.
    let _ended = jobs.send(Job::Stop).await;
    if !matches!(Group::blocking(move || thread.join()).await, Ok(Ok(()))) {
        error!("the store's writer ended by a panic");
    }
    drop(lock);
}

#[async_trait]
impl Storage for Store {
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        // A leader that is alone has applied everything that was ever acknowledged.
        self.reader.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        self.propose(Command::Txn(txn)).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        let start = request.start;
        let (stream, current) = self.hub.register(request.clone())?;
        let floor = self.floor();
        if start.0 > 0 && start < floor {
            return Err(Error::Compacted { asked: start, floor });
        }
        if start.0 == 0 || start.0 > current {
            return Ok(stream);
        }
        Ok(stream.with_past(Past::new(self.reader.clone(), request, current)))
    }

    async fn progress(&self) -> Result<(), Error> {
        self.hub.progress();
        Ok(())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.propose(Command::Compact { at }).await.map(drop)
    }

    fn current_revision(&self) -> Revision {
        Revision(self.hub.revision())
    }
}
