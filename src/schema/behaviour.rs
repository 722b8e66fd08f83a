//! The form of the rows in `kinds`: all that a kind does beyond the fields of its type. Nothing here names a kind.

use jiff::Timestamp;
use model::names::{self, NameCheck};
use serde_json::{Map, Value};

use crate::print::cells::{name_and_age, name_and_created};
use crate::print::column::{AGE, CREATED_AT, Column, NAME};
use crate::validate::error::FieldError;

/// A JSON object.
pub type Object = Map<String, Value>;

/// The faults of an object.
pub type Errors = Vec<FieldError>;

/// The way to a field, key by key.
pub type Path = &'static [&'static str];

/// A rule about one object.
pub type Rule = fn(&Value, &mut Errors);

/// A rule about a new and an old form of one object.
pub type Change = fn(&Value, &Value, &mut Errors);

/// Everything that one kind does: one row of `kinds`.
#[derive(Debug)]
pub struct Behaviour {
    /// The group in which it is served, and its kind.
    pub kind: (&'static str, &'static str),
    /// The group and version in which its objects are stored; `None`: as they are served.
    pub stored: Option<(&'static str, &'static str)>,
    /// JSON paths that a field selector may name beside metadata.name and metadata.namespace.
    pub selectable: &'static [&'static str],
    /// Sets what a client left out, beyond the defaults that the fields of the type declare.
    pub defaults: fn(&mut Object),
    /// Owners of its fields: which road writes which of them.
    pub owners: Owners,
    /// Fields that the kind fills in or keeps by itself.
    pub prepare: Prepare,
    /// Rules for its objects.
    pub rules: Rules,
    /// Subresources, beside `status` and `scale`, whose body is the object itself.
    pub parts: &'static [Part],
    /// How it is shown in tables.
    pub printer: Printer,
    /// Rewrites an object of one served version into another, where more than the name of the version differs.
    pub convert: fn(&mut Object, Versions<'_>),
    /// The name, in the form in which objects are stored, of a field of the served version.
    pub stored_field: fn(&str) -> String,
    /// How objects end.
    pub deletion: Deletion,
    /// The verbs that make an object.
    pub creation: Creation,
    /// The part of its road that needs the server.
    pub server: ServerPart,
}

/// The apiVersions between which an object is rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Versions<'a> {
    /// The one in which it is, such as `autoscaling/v1`.
    pub from: &'a str,
    /// The one that is wanted.
    pub to: &'a str,
}

/// Owners of fields, read by every road on which a client writes.
///
/// A field is the client's unless its row says otherwise. Server-side apply gives nobody the fields that its road does
/// not write. Spec: the strategies of upstream v1.36 (`pkg/registry/*/*/strategy.go`); held against its API server by
/// `tests/oracles/writes.py`.
#[derive(Debug)]
pub struct Owners {
    /// The server's at creation: what a client sends is dropped.
    pub create: &'static [Path],
    /// Kept by a write to the object.
    pub update: &'static [Path],
    /// Kept by a write to `status`, beside all that is not status or metadata; `metadata` means all of it but the
    /// bookkeeping of the write.
    pub status: &'static [Path],
    /// Fields of `status` that no manager owns who writes `status`.
    pub status_of_others: &'static [Path],
    /// The changes that move `metadata.generation`.
    pub generation: Generation,
    /// Whether an update names the version that it replaces.
    pub version: Version,
}

/// The changes that move `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Nothing: whatever the creator says stays for ever.
    Untouched,
    /// It is 1 for ever.
    One,
    /// It begins with 1, and a change of one of these fields counts.
    Counts(&'static [Path]),
    /// A change of one of these counts, from what the creator said.
    Moves(&'static [Path]),
    /// A change of anything but metadata (and `status`, where that is a subresource) counts.
    Rest,
}

/// Whether an update names the version that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// It may leave it out, and replaces whatever is there.
    Optional,
    /// It has to.
    Required,
}

const STATUS: &[Path] = &[&["status"]];
const SPEC: &[Path] = &[&["spec"]];
const ALL_METADATA: &[Path] = &[&["metadata"]];

