//! The CRI v1 calls of containerd, each with a named timeout and an error that says which call failed.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use base::exposition::Metric;
use base::metrics;
use hyper_util::rt::TokioIo;
use k8s_cri::v1 as cri;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};

use super::driver::CgroupDriver;
use super::labels;

/// Reading state: containerd answers from memory.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Making and ending things: snapshots, CNI, runc. As upstream's `--runtime-request-timeout`.
const ACT_TIMEOUT: Duration = Duration::from_secs(240);
/// Added to the time that a call names itself, a grace period or a timeout: containerd still has to kill and clean.
const RUNTIME_EXTRA: Duration = Duration::from_secs(120);
/// A pull may be slow; containerd gives up by itself when nothing moves.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);
/// Bytes of one answer: thousands of container states.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A call that failed. The text has upstream's shape, as it reaches events and statuses.
#[derive(Debug, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}", code = code_name(status.code()), message = status.message())]
pub struct CriError {
    /// Which call.
    pub call: &'static str,
    /// The answer of gRPC.
    pub status: Box<Status>,
}

impl CriError {
    /// The thing is gone.
    pub fn is_not_found(&self) -> bool {
        self.status.code() == Code::NotFound
            || (self.status.code() == Code::Unknown && self.status.message().contains("not found"))
    }

    /// This version of the runtime does not have the call.
    pub fn is_unimplemented(&self) -> bool {
        self.status.code() == Code::Unimplemented
    }
}

fn code_name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// A handle to the runtime; clones share one connection, which is made again when containerd restarts.
#[derive(Clone)]
pub struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

/// A lazy channel to a unix socket.
pub(crate) fn channel(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    // The URI is never looked up: the connector goes to the socket.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}

/// The longest deadline of a call: gRPC has eight digits for it, and tonic panics at more.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout.min(TIMEOUT_MAX));
    request
}

macro_rules! call {
    ($self:ident . $service:ident . $method:ident ( $message:expr ), $timeout:expr) => {{
        let failed = |status| CriError { call: stringify!($method), status: Box::new(status) };
        let watch = base::time::Stopwatch::start();
        let answer = tokio::time::timeout($timeout, $self.$service.clone().$method(request($message, $timeout))).await;
        let answer = match answer {
            Ok(answer) => answer.map(tonic::Response::into_inner).map_err(|status| failed(late(status))),
            Err(_) => Err(failed(Status::deadline_exceeded("context deadline exceeded"))),
        };
        let operation = operation(stringify!($method));
        let labels = [("operation_type", operation.as_str())];
        metrics::count(OPERATIONS, &labels, 1);
        metrics::observe(OPERATIONS_TOOK, &labels, watch.elapsed());
        if answer.is_err() {
            metrics::count(OPERATIONS_FAILED, &labels, 1);
        }
        answer
    }};
}

/// A status in the words of our own clock, where tonic's ran out just before it.
fn late(status: Status) -> Status {
    match status.code() == Code::Cancelled && status.message() == "Timeout expired" {
        true => Status::deadline_exceeded("context deadline exceeded"),
        false => status,
    }
}

const OPERATIONS: Metric = Metric {
    name: "kubelet_runtime_operations_total",
    help: "[ALPHA] Cumulative number of runtime operations by operation type.",
};
const OPERATIONS_FAILED: Metric = Metric {
    name: "kubelet_runtime_operations_errors_total",
    help: "[ALPHA] Cumulative number of runtime operation errors by operation type.",
};
const OPERATIONS_TOOK: Metric = Metric {
    name: "kubelet_runtime_operations_duration_seconds",
    help: "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
};

/// The name that upstream's metrics have for a call.
fn operation(method: &str) -> String {
    method.replace("pod_sandbox", "podsandbox").replace("update_container_resources", "update_container")
}

