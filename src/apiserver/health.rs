//! Health: `/livez`, `/readyz` and `/healthz` with `?verbose` and `?exclude=`, every check under its own path, and all
//! of them as numbers.
//!
//! The names are upstream's, as probes and dashboards exclude and show single ones. What upstream starts after its port
//! is open kedge does before, in four steps; each name stands for the step that does it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base::exposition::{Kind, Metric, Page};
use base::sync::{Mutex, RwLock};
use base::task::Group;
use base::url::Query;
use http::{Response, StatusCode};
use store::Storage;
use wire::Body;

use crate::crypt::sealed::EncryptionKeys;
use crate::respond::{self, page_not_found};

/// The store must answer within this.
const STORE_ANSWER: Duration = Duration::from_secs(2);

/// The three that are asked.
pub const PAGES: [&str; 3] = ["healthz", "livez", "readyz"];

/// There where plugins guard keys.
const PLUGINS: &str = "kms-providers";

/// The parts of a start, in their order. Each is done, and said to be done, by `ApiServer::build`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The store was read: caches, custom resources and aggregated APIs are known.
    Caches,
    /// The objects that every cluster has are there.
    Objects,
    /// This server is an endpoint of the service `kubernetes`.
    Endpoints,
    /// The tasks that look after all of it run.
    Tasks,
}

impl Step {
    /// All of them: what a server that begins has before it.
    pub(crate) fn all() -> BTreeSet<Step> {
        [Step::Caches, Step::Objects, Step::Endpoints, Step::Tasks].into()
    }
}

/// The hooks that upstream runs once its port is open, in its order, and the step of a start that does it here.
/// Upstream's hooks for what kedge does not have (leases of identity) are not among them.
const HOOKS: &[(&str, Step)] = &[
    ("poststarthook/start-apiserver-admission-initializer", Step::Caches),
    ("poststarthook/generic-apiserver-start-informers", Step::Caches),
    ("poststarthook/storage-readiness", Step::Caches),
    ("poststarthook/priority-and-fairness-config-consumer", Step::Objects),
    ("poststarthook/priority-and-fairness-filter", Step::Objects),
    ("poststarthook/storage-object-count-tracker-hook", Step::Caches),
    ("poststarthook/start-apiextensions-informers", Step::Caches),
    ("poststarthook/start-apiextensions-controllers", Step::Tasks),
    ("poststarthook/crd-informer-synced", Step::Caches),
    ("poststarthook/start-system-namespaces-controller", Step::Objects),
    ("poststarthook/start-cluster-authentication-info-controller", Step::Objects),
    ("poststarthook/start-service-ip-repair-controllers", Step::Caches),
    ("poststarthook/rbac/bootstrap-roles", Step::Objects),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Step::Objects),
    ("poststarthook/priority-and-fairness-config-producer", Step::Objects),
    ("poststarthook/bootstrap-controller", Step::Endpoints),
    ("poststarthook/start-legacy-token-tracking-controller", Step::Objects),
    ("poststarthook/start-kubernetes-service-cidr-controller", Step::Objects),
    ("poststarthook/aggregator-reload-proxy-client-cert", Step::Caches),
    ("poststarthook/start-kube-aggregator-informers", Step::Caches),
    ("poststarthook/apiservice-status-local-available-controller", Step::Caches),
    ("poststarthook/apiservice-status-remote-available-controller", Step::Caches),
    ("poststarthook/apiservice-registration-controller", Step::Caches),
    ("poststarthook/apiservice-discovery-controller", Step::Caches),
    ("poststarthook/kube-apiserver-autoregistration", Step::Caches),
    ("autoregister-completion", Step::Caches),
    ("poststarthook/apiservice-openapi-controller", Step::Caches),
    ("poststarthook/apiservice-openapiv3-controller", Step::Caches),
];

/// How often each check was run, by page and name: how often it failed and how often it did not.
type Tally = BTreeMap<(&'static str, &'static str), [u64; 2]>;

