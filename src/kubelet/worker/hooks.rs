//! postStart and preStop hooks.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::events::Kind;
use crate::node::Node;
use crate::probes::http;

/// Upstream has no bound for a postStart hook; a hung one would hold the pod's task for ever.
const HOOK_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Runs a hook to its end or until `bound` is over.
pub(super) async fn run(
    node: &Node,
    pod: &Pod,
    handler: &LifecycleHandler,
    container: &Container,
    id: &str,
    pod_ip: Option<&str>,
    bound: Option<Duration>,
) -> Result<(), String> {
    let bound = bound.unwrap_or(HOOK_TIMEOUT_MAX);
    match tokio::time::timeout(bound, one(node, pod, handler, container, id, pod_ip, bound)).await {
        Ok(answer) => answer,
        Err(_) => Err("hook did not end in time".to_owned()),
    }
}

async fn one(
    node: &Node,
    pod: &Pod,
    handler: &LifecycleHandler,
    container: &Container,
    id: &str,
    pod_ip: Option<&str>,
    bound: Duration,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let answer = node.runtime.cri.exec_sync(id, command.clone(), bound).await.map_err(|err| err.to_string())?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let output = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
        return Err(format!(
            "Exec lifecycle hook ({command:?}) failed: command exited with {}: {output}",
            answer.exit_code
        ));
    }
    if let Some(get) = &handler.http_get {
        let host = get
            .host
            .as_deref()
            .filter(|host| !host.is_empty())
            .or(pod_ip)
            .ok_or("failed to find networking container")?;
        if let Some(asked) = http::hook(get, container, host, bound, &node.group).await? {
            let text = format!("request to HTTPS lifecycle hook {asked} got HTTP response, retry with HTTP succeeded");
            node.events.pod(pod, None, Kind::Warning, "LifecycleHTTPFallback", text);
        }
        return Ok(());
    }
    if let Some(sleep) = &handler.sleep {
        let secs = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(secs)).await;
        return Ok(());
    }
    Err("invalid handler: cannot run lifecycle hook of this type".to_owned())
}
