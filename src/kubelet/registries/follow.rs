//! The file is read again whenever it is saved.

use std::path::Path;
use std::sync::Arc;

use base::chain::Chain;
use base::folder::FolderWatch;
use base::task::Group;
use tracing::{info, warn};

use crate::events::Kind;
use crate::node::Node;

/// Keeps what the file says in force until the group stops.
pub(crate) fn follow(node: Arc<Node>, group: &Group) {
    let Some(places) = node.config.registries.clone() else { return };
    let dir = places.file.parent().unwrap_or(Path::new("/")).to_owned();
    group.spawn("registries", async move {
        let watch = std::fs::create_dir_all(&dir).and_then(|()| FolderWatch::flat(&dir));
        if let Err(err) = &watch {
            warn!(
                path = %dir.display(),
                err = %err,
                "cannot watch the folder of registries.yaml: changes are seen at the next start"
            );
        }
        let mut said = None;
        loop {
            match node.registries.load(&places) {
                Ok(changed) => {
                    if changed {
                        info!(path = %places.file.display(), "registries configured");
                    }
                    said = None;
                }
                Err(err) => {
                    let (file, why) = (places.file.display(), Chain(&err).to_string());
                    if said.as_ref() != Some(&why) {
                        warn!(path = %file, err = why, "registries cannot be configured, what was in force stays so");
                        let text = format!("{file} cannot be used, what was in force stays so: {why}");
                        node.events.node(&node.config.node_name, Kind::Warning, "InvalidRegistries", text);
                    }
                    said = Some(why);
                }
            }
            FolderWatch::changed_if(&watch).await;
        }
    });
}
