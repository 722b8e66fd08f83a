//! The HTTPS server on 10250: logs, exec, attach, port-forward and statistics, for callers that the API server vouches
//! for.

mod files;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use base::chain::Chain;
use base::task::Group;
use base::url::Query;
use http::{Method, Request, Response, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use model::reference::NamespacedName;
use serde_json::json;
use tracing::warn;
use wire::proxy::{self, Target};
use wire::{Body, ConnInfo, Handler, body};

use crate::error::Error;
use crate::handle::{ContainerRef, Handle, StreamOptions};
use crate::logs::LogOptions;
use crate::stats::Scope;

/// Serves the kubelet's API on top of a [`Handle`].
pub struct Server {
    handle: Handle,
    client: kube::Client,
    node_name: String,
    group: Group,
}

/// A refusal: status and the text a client sees.
pub(crate) struct Refusal(StatusCode, String);

impl From<Error> for Refusal {
    fn from(err: Error) -> Refusal {
        let code = match &err {
            Error::PodNotFound { .. } => StatusCode::NOT_FOUND,
            Error::ContainerNotFound { .. } => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal(code, Chain(&err).to_string())
    }
}

/// Parts of the server that can be switched off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    /// `enableDebuggingHandlers`.
    pub(crate) debugging: bool,
    /// `enableSystemLogHandler`.
    pub(crate) logs: bool,
}

impl Switches {
    /// Refuses a path whose part is off, in upstream's words.
    fn judge(self, path: &[&str]) -> Result<(), Refusal> {
        let off = |what: &str| Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, format!("{what} endpoints are disabled.")));
        match path.first().copied().unwrap_or_default() {
            "exec" | "attach" | "portForward" | "run" | "containerLogs" | "runningpods" if !self.debugging => {
                off("Debug")
            }
            "logs" if !self.logs || !self.debugging => off("logs"),
            _ => Ok(()),
        }
    }
}

/// A value that is given and not empty.
fn given<'a>(query: &'a Query, key: &str) -> Option<&'a str> {
    query.get(key).filter(|value| !value.is_empty())
}

fn is_on(query: &Query, key: &str) -> bool {
    matches!(query.get(key), Some("true" | "1"))
}

/// Errors: 400 for what is no number.
pub(crate) fn number<T: std::str::FromStr>(query: &Query, key: &str) -> Result<Option<T>, Refusal> {
    let bad = |text: &str| Refusal(StatusCode::BAD_REQUEST, format!("{key}: {text:?} is not a number"));
    given(query, key).map(|text| text.parse().map_err(|_| bad(text))).transpose()
}

impl Server {
    /// `client` asks the API server whether a caller may do what it wants. Connections live in `group`.
    pub fn new(handle: Handle, client: kube::Client, node_name: String, group: &Group) -> Arc<Server> {
        Arc::new(Server { handle, client, node_name, group: group.child("kubelet-server") })
    }

