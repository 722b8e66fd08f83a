//! A certificate for a person: asked for, approved, signed, recorded, and written into a kubeconfig, in this order. A
//! certificate without a record is none: the API server does not let it in.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use authn::records::{FINGERPRINT, Fingerprint, NAMESPACE, TYPE};
use base::files::{self, FileError};
use base::rng::Rng;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::{Endpoints, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, DeleteParams, PostParams};
use pki::certstore::Pair;
use pki::identity::{self, Identity};
use pki::kubeconfig::Kubeconfig;
use pki::leaf::{LeafSpec, Usage};

use crate::commands::admin::Admin;
use crate::commands::kubeconfig::KubeconfigError;
use crate::commands::kubeconfig::subject::Subject;

/// The leader signs in milliseconds; a cluster that chooses a leader needs seconds.
const SIGNED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A kubeconfig as it is asked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) subject: &'a Subject,
    pub(super) life: Duration,
    pub(super) server: Option<&'a str>,
    pub(super) namespace: Option<&'a str>,
}

fn refused(doing: &'static str) -> impl FnOnce(kube::Error) -> KubeconfigError {
    move |source| KubeconfigError::Refused { doing, source }
}

/// Makes the kubeconfig and writes it to `output`; `-` is standard output.
pub(super) async fn create(
    admin: &Admin,
    wanted: Wanted<'_>,
    output: &Path,
    now: Timestamp,
) -> Result<(), KubeconfigError> {
    let is_printed = output == Path::new("-");
    if !is_printed && std::fs::symlink_metadata(output).is_ok() {
        return Err(KubeconfigError::Exists { path: output.to_owned() });
    }
    let url = server_url(admin, wanted.server).await?;
    let spec = LeafSpec {
        common_name: wanted.subject.user.clone(),
        organizations: wanted.subject.organizations(),
        sans: BTreeSet::new(),
        usage: Usage::Client,
    };
    let (key, request) = pki::csr::create(&spec)?;
    let name = format!("kedge-kubeconfig-{}", Rng::from_os().uuid());
    let api: Api<CertificateSigningRequest> = Api::all(admin.client.clone());
    let signed = signed(&api, request_of(&name, &request, wanted.life), now).await;
    // A request that is served or refused is of no use to anybody; the cluster's cleaner takes those that stay.
    let _cleaned = api.delete(&name, &DeleteParams::default()).await;
    let cert = signed?;
    let pair = Pair::from_pem(&cert, &key)?;
    let leaf = pair.chain().first().ok_or_else(|| KubeconfigError::Other("it is empty".to_owned()))?;
    let who = identity::parse(leaf)?;
    if who.common_name != spec.common_name || who.organizations != spec.organizations {
        return Err(KubeconfigError::Other(format!("{} of {:?}", who.common_name, who.organizations)));
    }
    record(admin, wanted.subject, &who, now).await?;
    let config = Kubeconfig { server_url: &url, ca_pem: &admin.ca, cert_pem: &cert, key_pem: &key };
    let text = text_of(&config, wanted.namespace);
    if is_printed {
        let written = std::io::stdout().write_all(text.as_bytes());
        return written.map_err(FileError::at("cannot write", Path::new("standard output"))).map_err(Into::into);
    }
    files::write_atomic(output, text.as_bytes(), 0o600)?;
    println!("{} is for {}, good until {}", output.display(), who.common_name, base::time::rfc3339_secs(who.not_after));
    Ok(())
}

/// The file's text. The kubeconfig has one context, which names the namespace.
fn text_of(config: &Kubeconfig<'_>, namespace: Option<&str>) -> String {
    let user = "    user: default\n";
    match namespace {
        None => config.text(),
        Some(namespace) => config.text().replacen(user, &format!("    namespace: {namespace}\n{user}"), 1),
    }
}

