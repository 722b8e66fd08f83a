//! PodCertificateRequest (certificates.k8s.io).

use crate::behaviour::{Behaviour, Owners, kind};

/// The row.
pub(crate) static POD_CERTIFICATE_REQUEST: Behaviour = Behaviour {
    selectable: &["spec.signerName", "spec.podName", "spec.nodeName"],
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().conditional(),
    ..kind("certificates.k8s.io", "PodCertificateRequest")
};
