//! Every message against its protocol: a table with the names, types and numbers of all fields, copied by hand from the
//! protocols' own definitions. The tests of `tests.rs` show that a declaration is what goes over the wire.
//!
//! Spec: etcd's `api/etcdserverpb/rpc.proto`, `api/mvccpb/kv.proto` and `server/lease/leasepb/lease.proto` (v3.6),
//! CSI's `csi.proto` (v1.12), the kubelet's `pluginregistration/v1`, `deviceplugin/v1beta1` and `podresources/v1`, and
//! `kms/apis/v2` with the API server's `envelope/kmsv2/v2/api.proto` (v1.36).

use std::collections::BTreeMap;

/// A message a line, with the protocol's name for it where it has another one here. Fields that nothing reads or writes
/// may be left out on both sides.
const ETCD: &str = "
KeyValue: bytes key = 1, int64 create_revision = 2, int64 mod_revision = 3, int64 version = 4, bytes value = 5, \
    int64 lease = 6
EventType: Put = 0, Delete = 1
Event: EventType type = 1, KeyValue kv = 2, KeyValue prev_kv = 3
ResponseHeader: uint64 cluster_id = 1, uint64 member_id = 2, int64 revision = 3, uint64 raft_term = 4
SortOrder: None = 0, Ascend = 1, Descend = 2
SortTarget: Key = 0, Version = 1, Create = 2, Mod = 3, Value = 4
RangeRequest: bytes key = 1, bytes range_end = 2, int64 limit = 3, int64 revision = 4, SortOrder sort_order = 5, \
    SortTarget sort_target = 6, bool serializable = 7, bool keys_only = 8, bool count_only = 9, \
    int64 min_mod_revision = 10, int64 max_mod_revision = 11, int64 min_create_revision = 12, \
    int64 max_create_revision = 13
RangeResponse: ResponseHeader header = 1, repeated KeyValue kvs = 2, bool more = 3, int64 count = 4
PutRequest: bytes key = 1, bytes value = 2, int64 lease = 3, bool prev_kv = 4, bool ignore_value = 5, bool \
    ignore_lease = 6
PutResponse: ResponseHeader header = 1, KeyValue prev_kv = 2
DeleteRangeRequest: bytes key = 1, bytes range_end = 2, bool prev_kv = 3
DeleteRangeResponse: ResponseHeader header = 1, int64 deleted = 2, repeated KeyValue prev_kvs = 3
RequestOp: oneof request = 1 2 3 4
ResponseOp: oneof response = 1 2 3 4
CompareResult (Compare.CompareResult): Equal = 0, Greater = 1, Less = 2, NotEqual = 3
CompareTarget (Compare.CompareTarget): Version = 0, Create = 1, Mod = 2, Value = 3, Lease = 4
Compare: CompareResult result = 1, CompareTarget target = 2, bytes key = 3, bytes range_end = 64, \
    oneof target_union = 4 5 6 7 8
TxnRequest: repeated Compare compare = 1, repeated RequestOp success = 2, repeated RequestOp failure = 3
TxnResponse: ResponseHeader header = 1, bool succeeded = 2, repeated ResponseOp responses = 3
CompactionRequest: int64 revision = 1, bool physical = 2
HeaderOnly (CompactionResponse, DefragmentResponse, LeaseRevokeResponse, MoveLeaderResponse): ResponseHeader \
    header = 1
Empty (StatusRequest, DefragmentRequest, HashRequest, SnapshotRequest, WatchProgressRequest):
HashKvRequest (HashKVRequest): int64 revision = 1
HashKvResponse (HashKVResponse): ResponseHeader header = 1, uint32 hash = 2, int64 compact_revision = 3
HashResponse: ResponseHeader header = 1, uint32 hash = 2
SnapshotResponse: ResponseHeader header = 1, uint64 remaining_bytes = 2, bytes blob = 3
WatchRequest: oneof request = 1 2 3
WatchCreateRequest: bytes key = 1, bytes range_end = 2, int64 start_revision = 3, bool progress_notify = 4, \
    repeated int32 filters = 5, bool prev_kv = 6, int64 watch_id = 7, bool fragment = 8
