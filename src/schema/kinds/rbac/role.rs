//! Role (rbac.authorization.k8s.io).

use model::names;

use crate::behaviour::{Behaviour, Creation, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static ROLE: Behaviour = Behaviour {
    rules: Rules { name: names::path_segment, always: validate::rbac::role, ..Rules::NONE },
    creation: Creation::CreateOrUpdate,
    ..kind("rbac.authorization.k8s.io", "Role")
};