impl Cri {
    /// Connects at the first call.
    pub fn connect(socket: &Path) -> Cri {
        let channel = channel(socket);
        Cri {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            images: ImageServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
        }
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<cri::VersionResponse, CriError> {
        call!(self.runtime.version(cri::VersionRequest { version: "v1".to_owned() }), QUERY_TIMEOUT)
    }

    /// The runtime's cgroup driver; `None` where it cannot say (containerd 1.x).
    pub async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, CriError> {
        match call!(self.runtime.runtime_config(cri::RuntimeConfigRequest {}), QUERY_TIMEOUT) {
            Ok(answer) => Ok(answer.linux.map(|linux| match linux.cgroup_driver() {
                cri::CgroupDriver::Systemd => CgroupDriver::Systemd,
                cri::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            })),
            Err(err) if err.is_unimplemented() => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// RuntimeReady and NetworkReady.
    pub async fn status(&self) -> Result<Vec<cri::RuntimeCondition>, CriError> {
        let answer = call!(self.runtime.status(cri::StatusRequest { verbose: false }), QUERY_TIMEOUT)?;
        Ok(answer.status.map(|status| status.conditions).unwrap_or_default())
    }

    /// Features of the runtime and of its handlers; empty where it does not say (containerd 1.x).
    pub async fn features(&self) -> Result<(cri::RuntimeFeatures, Vec<cri::RuntimeHandler>), CriError> {
        let answer = call!(self.runtime.status(cri::StatusRequest { verbose: false }), QUERY_TIMEOUT)?;
        Ok((answer.features.unwrap_or_default(), answer.runtime_handlers))
    }

    /// Changes the limits of a running container.
    pub async fn update_resources(&self, id: &str, linux: cri::LinuxContainerResources) -> Result<(), CriError> {
        let message = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        call!(self.runtime.update_container_resources(message), ACT_TIMEOUT).map(drop)
    }

    /// Sandboxes of one pod, or of all.
    pub async fn sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<cri::PodSandbox>, CriError> {
        let filter = cri::PodSandboxFilter { label_selector: uid_selector(pod_uid), ..Default::default() };
        let message = cri::ListPodSandboxRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_pod_sandbox(message), QUERY_TIMEOUT)?.items)
    }

    /// One sandbox with its addresses.
    pub async fn sandbox(&self, id: &str) -> Result<Option<cri::PodSandboxStatus>, CriError> {
        let message = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        Ok(call!(self.runtime.pod_sandbox_status(message), QUERY_TIMEOUT)?.status)
    }

    /// Containers of one pod, or of all.
    pub async fn containers(&self, pod_uid: Option<&str>) -> Result<Vec<cri::Container>, CriError> {
        let filter = cri::ContainerFilter { label_selector: uid_selector(pod_uid), ..Default::default() };
        let message = cri::ListContainersRequest { filter: Some(filter) };
        Ok(call!(self.runtime.list_containers(message), QUERY_TIMEOUT)?.containers)
    }

    /// One container in full.
    pub async fn container(&self, id: &str) -> Result<Option<cri::ContainerStatus>, CriError> {
        let message = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        Ok(call!(self.runtime.container_status(message), QUERY_TIMEOUT)?.status)
    }

    /// Makes and starts a sandbox, its network included. Returns its id.
    pub async fn run_sandbox(&self, config: cri::PodSandboxConfig, handler: &str) -> Result<String, CriError> {
        let message = cri::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        Ok(call!(self.runtime.run_pod_sandbox(message), ACT_TIMEOUT)?.pod_sandbox_id)
    }

    /// Stops a sandbox and frees its network. Done again, it does nothing.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let message = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(call!(self.runtime.stop_pod_sandbox(message), ACT_TIMEOUT).map(drop))
    }