/// The URL that people use: the one given, or the administrator's own unless only this machine can use it.
async fn server_url(admin: &Admin, given: Option<&str>) -> Result<String, KubeconfigError> {
    if let Some(url) = given {
        let is_good = url.starts_with("https://") && cluster::join::address_of(url).is_ok();
        return if is_good { Ok(url.to_owned()) } else { Err(KubeconfigError::Url { url: url.to_owned() }) };
    }
    let host = admin.server.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    let is_loopback = host == "localhost"
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified());
    if !is_loopback {
        return Ok(admin.server.clone());
    }
    // The servers' own addresses, which they write down there.
    let api: Api<Endpoints> = Api::namespaced(admin.client.clone(), "default");
    let endpoints = api.get("kubernetes").await.map_err(refused("tell its addresses"))?;
    let found = endpoints.subsets.iter().flatten().find_map(|subset| {
        let ip: IpAddr = subset.addresses.iter().flatten().next()?.ip.parse().ok()?;
        let port = u16::try_from(subset.ports.iter().flatten().next()?.port).ok()?;
        Some(SocketAddr::new(ip, port))
    });
    found.map(|at| format!("https://{at}")).ok_or(KubeconfigError::NoServer)
}

fn request_of(name: &str, der: &[u8], life: Duration) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pki::pem::encode("CERTIFICATE REQUEST", der).into_bytes()),
            signer_name: "kubernetes.io/kube-apiserver-client".to_owned(),
            usages: Some(vec!["client auth".to_owned()]),
            expiration_seconds: i32::try_from(life.as_secs()).ok(),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// Has the request approved and waits for the certificate, PEM.
async fn signed(
    api: &Api<CertificateSigningRequest>,
    request: CertificateSigningRequest,
    now: Timestamp,
) -> Result<String, KubeconfigError> {
    let mut made =
        api.create(&PostParams::default(), &request).await.map_err(refused("take a request for a certificate"))?;
    let name = made.metadata.name.clone().unwrap_or_default();
    made.status = Some(CertificateSigningRequestStatus {
        conditions: Some(vec![CertificateSigningRequestCondition {
            type_: "Approved".to_owned(),
            status: "True".to_owned(),
            reason: Some("KubeconfigCreate".to_owned()),
            message: Some("An administrator ran kedge kubeconfig create.".to_owned()),
            last_update_time: Some(Time(now)),
            ..CertificateSigningRequestCondition::default()
        }]),
        ..CertificateSigningRequestStatus::default()
    });
    api.replace_subresource("approval", &name, &PostParams::default(), &made)
        .await
        .map_err(refused("approve the certificate"))?;
    let wait = async {
        loop {
            let status = api.get(&name).await.map_err(refused("show the request"))?.status.unwrap_or_default();
            if let Some(cert) = status.certificate {
                return Ok(String::from_utf8_lossy(&cert.0).into_owned());
            }
            if let Some(failed) = status.conditions.iter().flatten().find(|condition| condition.type_ == "Failed") {
                return Err(KubeconfigError::Other(failed.message.clone().unwrap_or_default()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    match tokio::time::timeout(SIGNED_WITHIN, wait).await {
        Ok(signed) => signed,
        Err(_) => Err(KubeconfigError::Unsigned { within: SIGNED_WITHIN, said: "'kedge status' tells".to_owned() }),
    }
}

/// Writes the record, without which nobody lets the certificate in.
async fn record(admin: &Admin, subject: &Subject, who: &Identity, now: Timestamp) -> Result<(), KubeconfigError> {
    let time = base::time::rfc3339_secs;
    let data = BTreeMap::from([
        (FINGERPRINT, who.sha256_hex.clone()),
        ("user", subject.user.clone()),
        ("groups", serde_json::Value::from(subject.groups.clone()).to_string()),
        ("created", time(now)),
        ("expires", time(who.not_after)),
    ]);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(Fingerprint(&who.sha256_hex).record()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(admin.client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &secret).await.map_err(refused("record the certificate"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_stands_in_the_context() {
        let config = Kubeconfig { server_url: "https://a:6443", ca_pem: "ca", cert_pem: "cert", key_pem: "key" };
        let document: serde_json::Value = serde_saphyr::from_str(&text_of(&config, Some("team-a"))).unwrap();
        assert_eq!(document["contexts"][0]["context"]["namespace"], "team-a");
        assert_eq!(document["contexts"][0]["context"]["user"], "default");
    }
}
