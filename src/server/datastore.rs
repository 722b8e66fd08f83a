//! The store that the flags ask for: embedded, or an external etcd; its etcd face; and making this server the only
//! member again.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::chain::Chain;
use base::cron::{Schedule, ScheduleError};
use base::files::FileError;
use base::layout::{Layout, ServerFolder};
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;
use cluster::snapshot::{self, Places, SnapshotError};
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use pki::leaf::{Ca, Leaf};
use pki::server::Pki;
use store::Storage;
use store::bounds::Bounds;
use store::etcd::Service;
use store::etcd::client::Endpoint;
use store::external::External;
use store::member::{Bootstrap, Network};
use store::store::Store;
use tracing::{info, warn};

use crate::flags::store::StoreFlags;
use crate::process::life::{self, LifeError};
use crate::server::away::{AwayError, Got};

/// Port of the etcd face on the loopback address, as etcd's.
const ETCD_PORT: u16 = base::ports::ETCD;

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatastoreError {
    #[error("cannot open the store in {path}", path = path.display())]
    Open { path: PathBuf, source: store::error::Error },
    #[error("cannot use the external etcd{flags}")]
    External { flags: String, source: store::error::Error },
    #[error("--{flag}")]
    Unreadable { flag: &'static str, source: FileError },
    #[error("--{flag} {path}", path = path.display())]
    Unusable { flag: &'static str, path: PathBuf, source: pki::error::PkiError },
    #[error(
        "--datastore-endpoint {0} needs --datastore-cafile: the authority that signed the certificate of the etcd \
         server"
    )]
    NoAuthority(String),
    #[error("--{0} is for endpoints with https://, and --datastore-endpoint names none")]
    NoTls(&'static str),
    #[error("cannot set up TLS to the external etcd")]
    Tls(#[source] pki::error::PkiError),
    #[error("certificates of the etcd port")]
    Pki(#[from] pki::error::PkiError),
    #[error("--{0} is given without the other: a certificate needs its key")]
    HalfPair(&'static str),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("--etcd-snapshot-schedule-cron")]
    Schedule(#[source] ScheduleError),
    #[error(
        "--etcd-s3: with --datastore-endpoint kedge takes no snapshots; an external etcd is saved by its own tools"
    )]
    NotOurs,
    #[error(transparent)]
    Away(#[from] AwayError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// The store, and the embedded one if it is that.
pub(crate) struct Datastore {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) embedded: Option<Arc<Store>>,
}

impl StoreFlags {
    /// Whether snapshots can be kept as the flags say.
    pub(crate) fn check(&self) -> Result<(), DatastoreError> {
        Schedule::parse(&self.etcd_snapshot_schedule_cron).map_err(DatastoreError::Schedule)?;
        self.s3.check()?;
        if self.s3.etcd_s3 && !self.datastore_endpoint.is_empty() { Err(DatastoreError::NotOurs) } else { Ok(()) }
    }

    /// Where snapshots and what goes into them are.
    pub(crate) fn places(&self, layout: &Layout, config: &Path) -> Places {
        let dir = self.etcd_snapshot_dir.clone().unwrap_or_else(|| layout.server().snapshots());
        Places { layout: layout.clone(), config: config.to_owned(), dir }
    }

    /// The external etcd's servers in one order, as all servers of a cluster must name them; empty for the embedded
    /// store.
    pub(crate) fn endpoints(&self) -> String {
        let mut urls: Vec<String> = self.datastore_endpoint.iter().map(Endpoint::to_string).collect();
        urls.sort();
        urls.join(",")
    }

    /// Opens the store.
    pub(crate) async fn open(
        &self,
        db: &Path,
        bootstrap: Bootstrap,
        network: Network,
        rng: &Rng,
        group: &Group,
    ) -> Result<Datastore, DatastoreError> {
        if self.datastore_endpoint.is_empty() {
            let config = store::Config {
                dir: db.to_owned(),
                bootstrap,
                network: Some(network),
                rng: rng.clone(),
                bounds: Bounds::SHIPPED,
            };
            let store = Store::open(config, group)
                .await
                .map_err(|source| DatastoreError::Open { path: db.to_owned(), source })?;
            return Ok(Datastore { storage: store.clone(), embedded: Some(store) });
        }
        let tls = self.client_tls()?;
        let external = External::open(self.datastore_endpoint.clone(), tls, Bounds::SHIPPED, group).await;
        let external = external.map_err(|source| DatastoreError::External { flags: self.tls_flags(), source })?;
        info!(n = self.datastore_endpoint.len(), "external etcd is used as the store");
        Ok(Datastore { storage: external, embedded: None })
    }

    /// The flags of TLS that are given, for an error: whichever side refused, one of them may be the reason.
    fn tls_flags(&self) -> String {
        let files =
            self.tls_files().into_iter().filter_map(|(flag, path)| Some(format!("--{flag} {}", path?.display())));
        let files: Vec<String> = files.collect();
        if files.is_empty() { String::new() } else { format!(" with {}", files.join(" ")) }
    }

    fn tls_files(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        let Self { datastore_cafile, datastore_certfile, datastore_keyfile, .. } = self;
        [
            ("datastore-cafile", datastore_cafile.as_ref()),
            ("datastore-certfile", datastore_certfile.as_ref()),
            ("datastore-keyfile", datastore_keyfile.as_ref()),
        ]
    }

    fn client_tls(&self) -> Result<Option<Arc<rustls::ClientConfig>>, DatastoreError> {
        let Some(endpoint) = self.datastore_endpoint.iter().find(|endpoint| endpoint.tls) else {
            let unused = self.tls_files().into_iter().find(|(_, path)| path.is_some());
            return unused.map_or(Ok(None), |(flag, _)| Err(DatastoreError::NoTls(flag)));
        };
        let read = |(flag, path): (&'static str, &Path)| {
            std::fs::read_to_string(path)
                .map_err(FileError::at("cannot read", path))
                .map_err(|source| DatastoreError::Unreadable { flag, source })
        };
        let unusable = |flag, path: &Path| {
            let path = path.to_owned();
            move |source| DatastoreError::Unusable { flag, path, source }
        };
        let (ca, cert, key) = match self.tls_files() {
            [(_, None), _, _] => return Err(DatastoreError::NoAuthority(endpoint.to_string())),
            [_, (flag, Some(_)), (_, None)] | [_, (_, None), (flag, Some(_))] => {
                return Err(DatastoreError::HalfPair(flag));
            }
            [(ca_flag, Some(ca)), (cert_flag, cert), (key_flag, key)] => (
                (ca_flag, ca.as_path()),
                cert.map(|path| (cert_flag, path.as_path())),
                key.map(|path| (key_flag, path.as_path())),
            ),
        };
        let authorities = Bundle::from_pem(&read(ca)?).map_err(unusable(ca.0, ca.1))?;
        let pair = match cert.zip(key) {
            Some((cert, key)) => {
                let (cert_pem, key_pem) = (read(cert)?, read(key)?);
                // Which of the two is wrong shows when the first is read alone.
                let of = if Bundle::from_pem(&cert_pem).is_ok() { key } else { cert };
                Some(CertStore::new(Pair::from_pem(&cert_pem, &key_pem).map_err(unusable(of.0, of.1))?))
            }
            None => None,
        };
        let mut config =
            rustls::ClientConfig::clone(&*pki::tls::client_config(&authorities, pair).map_err(DatastoreError::Tls)?);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }

    /// `--cluster-reset`: makes this server the only one, from a snapshot if one is named, which `token` sealed.
    /// Answers with what to say.
    pub(crate) fn reset(
        &self,
        layout: &Layout,
        config: &Path,
        token: Option<&Secret<String>>,
    ) -> Result<String, DatastoreError> {
        let (clock, rng) = (Clock::system(), Rng::from_os());
        let next = "Start the server again without --cluster-reset. On every other server delete the folder server/db \
            and start it: it joins anew.";
        if let Some(archive) = &self.cluster_reset_restore_path {
            let mut got = None;
            if self.s3.etcd_s3 && !archive.exists() {
                life::block_on(async {
                    let (group, _reports) = Group::root("restore");
                    got =
                        Some(Got::new(&self.s3.bucket(None, &group).await?, &archive.to_string_lossy(), layout).await?);
                    group.shutdown().await;
                    Ok::<(), DatastoreError>(())
                })?;
            }
            let archive = got.as_ref().map_or(archive.as_path(), Got::path);
            let restored = snapshot::restore(&self.places(layout, config), archive, token, &clock, &rng)?;
            return Ok(format!(
                "Restored the state of {} at revision {}. {next}",
                restored.manifest.created, restored.manifest.revision
            ));
        }
        let db = layout.server().db();
        let contents = store::backup::reset(&db, &rng).map_err(|source| DatastoreError::Open { path: db, source })?;
        Ok(format!("This server is the only member now, at revision {}. {next}", contents.revision))
    }
}

/// Serves the store to `etcdctl` and others: on a socket for root, and on the loopback address for holders of a
/// certificate.
pub(crate) async fn serve_etcd(
    store: &Arc<Store>,
    pki: &Pki,
    server: &ServerFolder,
    rng: &Rng,
    group: &Group,
) -> Result<(), DatastoreError> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, ETCD_PORT));
    let face: Arc<dyn wire::Handler> =
        Arc::new(Service::new(Arc::clone(store), rng.clone(), &format!("https://{addr}"), group));
    let socket = server.etcd_socket();
    match wire::serve::UnixServer::bind(&socket, Arc::clone(&face)) {
        Ok(server) => server.start(group),
        // The path of the socket may be too long for the kernel; the store works without it.
        Err(err) => warn!(path = %socket.display(), err = %Chain(&err), "the store is not served on its socket"),
    }
    let clients = Bundle::from_pem(pki.authority(Ca::EtcdServer).bundle())?;
    let tls = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::EtcdServer)), Some(&clients))?;
    match wire::serve::Server::bind(addr, Some(tls), face).await {
        Ok(server) => server.start(group),
        Err(err) => info!(addr = %addr, err = %Chain(&err), "the store is not served there: the port is taken"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        store: StoreFlags,
    }

    fn flags(args: &[&str]) -> StoreFlags {
        <Flags as clap::Parser>::try_parse_from(["kedge"].iter().chain(args)).unwrap().store
    }

    const TLS: &str = "--datastore-endpoint=https://etcd:2379";
    const PLAIN: &str = "--datastore-endpoint=http://etcd:2379";

    #[test]
    fn snapshots_that_cannot_be_kept_are_refused_before_the_start() {
        let said = |args: &[&str]| flags(args).check().map_err(|err| Chain(&err).to_string());
        assert_eq!(said(&[]), Ok(()));
        assert_eq!(said(&["--etcd-snapshot-schedule-cron=*/5 * * * *"]), Ok(()));
        let schedule = said(&["--etcd-snapshot-schedule-cron=often"]).unwrap_err();
        assert!(schedule.starts_with("--etcd-snapshot-schedule-cron: "), "{schedule}");
        let s3 = ["--etcd-s3", "--etcd-s3-bucket=b", "--etcd-s3-access-key=A", "--etcd-s3-secret-key=S"];
        assert_eq!(said(&s3), Ok(()));
        let foreign = said(&[&s3[..], &[TLS]].concat()).unwrap_err();
        assert!(foreign.starts_with("--etcd-s3: with --datastore-endpoint kedge takes no snapshots"), "{foreign}");
    }

    #[test]
    fn the_tls_of_an_external_etcd_is_whole_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "no certificate").unwrap();
            path.display().to_string()
        };
        let (ca, other) = (format!("--datastore-cafile={}", file("ca")), file("other"));
        let (cert, key) = (format!("--datastore-certfile={other}"), format!("--datastore-keyfile={other}"));
        let said = |args: &[&str]| flags(args).client_tls().map(drop).map_err(|err| err.to_string());
        assert_eq!(said(&[PLAIN]), Ok(()));
        for (args, begins) in [
            (&[TLS][..], "--datastore-endpoint https://etcd:2379 needs --datastore-cafile: "),
            (&[TLS, &cert, &key], "--datastore-endpoint https://etcd:2379 needs --datastore-cafile: "),
            (&[PLAIN, &ca], "--datastore-cafile is for endpoints with https://"),
            (&[PLAIN, &cert, &key], "--datastore-certfile is for endpoints with https://"),
            (&[TLS, "--datastore-cafile=/no/such/file"], "--datastore-cafile"),
            (&[TLS, &ca], "--datastore-cafile /"),
        ] {
            let said = said(args).unwrap_err();
            assert!(said.starts_with(begins), "{said}");
        }
    }

    #[test]
    fn all_servers_name_the_endpoints_in_one_order() {
        let both = flags(&["--datastore-endpoint=https://b:2379,https://a"]);
        assert_eq!(both.endpoints(), "https://a:2379,https://b:2379");
        assert_eq!(flags(&[]).endpoints(), "");
    }

    #[test]
    fn an_error_of_the_external_etcd_names_the_flags_that_may_be_wrong() {
        assert_eq!(flags(&[TLS]).tls_flags(), "");
        let all = ["--datastore-cafile=/ca", "--datastore-certfile=/c", "--datastore-keyfile=/k"];
        assert_eq!(
            flags(&all).tls_flags(),
            " with --datastore-cafile /ca --datastore-certfile /c --datastore-keyfile /k"
        );
    }

    #[test]
    fn snapshots_lie_in_the_data_folder_unless_another_one_is_named() {
        let layout = Layout::new("/srv/kedge");
        assert_eq!(flags(&[]).places(&layout, Path::new("/c")).dir, layout.server().snapshots());
        assert_eq!(flags(&["--etcd-snapshot-dir=/snap"]).places(&layout, Path::new("/c")).dir, Path::new("/snap"));
    }
}