impl Owners {
    /// All fields are the clients'.
    pub const CLIENTS: Owners = Owners {
        create: &[],
        update: &[],
        status: &[],
        status_of_others: &[],
        generation: Generation::Untouched,
        version: Version::Optional,
    };

    /// `status` is a subresource.
    pub const fn with_status(mut self) -> Owners {
        self.create = STATUS;
        self.update = STATUS;
        self
    }

    /// A write to `status` leaves these alone.
    pub const fn status_keeps(mut self, paths: &'static [Path]) -> Owners {
        self.status = paths;
        self
    }

    /// A write to `status` leaves all metadata alone.
    pub const fn status_keeps_metadata(self) -> Owners {
        self.status_keeps(ALL_METADATA)
    }

    /// The changes that move `metadata.generation`.
    pub const fn generation(mut self, generation: Generation) -> Owners {
        self.generation = generation;
        self
    }

    /// `metadata.generation` counts changes of `spec`.
    pub const fn counts_spec(self) -> Owners {
        self.generation(Generation::Counts(SPEC))
    }

    /// An update names the version that it replaces.
    pub const fn conditional(mut self) -> Owners {
        self.version = Version::Required;
        self
    }

    /// The fields that a write to the object (`""`) or to `status` never gives a manager.
    pub fn not_written(&self, subresource: &str) -> Vec<Path> {
        match subresource {
            "" => self.update.to_vec(),
            "status" => SPEC.iter().chain(self.status).chain(self.status_of_others).copied().collect(),
            _ => Vec::new(),
        }
    }
}

/// Preparation between defaulting and validation: a kind fills in or keeps fields by itself.
#[derive(Debug)]
pub struct Prepare {
    /// Into a new object.
    pub create: fn(&mut Value),
    /// Into what replaces an old object.
    pub update: fn(&mut Value, &Value),
    /// Into what replaces the status of an old object; the time is in RFC 3339.
    pub status: fn(&mut Value, &Value, &str),
}

impl Prepare {
    /// Nothing.
    pub const NONE: Prepare = Prepare { create: |_| {}, update: |_, _| {}, status: |_, _, _| {} };
}

/// A subresource whose body is the object itself.
#[derive(Debug)]
pub struct Part {
    /// Such as `resize`.
    pub name: &'static str,
    /// All that a write to it changes, where `*` is any item of a list.
    pub writes: &'static [Path],
    /// Preparation of new, given old and the time in RFC 3339.
    pub prepare: fn(&mut Value, &Value, &str),
    /// The rule for a write to it; `None`: the rules for a write to the object.
    pub rule: Option<Change>,
}

/// Rules for the objects of one kind.
#[derive(Debug)]
pub struct Rules {
    /// The form of its name.
    pub name: NameCheck,
    /// The finalizers that it may have.
    pub finalizers: Finalizers,
    /// Holds on create and on update.
    pub always: Rule,
    /// Is asked of new objects only.
    pub new: Rule,
    /// The rule for a change: names what may not change.
    pub update: Change,
    /// The rule for a status that is written.
    pub status: Change,
    /// The counts of its status.
    pub counts: Option<Counts>,
    /// The rule of the API that was asked, beyond that of the one in which the object is stored; the errors are those
    /// of the latter.
    pub requested: fn(&Value, Option<&Value>, &mut Errors),
}

impl Rules {
    /// Those of metadata and of the table.
    pub const NONE: Rules = Rules {
        name: names::subdomain,
        finalizers: Finalizers::Qualified,
        always: |_, _| {},
        new: |_, _| {},
        update: |_, _, _| {},
        status: |_, _, _| {},
        counts: None,
        requested: |_, _, _| {},
    };
}

/// The finalizers that objects of a kind may have, as upstream asks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finalizers {
    /// Those with a domain, and Kubernetes' own.
    Qualified,
    /// Any.
    Any,
}

/// The counts of a status: none is negative, some are bounded by others.
#[derive(Debug)]
pub struct Counts {
    /// Names of the fields.
    pub counts: &'static [&'static str],
    /// Those not greater than `replicas`.
    pub of_replicas: &'static [&'static str],
    /// The text for a count of available pods above that of ready ones.
    pub of_ready: &'static str,
}