    /// Forgets a stopped sandbox and its containers.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let message = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(call!(self.runtime.remove_pod_sandbox(message), ACT_TIMEOUT).map(drop))
    }

    /// Makes a container. Returns its id.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String, CriError> {
        let message = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(call!(self.runtime.create_container(message), ACT_TIMEOUT)?.container_id)
    }

    /// Starts a container that was made.
    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let message = cri::StartContainerRequest { container_id: id.to_owned() };
        call!(self.runtime.start_container(message), ACT_TIMEOUT).map(drop)
    }

    /// Ends a container: its stop signal, and after `grace` SIGKILL. Returns when it is dead.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let message = cri::StopContainerRequest { container_id: id.to_owned(), timeout };
        gone_is_fine(call!(self.runtime.stop_container(message), grace.saturating_add(RUNTIME_EXTRA)).map(drop))
    }

    /// Forgets a container that is not running.
    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let message = cri::RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(call!(self.runtime.remove_container(message), ACT_TIMEOUT).map(drop))
    }

    /// Opens the log file anew after it was moved away.
    pub async fn reopen_log(&self, id: &str) -> Result<(), CriError> {
        let message = cri::ReopenContainerLogRequest { container_id: id.to_owned() };
        call!(self.runtime.reopen_container_log(message), QUERY_TIMEOUT).map(drop)
    }

    /// Runs a command in a container and waits for its end. A timeout is an error with `DeadlineExceeded`.
    pub async fn exec_sync(
        &self,
        id: &str,
        cmd: Vec<String>,
        timeout: Duration,
    ) -> Result<cri::ExecSyncResponse, CriError> {
        let secs = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let message = cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: secs };
        // The runtime measures the timeout itself; ours only guards against its silence. It answers late where the
        // command left a process behind that keeps the output open.
        let bound = if timeout.is_zero() { PULL_TIMEOUT } else { timeout.saturating_add(RUNTIME_EXTRA) };
        call!(self.runtime.exec_sync(message), bound)
    }

    /// Where to stream an exec.
    pub async fn exec(&self, message: cri::ExecRequest) -> Result<String, CriError> {
        Ok(call!(self.runtime.exec(message), QUERY_TIMEOUT)?.url)
    }

    /// Where to stream an attach.
    pub async fn attach(&self, message: cri::AttachRequest) -> Result<String, CriError> {
        Ok(call!(self.runtime.attach(message), QUERY_TIMEOUT)?.url)
    }

    /// Where to stream forwarded ports.
    pub async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String, CriError> {
        let message = cri::PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port: ports };
        Ok(call!(self.runtime.port_forward(message), QUERY_TIMEOUT)?.url)
    }

    /// Resource use of all running containers.
    pub async fn container_stats(&self) -> Result<Vec<cri::ContainerStats>, CriError> {
        Ok(call!(self.runtime.list_container_stats(cri::ListContainerStatsRequest { filter: None }), QUERY_TIMEOUT)?
            .stats)
    }

    /// Container events as the CRI names them; Unimplemented on containerd 1.6.
    pub async fn container_events(&self) -> Result<Streaming<cri::ContainerEventResponse>, CriError> {
        let answer = self.runtime.clone().get_container_events(Request::new(cri::GetEventsRequest {})).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| CriError { call: "get_container_events", status: Box::new(status) })
    }

    /// All images.
    pub async fn images(&self) -> Result<Vec<cri::Image>, CriError> {
        Ok(call!(self.images.list_images(cri::ListImagesRequest { filter: None }), QUERY_TIMEOUT)?.images)
    }

    /// One image, if it is here.
    pub async fn image(&self, name: &str) -> Result<Option<cri::Image>, CriError> {
        let message = cri::ImageStatusRequest { image: Some(image_spec(name)), verbose: false };
        Ok(call!(self.images.image_status(message), QUERY_TIMEOUT)?.image)
    }

    /// The topmost layer of an image's files, where the runtime tells (containerd does).
    pub async fn chain_id(&self, name: &str) -> Result<Option<String>, CriError> {
        let message = cri::ImageStatusRequest { image: Some(image_spec(name)), verbose: true };
        let answer = call!(self.images.image_status(message), QUERY_TIMEOUT)?;
        let told = answer.info.get("info").and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        Ok(told.and_then(|v| v["chainID"].as_str().map(str::to_owned)).filter(|id| !id.is_empty()))
    }

    /// The snapshotter in use, from the runtime's own account of its configuration.
    pub async fn snapshotter(&self) -> Result<Option<String>, CriError> {
        let answer = call!(self.runtime.status(cri::StatusRequest { verbose: true }), QUERY_TIMEOUT)?;
        let told = answer.info.get("config").and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let of = |v: &serde_json::Value| {
            v.pointer("/containerd/snapshotter")
                .or_else(|| v.get("snapshotter"))
                .and_then(|s| s.as_str())
                .map(str::to_owned)
        };
        Ok(told.as_ref().and_then(of).filter(|s| !s.is_empty()))
    }

    /// Fetches an image. Returns its reference.
    pub async fn pull(
        &self,
        name: &str,
        auth: Option<cri::AuthConfig>,
        sandbox: Option<cri::PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let message = cri::PullImageRequest { image: Some(image_spec(name)), auth, sandbox_config: sandbox };
        Ok(call!(self.images.pull_image(message), PULL_TIMEOUT)?.image_ref)
    }

    /// Deletes an image.
    pub async fn remove_image(&self, id: &str) -> Result<(), CriError> {
        call!(self.images.remove_image(cri::RemoveImageRequest { image: Some(image_spec(id)) }), ACT_TIMEOUT).map(drop)
    }

    /// The file systems that hold images.
    pub async fn image_fs(&self) -> Result<cri::ImageFsInfoResponse, CriError> {
        call!(self.images.image_fs_info(cri::ImageFsInfoRequest {}), QUERY_TIMEOUT)
    }
}

