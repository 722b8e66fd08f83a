//! What single resources need beyond the table: data, read by the verbs.

/// Facts about how a resource is deleted and written.
#[derive(Debug, Default)]
pub struct Hooks {
    /// Group and plural.
    pub resource: (&'static str, &'static str),
    /// `delete` answers with the object instead of a Status.
    pub returns_deleted: bool,
    /// `delete` gives the object time to end (pods).
    pub graceful: bool,
    /// Dependents are orphaned unless the client says otherwise.
    pub orphans_by_default: bool,
    /// `spec.finalizers` holds the object back too (namespaces).
    pub spec_finalizers: bool,
    /// Cluster IPs and node ports are given out.
    pub addresses: bool,
    /// Objects vanish after this many seconds.
    pub lives_secs: i64,
    /// This finalizer is put on what is deleted: its controller has to clean up behind it.
    pub cleanup: &'static str,
    /// An update may create the object.
    pub create_on_update: bool,
    /// Conditions written without times get them.
    pub stamps_conditions: bool,
}

const NONE: Hooks = Hooks {
    resource: ("", ""),
    returns_deleted: false,
    graceful: false,
    orphans_by_default: false,
    spec_finalizers: false,
    addresses: false,
    lives_secs: 0,
    cleanup: "",
    create_on_update: false,
    stamps_conditions: false,
};

const ROWS: &[Hooks] = &[
    Hooks { resource: ("apiextensions.k8s.io", "customresourcedefinitions"), cleanup: crate::custom::status::CLEANUP, ..NONE },
    Hooks { resource: ("", "pods"), returns_deleted: true, graceful: true, ..NONE },
    Hooks { resource: ("", "namespaces"), spec_finalizers: true, returns_deleted: true, ..NONE },
    Hooks { resource: ("", "services"), returns_deleted: true, addresses: true, ..NONE },
    Hooks { resource: ("", "serviceaccounts"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "podtemplates"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "persistentvolumes"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "persistentvolumeclaims"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "resourcequotas"), returns_deleted: true, ..NONE },
    Hooks { resource: ("", "replicationcontrollers"), orphans_by_default: true, ..NONE },
    Hooks { resource: ("batch", "jobs"), orphans_by_default: true, ..NONE },
    Hooks { resource: ("certificates.k8s.io", "certificatesigningrequests"), stamps_conditions: true, ..NONE },
    Hooks { resource: ("", "events"), lives_secs: 3600, create_on_update: true, ..NONE },
    Hooks { resource: ("", "endpoints"), create_on_update: true, ..NONE },
    Hooks { resource: ("", "limitranges"), create_on_update: true, ..NONE },
    Hooks { resource: ("coordination.k8s.io", "leases"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "roles"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "rolebindings"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "clusterroles"), create_on_update: true, ..NONE },
    Hooks { resource: ("rbac.authorization.k8s.io", "clusterrolebindings"), create_on_update: true, ..NONE },
];

/// Those of a resource, by the group and plural under which it is stored.
pub fn of(group: &str, plural: &str) -> &'static Hooks {
    ROWS.iter().find(|h| h.resource == (group, plural)).unwrap_or(&NONE)
}