WatchCancelRequest: int64 watch_id = 1
WatchResponse: ResponseHeader header = 1, int64 watch_id = 2, bool created = 3, bool canceled = 4, \
    int64 compact_revision = 5, string cancel_reason = 6, bool fragment = 7, repeated Event events = 11
StoredLease (leasepb.Lease): int64 id = 1, int64 ttl = 2, int64 remaining_ttl = 3
LeaseGrantRequest: int64 ttl = 1, int64 id = 2
LeaseGrantResponse: ResponseHeader header = 1, int64 id = 2, int64 ttl = 3, string error = 4
LeaseIdRequest (LeaseRevokeRequest, LeaseKeepAliveRequest): int64 id = 1
LeaseKeepAliveResponse: ResponseHeader header = 1, int64 id = 2, int64 ttl = 3
LeaseTimeToLiveRequest: int64 id = 1, bool keys = 2
LeaseTimeToLiveResponse: ResponseHeader header = 1, int64 id = 2, int64 ttl = 3, int64 granted_ttl = 4, \
    repeated bytes keys = 5
LeaseStatus: int64 id = 1
LeaseLeasesResponse: ResponseHeader header = 1, repeated LeaseStatus leases = 2
";

/// The same of the Cluster and Maintenance services, and the alternatives of the messages above.
const ETCD_CLUSTER: &str = "
Member: uint64 id = 1, string name = 2, repeated string peer_urls = 3, repeated string client_urls = 4, bool \
    is_learner = 5
MemberAddRequest: repeated string peer_urls = 1, bool is_learner = 2
MemberIdRequest (MemberRemoveRequest, MemberPromoteRequest, MoveLeaderRequest): uint64 id = 1
MemberUpdateRequest: uint64 id = 1, repeated string peer_urls = 2
MembersResponse (MemberListResponse, MemberRemoveResponse, MemberUpdateResponse, MemberPromoteResponse): \
    ResponseHeader header = 1, repeated Member members = 2
AlarmRequest: int32 action = 1, uint64 member_id = 2, int32 alarm = 3
AlarmMember: uint64 member_id = 1, int32 alarm = 2
AlarmResponse: ResponseHeader header = 1, repeated AlarmMember alarms = 2
StatusResponse: ResponseHeader header = 1, string version = 2, int64 db_size = 3, uint64 leader = 4, \
    uint64 raft_index = 5, uint64 raft_term = 6, uint64 raft_applied_index = 7, repeated string errors = 8, \
    int64 db_size_in_use = 9, bool is_learner = 10
request_op: RangeRequest Range = 1, PutRequest Put = 2, DeleteRangeRequest DeleteRange = 3, TxnRequest Txn = 4
response_op: RangeResponse Range = 1, PutResponse Put = 2, DeleteRangeResponse DeleteRange = 3, TxnResponse Txn = 4
compare: int64 Version = 4, int64 CreateRevision = 5, int64 ModRevision = 6, bytes Value = 7, int64 Lease = 8
watch_request: WatchCreateRequest Create = 1, WatchCancelRequest Cancel = 2, Empty Progress = 3
";

const CSI: &str = "
Empty (NodeGetInfoRequest, NodeGetCapabilitiesRequest, VolumeCapability.BlockVolume):
NodeInfo (NodeGetInfoResponse): string node_id = 1, int64 max_volumes_per_node = 2, Topology accessible_topology = 3
Topology: map<string, string> segments = 1
NodeCapabilities (NodeGetCapabilitiesResponse): repeated NodeCapability capabilities = 1
NodeCapability (NodeServiceCapability): NodeRpc rpc = 1
NodeRpc (NodeServiceCapability.RPC): int32 kind = 1
VolumeCapability: Empty block = 1, MountVolume mount = 2, AccessMode access_mode = 3
MountVolume (VolumeCapability.MountVolume): string fs_type = 1, repeated string mount_flags = 2, \
    string volume_mount_group = 3
AccessMode (VolumeCapability.AccessMode): int32 mode = 1
StageRequest (NodeStageVolumeRequest): string volume_id = 1, map<string, string> publish_context = 2, \
    string staging_target_path = 3, VolumeCapability volume_capability = 4, map<string, string> secrets = 5, \
    map<string, string> volume_context = 6
