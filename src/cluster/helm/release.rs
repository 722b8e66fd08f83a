//! One HelmChart: looked at, installed or taken away, and told of in its status and in events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::chain::Chain;
use base::time::rfc3339_secs;
use client::events::{Recorder, Severity};
use client::informer::Key;
use client::typed::typed;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::chart::{BadField, ConfigSpec, Fetched, Layout, OnFailure, Spec, ValuesSecret, WITHOUT_EFFECT, layout};
use super::program::{HelmError, Named, Release, Session};
use super::{Config, definition};

/// Keeps a HelmChart until its release is gone; k3s's name, so that objects of its clusters are understood.
const FINALIZER: &str = "wrangler.cattle.io/on-helm-chart-remove";
/// Secrets that one chart may name; the others count as not found.
const SECRETS_MAX: usize = 64;
/// A HelmChart with this annotation is somebody else's.
const UNMANAGED: &str = "helmcharts.helm.cattle.io/unmanaged";

/// Result of a chart's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more is to be done until something changes.
    Settled,
    /// It is to be tried again.
    Again,
}

/// A HelmChart, and what it asks for.
pub struct Wanted {
    object: DynamicObject,
    spec: Spec,
    laid: Result<Layout, Arc<SpecError>>,
    /// Names the content.
    pub hash: String,
    /// Secrets whose changes concern it.
    pub watched: Vec<String>,
}

/// All charts of a cluster.
pub struct Charts {
    pub(super) config: Config,
    pub(super) client: kube::Client,
    pub(super) recorder: Recorder,
}

/// Our finalizer as it is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finalizer {
    Present,
    Absent,
}

/// Reason and text of an event or condition.
#[derive(Clone, Copy)]
struct Said<'a> {
    reason: &'a str,
    text: &'a str,
}

/// The call of helm, chosen by the release's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Upgrade,
    Rollback,
    Uninstall,
    GiveUp,
}

fn steps(now: Option<&Release>, on_failure: OnFailure) -> &'static [Step] {
    match now.map_or("", |release| release.status.as_str()) {
        "failed" | "pending-install" if on_failure == OnFailure::Abort => &[Step::GiveUp],
        "failed" | "pending-install" => &[Step::Uninstall, Step::Upgrade],
        "pending-upgrade" | "pending-rollback" => &[Step::Rollback, Step::Upgrade],
        "uninstalling" => &[Step::Uninstall, Step::Upgrade],
        _ => &[Step::Upgrade],
    }
}