fn gone_is_fine(answer: Result<(), CriError>) -> Result<(), CriError> {
    match answer {
        Err(err) if err.is_not_found() => Ok(()),
        other => other,
    }
}

fn uid_selector(uid: Option<&str>) -> HashMap<String, String> {
    uid.map(|uid| (labels::POD_UID.to_owned(), uid.to_owned())).into_iter().collect()
}

/// An image by name or id.
pub(crate) fn image_spec(name: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: name.to_owned(), user_specified_image: name.to_owned(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clock_that_runs_out_says_the_same() {
        assert_eq!(late(Status::cancelled("Timeout expired")).code(), Code::DeadlineExceeded);
        assert_eq!(late(Status::cancelled("stopped")).code(), Code::Cancelled);
        assert_eq!(late(Status::unavailable("Timeout expired")).code(), Code::Unavailable);
    }

    #[test]
    fn calls_have_upstreams_names_in_metrics() {
        for (method, expected) in [
            ("run_pod_sandbox", "run_podsandbox"),
            ("list_pod_sandbox", "list_podsandbox"),
            ("update_container_resources", "update_container"),
            ("create_container", "create_container"),
        ] {
            assert_eq!(operation(method), expected);
        }
    }

    #[test]
    fn a_failed_call_is_told_as_gos_grpc_tells_it() {
        let failed = |status: Status| CriError { call: "run_pod_sandbox", status: Box::new(status) };
        let gone = failed(Status::not_found("no such sandbox"));
        assert_eq!(gone.to_string(), "rpc error: code = NotFound desc = no such sandbox");
        assert!(gone.is_not_found() && !gone.is_unimplemented());
        assert_eq!(failed(Status::cancelled("stop")).to_string(), "rpc error: code = Canceled desc = stop");
        assert!(failed(Status::unknown("image x not found")).is_not_found(), "containerd has no code for it");
        assert!(!failed(Status::unknown("no")).is_not_found() && failed(Status::unimplemented("")).is_unimplemented());
    }

    // review node.md N15
    #[test]
    fn no_deadline_is_too_long_for_a_call() {
        let request = request((), Duration::MAX);
        assert_eq!(request.metadata().get("grpc-timeout").map(|t| t.to_str().unwrap().len() <= 9), Some(true));
    }
}
