//! A driver of volumes and a plugin of devices, both of our own, speaking the real protocols over unix sockets.

use base::sync::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::task::Group;
use futures_util::StreamExt as _;
use http::{HeaderValue, Request, Response};
use prost::Message;
use proto::{csi, plugins};
use wire::{Body, ConnInfo};

use crate::harness::{Server, run_with};
use crate::story::POD_LIMIT;

const DRIVER: &str = "test.kedge.io";
const RESOURCE: &str = "kedge.io/lamp";

/// Keeps volumes as folders, and remembers what it was asked.
struct Plugin {
    volumes: PathBuf,
    socket: PathBuf,
    calls: Mutex<Vec<String>>,
}

impl Plugin {
    fn note(&self, call: &str) {
        self.calls.lock().push(call.to_owned());
    }

    fn calls(&self, call: &str) -> usize {
        self.calls.lock().iter().filter(|made| *made == call).count()
    }

    fn answer(&self, path: &str, sent: &[u8]) -> Vec<u8> {
        self.note(path.rsplit('/').next().unwrap());
        match path {
            plugins::GET_INFO => plugins::PluginInfo {
                kind: "CSIPlugin".to_owned(),
                name: DRIVER.to_owned(),
                endpoint: self.socket.display().to_string(),
                supported_versions: vec!["1.0.0".to_owned()],
            }
            .encode_to_vec(),
            csi::NODE_GET_INFO => {
                csi::NodeInfo { node_id: "machine-1".to_owned(), max_volumes_per_node: 7, accessible_topology: None }
                    .encode_to_vec()
            }
            csi::NODE_GET_CAPABILITIES => {
                let can = csi::NodeCapability { rpc: Some(csi::NodeRpc { kind: csi::STAGE_UNSTAGE_VOLUME }) };
                csi::NodeCapabilities { capabilities: vec![can] }.encode_to_vec()
            }
            csi::NODE_STAGE_VOLUME => {
                let request = csi::StageRequest::decode(sent).unwrap();
                assert_eq!(request.publish_context["device"], "lun-3", "what attaching gave");
                fs::create_dir_all(self.volumes.join(&request.volume_id)).unwrap();
                Vec::new()
            }
            csi::NODE_PUBLISH_VOLUME => {
                let request = csi::PublishRequest::decode(sent).unwrap();
                assert_eq!(request.volume_context["csi.storage.k8s.io/pod.namespace"], "default");
                fs::create_dir_all(&request.target_path).unwrap();
                mount(&["--bind", self.volumes.join(&request.volume_id).to_str().unwrap(), &request.target_path]);
                Vec::new()
            }
            csi::NODE_UNPUBLISH_VOLUME => {
                let request = csi::UnpublishRequest::decode(sent).unwrap();
                let _not_mounted = run_with(Command::new("umount").arg(&request.target_path), "");
                let _gone = fs::remove_dir(&request.target_path);
                Vec::new()
            }
            plugins::ALLOCATE => {
                let request = plugins::AllocateRequest::decode(sent).unwrap();
                let ids = request.container_requests[0].ids.join(",");
                let lamp = plugins::DeviceSpec {
                    container_path: "/dev/lamp".to_owned(),
                    host_path: "/dev/null".to_owned(),
                    permissions: "rw".to_owned(),
                };
                let needs = plugins::ContainerAllocation {
                    envs: [("LAMPS".to_owned(), ids)].into(),
                    devices: vec![lamp],
                    ..Default::default()
                };
                plugins::AllocateResponse { container_responses: vec![needs] }.encode_to_vec()
            }
            _ => Vec::new(),
        }
    }
}

fn mount(args: &[&str]) {
    let done = run_with(Command::new("mount").args(args), "");
    assert_eq!(done.code, 0, "{done:?}");
}

fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    frame
}

