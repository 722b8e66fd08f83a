//! The embedded store: opening it, and the [`Storage`] face over Raft and the versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::chain::Chain;
use base::files::create_private_dir;
use base::fnv;
use base::sync::{Mutex, RwLock};
use base::task::Group;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::command::Command;
use crate::config::Config;
use crate::disk::{Disk, SystemDisk};
use crate::error::Error;
use crate::etcd::export;
use crate::kv::Revision;
use crate::lease::{self, Lessor};
use crate::member::{Change, Leadership, Member};
use crate::mvcc::apply::Leases;
use crate::mvcc::database::{self, DirLock};
use crate::mvcc::history::History;
use crate::mvcc::hub::Hub;
use crate::mvcc::index::Index;
use crate::mvcc::job::Job;
use crate::mvcc::read::Reader;
use crate::mvcc::shared::Shared;
use crate::mvcc::writer::{JOBS, Writer};
use crate::mvcc::{files, space};
use crate::pending::{Pending, Proposed};
use crate::propose::Proposer;
use crate::raft::batch::{self, Proposal};
use crate::raft::image::ImageSource;
use crate::raft::last_contact::LastContact;
use crate::raft::log::{Log, Recent};
use crate::raft::network::Ways;
use crate::raft::node::{Gate, Node, Unread};
use crate::raft::peers::Peers;
use crate::raft::report::Reporter;
use crate::raft::rpc::MemberStatus;
use crate::raft::serve::Inbox;
use crate::raft::{election, grow, start};
use crate::storage::{Storage, WatchRequest};
use crate::txn::{RangeReply, RangeRequest, Txn, TxnReply};
use crate::watch::WatchStream;

/// How often the leader looks whether it still hears a majority, and a new one whether it does yet.
const LEADERSHIP_LOOK: Duration = Duration::from_millis(250);
const LEADERSHIP_FIRST_LOOK: Duration = Duration::from_millis(25);
/// Keys that a fingerprint holds in memory at a time, with their values.
const HASH_KEYS: u64 = 128;
/// Handing over and the last writes, when the store closes.
const DRAIN: Duration = Duration::from_secs(4);