    async fn answer(&self, req: Request<Body>, conn: &ConnInfo) -> Result<Response<Body>, Refusal> {
        let path = req.uri().path().to_owned();
        self.admit(req.method().clone(), bearer(&req), conn, &path).await?;
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let query = Query::parse(req.uri().query().unwrap_or_default());
        let (debugging, logs) = self.handle.switches();
        Switches { debugging, logs }.judge(&parts)?;
        let of = |namespace, name, container| ContainerRef { pod: NamespacedName { namespace, name }, container };
        match parts.as_slice() {
            ["healthz" | "livez"] | ["healthz", "ping" | "log" | "syncloop"] => {
                self.handle.healthy().await?;
                Ok(text("ok"))
            }
            ["pods" | "runningpods"] => Ok(as_json(
                &json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.handle.pods()}),
            )),
            ["stats", "summary"] => Ok(as_json(&self.handle.summary(scope(&query)).await?)),
            ["metrics"] => self.metrics("").await,
            ["metrics", page] => self.metrics(page).await,
            ["configz"] => Ok(as_json(&self.handle.configz())),
            ["logs", ..] => {
                let below = path.trim_start_matches('/').strip_prefix("logs").unwrap_or_default();
                Ok(files::serve(Path::new("/var/log"), below).await)
            }
            ["containerLogs", ns, pod, container] => self.logs(of(ns, pod, container), &query).await,
            ["exec", ns, pod, container] | ["exec", ns, pod, _, container] => {
                let url = self
                    .handle
                    .exec_url(
                        of(ns, pod, container),
                        streams(&query, query.all("command").map(str::to_owned).collect()),
                    )
                    .await?;
                self.stream(req, &url).await
            }
            ["attach", ns, pod, container] | ["attach", ns, pod, _, container] => {
                let url = self.handle.attach_url(of(ns, pod, container), streams(&query, Vec::new())).await?;
                self.stream(req, &url).await
            }
            ["portForward", ns, pod] | ["portForward", ns, pod, _] => {
                let ports = query.all("port").flat_map(|p| p.split(',')).filter_map(|p| p.parse().ok()).collect();
                let url = self.handle.port_forward_url(NamespacedName { namespace: ns, name: pod }, ports).await?;
                self.stream(req, &url).await
            }
            ["run", ns, pod, container] if req.method() == Method::POST => {
                let command = query.text("cmd").split(' ').map(str::to_owned).collect();
                let answer = self.handle.run(of(ns, pod, container), command).await?;
                Ok(Response::new(body::full([answer.stdout, answer.stderr].concat())))
            }
            _ => Err(Refusal(StatusCode::NOT_FOUND, "404 page not found".to_owned())),
        }
    }

    async fn metrics(&self, page: &str) -> Result<Response<Body>, Refusal> {
        let missing = || Refusal(StatusCode::NOT_FOUND, "404 page not found".to_owned());
        let mut answer = Response::new(body::full(self.handle.metrics(page).await?.ok_or_else(missing)?));
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
        Ok(answer)
    }

    async fn logs(&self, of: ContainerRef<'_>, query: &Query) -> Result<Response<Body>, Refusal> {
        let since_time = given(query, "sinceTime").map(str::parse).transpose();
        let options = LogOptions {
            follow: is_on(query, "follow"),
            previous: is_on(query, "previous"),
            timestamps: is_on(query, "timestamps"),
            tail_lines: number(query, "tailLines")?,
            since_seconds: number(query, "sinceSeconds")?,
            since_time: since_time.map_err(|err| Refusal(StatusCode::BAD_REQUEST, format!("sinceTime: {err}")))?,
            limit_bytes: number(query, "limitBytes")?,
            stream: given(query, "stream").filter(|s| *s != "All").map(str::to_owned),
        };
        let lines = self.handle.logs(of, options).await?;
        let mut answer = Response::new(body::stream(lines));
        answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
        Ok(answer)
    }

    /// Passes an upgrade on to the runtime's streaming server, byte by byte.
    async fn stream(&self, req: Request<Body>, url: &str) -> Result<Response<Body>, Refusal> {
        let broken = || {
            Refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the runtime gave a streaming address that cannot be used: {url:?}"),
            )
        };
        let uri: http::Uri = url.parse().map_err(|_| broken())?;
        let target = Target {
            host: uri.host().ok_or_else(broken)?.to_owned(),
            port: uri.port_u16().unwrap_or(80),
            tls: None,
            server_name: None,
            via: None,
        };
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let failed = |err| Refusal(StatusCode::BAD_GATEWAY, Chain(&err).to_string());
        proxy::forward(req, &target, path, &self.group).await.map_err(failed)
    }

    /// Lets the caller in if the API server says so: by client certificate, or by token.
    async fn admit(&self, method: Method, token: Option<String>, conn: &ConnInfo, path: &str) -> Result<(), Refusal> {
        let unauthorized = || Refusal(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned());
        let asked = |err: kube::Error| {
            warn!(err = %Chain(&err), "cannot ask the API server about a caller");
            Refusal(StatusCode::INTERNAL_SERVER_ERROR, "cannot ask the API server about the caller".to_owned())
        };
        let caller = if let Some(cert) = conn.client_certs.first() {
            let identity = pki::identity::parse(cert).map_err(|_| unauthorized())?;
            // The API server alone knows whether it was revoked.
            if identity.is_in(pki::identity::REGISTERED) {
                return Err(unauthorized());
            }
            UserInfo {
                username: Some(identity.common_name),
                groups: Some(identity.organizations),
                uid: identity.uid,
                extra: None,
            }
        } else {
            let spec = TokenReviewSpec { token: token.ok_or_else(unauthorized)?, audiences: None };
            let review = TokenReview { spec, ..TokenReview::default() };
            let review = Api::<TokenReview>::all(self.client.clone())
                .create(&PostParams::default(), &review)
                .await
                .map_err(asked)?;
            let status = review.status.filter(|s| s.authenticated == Some(true)).ok_or_else(unauthorized)?;
            status.user.ok_or_else(unauthorized)?
        };
        conn.vouch();
        if caller.groups.iter().flatten().any(|group| group == "system:masters") {
            return Ok(());
        }
        let Access { verb, subresources } = access(&method, path);
        for subresource in &subresources {
            let attributes = ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(self.node_name.clone()),
                ..ResourceAttributes::default()
            };
            if self.is_allowed(&caller, attributes).await.map_err(asked)? {
                return Ok(());
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
            caller.username.unwrap_or_default(),
            subresources.join(" ")
        );
        Err(Refusal(StatusCode::FORBIDDEN, text))
    }

    async fn is_allowed(&self, caller: &UserInfo, attributes: ResourceAttributes) -> Result<bool, kube::Error> {
        let spec = SubjectAccessReviewSpec {
            user: Some(caller.username.clone().unwrap_or_default()),
            groups: Some(caller.groups.clone().unwrap_or_default()),
            uid: caller.uid.clone(),
            extra: Some(caller.extra.clone().unwrap_or_default()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let review =
            Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        Ok(review.status.is_some_and(|status| status.allowed))
    }
}

fn bearer(req: &Request<Body>) -> Option<String> {
    req.headers().get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned)
}