#[async_trait::async_trait]
impl wire::Handler for Plugin {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        let (parts, body) = req.into_parts();
        let framed = wire::body::collect(body, 1 << 20).await.unwrap();
        let grpc = HeaderValue::from_static("application/grpc");
        let path = parts.uri.path();
        if path == plugins::LIST_AND_WATCH {
            // Told once; the stream stays open.
            let device = |id: &str| plugins::Device { id: id.to_owned(), health: "Healthy".to_owned(), topology: None };
            let all = frame(&plugins::Devices { devices: vec![device("a"), device("b")] }.encode_to_vec());
            let told = futures_util::stream::once(async move { Ok::<_, std::io::Error>(bytes::Bytes::from(all)) });
            let mut response = Response::new(wire::body::stream(told.chain(futures_util::stream::pending())));
            response.headers_mut().insert("content-type", grpc);
            return response;
        }
        let mut response = Response::new(wire::body::full(frame(&self.answer(path, &framed[5..]))));
        response.headers_mut().insert("content-type", grpc);
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
        response
    }
}

/// Serves it on sockets, as long as the runtime lives.
fn serve(plugin: &Arc<Plugin>, sockets: &[&Path]) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (group, fatal) = Group::root("plugin");
        for socket in sockets {
            fs::create_dir_all(socket.parent().unwrap()).unwrap();
            wire::serve::UnixServer::bind(socket, Arc::clone(plugin) as Arc<dyn wire::Handler>).unwrap().start(&group);
        }
        std::mem::forget((group, fatal));
    });
    runtime
}

fn pod(name: &str, command: &str, claim: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    image: kedge.local/busybox:1\n    \
         command: [sh, -c, '{command}']\n    volumeMounts: [{{name: v, mountPath: /data}}]\n  \
         volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]\n"
    )
}

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: test.kedge.io}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: None}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: driven}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  claimRef: {namespace: default, name: driven}
  csi: {driver: test.kedge.io, volumeHandle: vol-1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: driven}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: driven, resources: {requests: {storage: 1Gi}}}
"#;

/// A volume goes from pod to pod, and nothing is left of it.
pub(crate) fn volumes(server: &Server) {
    let kubelet = server.place.data_dir().join("agent/kubelet");
    let (socket, registration) =
        (kubelet.join("plugins/test/csi.sock"), kubelet.join("plugins_registry/test-reg.sock"));
    let plugin =
        Arc::new(Plugin { volumes: server.place.path("volumes"), socket: socket.clone(), calls: Mutex::default() });
    let _runtime = serve(&plugin, &[&socket, &registration]);
    let known = "jsonpath={.spec.drivers[*].name} {.spec.drivers[*].nodeID} {.spec.drivers[*].allocatable.count}";
    server.until(&["get", "csinode", "n1", "-o", known], POD_LIMIT, |out| out == format!("{DRIVER} machine-1 7"));
    server.ok_with(&["apply", "-f", "-"], OBJECTS);
    server.ok_with(&["apply", "-f", "-"], &pod("writer", "echo kept >/data/file; sleep 3600", "driven"));
    // The attacher is us.
    let name = server.until(&["get", "volumeattachment", "-o", "name"], POD_LIMIT, |out| out.lines().count() == 1);
    let status = r#"{"status":{"attached":true,"attachmentMetadata":{"device":"lun-3"}}}"#;
    server.ok(&["patch", name.trim(), "--subresource=status", "--type=merge", "-p", status]);
    let phase = "jsonpath={.status.phase}";
    server.until(&["get", "pod", "writer", "-o", phase], POD_LIMIT, |out| out == "Running");
    let shown = "jsonpath={.status.volumesInUse} {.status.volumesAttached[*].name}";
    let unique = format!("kubernetes.io/csi/{DRIVER}^vol-1");
    assert_eq!(server.ok(&["get", "node", "n1", "-o", shown]), format!("[\"{unique}\"] {unique}"));
    let wait_for_file = ["exec", "writer", "--", "cat", "/data/file"];
    server.until(&wait_for_file, POD_LIMIT, |out| out == "kept\n");
    server.ok_with(&["apply", "-f", "-"], &pod("reader", "cat /data/file", "driven"));
    server.until(&["get", "pod", "reader", "-o", phase], POD_LIMIT, |out| out == "Succeeded");
    assert_eq!(server.ok(&["logs", "reader"]), "kept\n");
    server.ok(&["delete", "pod", "writer", "reader", "--timeout=90s"]);
    server.until(&["get", "volumeattachment", "-o", "name"], POD_LIMIT, str::is_empty);
    assert_eq!((plugin.calls("NodeStageVolume"), plugin.calls("NodePublishVolume")), (1, 2));
    // A try that was interrupted is made again.
    assert!(plugin.calls("NodeUnstageVolume") >= 1 && plugin.calls("NodeUnpublishVolume") >= 2);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("kubernetes.io~csi"), "mounts of a driver's volume");
    // Without its socket the driver is gone, and a pod waits with upstream's words.
    fs::remove_file(&registration).unwrap();
    server.until(&["get", "csinode", "n1", "-o", "jsonpath={.spec.drivers}"], POD_LIMIT, |out| {
        out.is_empty() || out == "[]"
    });
    server.ok(&["delete", "pvc,pv", "driven", "--timeout=60s"]);
    server.ok(&["delete", "csidriver", DRIVER]);
}