impl Charts {
    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &definition::charts())
    }

    /// Reads a chart and all that it names; `None` if there is none, or none of ours.
    pub async fn look(&self, key: &Key) -> Result<Option<Wanted>, kube::Error> {
        let Some(object) = self.api(&key.namespace).get_opt(&key.name).await? else { return Ok(None) };
        if object.metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(UNMANAGED)) {
            return Ok(None);
        }
        let mut unread = None;
        let spec: Spec = read(&object.data["spec"]).unwrap_or_else(|err| {
            unread = Some(SpecError::Chart(err));
            Spec::default()
        });
        let configs: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &definition::configs());
        let config = configs.get_opt(&key.name).await?.map(|config| {
            read(&config.data["spec"]).unwrap_or_else(|err| {
                unread = Some(SpecError::Config(err));
                ConfigSpec::default()
            })
        });
        let secrets = spec.values_secrets.iter().chain(config.iter().flat_map(|config| &config.values_secrets));
        let values: Vec<&ValuesSecret> = secrets.collect();
        let watched = values.iter().filter(|secret| !secret.ignore_updates).map(|secret| secret.name.clone()).collect();
        let others = [&spec.auth_secret, &spec.docker_registry_secret].into_iter().flatten().map(|named| &named.name);
        // Each once, however often it is named.
        let names: BTreeSet<&String> = values.iter().map(|secret| &secret.name).chain(others).collect();
        let mut fetched = Fetched::default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        for name in names.into_iter().filter(|name| !name.is_empty()).take(SECRETS_MAX) {
            if let Some(found) = api.get_opt(name).await? {
                let data: BTreeMap<String, Vec<u8>> =
                    found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
                fetched.secrets.insert(name.clone(), data);
            }
        }
        let mut laid = unread.map(Err);
        if let Some(map) = spec.repo_ca_config_map.as_ref().filter(|map| !map.name.is_empty()) {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
            match api.get_opt(&map.name).await? {
                Some(found) => fetched.authorities.extend(found.data.unwrap_or_default().into_values()),
                None => laid = Some(Err(SpecError::NoConfigMap { name: map.name.clone() })),
            }
        }
        let laid = laid
            .unwrap_or_else(|| layout(&spec, config.as_ref(), &fetched).map_err(SpecError::Field))
            .map_err(Arc::new);
        let hash = laid.as_ref().map_or_else(|err| format!("? {}", Chain(&**err)), |layout| layout.hash.clone());
        Ok(Some(Wanted { object, spec, laid, hash, watched }))
    }

    /// Makes the cluster what the chart asks for. `failures`: of this very content, so far.
    pub async fn bring(&self, key: &Key, wanted: &Wanted, failures: u32) -> Outcome {
        let status = &wanted.object.data["status"];
        let goes = wanted.object.metadata.deletion_timestamp.is_some();
        if goes {
            let held = wanted.object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
            return if held { self.take_out(key, wanted).await } else { Outcome::Settled };
        }
        if status["configHash"] == wanted.hash.as_str() && condition(status, "Ready") == "True" {
            return Outcome::Settled;
        }
        let tries_max = wanted.laid.as_ref().map_or(u32::MAX, |layout| layout.tries_max);
        if failures > 0 && failures >= tries_max {
            let why = format!("gave up after {failures} tries (backOffLimit)");
            self.tell(wanted, Severity::Warning, Said { reason: "BackoffLimitExceeded", text: &why });
            return Outcome::Settled;
        }
        match self.install(key, wanted).await {
            Ok(Some(release)) => {
                let text = format!("revision {} of release {} is deployed", release.revision, key.name);
                info!(chart = %key, rev = release.revision, "helm chart installed");
                self.tell(wanted, Severity::Normal, Said { reason: "Deployed", text: &text });
                let more = json!({"configHash": wanted.hash, "revision": release.revision});
                self.written(
                    key,
                    wanted,
                    [("Ready", "True", "Deployed", &text), ("Failed", "False", "Deployed", "")],
                    more,
                )
                .await
            }
            Ok(None) => {
                let text = "helm knows nothing of the release that it has just installed";
                self.failed(key, wanted, Said { reason: "Unknown", text }).await
            }
            Err(err) => {
                let reason = match &err {
                    BringError::Wanted(_) => "InvalidSpec",
                    BringError::GivenUp { .. } => "Aborted",
                    BringError::Helm(HelmError::None(_)) => "NoHelm",
                    _ => "HelmFailed",
                };
                let why = Chain(&err).to_string();
                let again = self.failed(key, wanted, Said { reason, text: &why }).await;
                // What a person has to mend is looked at again when they have.
                if matches!(reason, "InvalidSpec" | "Aborted") { Outcome::Settled } else { again }
            }
        }
    }

    async fn install(&self, key: &Key, wanted: &Wanted) -> Result<Option<Release>, BringError> {
        let layout = wanted.laid.as_ref().map_err(|err| BringError::Wanted(Arc::clone(err)))?;
        for field in WITHOUT_EFFECT.iter().filter(|field| !wanted.object.data["spec"][**field].is_null()) {
            let text = format!("spec.{field} has no effect: charts are installed by this server's helm, not by a job");
            self.tell(wanted, Severity::Warning, Said { reason: "FieldWithoutEffect", text: &text });
        }
        let session = self.session(key, wanted)?;
        session.lay(layout)?;
        // From here on something may be in the cluster that has to be taken out again.
        self.hold(key, wanted).await.map_err(|err| BringError::Api(Box::new(err)))?;
        let now = session.release().await?;
        if layout.repository {
            session.update_repository(layout.timeout).await?;
        }
        for step in steps(now.as_ref(), layout.on_failure) {
            match step {
                Step::Upgrade => session.upgrade(layout).await?,
                Step::Rollback => session.rollback(layout.timeout).await?,
                Step::Uninstall => session.uninstall(layout.timeout).await?,
                Step::GiveUp => {
                    let status = now.as_ref().map(|now| now.status.clone()).unwrap_or_default();
                    return Err(BringError::GivenUp { status });
                }
            }
        }
        Ok(session.release().await?)
    }

    fn session(&self, key: &Key, wanted: &Wanted) -> Result<Session, HelmError> {
        let namespace =
            if wanted.spec.target_namespace.is_empty() { &key.namespace } else { &wanted.spec.target_namespace };
        let kubeconfig = (self.config.kubeconfig)().map_err(HelmError::Credential)?;
        let named = Named { release: &key.name, namespace };
        Session::begin(&self.config.program, &self.config.dir, &kubeconfig, named)
    }

    async fn take_out(&self, key: &Key, wanted: &Wanted) -> Outcome {
        let limit = wanted.laid.as_ref().map_or(std::time::Duration::from_secs(300), |layout| layout.timeout);
        let gone = match self.session(key, wanted) {
            Ok(session) => session.uninstall(limit).await,
            Err(err) => Err(err),
        };
        if let Err(err) = gone {
            let why = Chain(&err).to_string();
            return self.failed(key, wanted, Said { reason: "UninstallFailed", text: &why }).await;
        }
        info!(chart = %key, "helm chart uninstalled");
        let text = format!("release {} is uninstalled", key.name);
        self.tell(wanted, Severity::Normal, Said { reason: "Uninstalled", text: &text });
        match self.finalizers(key, wanted, Finalizer::Absent).await {
            Ok(()) => Outcome::Settled,
            Err(err) => {
                warn!(chart = %key, err = %Chain(&err), "cannot let a HelmChart go");
                Outcome::Again
            }
        }
    }

    async fn hold(&self, key: &Key, wanted: &Wanted) -> Result<(), kube::Error> {
        let held = wanted.object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        if held { Ok(()) } else { self.finalizers(key, wanted, Finalizer::Present).await }
    }

    /// Puts our finalizer there, or takes it away; fails if somebody changed the object meanwhile.
    async fn finalizers(&self, key: &Key, wanted: &Wanted, ours: Finalizer) -> Result<(), kube::Error> {
        let api = self.api(&key.namespace);
        // The status was written meanwhile: the list is taken as it is now.
        let Some(now) = api.get_opt(&key.name).await?.filter(|now| now.metadata.uid == wanted.object.metadata.uid)
        else {
            return Ok(());
        };
        let others = now.metadata.finalizers.iter().flatten().filter(|finalizer| *finalizer != FINALIZER);
        let all: Vec<&str> =
            others.map(String::as_str).chain((ours == Finalizer::Present).then_some(FINALIZER)).collect();
        let patch = json!({"metadata": {"finalizers": all, "resourceVersion": now.metadata.resource_version}});
        api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    async fn failed(&self, key: &Key, wanted: &Wanted, said: Said<'_>) -> Outcome {
        let Said { reason, text: why } = said;
        warn!(chart = %key, reason, why, "helm chart not in force");
        self.tell(wanted, Severity::Warning, said);
        self.written(key, wanted, [("Ready", "False", reason, why), ("Failed", "True", reason, why)], json!({})).await;
        Outcome::Again
    }

    async fn written(
        &self,
        key: &Key,
        wanted: &Wanted,
        conditions: [(&str, &str, &str, &str); 2],
        more: Value,
    ) -> Outcome {
        let before = &wanted.object.data["status"];
        let now = rfc3339_secs(self.config.clock.now());
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|(kind, status, reason, message)| {
                let mut old = before["conditions"].as_array().into_iter().flatten();
                let old = old.find(|old| old["type"] == kind && old["status"] == status);
                let since = old.map_or(Value::from(now.as_str()), |old| old["lastTransitionTime"].clone());
                json!({
                    "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
                })
            })
            .collect();
        let mut status = more;
        status["conditions"] = conditions.into();
        let patch = Patch::Merge(json!({"status": status}));
        match self.api(&key.namespace).patch_status(&key.name, &PatchParams::default(), &patch).await {
            Ok(_) => Outcome::Settled,
            // Gone meanwhile: nobody is left to be told.
            Err(kube::Error::Api(status)) if status.code == 404 => Outcome::Settled,
            Err(err) => {
                warn!(chart = %key, err = %Chain(&err), "cannot write a HelmChart's status");
                Outcome::Again
            }
        }
    }

    fn tell(&self, wanted: &Wanted, severity: Severity, said: Said<'_>) {
        let metadata = &wanted.object.metadata;
        let about = ObjectReference {
            api_version: Some("helm.cattle.io/v1".to_owned()),
            kind: Some("HelmChart".to_owned()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.recorder.report_ref(about, severity, said.reason, said.text);
    }
}

fn read<T: serde::de::DeserializeOwned>(spec: &Value) -> Result<T, serde_json::Error> {
    let spec = if spec.is_null() { &json!({}) } else { spec };
    typed(spec)
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a str {
    let found = status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default()
}

/// A HelmChart, or its HelmChartConfig, that helm cannot be called for.
#[derive(Debug, thiserror::Error)]
enum SpecError {
    #[error("spec")]
    Chart(#[source] serde_json::Error),
    #[error("HelmChartConfig: spec")]
    Config(#[source] serde_json::Error),
    #[error("repoCAConfigMap: configmap {name:?} not found")]
    NoConfigMap { name: String },
    #[error(transparent)]
    Field(#[from] BadField),
}

/// Why a chart is not in force.
#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error(transparent)]
    Wanted(Arc<SpecError>),
    #[error("the release is {status}, and failurePolicy abort leaves it for a person")]
    GivenUp { status: String },
    #[error(transparent)]
    Helm(#[from] HelmError),
    #[error("cannot mark the HelmChart")]
    Api(#[source] Box<kube::Error>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_the_release_stands_says_what_is_done() {
        let at = |status: &str| Release { status: status.to_owned(), revision: 1 };
        let check = |status: &str, on_failure| steps(Some(&at(status)), on_failure).to_vec();
        assert_eq!(steps(None, OnFailure::Abort), [Step::Upgrade]);
        assert_eq!(check("deployed", OnFailure::Abort), [Step::Upgrade]);
        assert_eq!(check("failed", OnFailure::Reinstall), [Step::Uninstall, Step::Upgrade]);
        assert_eq!(check("failed", OnFailure::Abort), [Step::GiveUp]);
        assert_eq!(check("pending-upgrade", OnFailure::Abort), [Step::Rollback, Step::Upgrade]);
    }

    #[test]
    fn a_condition_is_found_by_its_type() {
        let status =
            json!({"conditions": [{"type": "Failed", "status": "False"}, {"type": "Ready", "status": "True"}]});
        assert_eq!(
            (condition(&status, "Ready"), condition(&status, "Other"), condition(&Value::Null, "Ready")),
            ("True", "", "")
        );
    }

    #[test]
    fn a_release_that_was_cut_off_is_brought_to_an_end_first() {
        let check = |status: &str, on_failure| {
            steps(Some(&Release { status: status.to_owned(), revision: 1 }), on_failure).to_vec()
        };
        use Step::{GiveUp, Rollback, Uninstall, Upgrade};
        for (status, reinstall, abort) in [
            ("pending-install", &[Uninstall, Upgrade][..], &[GiveUp][..]),
            ("pending-upgrade", &[Rollback, Upgrade], &[Rollback, Upgrade]),
            ("pending-rollback", &[Rollback, Upgrade], &[Rollback, Upgrade]),
            ("uninstalling", &[Uninstall, Upgrade], &[Uninstall, Upgrade]),
            ("superseded", &[Upgrade], &[Upgrade]),
            ("unknown", &[Upgrade], &[Upgrade]),
        ] {
            assert_eq!(check(status, OnFailure::Reinstall), reinstall, "{status}");
            assert_eq!(check(status, OnFailure::Abort), abort, "{status}");
        }
    }

    #[test]
    fn a_spec_that_cannot_be_read_says_where() {
        let why = |err: SpecError| Chain(&err).to_string();
        let chart = read::<Spec>(&json!({"timeout": 5})).unwrap_err();
        assert!(why(SpecError::Chart(chart)).starts_with("spec: invalid type: integer `5`, expected a string"));
        let config = read::<ConfigSpec>(&json!({"valuesContent": []})).unwrap_err();
        assert!(why(SpecError::Config(config)).starts_with("HelmChartConfig: spec: invalid type"));
        let none = SpecError::NoConfigMap { name: "ca".to_owned() };
        assert_eq!(why(none), "repoCAConfigMap: configmap \"ca\" not found");
        assert_eq!(read::<ConfigSpec>(&Value::Null).unwrap(), ConfigSpec::default());
    }
}
