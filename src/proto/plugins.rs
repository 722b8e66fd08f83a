//! Protocols of a kubelet's plugins: registration, device plugins (`v1beta1`), and the list of allocations (`v1`).

use std::collections::HashMap;

/// Path of the call that asks a plugin who it is.
pub const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
/// Path of the call that tells a plugin what became of it.
pub const NOTIFY_REGISTRATION_STATUS: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
/// Path of the call by which a device plugin registers.
pub const REGISTER: &str = "/v1beta1.Registration/Register";
/// Path of the call that asks what a device plugin wants.
pub const GET_DEVICE_PLUGIN_OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
/// Path of the call that follows a plugin's devices.
pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
/// Path of the call that asks which devices fit best.
pub const GET_PREFERRED_ALLOCATION: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
/// Path of the call that takes devices for containers.
pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
/// Path of the call before a container starts.
pub const PRE_START_CONTAINER: &str = "/v1beta1.DevicePlugin/PreStartContainer";
/// Path of the call that lists the devices of pods.
pub const LIST: &str = "/v1.PodResourcesLister/List";
/// Path of the call that lists all devices.
pub const GET_ALLOCATABLE_RESOURCES: &str = "/v1.PodResourcesLister/GetAllocatableResources";
/// Path of the call that lists the devices of one pod.
pub const GET: &str = "/v1.PodResourcesLister/Get";

/// A request or an answer without fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// A plugin's identity.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin`, `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// A driver's or a resource's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket that serves it; empty is the one asked on.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Of its protocol.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Outcome of a registration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    /// It is in.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Options of a device plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    /// A call before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// To be asked which devices fit best.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A device plugin comes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// `v1beta1`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// Its socket's name in the folder of device plugins.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// e.g. `vendor.example/gpu`.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Its options.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// A plugin's devices as they are now.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Devices {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Its name.
    #[prost(string, tag = "1")]
    pub id: String,
    /// `Healthy` or not.
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where it is.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// Where a device is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyInfo {
    /// NUMA nodes near it.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NumaNode {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Which devices fit best.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredRequest {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferred>,
}

/// For one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferred {
    /// That may be taken.
    #[prost(string, repeated, tag = "1")]
    pub available_ids: Vec<String>,
    /// That must be.
    #[prost(string, repeated, tag = "2")]
    pub must_include_ids: Vec<String>,
    /// How many in all.
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

/// Those that fit best.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredResponse {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<DeviceIds>,
}

/// Names of devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIds {
    /// One each.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// Takes devices for containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<DeviceIds>,
}

/// Allocations of containers, in their order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocation>,
}

/// Allocation of one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocation {
    /// Variables.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// Files of the host.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Devices of the host.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// For the runtime.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    /// Devices by their names in CDI files.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A file of the host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// Inside.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Outside.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// For reading alone.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device of the host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceSpec {
    /// Inside.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Outside.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Of `r`, `w`, `m`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device by its name in a CDI file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// `vendor.com/class=name`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// One pod's devices are wanted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodRequest {
    /// Its name.
    #[prost(string, tag = "1")]
    pub pod_name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub pod_namespace: String,
}

/// One pod's devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResponse {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub pod_resources: Option<PodResources>,
}

/// All pods' devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodsResponse {
    /// One each.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// Resources of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// One each.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// Resources of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// By resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices of one resource near the same NUMA nodes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// e.g. `vendor.example/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Names.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    /// Where they are.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// All devices of the node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableResponse {
    /// By resource.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
    /// CPUs that may be given to containers.
    #[prost(int64, repeated, tag = "2")]
    pub cpu_ids: Vec<i64>,
}
