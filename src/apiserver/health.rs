//! Health: `/livez`, `/readyz` and `/healthz` with `?verbose` and `?exclude=`, every check under its own path, and all of them as numbers.
//!
//! The names are upstream's, as probes and dashboards exclude and show single ones. What upstream starts after its port is open kedge has
//! done before, so these stand for the steps of the start that they name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Response, StatusCode};
use wire::Body;

use crate::pipeline::Exchange;
use crate::respond;
use crate::serve::ApiServer;
use crate::verbs::page_not_found;

/// The store must answer within this.
const STORE_ANSWER: Duration = Duration::from_secs(2);

/// The three that are asked.
pub const PAGES: [&str; 3] = ["healthz", "livez", "readyz"];

/// There where plugins guard keys.
const PLUGINS: &str = "kms-providers";

/// What upstream runs once its port is open, in its order.
const HOOKS: &[&str] = &[
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/aggregator-reload-proxy-client-cert",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// How often each check was run, by page and name: how often it failed and how often it did not.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<(&'static str, &'static str), [u64; 2]>>);

/// Names of a page's checks, in order.
fn names(page: &str) -> impl Iterator<Item = &'static str> {
    let ready = page == "readyz";
    let first = ["ping", "log", "etcd"].into_iter();
    let readiness = ["etcd-readiness", "informer-sync"].into_iter().filter(move |_| ready);
    first.chain(readiness).chain(HOOKS.iter().copied()).chain(["shutdown"].into_iter().filter(move |_| ready))
}

/// Every path of a check, for the server's index.
pub fn paths() -> impl Iterator<Item = String> {
    let checks = |page: &'static str| names(page).map(move |name| format!("/{page}/{name}"));
    PAGES.into_iter().flat_map(move |page| std::iter::once(format!("/{page}")).chain(checks(page)))
}

/// What the checks look at.
#[derive(Clone, Copy)]
struct Facts {
    /// The store answers, with a majority of its members.
    store: bool,
    started: bool,
    /// Whether the plugins that guard keys are well; `None` where there are none.
    plugins: Option<bool>,
    stopping: bool,
}

impl Facts {
    async fn of(server: &ApiServer) -> Facts {
        let asked = tokio::time::timeout(STORE_ANSWER, server.cache.storage().read_index()).await;
        let started = server.pending.read().unwrap_or_else(PoisonError::into_inner).is_empty();
        let plugins = server.guards.encryption.as_ref().and_then(|encryption| encryption.seals.plugins_ready());
        Facts { store: matches!(asked, Ok(Ok(_))), started, plugins, stopping: server.group.token().is_cancelled() }
    }

    fn hold(self, check: &str) -> bool {
        match check {
            "ping" | "log" => true,
            "etcd" | "etcd-readiness" => self.store,
            PLUGINS => self.plugins != Some(false),
            "shutdown" => !self.stopping,
            _ => self.started,
        }
    }
}

/// The checks of a page and whether they hold; each counts as run.
async fn run(server: &ApiServer, page: &'static str) -> Vec<(&'static str, bool)> {
    let facts = Facts::of(server).await;
    let all = names(page).chain([PLUGINS].into_iter().filter(|_| facts.plugins.is_some()));
    let checks: Vec<(&'static str, bool)> = all.map(|name| (name, facts.hold(name))).collect();
    let mut tally = server.health.0.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, holds) in &checks {
        tally.entry((page, *name)).or_default()[usize::from(*holds)] += 1;
    }
    checks
}

/// Answers `/PAGE` and `/PAGE/CHECK`.
pub async fn answer(x: &Exchange<'_>, parts: &[&str]) -> Response<Body> {
    let Some(page) = PAGES.into_iter().find(|page| *page == parts[0]) else { return page_not_found() };
    let checks = run(x.server, page).await;
    if parts.len() > 1 {
        let name = parts[1..].join("/");
        return match checks.iter().find(|(check, _)| *check == name) {
            Some((_, true)) => respond::text(StatusCode::OK, "ok"),
            Some((_, false)) => respond::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} failed\n")),
            None => page_not_found(),
        };
    }
    let excluded: Vec<&str> = x.query.all("exclude").collect();
    let (text, healthy) = told(page, &checks, &excluded);
    match (healthy, x.query.get("verbose").is_some()) {
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
    let unknown: Vec<String> =
        excluded.iter().filter(|name| !checks.iter().any(|(check, _)| check == *name)).map(|name| format!("{name:?}")).collect();
    if !unknown.is_empty() {
        let _ok = writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", unknown.join(","));
    }
    let _ok = writeln!(text, "{page} check {}", if healthy { "passed" } else { "failed" });
    (text, healthy)
}

/// The checks as numbers, for those who measure service levels.
pub async fn slis(server: &ApiServer) -> String {
    let mut text = "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
                    # TYPE kubernetes_healthcheck gauge\n"
        .to_owned();
    for page in PAGES {
        for (name, holds) in run(server, page).await {
            let _ok = writeln!(text, "kubernetes_healthcheck{{name=\"{name}\",type=\"{page}\"}} {}", u8::from(holds));
        }
    }
    text.push_str(
        "# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
         # TYPE kubernetes_healthchecks_total counter\n",
    );
    for ((page, name), counts) in server.health.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        for (status, n) in ["error", "success"].into_iter().zip(counts).filter(|(_, n)| **n > 0) {
            let _ok = writeln!(text, "kubernetes_healthchecks_total{{name=\"{name}\",status=\"{status}\",type=\"{page}\"}} {n}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_excluded_may_fail_and_what_does_not_exist_is_named() {
        let checks = [("ping", true), ("etcd", false)];
        let (text, healthy) = told("livez", &checks, &[]);
        assert_eq!((text.as_str(), healthy), ("[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed\n", false));
        let (text, healthy) = told("livez", &checks, &["etcd", "odd"]);
        assert!(healthy && text.contains("[+]etcd excluded: ok\n"), "{text}");
        assert!(text.contains("cannot be excluded: no matches for \"odd\"\nlivez check passed\n"), "{text}");
    }

    #[test]
    fn only_readiness_asks_whether_the_server_stops() {
        assert!(names("readyz").any(|name| name == "shutdown") && !names("livez").any(|name| name == "shutdown"));
        let facts = Facts { store: true, started: true, plugins: None, stopping: true };
        assert!(names("livez").all(|name| facts.hold(name)) && !names("readyz").all(|name| facts.hold(name)));
        assert!(paths().any(|path| path == "/livez/poststarthook/rbac/bootstrap-roles"));
    }
}
