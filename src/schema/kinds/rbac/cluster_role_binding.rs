//! ClusterRoleBinding (rbac.authorization.k8s.io).

use model::names;

use super::{BINDING, binding, role_binding};
use crate::behaviour::{Behaviour, Creation, Printer, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static CLUSTER_ROLE_BINDING: Behaviour = Behaviour {
    defaults: role_binding,
    rules: Rules {
        name: names::path_segment,
        always: validate::rbac::cluster_role_binding,
        update: validate::rbac::binding_update,
        ..Rules::NONE
    },
    printer: Printer { columns: BINDING, cells: binding },
    creation: Creation::CreateOrUpdate,
    ..kind("rbac.authorization.k8s.io", "ClusterRoleBinding")
};