/// The embedded store: a member of a Raft group over a log and one SQLite file.
pub struct Store {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    shared: Shared,
    reader: Arc<Reader>,
    images: ImageSource,
    node: Arc<Node>,
    lessor: Arc<Lessor>,
    leadership: watch::Receiver<Leadership>,
    proposer: Proposer,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir).field("member", &self.node.id).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `config.dir`, makes it if there is none.
    ///
    /// A member that is alone leads when this returns. One of several may still wait for a leader: see
    /// [`Store::ready`]. One that is new and [`Joining`](crate::member::Bootstrap::Joining) waits to be added with
    /// [`Store::add_learner`] on another member. It closes when `group` stops: a leader hands over, writes in flight
    /// are answered, the database is left as one file.
    ///
    /// Errors: `InUse` if another process has it, `NewerSchema`, `Corrupt`, `Io`.
    pub async fn open(config: Config, group: &Group) -> Result<Arc<Store>, Error> {
        Store::open_on(Arc::new(SystemDisk), config, group).await
    }

    /// The same on another disk, e.g. one that fails.
    pub async fn open_on(disk: Arc<dyn Disk>, config: Config, group: &Group) -> Result<Arc<Store>, Error> {
        let path = database::path_in(&config.dir);
        let (opening, on) = (config.clone(), Arc::clone(&disk));
        let opened = Group::blocking(move || open_files(&on, &opening)).await.map_err(|_| Error::Closed)??;
        let Opened { lock, member, writer, shared } = opened;
        let (jobs, job_queue) = mpsc::channel(JOBS);
        let (works, writer_ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                writer.run(job_queue);
                drop(works);
            })
            .map_err(Error::io("cannot start the writer thread"))?;
        let log = Log { jobs: jobs.clone(), recent: Recent::default(), applied_index: shared.applied_index.clone() };
        let reader = Arc::new(Reader::new(disk.clone(), path, &shared));
        let images = ImageSource { reader: reader.clone(), log: log.clone(), member, dir: config.dir.clone() };
        // A member that never applied anything is in no cluster yet, whatever number its file drew.
        let (cluster_id, index_of) = (shared.cluster_id.clone(), shared.hub.clone());
        let cluster = move || (index_of.revision() > 1).then(|| cluster_id.load(Ordering::Acquire));
        // Of its own, as calls go on while the store closes: a leader hands over.
        let (calls, _reports) = Group::root("store-calls");
        let peers = Arc::new(Peers::new(member, Arc::new(cluster), config.network.clone(), &calls));
        let last_contact = Arc::<LastContact>::default();
        let ways = Ways { peers: peers.clone(), images: images.clone(), last_contact: last_contact.clone() };
        let raft = start::raft(member, config.bootstrap, log.clone(), ways).await?;
        let node = Node {
            id: member,
            raft,
            log,
            pending: shared.pending.clone(),
            proposed: Proposed::default(),
            peers,
            last_contact,
            alone: shared.alone.clone(),
            gate: Gate::default(),
            unread: Unread::default(),
            shaping: tokio::sync::Mutex::default(),
            bounds: config.bounds,
        };
        let node = Arc::new(node);
        if start::lead_if_alone(&node).await? {
            info!(rev = shared.hub.revision(), "store opened");
        } else {
            info!(rev = shared.hub.revision(), member, "store opened, one of several");
        }
        let (proposals, queue) = batch::queue();
        let (tell, leadership) = watch::channel(node.leadership());
        let proposer = Proposer { queue: proposals, space: shared.space.clone(), dir: config.dir.clone() };
        let lessor = Arc::new(Lessor::new(node.clone(), proposer.clone(), &shared));
        let store =
            Arc::new(Store { disk, dir: config.dir, shared, reader, images, node, lessor, leadership, proposer });
        group.spawn("store-elections", election::keep(store.node.clone(), config.rng));
        store.clone().start_tasks(queue, tell, group);
        // Its end before the store's is fatal for the process, also if nobody writes: the disk failed.
        group.spawn("store-writer", async move {
            let _ended = writer_ended.await;
        });
        let closing = store.clone();
        let token = group.token();
        group.spawn_graceful("store-close", async move {
            token.cancelled().await;
            closing.close(jobs, thread, lock).await;
            calls.shutdown().await;
        });
        Ok(store)
    }

    fn start_tasks(self: Arc<Self>, queue: mpsc::Receiver<Proposal>, tell: watch::Sender<Leadership>, group: &Group) {
        group.spawn("store-batch", batch::run(self.node.clone(), queue));
        group.spawn("store-members", grow::tend(self.node.clone()));
        group.spawn("store-leases", lease::keep_time(self.lessor.clone()));
        group.spawn("store-leadership", follow_leadership(self.node.clone(), tell));
        let node = self.node.clone();
        group.spawn("store-announce", async move {
            grow::announce(node).await;
            std::future::pending().await
        });
    }

    /// This member's number.
    pub fn member_id(&self) -> u64 {
        self.node.id
    }

    /// The number of the cluster, drawn when the store was made; a member that joins takes it over with its first
    /// snapshot.
    pub fn cluster_id(&self) -> u64 {
        self.shared.cluster_id.load(Ordering::Acquire)
    }

    /// Waits until this member is in a group with a leader and has applied what was acknowledged before the call.
    ///
    /// Errors: `Closed`, `Removed`. It waits for as long as it takes: the caller has the time-out.
    pub async fn ready(&self) -> Result<(), Error> {
        loop {
            match self.node.catch_up().await {
                Err(Error::Closed) => return Err(Error::Closed),
                _ if self.node.peers.is_removed() => return Err(Error::Removed),
                Ok(()) if self.node.raft.data_metrics().borrow().last_applied.is_some() => return Ok(()),
                Ok(()) | Err(_) => tokio::time::sleep(LEADERSHIP_LOOK).await,
            }
        }
    }

    /// The leader. `is_me` turns false as soon as this member cannot be sure any more, before another one can lead.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Resolves when the leader said that this member was let go: nothing can be read or written here any more.
    pub async fn removed(&self) {
        self.node.peers.removed().await;
    }

    /// The members, as the leader sees them if it can be asked.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        self.node.members().await
    }

    /// Hands the leadership to the voter that lacks least, without a pause in which nobody leads. Nothing if this
    /// member does not lead.
    ///
    /// Errors: `LastMember` if there is no other voter that answers, `TimedOut`.
    pub async fn transfer_leadership(&self) -> Result<(), Error> {
        self.node.hand_over().await
    }

    /// Answers the other members. To be served over HTTP/2 behind TLS that demands a certificate of the peers'
    /// authority, in a group that stops after the store's: while it closes, the others still talk to it.
    pub fn peer_handler(self: &Arc<Self>) -> Arc<dyn wire::Handler> {
        Arc::new(Inbox::new(Arc::clone(&self.lessor), self.reporter()))
    }

    /// Writes the whole store as it stands into one file of etcd's format, which is deleted when the path is dropped.
    ///
    /// Errors: `NoSpace`, `Io`.
    pub async fn etcd_copy(&self) -> Result<tempfile::TempPath, Error> {
        self.node.log.flush().await?;
        export::copy(Arc::clone(&self.disk), database::path_in(&self.dir), self.node.id, &self.images.dir).await
    }

    /// The oldest revision that can be read.
    pub fn floor(&self) -> Revision {
        Revision(self.reader.floor())
    }

    /// A fingerprint of all keys and values as they were at a revision, or are now on this member, to compare members.
    /// It reads the whole database, some keys at a time.
    ///
    /// Errors: `Future`, `Compacted`, also if the floor passes while it looks; `Io`, `Corrupt`.
    pub async fn hash(&self, at: Option<Revision>) -> Result<(u64, Revision), Error> {
        let revision = at.filter(|at| at.0 > 0).unwrap_or_else(|| self.current_revision());
        let (mut hash, mut key, range_end) = (fnv::BASIS, Bytes::new(), Bytes::from_static(&[0]));
        loop {
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: HASH_KEYS,
                revision: Some(revision),
                ..RangeRequest::default()
            };
            let page = self.reader.range(request).await?;
            for kv in &page.kvs {
                for number in [
                    kv.create_revision.0,
                    kv.mod_revision.0,
                    kv.version,
                    kv.lease,
                    kv.key.len() as u64,
                    kv.value.len() as u64,
                ] {
                    hash = fnv::resume(hash, &number.to_be_bytes());
                }
                hash = fnv::resume(fnv::resume(hash, &kv.key), &kv.value);
            }
            let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok((hash, revision)) };
            // The first key after it.
            key = [&last.key[..], &[0]].concat().into();
        }
    }

    /// Status of this member.
    pub fn status(&self) -> MemberStatus {
        self.reporter().status()
    }

    /// Bytes of the database that hold something: free pages, which are written again, are not counted.
    ///
    /// Errors: `Io`, `Corrupt`.
    pub async fn bytes_in_use(&self) -> Result<u64, Error> {
        self.reader.with_connection(database::bytes_in_use).await
    }

    /// Writes the database anew without its free pages, so that its file shrinks. Writes wait meanwhile, as with etcd.
    ///
    /// Errors: `NoSpace`: it needs as much room again as is in use. `Io`, `Closed`.
    pub async fn defragment(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.node.log.jobs.send(Job::Defragment { reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// How this member's disk is.
    pub fn space(&self) -> &space::Space {
        &self.shared.space
    }

    /// Looks anew whether there is room, and writes what waits for it.
    ///
    /// Errors: as those of a write.
    pub async fn look_for_space(&self) -> Result<(), Error> {
        self.node.log.flush().await
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn reporter(&self) -> Reporter {
        Reporter { node: self.node.clone(), hub: self.shared.hub.clone(), dir: self.dir.clone() }
    }

    /// The leases.
    pub fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    pub(crate) async fn change(&self, change: Change) -> Result<(), Error> {
        self.node.change(change).await
    }

    async fn close(&self, jobs: mpsc::Sender<Job>, thread: std::thread::JoinHandle<()>, lock: DirLock) {
        self.shared.space.close();
        if !self.shared.alone.load(Ordering::Acquire) && self.node.leader().0 == Some(self.node.id) {
            match tokio::time::timeout(DRAIN, self.node.hand_over()).await {
                Ok(Ok(()) | Err(Error::LastMember)) => {}
                Ok(Err(err)) => warn!(err = %Chain(&err), "leadership not handed over, the others elect"),
                Err(_) => warn!("leadership not handed over in time, the others elect"),
            }
        }
        if self.node.raft.shutdown().await.is_err() {
            error!("raft ended by a panic");
        }
        self.reader.close();
        // A closed queue means the thread has ended already.
        let _ended = jobs.send(Job::Stop).await;
        if !matches!(Group::blocking(move || thread.join()).await, Ok(Ok(()))) {
            error!("the store's writer ended by a panic");
        }
        drop(lock);
    }
}

struct Opened {
    lock: DirLock,
    member: u64,
    writer: Writer,
    shared: Shared,
}

fn open_files(disk: &Arc<dyn Disk>, config: &Config) -> Result<Opened, Error> {
    create_private_dir(&config.dir)
        .map_err(|err| Error::Io { doing: "cannot open the store", why: Chain(&err).to_string() })?;
    let lock = database::lock_dir(&config.dir)?;
    remove_copies(&config.dir);
    let files = files::open(disk, &config.dir, config.bootstrap, &config.rng, config.bounds)?;
    let member = files.member;
    let mut boot = [0; 8];
    config.rng.fill(&mut boot);
    let shared = Shared {
        index: Arc::<RwLock<Index>>::default(),
        leases: Arc::<Mutex<Leases>>::default(),
        hub: Arc::<Hub>::default(),
        pending: Arc::new(Pending::new(member, u64::from_be_bytes(boot))),
        alone: Arc::<AtomicBool>::default(),
        leases_changed: Arc::default(),
        cluster_id: Arc::<AtomicU64>::default(),
        applied_index: Arc::default(),
        memtable: Arc::default(),
        space: Arc::default(),
    };
    let writer = Writer::new(files, shared.clone())?;
    Ok(Opened { lock, member, writer, shared })
}

/// Copies that were under way when the last process ended.
fn remove_copies(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("copy-")) {
        if let Err(err) = std::fs::remove_file(entry.path()) {
            warn!(path = %entry.path().display(), err = %err, "cannot remove an old copy of the store");
        }
    }
}

/// Keeps the watch channel of [`Store::leadership`] true.
async fn follow_leadership(node: Arc<Node>, tell: watch::Sender<Leadership>) {
    let mut server = node.raft.server_metrics();
    loop {
        let now = node.leadership();
        tell.send_if_modified(|before| std::mem::replace(before, now) != now);
        server.borrow_and_update();
        // A leader with others is looked at again and again: that it hears nobody any more is no event.
        let alone = node.alone.load(Ordering::Acquire);
        let leads = now.leader == Some(node.id);
        let look = if now.is_me { LEADERSHIP_LOOK } else { LEADERSHIP_FIRST_LOOK };
        let changed = if leads && !alone {
            tokio::time::timeout(look, server.changed()).await
        } else {
            Ok(server.changed().await)
        };
        if matches!(changed, Ok(Err(_))) {
            return;
        }
    }
}

#[async_trait]
impl Storage for Store {
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        if !request.serializable {
            self.node.catch_up().await?;
        }
        self.reader.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        self.proposer.propose(Command::Txn(txn)).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        let start = request.start;
        let (stream, current) = self.shared.hub.register(request.clone())?;
        let floor = self.floor();
        if start.0 > 0 && start < floor {
            return Err(Error::Compacted { asked: start, floor });
        }
        if start.0 == 0 || start.0 > current {
            return Ok(stream);
        }
        Ok(stream.with_past(Box::new(History::new(self.reader.clone(), request, current))))
    }

    async fn progress(&self) -> Result<(), Error> {
        self.shared.hub.progress();
        Ok(())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.proposer.propose(Command::Compact { at }).await.map(drop)
    }

    async fn read_index(&self) -> Result<Revision, Error> {
        self.node.catch_up().await?;
        Ok(self.current_revision())
    }

    fn current_revision(&self) -> Revision {
        Revision(self.shared.hub.revision())
    }

    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error> {
        self.lessor.grant(id, ttl_secs).await.map(drop)
    }

    async fn keep_lease(&self, id: u64) -> Result<(), Error> {
        self.lessor.keep_alive(id).await.map(drop)
    }
}