/// Two lamps are given to one pod, and a third pod is told that there is none.
pub(crate) fn devices(server: &Server) {
    let kubelet = server.place.data_dir().join("agent/kubelet");
    let socket = kubelet.join("device-plugins/lamp.sock");
    let plugin = Arc::new(Plugin { volumes: PathBuf::new(), socket: socket.clone(), calls: Mutex::default() });
    let runtime = serve(&plugin, &[&socket]);
    let request = plugins::RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "lamp.sock".to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: None,
    };
    runtime.block_on(register(&kubelet.join("device-plugins/kubelet.sock"), &request));
    let amount = "jsonpath={.status.allocatable.kedge\\.io/lamp}";
    server.until(&["get", "node", "n1", "-o", amount], POD_LIMIT, |out| out == "2");
    let wants = |name: &str, n: u32, node: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  \
             terminationGracePeriodSeconds: 1\n  {node}\n  containers:\n  - name: c\n    \
             image: kedge.local/busybox:1\n    command: [sh, -c, 'echo $LAMPS; test -c /dev/lamp && sleep 3600']\n    \
             resources: {{limits: {{{RESOURCE}: {n}}}}}\n"
        )
    };
    server.ok_with(&["apply", "-f", "-"], &wants("lit", 2, ""));
    server.until(&["logs", "lit"], POD_LIMIT, |out| out == "a,b\n");
    // Past the scheduler, which would keep it waiting.
    server.ok_with(&["apply", "-f", "-"], &wants("dark", 1, "nodeName: n1"));
    server.until(&["get", "pod", "dark", "-o", "jsonpath={.status.phase} {.status.reason}"], POD_LIMIT, |out| {
        out == "Failed OutOfkedge.io/lamp"
    });
    server.ok(&["delete", "pod", "lit", "dark", "--timeout=90s"]);
    drop(runtime);
    server.until(&["get", "node", "n1", "-o", amount], POD_LIMIT, |out| out == "0");
}

/// One call, as a device plugin makes it.
async fn register(socket: &Path, request: &plugins::RegisterRequest) {
    let stream = wire::dial::unix(socket).await.unwrap();
    let (group, _fatal) = Group::root("register");
    let http = wire::dial::Http2::begin(stream, "kubelet.sock", &group).await.unwrap();
    let body = wire::body::full(frame(&request.encode_to_vec()));
    let req = Request::post(format!("http://localhost{}", plugins::REGISTER))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let answer = http.send(req.body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    let said = answer.headers().get("grpc-status").cloned();
    assert!(said.is_none_or(|status| status == "0"), "{:?}", answer.headers());
    let _whole = wire::body::collect(answer.into_body(), 1 << 20).await.unwrap();
}
