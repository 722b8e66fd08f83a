//! Container Storage Interface 1.x, the part that a node calls: `csi.v1`.

use std::collections::HashMap;

/// Path of the call that asks a driver who it is on this node.
pub const NODE_GET_INFO: &str = "/csi.v1.Node/NodeGetInfo";
/// Path of the call that asks what a driver can do.
pub const NODE_GET_CAPABILITIES: &str = "/csi.v1.Node/NodeGetCapabilities";
/// Path of the call that mounts a volume once for the node.
pub const NODE_STAGE_VOLUME: &str = "/csi.v1.Node/NodeStageVolume";
/// Path of the call that undoes it.
pub const NODE_UNSTAGE_VOLUME: &str = "/csi.v1.Node/NodeUnstageVolume";
/// Path of the call that mounts a volume for a pod.
pub const NODE_PUBLISH_VOLUME: &str = "/csi.v1.Node/NodePublishVolume";
/// Path of the call that undoes it.
pub const NODE_UNPUBLISH_VOLUME: &str = "/csi.v1.Node/NodeUnpublishVolume";
/// Path of the call that asks how full a volume is.
pub const NODE_GET_VOLUME_STATS: &str = "/csi.v1.Node/NodeGetVolumeStats";
/// Path of the call that grows a volume's file system.
pub const NODE_EXPAND_VOLUME: &str = "/csi.v1.Node/NodeExpandVolume";

/// A request or an answer without fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// A driver's identity on this node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeInfo {
    /// The node's name as the driver knows it.
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// How many volumes fit; 0 says nothing.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    /// Where the node lies.
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// A place.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Topology {
    /// Label and value.
    #[prost(map = "string, string", tag = "1")]
    pub segments: HashMap<String, String>,
}

/// Capabilities of a driver's node service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeCapabilities {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeCapability>,
}

/// One thing that it can do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeCapability {
    /// A call that it has.
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeRpc>,
}

/// A call that it has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeRpc {
    /// One of the numbers below.
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// It stages volumes.
pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
/// It tells how full volumes are.
pub const GET_VOLUME_STATS: i32 = 2;
/// It grows file systems.
pub const EXPAND_VOLUME: i32 = 3;
/// It knows `SINGLE_NODE_SINGLE_WRITER` and `SINGLE_NODE_MULTI_WRITER`.
pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
/// It gives a volume to a group by itself.
pub const VOLUME_MOUNT_GROUP: i32 = 6;

/// How a volume is used.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
    /// As a device.
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    /// With a file system.
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    /// By whom.
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// A volume with a file system.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MountVolume {
    /// Its type; empty leaves it to the driver.
    #[prost(string, tag = "1")]
    pub fs_type: String,
    /// Options of the mount.
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// The group that is to own it.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// Access to a volume.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AccessMode {
    /// One of the numbers of [`access`].
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// Numbers of access modes.
pub mod access {
    /// One node, reading and writing.
    pub const SINGLE_NODE_WRITER: i32 = 1;
    /// Many nodes, reading.
    pub const MULTI_NODE_READER_ONLY: i32 = 3;
    /// Many nodes, reading and writing.
    pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
    /// One pod.
    pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
    /// One node, many pods.
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;
}

/// Mounts a volume once for the node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StageRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Answer of its attachment.
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    /// Where to.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    /// From a Secret.
    #[prost(map = "string, string", tag = "5")]
    pub secrets: HashMap<String, String>,
    /// Answer of its creation.
    #[prost(map = "string, string", tag = "6")]
    pub volume_context: HashMap<String, String>,
}

/// Undoes the staging.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnstageRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is.
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// Mounts a volume for a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Answer of its attachment.
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    /// Where it was staged.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// Where to.
    #[prost(string, tag = "4")]
    pub target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// For reading alone.
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    /// From a Secret.
    #[prost(map = "string, string", tag = "7")]
    pub secrets: HashMap<String, String>,
    /// The context from the volume's creation, and the facts of the pod that the driver asks for.
    #[prost(map = "string, string", tag = "8")]
    pub volume_context: HashMap<String, String>,
}

/// Undoes the mount for a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnpublishRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is.
    #[prost(string, tag = "2")]
    pub target_path: String,
}

/// Asks how full a volume is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatsRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where a pod has it.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// Where it was staged.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

/// How full it is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatsResponse {
    /// In bytes and in files.
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    /// Whether it is well.
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

/// Amounts of one unit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeUsage {
    /// Left.
    #[prost(int64, tag = "1")]
    pub available: i64,
    /// In all.
    #[prost(int64, tag = "2")]
    pub total: i64,
    /// Taken.
    #[prost(int64, tag = "3")]
    pub used: i64,
    /// 1: bytes, 2: files.
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

/// Whether a volume is well.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCondition {
    /// It is not.
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    /// In words.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Grows a volume's file system.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpandRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where a pod has it.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// How large it is to be.
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    /// Where it was staged.
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// From a Secret.
    #[prost(map = "string, string", tag = "6")]
    pub secrets: HashMap<String, String>,
}

/// How large.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CapacityRange {
    /// At least.
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    /// At most.
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// How large it is now.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpandResponse {
    /// In bytes.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}