/// How this server is.
pub struct Health {
    storage: Arc<dyn Storage>,
    /// Keys of encryption at rest, where plugins may guard them.
    encryption_keys: Option<Arc<EncryptionKeys>>,
    /// The server's tasks; told to stop when the server is.
    group: Group,
    /// Steps of the start that are not done: `/readyz` says no until none is left.
    pending: RwLock<BTreeSet<Step>>,
    tally: Mutex<Tally>,
}

impl Health {
    /// Of a server that begins.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        encryption_keys: Option<Arc<EncryptionKeys>>,
        group: &Group,
    ) -> Health {
        let pending = RwLock::new(Step::all());
        Health { storage, encryption_keys, group: group.clone(), pending, tally: Mutex::default() }
    }

    /// A step of the start is done: the checks that stand for it hold from now on.
    pub(crate) fn done(&self, step: Step) {
        self.pending.write().remove(&step);
    }
}

/// Names of a page's checks, in order.
fn names(page: &str) -> impl Iterator<Item = &'static str> {
    let ready = page == "readyz";
    let first = ["ping", "log", "etcd"].into_iter();
    let readiness = ["etcd-readiness", "informer-sync"].into_iter().filter(move |_| ready);
    first
        .chain(readiness)
        .chain(HOOKS.iter().map(|(name, _)| *name))
        .chain(["shutdown"].into_iter().filter(move |_| ready))
}

/// Every path of a check, for the server's index.
pub fn paths() -> impl Iterator<Item = String> {
    let checks = |page: &'static str| names(page).map(move |name| format!("/{page}/{name}"));
    PAGES.into_iter().flat_map(move |page| std::iter::once(format!("/{page}")).chain(checks(page)))
}

/// Facts that the checks look at.
struct Facts {
    /// The store answers, with a majority of its members.
    store: bool,
    /// Steps of the start that are not done.
    pending: BTreeSet<Step>,
    /// Whether the plugins that guard keys are well; `None` where there are none.
    plugins: Option<bool>,
    stopping: bool,
}

impl Facts {
    async fn of(health: &Health) -> Facts {
        let asked = tokio::time::timeout(STORE_ANSWER, health.storage.read_index()).await;
        let pending = health.pending.read().clone();
        let plugins = health.encryption_keys.as_ref().and_then(|encryption_keys| encryption_keys.plugins_ready());
        Facts { store: matches!(asked, Ok(Ok(_))), pending, plugins, stopping: health.group.token().is_cancelled() }
    }

    fn hold(&self, check: &str) -> bool {
        match check {
            // That it answers is what this one says. "log" is upstream's name for the same: its log is what would
            // block.
            "ping" | "log" => true,
            "etcd" | "etcd-readiness" => self.store,
            PLUGINS => self.plugins != Some(false),
            "shutdown" => !self.stopping,
            "informer-sync" => !self.pending.contains(&Step::Caches),
            hook => HOOKS.iter().any(|(name, step)| *name == hook && !self.pending.contains(step)),
        }
    }
}

