//! `kedge certificate rotate-ca`: another set of authorities for the whole cluster. It travels to the servers in a Secret, sealed with
//! what servers alone have; each keeps it beside the one in use and takes it at its next start, and agents fetch theirs when they meet
//! it. Who has the new set and who has not understand each other, for the new one is vouched for by the old one, which stays trusted
//! until it is dropped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::chain::Chain;
use base::files::{self, FileError};
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use clap::Args;
use client::informer::Informers;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use pki::error::PkiError;
use pki::replace::{Authorities, Replacement};
use tracing::{error, info, warn};

use crate::commands::AdminArgs;
use crate::commands::admin::Admin;
use crate::server::membership::CONTROL_PLANE;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kedge-authorities";
const TYPE: &str = "kedge.io/authorities";
const FIELD: &str = "sealed";
/// On a server's Node: which set it uses.
pub(crate) const IN_USE: &str = "kedge.io/authorities";
/// Below `server`: what is taken at the next start.
const NEXT: &str = "cred/authorities-next.json";

/// Flags of `kedge certificate rotate-ca`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArgs {
    /// Folder with the new authorities, named as below server/tls (or with a folder tls of such); without it all are made anew.
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Take authorities that end soon, and go on although a server is not ready or was not restarted.
    #[arg(long)]
    force: bool,
    /// End the trust in authorities that were replaced, once every server was restarted and every agent has met one.
    #[arg(long, conflicts_with = "path")]
    drop_old: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Takes the set that came while the server ran last time. To be called before certificates are read.
pub(crate) fn take_next(server_dir: &Path) -> Result<(), PkiError> {
    let path = server_dir.join(NEXT);
    let Some(bytes) = files::read_if_exists(&path)? else { return Ok(()) };
    let next: Authorities = serde_json::from_slice(&bytes).map_err(|err| PkiError::Unusable {
        path: path.clone(),
        what: "set of authorities",
        why: err.to_string(),
    })?;
    next.write(&server_dir.join("tls"))?;
    std::fs::remove_file(&path).map_err(FileError::at("cannot remove", &path))?;
    info!("the authorities that 'kedge certificate rotate-ca' brought are in use from now on");
    Ok(())
}

/// The set that a server uses, by its fingerprint.
pub(crate) fn in_use(server_dir: &Path) -> Result<String, PkiError> {
    Authorities::load(&server_dir.join("tls"))?.fingerprint()
}

/// Keeps a set that comes for the next start. `using`: the fingerprint of the set in use.
pub(crate) fn follow(server_dir: PathBuf, using: String, informers: &Informers, group: &Group) {
    let secrets = informers.selected::<Secret>(&format!("metadata.name={NAME}"));
    group.spawn("authorities", async move {
        let mut changes = secrets.changes();
        secrets.synced().await;
        loop {
            if let Some(secret) = secrets.get(NAMESPACE, NAME).filter(|secret| secret.type_.as_deref() == Some(TYPE))
                && let Err(why) = keep(&server_dir, &using, &secret)
            {
                error!(why, "the new authorities cannot be used here");
            }
            changes.next().await;
            changes.drain();
        }
    });
}

fn keep(server_dir: &Path, using: &str, secret: &Secret) -> Result<(), String> {
    let unusable = |err: PkiError| Chain(&err).to_string();
    let unkept = |err: FileError| Chain(&err).to_string();
    let replacement = opened(server_dir, secret)?;
    let coming = replacement.set.fingerprint().map_err(unusable)?;
    let path = server_dir.join(NEXT);
    if coming == using {
        return Ok(());
    }
    if !replacement.replaces.iter().any(|old| old == using) {
        return Err(format!(
            "they replace others than this server's {using}: stop it, and copy the files *-ca.* of server/tls from another"
        ));
    }
    let bytes = serde_json::to_vec(&replacement.set).map_err(|err| err.to_string())?;
    if files::read_if_exists(&path).map_err(unkept)?.is_some_and(|kept| kept == bytes) {
        return Ok(());
    }
    files::create_private_dir(&server_dir.join("cred")).map_err(unkept)?;
    files::write_atomic(&path, &bytes, 0o600).map_err(unkept)?;
    warn!("new authorities are here: restart this server to use them");
    Ok(())
}

