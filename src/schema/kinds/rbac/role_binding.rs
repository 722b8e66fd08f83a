//! RoleBinding (rbac.authorization.k8s.io).

use model::names;

use super::{BINDING, binding, role_binding};
use crate::behaviour::{Behaviour, Creation, Printer, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static ROLE_BINDING: Behaviour = Behaviour {
    defaults: role_binding,
    rules: Rules {
        name: names::path_segment,
        always: validate::rbac::role_binding,
        update: validate::rbac::binding_update,
        ..Rules::NONE
    },
    printer: Printer { columns: BINDING, cells: binding },
    creation: Creation::CreateOrUpdate,
    ..kind("rbac.authorization.k8s.io", "RoleBinding")
};