/// How one kind is printed. A row's first cell is always the name, unless the kind has another order.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// The columns.
    pub columns: &'static [Column],
    /// The cells of an object, as many as there are columns.
    pub cells: fn(&Value, Timestamp) -> Vec<Value>,
}

/// How objects of a kind end.
#[derive(Clone, Copy, Debug)]
pub struct Deletion {
    /// The answer to `delete`.
    pub answer: DeleteAnswer,
    /// How long the object has to end.
    pub grace: Grace,
    /// The fate of dependents unless the client says otherwise.
    pub dependents: Dependents,
    /// The finalizers that hold the object back.
    pub holds: Holds,
    /// This finalizer is put on what is deleted: its controller has to clean up behind it. Empty: none.
    pub cleanup: &'static str,
    /// How long objects live.
    pub lifetime: Lifetime,
}

impl Deletion {
    /// At once, by a Status, with dependents left to the garbage collector.
    pub const PLAIN: Deletion = Deletion {
        answer: DeleteAnswer::Status,
        grace: Grace::None,
        dependents: Dependents::Background,
        holds: Holds::Metadata,
        cleanup: "",
        lifetime: Lifetime::Forever,
    };

    /// The same, answered with the object.
    pub const RETURNED: Deletion = Deletion { answer: DeleteAnswer::Object, ..Deletion::PLAIN };

    /// The same, with dependents orphaned.
    pub const ORPHANING: Deletion = Deletion { dependents: Dependents::Orphaned, ..Deletion::PLAIN };
}

/// The answer to `delete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteAnswer {
    /// A Status.
    Status,
    /// The object.
    Object,
}

/// How long a deleted object has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// No time.
    None,
    /// The time that its spec or the request says, while a node runs it.
    Spec,
}

/// The fate of dependents unless the client says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// The garbage collector removes them afterwards.
    Background,
    /// They stay.
    Orphaned,
}

/// The finalizers that hold a deleted object back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Those of metadata.
    Metadata,
    /// Those of spec too.
    Spec,
}

/// How long objects live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until they are deleted.
    Forever,
    /// As long as the server's `--event-ttl` says.
    EventTtl,
}

/// The verbs that make an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// `create` alone.
    Create,
    /// An `update` may make it too.
    CreateOrUpdate,
}

/// The part of a kind's road that needs more than its objects: the server hangs its own code here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPart {
    /// Nothing.
    None,
    /// Cluster addresses and ports of nodes are given out.
    Addresses,
    /// It carries a request for a certificate, and who made it.
    CertificateRequest,
    /// It carries certificates of authorities.
    TrustAnchors,
    /// Nothing is stored: the parts of the control plane are asked when somebody reads.
    Components,
}

/// A kind whose fields are all its clients'.
pub const fn kind(group: &'static str, kind: &'static str) -> Behaviour {
    Behaviour {
        kind: (group, kind),
        stored: None,
        selectable: &[],
        defaults: |_| {},
        owners: Owners::CLIENTS,
        prepare: Prepare::NONE,
        rules: Rules::NONE,
        parts: &[],
        printer: Printer { columns: &[NAME, CREATED_AT], cells: name_and_created },
        convert: |_, _| {},
        stored_field: str::to_owned,
        deletion: Deletion::PLAIN,
        creation: Creation::Create,
        server: ServerPart::None,
    }
}

const CUSTOM_RULES: Rules = Rules { finalizers: Finalizers::Any, ..Rules::NONE };
const CUSTOM_PRINTER: Printer = Printer { columns: &[NAME, AGE], cells: name_and_age };

/// Custom kinds without `status` as a subresource.
pub static CUSTOM: Behaviour = Behaviour {
    owners: Owners::CLIENTS.generation(Generation::Rest).conditional(),
    rules: CUSTOM_RULES,
    printer: CUSTOM_PRINTER,
    ..kind("", "")
};

/// Custom kinds with it.
pub static CUSTOM_WITH_STATUS: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().generation(Generation::Rest).conditional(),
    rules: CUSTOM_RULES,
    printer: CUSTOM_PRINTER,
    ..kind("", "")
};

impl Behaviour {
    /// The subresource of this name whose body is the object itself.
    pub fn part(&self, name: &str) -> Option<&'static Part> {
        self.parts.iter().find(|part| part.name == name)
    }
}
