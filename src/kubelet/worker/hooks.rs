//! postStart and preStop hooks.

use std::time::Duration;

use base::task::Group;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::events::{Kind, Recorder};
use crate::probes::http::{self, GetError};
use crate::runtime::cri::{Cri, CriError};

/// Upstream has no bound for a postStart hook; a hung one would hold the pod's task for ever.
const HOOK_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// A hook that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("hook did not end in time")]
    TimedOut,
    /// The runtime did not run its command.
    #[error(transparent)]
    Exec(#[from] CriError),
    /// Its command ended badly.
    #[error("Exec lifecycle hook ({command:?}) failed: command exited with {code}: {output}")]
    Exited {
        command: Vec<String>,
        code: i32,
        /// Both of the command's outputs.
        output: String,
    },
    /// The pod has no address, and the hook names none.
    #[error("failed to find networking container")]
    NoAddress,
    #[error(transparent)]
    Get(#[from] GetError),
    #[error("invalid handler: cannot run lifecycle hook of this type")]
    Handler,
}

/// The running container whose hook is run.
pub(super) struct Hooked<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    /// The container's id.
    pub(super) id: &'a str,
    /// The pod's first address, once it has one.
    pub(super) pod_ip: Option<&'a str>,
}

/// The parts of the kubelet that hooks need.
pub(super) struct Hooks<'a> {
    pub(super) cri: &'a Cri,
    pub(super) events: &'a Recorder,
    pub(super) group: &'a Group,
}

impl Hooks<'_> {
    /// Runs a hook to its end or until `bound` is over.
    pub(super) async fn run(
        &self,
        hooked: &Hooked<'_>,
        handler: &LifecycleHandler,
        bound: Option<Duration>,
    ) -> Result<(), HookError> {
        let bound = bound.unwrap_or(HOOK_TIMEOUT_MAX);
        match tokio::time::timeout(bound, self.one(hooked, handler, bound)).await {
            Ok(answer) => answer,
            Err(_) => Err(HookError::TimedOut),
        }
    }

    async fn one(&self, hooked: &Hooked<'_>, handler: &LifecycleHandler, bound: Duration) -> Result<(), HookError> {
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            let answer = self.cri.exec_sync(hooked.id, command.clone(), bound).await?;
            if answer.exit_code == 0 {
                return Ok(());
            }
            let output = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
            return Err(HookError::Exited { command, code: answer.exit_code, output });
        }
        if let Some(get) = &handler.http_get {
            let named = get.host.as_deref().filter(|host| !host.is_empty());
            let host = named.or(hooked.pod_ip).ok_or(HookError::NoAddress)?;
            if let Some(asked) = http::hook(get, hooked.container, host, bound, self.group).await? {
                let text =
                    format!("request to HTTPS lifecycle hook {asked} got HTTP response, retry with HTTP succeeded");
                self.events.pod(hooked.pod, None, Kind::Warning, "LifecycleHTTPFallback", text);
            }
            return Ok(());
        }
        if let Some(sleep) = &handler.sleep {
            let secs = u64::try_from(sleep.seconds).unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(secs)).await;
            return Ok(());
        }
        Err(HookError::Handler)
    }
}