UnstageRequest (NodeUnstageVolumeRequest): string volume_id = 1, string staging_target_path = 2
PublishRequest (NodePublishVolumeRequest): string volume_id = 1, map<string, string> publish_context = 2, \
    string staging_target_path = 3, string target_path = 4, VolumeCapability volume_capability = 5, bool readonly = 6, \
    map<string, string> secrets = 7, map<string, string> volume_context = 8
UnpublishRequest (NodeUnpublishVolumeRequest): string volume_id = 1, string target_path = 2
StatsRequest (NodeGetVolumeStatsRequest): string volume_id = 1, string volume_path = 2, string staging_target_path = 3
StatsResponse (NodeGetVolumeStatsResponse): repeated VolumeUsage usage = 1, VolumeCondition volume_condition = 2
VolumeUsage: int64 available = 1, int64 total = 2, int64 used = 3, int32 unit = 4
VolumeCondition: bool abnormal = 1, string message = 2
ExpandRequest (NodeExpandVolumeRequest): string volume_id = 1, string volume_path = 2, \
    CapacityRange capacity_range = 3, string staging_target_path = 4, VolumeCapability volume_capability = 5, \
    map<string, string> secrets = 6
CapacityRange: int64 required_bytes = 1, int64 limit_bytes = 2
ExpandResponse (NodeExpandVolumeResponse): int64 capacity_bytes = 1
";

const KMS: &str = "
StatusRequest:
StatusResponse: string version = 1, string healthz = 2, string key_id = 3
DecryptRequest: bytes ciphertext = 1, string uid = 2, string key_id = 3, map<string, bytes> annotations = 4
DecryptResponse: bytes plaintext = 1
EncryptRequest: bytes plaintext = 1, string uid = 2
EncryptResponse: bytes ciphertext = 1, string key_id = 2, map<string, bytes> annotations = 3
EncryptedObject: bytes encrypted_data = 1, string key_id = 2, bytes encrypted_dek_source = 3, \
    map<string, bytes> annotations = 4, int32 encrypted_dek_source_type = 5
";

const PLUGINS: &str = "
Empty (InfoRequest, RegistrationStatusResponse, ListPodResourcesRequest, AllocatableResourcesRequest):
PluginInfo: string kind = 1, string name = 2, string endpoint = 3, repeated string supported_versions = 4
RegistrationStatus: bool plugin_registered = 1, string error = 2
DevicePluginOptions: bool pre_start_required = 1, bool get_preferred_allocation_available = 2
RegisterRequest: string version = 1, string endpoint = 2, string resource_name = 3, DevicePluginOptions options = 4
Devices (ListAndWatchResponse): repeated Device devices = 1
Device: string id = 1, string health = 2, TopologyInfo topology = 3
TopologyInfo: repeated NumaNode nodes = 1
NumaNode (NUMANode): int64 id = 1
PreferredRequest (PreferredAllocationRequest): repeated ContainerPreferred container_requests = 1
ContainerPreferred (ContainerPreferredAllocationRequest): repeated string available_ids = 1, \
    repeated string must_include_ids = 2, int32 allocation_size = 3
PreferredResponse (PreferredAllocationResponse): repeated DeviceIds container_responses = 1
DeviceIds (ContainerPreferredAllocationResponse, ContainerAllocateRequest, PreStartContainerRequest): \
    repeated string ids = 1
AllocateRequest: repeated DeviceIds container_requests = 1
AllocateResponse: repeated ContainerAllocation container_responses = 1
ContainerAllocation (ContainerAllocateResponse): map<string, string> envs = 1, repeated Mount mounts = 2, \
    repeated DeviceSpec devices = 3, map<string, string> annotations = 4, repeated CdiDevice cdi_devices = 5
