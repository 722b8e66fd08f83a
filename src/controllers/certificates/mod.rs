//! CertificateSigningRequests: nodes' own are approved, approved ones are signed, old ones go.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::time::Clock;
use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use plan::Verdict;

use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::signer::Signer;

const NAME: &str = "certificate-controller";

struct Controller {
    client: kube::Client,
    requests: Informer<CertificateSigningRequest>,
    nodes: Informer<Node>,
    signer: Arc<dyn Signer>,
    /// `cluster-signing-duration`
    life_max: Option<Duration>,
    clock: Clock,
    duties: Duties,
}

/// Which of upstream's three controllers this one stands for.
#[derive(Clone, Copy)]
struct Duties {
    cleans: bool,
    approves: bool,
    signs: bool,
}

/// Starts approver, signers and cleaner, which are one reconciler here.
pub(crate) fn start(context: &Context, signer: Arc<dyn Signer>, life_max: Option<Duration>) {
    let requests = context.informers.get::<CertificateSigningRequest>();
    let nodes = context.informers.get::<Node>();
    let queue = Arc::new(Queue::default());
    context.feed_own(&requests, &queue);
    let client = context.client(NAME);
    let controller = Controller {
        client,
        requests: requests.clone(),
        nodes: nodes.clone(),
        signer,
        life_max,
        clock: context.clock.clone(),
        duties: Duties {
            cleans: context.runs("certificatesigningrequest-cleaner-controller"),
            approves: context.runs("certificatesigningrequest-approving-controller"),
            signs: context.runs("certificatesigningrequest-signing-controller"),
        },
    };
    context.start(NAME, &queue, controller, async move {
        requests.synced().await;
        nodes.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(csr) = self.requests.get("", &key.name) else { return Ok(Next::Wait) };
        let now = self.clock.now();
        let end = plan::ends_at(&csr);
        if end <= now {
            if !self.duties.cleans {
                return Ok(Next::Wait);
            }
            driver::gone_is_fine(self.api().delete(&key.name, &DeleteParams::default()).await)?;
            return Ok(Next::Wait);
        }
        let is_new = plan::condition(&csr, "Approved").is_none() && plan::condition(&csr, "Denied").is_none();
        if plan::wants_signature(&csr) {
            if self.duties.signs {
                self.sign(&csr).await?;
            }
        } else if is_new && self.duties.approves {
            self.approve(&csr).await?;
        }
        Ok(Next::After(end.duration_since(now).unsigned_abs() + Duration::from_secs(1)))
    }
}

impl Controller {
    fn api(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.clone())
    }

    /// A node that asks for its own client certificate gets it, if it may; whoever else asks gets one for a new node
    /// only. A bootstrap token that leaked makes nobody a node that is there: such a request waits for a person.
    /// Upstream's approver does not look.
    async fn approve(&self, csr: &CertificateSigningRequest) -> Result<(), Error> {
        if csr.spec.signer_name != plan::KUBELET_CLIENT || plan::bad_usages(csr).is_some() {
            return Ok(());
        }
        let Some(node) = self.signer.node_of(&csr.spec.request.0) else { return Ok(()) };
        let own = csr.spec.username.as_deref() == Some(&node);
        let is_new = node.strip_prefix("system:node:").is_some_and(|name| self.nodes.get("", name).is_none());
        let ways = [
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.", own),
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.", own || is_new),
        ];
        for (subresource, message, _) in ways.into_iter().filter(|(_, _, fits)| *fits) {
            if self.may(csr, subresource).await? {
                let approved = plan::judged(csr, Verdict::Approved(message), self.clock.now());
                self.api().replace_subresource("approval", &csr.name_any(), &PostParams::default(), &approved).await?;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn may(&self, csr: &CertificateSigningRequest, subresource: &str) -> Result<bool, Error> {
        let attributes = ResourceAttributes {
            group: Some("certificates.k8s.io".to_owned()),
            resource: Some("certificatesigningrequests".to_owned()),
            subresource: Some(subresource.to_owned()),
            verb: Some("create".to_owned()),
            version: Some("*".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        Ok(api.create(&PostParams::default(), &review).await?.status.is_some_and(|status| status.allowed))
    }

    async fn sign(&self, csr: &CertificateSigningRequest) -> Result<(), Error> {
        let asked = csr.spec.expiration_seconds.and_then(|secs| u64::try_from(secs).ok()).map(Duration::from_secs);
        let life = match (asked, self.life_max) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        };
        let signed = match plan::bad_usages(csr) {
            Some(why) => Err(why),
            None => {
                let usages: Vec<&str> = csr.spec.usages.iter().flatten().map(String::as_str).collect();
                let signed = self.signer.certificate(&csr.spec.signer_name, &csr.spec.request.0, &usages, life);
                signed.map_err(|err| Chain(&err).to_string())
            }
        };
        let updated = match signed {
            Ok(pem) => {
                let mut updated = csr.clone();
                updated.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes()));
                updated
            }
            Err(why) => plan::judged(csr, Verdict::Failed(why), self.clock.now()),
        };
        driver::gone_is_fine(self.api().replace_status(&csr.name_any(), &PostParams::default(), &updated).await)?;
        Ok(())
    }
}