fn opened(server_dir: &Path, secret: &Secret) -> Result<Replacement, String> {
    let key = service_key(server_dir)?;
    let sealed = secret.data.as_ref().and_then(|data| data.get(FIELD)).ok_or(format!("Secret {NAMESPACE}/{NAME} has no field {FIELD}"))?;
    Replacement::open(&sealed.0, &key).ok_or(format!("Secret {NAMESPACE}/{NAME} was sealed with another service.key than this server's"))
}

fn service_key(server_dir: &Path) -> Result<String, String> {
    let path = server_dir.join("tls/service.key");
    std::fs::read_to_string(&path).map_err(|err| format!("cannot read {}: {err}; is this a server, and are you root?", path.display()))
}

/// Runs the command.
pub(crate) fn rotate(data_dir: &Path, args: &RotateArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|err| err.to_string())?;
    println!("{}", runtime.block_on(send(&data_dir.join("server"), args))?);
    Ok(())
}

async fn send(server_dir: &Path, args: &RotateArgs) -> Result<String, String> {
    let key = service_key(server_dir)?;
    let now = Authorities::load(&server_dir.join("tls")).map_err(|err| Chain(&err).to_string())?;
    let using = now.fingerprint().map_err(|err| Chain(&err).to_string())?;
    let admin = Admin::open(&args.admin.kubeconfig).map_err(|err| Chain(&err).to_string())?;
    let refused = |err: kube::Error| format!("the server refused: {}", Chain(&err));
    let nodes: Api<Node> = Api::all(admin.client.clone());
    let servers = nodes.list(&ListParams::default().labels(CONTROL_PLANE)).await.map_err(refused)?.items;
    if !args.force {
        unready(&servers)?;
    }
    let api: Api<Secret> = Api::namespaced(admin.client, NAMESPACE);
    let found = api.get_opt(NAME).await.map_err(refused)?;
    let before = found.as_ref().map(|secret| opened(server_dir, secret)).transpose()?;
    let coming = before.as_ref().map(|before| before.set.fingerprint()).transpose().map_err(|err| Chain(&err).to_string())?;
    if coming.as_ref().is_some_and(|coming| *coming != using) && !args.force {
        return Err("a set of authorities came before and is not in use here: restart kedge first".to_owned());
    }
    let set = match args.drop_old {
        true => {
            if !args.force {
                not_restarted(&servers, &using)?;
            }
            now.without_old()
        }
        false => now.replaced_by(folder(args.path.as_deref())?.as_deref(), args.force, Clock::system().now()),
    };
    let set = set.map_err(|err| Chain(&err).to_string())?;
    if set == now {
        return Err("nothing would change: no other authorities are trusted than those in use".to_owned());
    }
    let mut replaces = before.map(|before| before.replaces).unwrap_or_default();
    replaces.retain(|old| *old != using);
    replaces.push(using);
    let sealed = Replacement { replaces, set }.seal(&key, &Rng::from_os()).map_err(|err| Chain(&err).to_string())?;
    let version = found.and_then(|found| found.metadata.resource_version);
    let made = secret_of(sealed, version);
    match made.metadata.resource_version.is_some() {
        true => api.replace(NAME, &PostParams::default(), &made).await,
        false => api.create(&PostParams::default(), &made).await,
    }
    .map_err(refused)?;
    Ok(told(args.drop_old, servers.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(", ")))
}

fn secret_of(sealed: Vec<u8>, version: Option<String>) -> Secret {
    let metadata = ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        resource_version: version,
        ..ObjectMeta::default()
    };
    let data = BTreeMap::from([(FIELD.to_owned(), ByteString(sealed))]);
    Secret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), ..Secret::default() }
}