Mount: string container_path = 1, string host_path = 2, bool read_only = 3
DeviceSpec: string container_path = 1, string host_path = 2, string permissions = 3
CdiDevice (CDIDevice): string name = 1
PodRequest (GetPodResourcesRequest): string pod_name = 1, string pod_namespace = 2
PodResponse (GetPodResourcesResponse): PodResources pod_resources = 1
PodsResponse (ListPodResourcesResponse): repeated PodResources pod_resources = 1
PodResources: string name = 1, string namespace = 2, repeated ContainerResources containers = 3
ContainerResources: string name = 1, repeated ContainerDevices devices = 2
ContainerDevices: string resource_name = 1, repeated string device_ids = 2, TopologyInfo topology = 3
AllocatableResponse (AllocatableResourcesResponse): repeated ContainerDevices devices = 1, repeated int64 cpu_ids = 2
";

/// Fields by message, as a table says.
fn table(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (name, fields) = line.split_once(':').unwrap();
        (name.split(' ').next().unwrap().to_owned(), fields.trim().to_owned())
    };
    text.lines().filter(|text| !text.is_empty()).map(line).collect()
}

/// Fields by message, as a file declares them; alternatives go by the name of their module.
fn declared(source: &str) -> BTreeMap<String, String> {
    let (mut all, mut module, mut open, mut attribute) = (BTreeMap::new(), None, None, String::new());
    for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = Some(name.trim_end_matches(" {").to_owned());
        }
        let item = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
        if let Some(item) = item {
            let name = module.clone().unwrap_or_else(|| item.split(' ').next().unwrap().to_owned());
            all.insert(name.clone(), Vec::new());
            open = Some(name).filter(|_| !item.ends_with("{}"));
        }
        if let Some(text) = line.strip_prefix("#[prost(") {
            text.trim_end_matches(")]").clone_into(&mut attribute);
            continue;
        }
        if line == "}" && open.take().is_none() {
            module = None;
        }
        let Some(fields) = open.as_ref().and_then(|name| all.get_mut(name)) else { continue };
        if !attribute.is_empty() {
            fields.push(field(&std::mem::take(&mut attribute), line));
        } else if let Some((name, number)) = line.trim_end_matches(',').split_once(" = ") {
            // A value of an enumeration.
            fields.push(format!("{name} = {number}"));
        }
    }
    all.into_iter().map(|(name, fields)| (name, fields.join(", "))).collect()
}

/// A field from prost's attribute and the line that it stands over.
fn field(attribute: &str, line: &str) -> String {
    let quoted = |key: &str| attribute.split_once(key).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default();
    let (name, rust) = match line.strip_prefix("pub ") {
        Some(line) => line.split_once(": ").unwrap(),
        None => line.split_once('(').unwrap(),
    };
    let name = name.trim_start_matches("r#");
    if attribute.starts_with("oneof") {
        return format!("oneof {name} = {}", quoted("tags = \"").replace(',', ""));
    }
    let kind = attribute.split([',', ' ']).next().unwrap();
    let kind = match kind {
        "enumeration" => quoted("enumeration = \"").to_owned(),
        "map" => format!("map<{}>", quoted("map = \"")),
        // The innermost name of the type.
        "message" => {
            let inner = rust.trim_end_matches([',', ')', '>']);
            inner.rsplit(['<', ':']).next().unwrap().to_owned()
        }
        plain => plain.to_owned(),
    };
    let repeated = if attribute.contains(", repeated") { "repeated " } else { "" };
    format!("{repeated}{kind} {name} = {}", quoted(" tag = \""))
}

#[test]
fn every_message_has_the_fields_of_its_protocol() {
    for (file, source, spec) in [
        ("etcd.rs", include_str!("etcd.rs"), ETCD),
        ("etcd_cluster.rs", include_str!("etcd_cluster.rs"), ETCD_CLUSTER),
        ("csi.rs", include_str!("csi.rs"), CSI),
        ("kms.rs", include_str!("kms.rs"), KMS),
        ("plugins.rs", include_str!("plugins.rs"), PLUGINS),
    ] {
        let (declared, wanted) = (declared(source), table(spec));
        for (message, fields) in &wanted {
            assert_eq!(declared.get(message), Some(fields), "{file}: {message}");
        }
        let unknown: Vec<&String> = declared.keys().filter(|name| !wanted.contains_key(*name)).collect();
        assert_eq!(unknown, [""; 0], "{file}: a message that the table lacks");
    }
}
