//! Ports by which machines of a cluster are reached, and those that nobody else gets: not a Service, not a pod. This is
//! their one place.

/// The API server, joining and the members of the store.
pub const API: u16 = 6443;
/// The kubelet.
pub const KUBELET: u16 = 10250;
/// Health of the service proxy.
pub const PROXY_HEALTH: u16 = 10256;
/// Metrics of the service proxy, on the loopback address.
pub const PROXY_METRICS: u16 = 10249;
/// The overlay's packets, over UDP.
pub const OVERLAY: u16 = 8472;
/// Nodes ask each other there whether the overlay carries, over UDP.
pub const OVERLAY_HEALTH: u16 = 8473;
/// The etcd face, on the loopback address, and an etcd beside.
pub const ETCD: u16 = 2379;

/// Protocols, in the kernel's words, and ports that no Service takes from any machine of the cluster, also while nobody
/// listens: those above, an etcd's for its peers, those of upstream's health of kubelet, controllers and scheduler,
/// SSH, and DHCP's for clients.
pub const RESERVED: [(&str, u16); 13] = [
    ("tcp", API),
    ("tcp", KUBELET),
    ("tcp", PROXY_HEALTH),
    ("tcp", PROXY_METRICS),
    ("udp", OVERLAY),
    ("udp", OVERLAY_HEALTH),
    ("tcp", ETCD),
    ("tcp", 2380),
    ("tcp", 10248),
    ("tcp", 10257),
    ("tcp", 10259),
    ("tcp", 22),
    ("udp", 68),
];

/// Of these the ones on which every machine of a cluster answers others: no pod has one as its host port either. (Those
/// of the kubelet and of a server are chosen by flags. What else listens on the machine a pod's host port takes, as
/// upstream's does.)
pub const ANSWERING: [(&str, u16); 3] = [("tcp", PROXY_HEALTH), ("udp", OVERLAY), ("udp", OVERLAY_HEALTH)];
