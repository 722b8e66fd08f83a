//! ClusterTrustBundle (certificates.k8s.io).

use model::names;

use crate::behaviour::{Behaviour, Owners, Rules, ServerPart, kind};
use crate::validate;

/// The row.
pub(crate) static CLUSTER_TRUST_BUNDLE: Behaviour = Behaviour {
    stored: Some(("certificates.k8s.io", "v1beta1")),
    selectable: &["spec.signerName"],
    owners: Owners::CLIENTS.conditional(),
    rules: Rules {
        name: names::path_segment,
        always: validate::certificates::trust_bundle,
        update: validate::certificates::trust_bundle_update,
        ..Rules::NONE
    },
    server: ServerPart::TrustAnchors,
    ..kind("certificates.k8s.io", "ClusterTrustBundle")
};