/// k3s users prepare a folder that holds `tls`.
fn folder(path: Option<&Path>) -> Result<Option<PathBuf>, String> {
    let Some(path) = path else { return Ok(None) };
    let inner = path.join("tls");
    match (inner.is_dir(), path.is_dir()) {
        (true, _) => Ok(Some(inner)),
        (false, true) => Ok(Some(path.to_owned())),
        (false, false) => Err(format!("--path {}: there is no such folder", path.display())),
    }
}

fn told(dropped: bool, servers: String) -> String {
    let servers = if servers.is_empty() { "this one".to_owned() } else { servers };
    let what = match dropped {
        true => "Authorities that were replaced are trusted no more when every server was restarted.",
        false => "New authorities are with the servers; old ones stay trusted beside them.",
    };
    let then = match dropped {
        true => "Join tokens and kubeconfigs from before the rotation are good no more then.",
        false => "When all have been, 'kedge certificate rotate-ca --drop-old' ends the trust in the old ones.",
    };
    format!("{what}\nRestart kedge on every server, one after another ({servers}). Agents follow by themselves, and pods run on.\n{then}")
}

/// Servers that would miss a change.
fn unready(servers: &[Node]) -> Result<(), String> {
    let ready = |node: &&Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let missing: Vec<String> = servers.iter().filter(|node| !ready(node)).map(ResourceExt::name_any).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("not every server is ready, and one that is off would miss this: {} (--force goes on)", missing.join(", ")))
}

/// Servers that still use the set from before.
fn not_restarted(servers: &[Node], using: &str) -> Result<(), String> {
    let other = |node: &&Node| node.annotations().get(IN_USE).is_none_or(|used| used != using);
    let old: Vec<String> = servers.iter().filter(other).map(ResourceExt::name_any).collect();
    if old.is_empty() {
        return Ok(());
    }
    Err(format!("these servers use the authorities from before: restart kedge there first: {} (--force goes on)", old.join(", ")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str, used: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "s2", "annotations": { (IN_USE): used } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    /// Of a server `s1` without addresses.
    pub(crate) fn options() -> pki::server::Options {
        pki::server::Options {
            clock: Clock::system(),
            leaf_life: pki::authority::LEAF_LIFE,
            node_name: "s1".to_owned(),
            node_ips: vec![],
            service_ips: vec![],
            cluster_domain: "cluster.local".to_owned(),
            tls_sans: vec![],
        }
    }

    #[test]
    fn a_server_that_would_miss_the_change_is_named() {
        assert_eq!(unready(&[node("True", "a")]), Ok(()));
        assert!(unready(&[node("True", "a"), node("Unknown", "a")]).unwrap_err().contains("s2"));
        assert_eq!(not_restarted(&[node("True", "a")], "a"), Ok(()));
        assert!(not_restarted(&[node("True", "a")], "b").unwrap_err().contains("s2"));
    }

    #[test]
    fn a_set_is_kept_once_and_taken_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let options = options();
        let tls = dir.path().join("tls");
        pki::server::Pki::load_or_create(&tls, options.clone()).unwrap();
        let using = in_use(dir.path()).unwrap();
        let sent = |replaces: &str| {
            // Authorities of one second would have one name.
            let later = Clock::system().now().checked_add(jiff::SignedDuration::from_secs(60)).unwrap();
            let set = Authorities::load(&tls).unwrap().replaced_by(None, false, later).unwrap();
            let sealed =
                Replacement { replaces: vec![replaces.to_owned()], set }.seal(&service_key(dir.path()).unwrap(), &Rng::from_seed(1));
            secret_of(sealed.unwrap(), None)
        };
        assert!(keep(dir.path(), &using, &sent("others")).unwrap_err().contains("replace others"));
        assert!(!dir.path().join(NEXT).exists());
        keep(dir.path(), &using, &sent(&using)).unwrap();
        assert!(dir.path().join(NEXT).exists() && in_use(dir.path()).unwrap() == using);
        take_next(dir.path()).unwrap();
        assert!(!dir.path().join(NEXT).exists() && in_use(dir.path()).unwrap() != using);
        let again = pki::server::Pki::load_or_create(&tls, options).unwrap();
        assert_eq!(again.authority(pki::leaf::Ca::Server).chain().len(), 3);
    }
}