/// The right that a request needs.
#[derive(Debug, PartialEq, Eq)]
struct Access {
    verb: &'static str,
    subresources: Vec<&'static str>,
}

/// The verb and the subresources of `nodes`, any of which lets a request in: the exact one, then `proxy`, which stands
/// for all but those that have always had their own. Spec: upstream's kubelet authorization (KEP-2862).
fn access(method: &Method, path: &str) -> Access {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let subresources = match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "configz" => vec!["configz", "proxy"],
        "healthz" | "livez" => vec!["healthz", "proxy"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        _ => vec!["proxy"],
    };
    Access { verb, subresources }
}

fn scope(query: &Query) -> Scope {
    if is_on(query, "only_cpu_and_memory") { Scope::CpuAndMemory } else { Scope::Whole }
}

fn streams(query: &Query, command: Vec<String>) -> StreamOptions {
    // The kubelet's own names, then those of the API.
    let on = |own: &str, api: &str| is_on(query, own) || is_on(query, api);
    StreamOptions {
        command,
        stdin: on("input", "stdin"),
        stdout: on("output", "stdout"),
        stderr: on("error", "stderr"),
        tty: is_on(query, "tty"),
    }
}

fn text(content: &'static str) -> Response<Body> {
    Response::new(body::full(content))
}

fn as_json(value: &serde_json::Value) -> Response<Body> {
    let mut answer = Response::new(body::full(value.to_string()));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

#[async_trait]
impl Handler for Server {
    async fn handle(&self, req: Request<Body>, conn: Arc<ConnInfo>) -> Response<Body> {
        match self.answer(req, &conn).await {
            Ok(answer) => answer,
            Err(Refusal(code, why)) => {
                let mut answer = Response::new(body::full(format!("{why}\n")));
                *answer.status_mut() = code;
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_keeps_repeated_and_escaped_values() {
        let query = Query::parse("command=sh&command=-c&command=echo%20a%2Bb&stdin=1&empty=");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a+b"]);
        assert!(is_on(&query, "stdin"));
        assert_eq!(given(&query, "empty"), None);
        assert!(number::<u64>(&Query::parse("tailLines=x"), "tailLines").is_err());
    }

    // InstallDebuggingDisabledHandlers, pkg/kubelet/server/server.go v1.36.2.
    #[test]
    fn parts_that_are_switched_off_are_refused_and_metrics_stay() {
        let code = |switches: Switches, path: &[&str]| switches.judge(path).err().map(|Refusal(code, _)| code.as_u16());
        let (quiet, no_logs) = (Switches { debugging: false, logs: true }, Switches { debugging: true, logs: false });
        for path in [&["exec", "n", "p", "c"][..], &["containerLogs", "n", "p", "c"], &["logs"], &["runningpods"]] {
            assert_eq!(code(quiet, path), Some(405), "{path:?}");
        }
        assert_eq!((code(quiet, &["metrics"]), code(quiet, &["pods"]), code(quiet, &[])), (None, None, None));
        assert_eq!((code(no_logs, &["logs", "x"]), code(no_logs, &["exec", "n", "p", "c"])), (Some(405), None));
    }

    #[test]
    fn access_is_asked_for_as_upstream_does() {
        for (method, path, verb, subresources) in [
            (Method::GET, "/stats/summary", "get", &["stats"][..]),
            (Method::GET, "/metrics/cadvisor", "get", &["metrics"]),
            (Method::GET, "//logs/", "get", &["log"]),
            (Method::POST, "/checkpoint/ns/pod/c", "create", &["checkpoint"]),
            (Method::GET, "/configz", "get", &["configz", "proxy"]),
            (Method::HEAD, "/healthz/ping", "get", &["healthz", "proxy"]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::POST, "/exec/ns/pod/c", "create", &["proxy"]),
            (Method::GET, "/exec/ns/pod/c", "get", &["proxy"]),
            (Method::PUT, "/x", "update", &["proxy"]),
            (Method::PATCH, "/x", "patch", &["proxy"]),
            (Method::DELETE, "", "delete", &["proxy"]),
        ] {
            assert_eq!(access(&method, path), Access { verb, subresources: subresources.to_vec() }, "{method} {path}");
        }
    }

    #[test]
    fn streams_have_the_kubelets_names_and_those_of_the_api() {
        let own = streams(&Query::parse("input=1&output=true&tty=1"), vec!["sh".to_owned()]);
        assert!(own.stdin && own.stdout && !own.stderr && own.tty);
        assert_eq!(own.command, ["sh"]);
        let api = streams(&Query::parse("stderr=1&stdin=0&stdout=yes"), Vec::new());
        assert!(!api.stdin && !api.stdout && api.stderr && !api.tty);
        assert_eq!(scope(&Query::parse("only_cpu_and_memory=true")), Scope::CpuAndMemory);
        assert_eq!(scope(&Query::parse("only_cpu_and_memory=false")), Scope::Whole);
    }
}
