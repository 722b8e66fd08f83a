//! LeaseCandidate (coordination.k8s.io).

use crate::behaviour::{Behaviour, Creation, Finalizers, Owners, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static LEASE_CANDIDATE: Behaviour = Behaviour {
    stored: Some(("coordination.k8s.io", "v1beta1")),
    owners: Owners::CLIENTS.conditional(),
    rules: Rules {
        name: validate::coordination::candidate_name,
        finalizers: Finalizers::Any,
        always: validate::coordination::candidate,
        update: validate::coordination::candidate_update,
        ..Rules::NONE
    },
    creation: Creation::CreateOrUpdate,
    ..kind("coordination.k8s.io", "LeaseCandidate")
};
