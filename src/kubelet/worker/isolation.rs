//! How a pod is kept apart beyond the usual: the handler of its runtime class, and a user namespace of its own.

use std::path::Path;

use base::files::write_atomic;
use k8s_cri::v1 as cri;
use serde_json::json;

use super::Worker;
use crate::volumes;

/// Ids of one user namespace, and how many namespaces fit above the host's own ids.
const IDS: u32 = 65_536;
const BLOCKS_MAX: u32 = 30_000;

impl Worker {
    /// The runtime's handler and the mapping of users. The error is the text of the sandbox's failure.
    pub(super) async fn isolation(&self) -> Result<(String, Option<cri::UserNamespace>), String> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let handler = match spec.runtime_class_name.filter(|name| !name.is_empty()) {
            None => String::new(),
            Some(name) => match self.node.known.runtime_class(&self.pod, &name).await {
                Ok(Some(class)) => class.handler,
                Ok(None) => return Err(format!("runtimeclass.node.k8s.io \"{name}\" not found")),
                Err(err) => return Err(format!("failed to lookup RuntimeClass {name}: {err}")),
            },
        };
        if spec.host_users != Some(false) {
            return Ok((handler, None));
        }
        if !self.node.runtime.handler(&handler).user_namespaces {
            return Err(format!(
                "can't set `spec.hostUsers: false`, runtime handler \"{handler}\" does not support user namespaces"
            ));
        }
        let pods = self.node.config.root_dir.join("pods");
        let first = block(&pods, &volumes::pod_dir(&self.node.config, &self.uid))
            .map_err(|err| format!("cannot give the pod a user namespace: {err}"))?;
        let mapping = || vec![cri::IdMapping { host_id: first, container_id: 0, length: IDS }];
        Ok((
            handler,
            Some(cri::UserNamespace { mode: cri::NamespaceMode::Pod as i32, uids: mapping(), gids: mapping() }),
        ))
    }
}

/// The first host id of the pod's block: the one written down for it, or the first that no other pod has.
fn block(pods: &Path, own: &Path) -> Result<u32, String> {
    if let Some(known) = read(own) {
        return Ok(known);
    }
    let taken: Vec<u32> =
        std::fs::read_dir(pods).into_iter().flatten().flatten().filter_map(|dir| read(&dir.path())).collect();
    let free = (1..BLOCKS_MAX).map(|n| n * IDS).find(|first| !taken.contains(first)).ok_or("all ids are taken")?;
    std::fs::create_dir_all(own).map_err(|err| err.to_string())?;
    let mapping = json!([{"hostId": free, "containerId": 0, "length": IDS}]);
    let text = json!({"uidMappings": mapping, "gidMappings": mapping}).to_string();
    write_atomic(&own.join("userns"), text.as_bytes(), 0o600).map_err(|err| err.to_string())?;
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
        assert_eq!(
            (block(dir.path(), &a), block(dir.path(), &b), block(dir.path(), &a)),
            (Ok(IDS), Ok(2 * IDS), Ok(IDS))
        );
    }
}