/// The checks of a page and whether they hold; each counts as run.
async fn run(health: &Health, page: &'static str) -> Vec<(&'static str, bool)> {
    let facts = Facts::of(health).await;
    let all = names(page).chain([PLUGINS].into_iter().filter(|_| facts.plugins.is_some()));
    let checks: Vec<(&'static str, bool)> = all.map(|name| (name, facts.hold(name))).collect();
    let mut tally = health.tally.lock();
    for (name, holds) in &checks {
        tally.entry((page, *name)).or_default()[usize::from(*holds)] += 1;
    }
    checks
}

/// Answers `/PAGE` and `/PAGE/CHECK`.
pub async fn answer(health: &Health, query: &Query, parts: &[&str]) -> Response<Body> {
    let Some(page) = PAGES.into_iter().find(|page| *page == parts[0]) else { return page_not_found() };
    let checks = run(health, page).await;
    if parts.len() > 1 {
        let name = parts[1..].join("/");
        return match checks.iter().find(|(check, _)| *check == name) {
            Some((_, true)) => respond::text(StatusCode::OK, "ok"),
            Some((_, false)) => {
                respond::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} failed\n"))
            }
            None => page_not_found(),
        };
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let (text, healthy) = told(page, &checks, &excluded);
    match (healthy, query.get("verbose").is_some()) {
        (false, _) => respond::text(StatusCode::INTERNAL_SERVER_ERROR, text),
        (true, true) => respond::text(StatusCode::OK, text),
        (true, false) => respond::text(StatusCode::OK, "ok"),
    }
}

/// The page in full, and whether all is well but what is excluded. Texts are upstream's.
fn told(page: &str, checks: &[(&str, bool)], excluded: &[&str]) -> (String, bool) {
    let (mut text, mut healthy) = (String::new(), true);
    for (check, holds) in checks {
        // Writing to a String cannot fail.
        let _ok = match (excluded.contains(check), holds) {
            (true, _) => writeln!(text, "[+]{check} excluded: ok"),
            (false, true) => writeln!(text, "[+]{check} ok"),
            (false, false) => writeln!(text, "[-]{check} failed: reason withheld"),
        };
        healthy &= *holds || excluded.contains(check);
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.iter().any(|(check, _)| check == *name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let _ok = writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", unknown.join(","));
    }
    let _ok = writeln!(text, "{page} check {}", if healthy { "passed" } else { "failed" });
    (text, healthy)
}

const CHECK: Metric =
    Metric { name: "kubernetes_healthcheck", help: "[STABLE] This metric records the result of a single healthcheck." };
const CHECKS: Metric = Metric {
    name: "kubernetes_healthchecks_total",
    help: "[STABLE] This metric records the results of all healthcheck.",
};

/// The checks as numbers, for those who measure service levels.
pub async fn slis(health: &Health) -> String {
    let mut out = Page::default();
    let mut family = out.family(Kind::Gauge, CHECK);
    for page in PAGES {
        for (name, holds) in run(health, page).await {
            family.sample(&[("name", name), ("type", page)], u8::from(holds));
        }
    }
    let mut family = out.family(Kind::Counter, CHECKS);
    for ((page, name), counts) in health.tally.lock().iter() {
        for (status, n) in ["error", "success"].into_iter().zip(counts).filter(|(_, n)| **n > 0) {
            family.sample(&[("name", name), ("status", status), ("type", page)], n);
        }
    }
    out.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_excluded_may_fail_and_what_does_not_exist_is_named() {
        let checks = [("ping", true), ("etcd", false)];
        let (text, healthy) = told("livez", &checks, &[]);
        assert_eq!(
            (text.as_str(), healthy),
            ("[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed\n", false)
        );
        let (text, healthy) = told("livez", &checks, &["etcd", "odd"]);
        assert!(healthy && text.contains("[+]etcd excluded: ok\n"), "{text}");
        assert!(text.contains("cannot be excluded: no matches for \"odd\"\nlivez check passed\n"), "{text}");
    }

    #[test]
    fn only_readiness_asks_whether_the_server_stops() {
        assert!(names("readyz").any(|name| name == "shutdown") && !names("livez").any(|name| name == "shutdown"));
        let facts = Facts { store: true, pending: BTreeSet::new(), plugins: None, stopping: true };
        assert!(names("livez").all(|name| facts.hold(name)) && !names("readyz").all(|name| facts.hold(name)));
        assert!(paths().any(|path| path == "/livez/poststarthook/rbac/bootstrap-roles"));
    }

    #[test]
    fn a_hook_says_no_until_its_own_step_is_done() {
        let facts =
            Facts { store: true, pending: [Step::Endpoints, Step::Tasks].into(), plugins: None, stopping: false };
        let not: Vec<&str> = names("readyz").filter(|name| !facts.hold(name)).collect();
        assert_eq!(not, ["poststarthook/start-apiextensions-controllers", "poststarthook/bootstrap-controller"]);
        assert!(!facts.hold("poststarthook/of-nobody"));
    }
}
