//! Authentication and authorization, as handlers use them.

use std::sync::Arc;

use authn::Authenticator;
use authn::configuration::Anonymous;
use authz::{Authorizer, Decision};
use registry::attributes::Attributes;
use registry::metrics::{Metrics, Verdict};
use registry::status::Status;

/// The guards of the server's doors.
pub struct Access {
    /// Authentication.
    pub(crate) authenticator: Arc<dyn Authenticator>,
    /// May they?
    pub(crate) authorizer: Arc<dyn Authorizer>,
    /// Paths that are open without credentials.
    pub(crate) anonymous: Anonymous,
    /// Counts what is decided.
    pub(crate) metrics: Arc<Metrics>,
}

impl Access {
    /// Asks the authorizer.
    ///
    /// Errors: 403 unless it allows.
    pub async fn require(&self, attributes: &Attributes) -> Result<(), Status> {
        match self.authorizer.authorize(attributes).await {
            Decision::Allow { reason } => {
                self.metrics.judged(Verdict::Allowed);
                attributes.trail.note("authorization.k8s.io/decision", "allow");
                attributes.trail.note("authorization.k8s.io/reason", &reason);
                Ok(())
            }
            Decision::Deny { reason } | Decision::NoOpinion { reason } => {
                self.metrics.judged(Verdict::Denied);
                Err(Status::access_denied(attributes, &reason))
            }
        }
    }
}
