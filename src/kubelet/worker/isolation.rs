//! How a pod is kept apart beyond the usual: the handler of its runtime class, and a user namespace of its own.

use std::path::Path;

use base::files::{FileError, write_atomic};
use k8s_cri::v1 as cri;
use serde_json::json;

use super::Worker;
use crate::volumes;

/// Ids of one user namespace, and how many namespaces fit above the host's own ids.
const IDS: u32 = 65_536;
const BLOCKS_MAX: u32 = 30_000;

/// A pod that cannot be kept apart as it asks: its sandbox is not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum IsolationError {
    #[error("runtimeclass.node.k8s.io \"{name}\" not found")]
    NoClass { name: String },
    /// The cause is part of the text, as upstream has it.
    #[error("failed to lookup RuntimeClass {name}: {err}")]
    Lookup { name: String, err: Box<kube::Error> },
    #[error("can't set `spec.hostUsers: false`, runtime handler \"{handler}\" does not support user namespaces")]
    NoUserNamespaces { handler: String },
    #[error("cannot give the pod a user namespace")]
    Block(#[from] BlockError),
}

/// A pod that gets no ids of its own.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlockError {
    #[error("all ids are taken")]
    AllTaken,
    /// Its ids cannot be written down.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Worker {
    /// The runtime's handler and the mapping of users.
    pub(super) async fn isolation(&self) -> Result<(String, Option<cri::UserNamespace>), IsolationError> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let handler = match spec.runtime_class_name.filter(|name| !name.is_empty()) {
            None => String::new(),
            Some(name) => match self.node.known.runtime_class(&self.pod, &name).await {
                Ok(Some(class)) => class.handler,
                Ok(None) => return Err(IsolationError::NoClass { name }),
                Err(err) => return Err(IsolationError::Lookup { name, err: Box::new(err) }),
            },
        };
        if spec.host_users != Some(false) {
            return Ok((handler, None));
        }
        if !self.node.runtime.handler(&handler).user_namespaces {
            return Err(IsolationError::NoUserNamespaces { handler });
        }
        let pods = self.node.config.root_dir.join("pods");
        let first = block(&pods, &volumes::pod_dir(&self.node.config, &self.uid))?;
        let mapping = || vec![cri::IdMapping { host_id: first, container_id: 0, length: IDS }];
        Ok((
            handler,
            Some(cri::UserNamespace { mode: cri::NamespaceMode::Pod as i32, uids: mapping(), gids: mapping() }),
        ))
    }
}

/// The first host id of the pod's block: the one written down for it, or the first that no other pod has.
fn block(pods: &Path, own: &Path) -> Result<u32, BlockError> {
    if let Some(known) = read(own) {
        return Ok(known);
    }
    let taken: Vec<u32> =
        std::fs::read_dir(pods).into_iter().flatten().flatten().filter_map(|dir| read(&dir.path())).collect();
    let free = (1..BLOCKS_MAX).map(|n| n * IDS).find(|first| !taken.contains(first)).ok_or(BlockError::AllTaken)?;
    std::fs::create_dir_all(own).map_err(FileError::at("cannot create directory", own))?;
    let mapping = json!([{"hostId": free, "containerId": 0, "length": IDS}]);
    let text = json!({"uidMappings": mapping, "gidMappings": mapping}).to_string();
    write_atomic(&own.join("userns"), text.as_bytes(), 0o600)?;
    Ok(free)
}

fn read(pod_dir: &Path) -> Option<u32> {
    let text = std::fs::read(pod_dir.join("userns")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
    json["uidMappings"][0]["hostId"].as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_a_block_of_its_own_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let first = |own: &Path| block(dir.path(), own).unwrap();
        assert_eq!((first(&a), first(&b), first(&a)), (IDS, 2 * IDS, IDS));
        std::fs::remove_dir_all(&a).unwrap();
        let c = dir.path().join("c");
        assert_eq!(first(&c), IDS, "the ids of a pod that is gone are free");
    }

    // the event said "cannot write …/userns", and not why
    #[test]
    fn a_block_that_cannot_be_written_down_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("file");
        std::fs::write(&own, "").unwrap();
        let err = IsolationError::from(block(dir.path(), &own).unwrap_err());
        let expected = format!(
            "cannot give the pod a user namespace: cannot create directory {}: File exists (os error 17)",
            own.display()
        );
        assert_eq!(base::chain::Chain(&err).to_string(), expected);
    }
}
