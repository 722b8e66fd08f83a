//! `kedge certificate rotate-ca`: another set of authorities for the whole cluster. It travels to the servers in a
//! Secret, sealed with what servers alone have; each keeps it beside the one in use and takes it at its next start, and
//! agents fetch theirs when they meet it. Who has the new set and who has not understand each other, for the new one is
//! vouched for by the old one, which stays trusted until it is dropped.

use std::path::{Path, PathBuf};

use base::layout::ServerFolder;
use base::rng::Rng;
use base::time::Clock;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use pki::error::PkiError;
use pki::replace::{Authorities, Replacement};

use crate::commands::admin::{Admin, AdminError};
use crate::flags::shared::AdminArgs;
use crate::process::life::{self, LifeError};
use crate::server::authorities::{AuthoritiesError, IN_USE, NAME, NAMESPACE, opened, secret_of, service_key};
use crate::server::membership::CONTROL_PLANE;

/// Flags of `kedge certificate rotate-ca`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArgs {
    /// Folder with the new authorities, named as below server/tls (or with a folder tls of such); without it all are
    /// made anew.
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

/// Why the authorities were not replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RotateCaError {
    #[error(transparent)]
    Life(#[from] LifeError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the server refused")]
    Refused(#[source] kube::Error),
    #[error("a set of authorities came before and is not in use here: restart kedge first")]
    Pending,
    #[error("nothing would change: no other authorities are trusted than those in use")]
    Nothing,
    #[error("--path {path}: there is no such folder", path = path.display())]
    NoFolder { path: PathBuf },
    #[error("not every server is ready, and one that is off would miss this: {servers} (--force goes on)")]
    Unready { servers: String },
    #[error("these servers use the authorities from before: restart kedge there first: {servers} (--force goes on)")]
    NotRestarted { servers: String },
}

/// Runs the command.
pub(crate) fn rotate(server: &ServerFolder, args: &RotateArgs) -> Result<(), RotateCaError> {
    println!("{}", life::ask(send(server, args))??);
    Ok(())
}

async fn send(server: &ServerFolder, args: &RotateArgs) -> Result<String, RotateCaError> {
    let key = service_key(server)?;
    let now = Authorities::load(&server.tls())?;
    let using = now.fingerprint()?;
    let admin = Admin::open(&args.admin.kubeconfig)?;
    let nodes: Api<Node> = Api::all(admin.client.clone());
    let servers = nodes.list(&ListParams::default().labels(CONTROL_PLANE)).await.map_err(RotateCaError::Refused)?.items;
    if !args.force {
        unready(&servers)?;
    }
    let api: Api<Secret> = Api::namespaced(admin.client, NAMESPACE);
    let found = api.get_opt(NAME).await.map_err(RotateCaError::Refused)?;
    let before = found.as_ref().map(|secret| opened(server, secret)).transpose()?;
    let coming = before.as_ref().map(|before| before.set.fingerprint()).transpose()?;
    if coming.as_ref().is_some_and(|coming| *coming != using) && !args.force {
        return Err(RotateCaError::Pending);
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
    let set = set?;
    if set == now {
        return Err(RotateCaError::Nothing);
    }
    let mut replaces = before.map(|before| before.replaces).unwrap_or_default();
    replaces.retain(|old| *old != using);
    replaces.push(using);
    let sealed = Replacement { replaces, set }.seal(&key, &Rng::from_os())?;
    let version = found.and_then(|found| found.metadata.resource_version);
    let made = secret_of(sealed, version);
    match made.metadata.resource_version.is_some() {
        true => api.replace(NAME, &PostParams::default(), &made).await,
        false => api.create(&PostParams::default(), &made).await,
    }
    .map_err(RotateCaError::Refused)?;
    let done = if args.drop_old { Done::Dropped } else { Done::Replaced };
    Ok(told(done, servers.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(", ")))
}

/// k3s users prepare a folder that holds `tls`.
fn folder(path: Option<&Path>) -> Result<Option<PathBuf>, RotateCaError> {
    let Some(path) = path else { return Ok(None) };
    let inner = ServerFolder::new(path).tls();
    match (inner.is_dir(), path.is_dir()) {
        (true, _) => Ok(Some(inner)),
        (false, true) => Ok(Some(path.to_owned())),
        (false, false) => Err(RotateCaError::NoFolder { path: path.to_owned() }),
    }
}

/// The step of a rotation that was done.
enum Done {
    Replaced,
    Dropped,
}

fn told(done: Done, servers: String) -> String {
    let servers = if servers.is_empty() { "this one".to_owned() } else { servers };
    let (what, then) = match done {
        Done::Dropped => (
            "Authorities that were replaced are trusted no more when every server was restarted.",
            "Join tokens and kubeconfigs from before the rotation are good no more then.",
        ),
        Done::Replaced => (
            "New authorities are with the servers; old ones stay trusted beside them.",
            "When all have been, 'kedge certificate rotate-ca --drop-old' ends the trust in the old ones.",
        ),
    };
    format!(
        "{what}\nRestart kedge on every server, one after another ({servers}). Agents follow by themselves, and pods \
         run on.\n{then}"
    )
}

/// Servers that would miss a change.
fn unready(servers: &[Node]) -> Result<(), RotateCaError> {
    let ready = |node: &&Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let missing: Vec<String> = servers.iter().filter(|node| !ready(node)).map(ResourceExt::name_any).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(RotateCaError::Unready { servers: missing.join(", ") })
}

/// Servers that still use the set from before.
fn not_restarted(servers: &[Node], using: &str) -> Result<(), RotateCaError> {
    let other = |node: &&Node| node.annotations().get(IN_USE).is_none_or(|used| used != using);
    let old: Vec<String> = servers.iter().filter(other).map(ResourceExt::name_any).collect();
    if old.is_empty() {
        return Ok(());
    }
    Err(RotateCaError::NotRestarted { servers: old.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str, used: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "s2", "annotations": { (IN_USE): used } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[test]
    fn a_server_that_would_miss_the_change_is_named() {
        unready(&[node("True", "a")]).unwrap();
        assert!(unready(&[node("True", "a"), node("Unknown", "a")]).unwrap_err().to_string().contains("s2"));
        not_restarted(&[node("True", "a")], "a").unwrap();
        assert!(not_restarted(&[node("True", "a")], "b").unwrap_err().to_string().contains("s2"));
    }
}
