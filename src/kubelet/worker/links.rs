//! Links to the logs of containers, and logs that go while their pod stays.

use std::path::Path;

use base::confined::Dir;
use k8s_openapi::api::core::v1::Container;
use tracing::{debug, warn};

use super::Worker;
use crate::pods::observed::Seen;
use crate::{container, logs, sandbox};

impl Worker {
    /// The link that log collectors follow: `/var/log/containers/<pod>_<ns>_<container>-<id>.log`.
    pub(super) fn link_log(&self, spec: &Container, attempt: u32, id: &str) {
        let meta = &self.pod.metadata;
        let (pod, ns) = (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
        let target = sandbox::log_dir(&self.node.config, &self.pod).join(container::log_path(&spec.name, attempt));
        let linked = self
            .links_dir()
            .and_then(|dir| dir.symlink(&target, Path::new(&format!("{pod}_{ns}_{}-{id}.log", spec.name))));
        if let Err(err) = linked {
            warn!(pod = %self.name(), err = %err, "cannot link a log");
        }
    }

    /// The folder of links. Whoever sees the folder of logs may have put a link in its place.
    fn links_dir(&self) -> std::io::Result<Dir> {
        let (beside, _) = Dir::of_file(&self.node.config.log_dir)?;
        beside.make_dir(Path::new("containers"), 0o755)
    }

    /// Takes away the log of a container that goes while its pod stays, and the link to it.
    pub(super) fn forget_log(&self, seen: &Seen) {
        if let Err(err) = logs::remove(Path::new(&seen.log_path)) {
            debug!(pod = %self.name(), err = %err, "cannot remove a log");
        }
        self.unlink_log(seen);
    }

    /// Takes away the link to a container's log.
    pub(super) fn unlink_log(&self, seen: &Seen) {
        let meta = &self.pod.metadata;
        let (pod, ns) = (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
        let name = format!("{pod}_{ns}_{}-{}.log", seen.name, seen.id);
        if let Err(err) = self.links_dir().and_then(|dir| dir.remove_file(Path::new(&name))) {
            debug!(pod = %self.name(), err = %err, "cannot remove the link to a log");
        }
    }
}
