//! Pod.

use crate::behaviour::{Behaviour, Deletion, Grace, Owners, Part, Path, Prepare, Printer, Rules, kind};
use crate::defaults;
use crate::print;
use crate::print::column::{self, AGE, NAME};
use crate::strategy;
use crate::validate;

/// The row.
pub(crate) static POD: Behaviour = Behaviour {
    selectable: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    defaults: defaults::pod::pod,
    owners: Owners::CLIENTS.with_status().status_keeps(&[&["metadata", "ownerReferences"]]).counts_spec(),
    prepare: Prepare {
        create: strategy::pod::create,
        update: |new, _| strategy::pod::lift_grace(new),
        status: |new, old, _| strategy::pod::status(new, old),
    },
    rules: Rules {
        always: validate::pod::create,
        update: validate::pod_update::update,
        status: |new, _, errors| validate::status::pod(new, errors),
        ..Rules::NONE
    },
    parts: &[
        Part {
            name: "ephemeralcontainers",
            writes: &[&["spec", "ephemeralContainers"]],
            prepare: |_, _, _| {},
            rule: Some(|new, old, errors| {
                validate::pod::create(new, errors);
                validate::pod_update::ephemeral(new, old, errors);
            }),
        },
        Part {
            name: "resize",
            writes: RESIZE,
            prepare: |_, _, _| {},
            rule: Some(|new, old, errors| {
                validate::pod::create(new, errors);
                validate::pod_update::resize(new, old, errors);
            }),
        },
    ],
    printer: Printer {
        columns: &[
            NAME,
            column::text("Ready"),
            column::text("Status"),
            column::text("Restarts"),
            AGE,
            column::wide("IP"),
            column::wide("Node"),
            column::wide("Nominated Node"),
            column::wide("Readiness Gates"),
        ],
        cells: print::pod::pod,
    },
    deletion: Deletion { grace: Grace::Spec, ..Deletion::RETURNED },
    ..kind("", "Pod")
};

/// The fields that a resize of a running pod may change.
const RESIZE: &[Path] = &[
    &["spec", "containers", "*", "resources"],
    &["spec", "containers", "*", "resizePolicy"],
    &["spec", "initContainers", "*", "resources"],
    &["spec", "initContainers", "*", "resizePolicy"],
    &["spec", "resources"],
];
