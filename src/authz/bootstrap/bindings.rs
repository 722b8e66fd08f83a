//! Bindings of the roles of people and components, and the roles that live in a namespace.

/// Name, cluster role, subjects.
pub(super) const CLUSTER_BINDINGS: &[(&str, &str, &[&str])] = &[
    ("cluster-admin", "cluster-admin", &["group system:masters"]),
    ("system:basic-user", "system:basic-user", &["group system:authenticated"]),
    ("system:discovery", "system:discovery", &["group system:authenticated"]),
    ("system:kube-controller-manager", "system:kube-controller-manager", &["user system:kube-controller-manager"]),
    ("system:kube-dns", "system:kube-dns", &["sa kube-system/kube-dns"]),
    ("system:kube-scheduler", "system:kube-scheduler", &["user system:kube-scheduler"]),
    ("system:monitoring", "system:monitoring", &["group system:monitoring"]),
    // Nobody: the Node authorizer looks after nodes. The binding is there for those who do without it.
    ("system:node", "system:node", &[]),
    ("system:node-proxier", "system:node-proxier", &["user system:kube-proxy"]),
    (
        "system:public-info-viewer",
        "system:public-info-viewer",
        &["group system:authenticated", "group system:unauthenticated"],
    ),
    (
        "system:service-account-issuer-discovery",
        "system:service-account-issuer-discovery",
        &["group system:serviceaccounts"],
    ),
    ("system:volume-scheduler", "system:volume-scheduler", &["user system:kube-scheduler"]),
    // Ours: network policies are kept, and pod networks joined, on every node.
    ("kedge:node-network", "kedge:node-network", &["user system:kube-proxy"]),
    // Ours: what a machine that joins with a bootstrap token may ask for, and renew later.
    ("kedge:node-bootstrapper", "system:node-bootstrapper", &["group system:bootstrappers:kedge:default-node-token"]),
    (
        "kedge:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        &["group system:bootstrappers:kedge:default-node-token"],
    ),
    (
        "kedge:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        &["group system:nodes"],
    ),
];

const ELECTION: &[&str] =
    &["read,create,update @coordination.k8s.io leases", "read,create,update @coordination.k8s.io leasecandidates"];
const EVENTS: &str = "create,patch,update @core,events.k8s.io events";

/// Namespace, name, rules.
pub(super) const ROLES: &[(&str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        &["read @core configmaps", "update @core configmaps =cluster-info", EVENTS],
    ),
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        &["read @core configmaps =extension-apiserver-authentication"],
    ),
    ("kube-system", "system::leader-locking-kube-controller-manager", ELECTION),
    ("kube-system", "system::leader-locking-kube-scheduler", ELECTION),
    ("kube-system", "system:controller:bootstrap-signer", &["read @core secrets"]),
    ("kube-system", "system:controller:cloud-provider", &["read,create @core configmaps"]),
    ("kube-system", "system:controller:token-cleaner", &["read,delete @core secrets", EVENTS]),
];

/// Namespace, name, role of that namespace, subjects.
pub(super) const BINDINGS: &[(&str, &str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &["sa kube-system/bootstrap-signer"],
    ),
    (
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &["user system:kube-controller-manager", "user system:kube-scheduler"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        &[
            "user system:kube-controller-manager",
            "sa kube-system/kube-controller-manager",
            "sa kube-system/leader-election-controller",
        ],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        &["user system:kube-scheduler", "sa kube-system/kube-scheduler"],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &["sa kube-system/bootstrap-signer"],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        "system:controller:cloud-provider",
        &["sa kube-system/cloud-provider"],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        "system:controller:token-cleaner",
        &["sa kube-system/token-cleaner"],
    ),
];
