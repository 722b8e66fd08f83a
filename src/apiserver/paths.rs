//! Paths that are no resources: health, version, metrics, discovery, OpenAPI, keys.

use http::{Method, Response, StatusCode};
use registry::negotiate::{self, Output};
use registry::status::Status;
use registry::version::version;
use schema::discovery;
use schema::table::GroupVersion;
use serde_json::{Value, json};
use wire::Body;

use crate::aggregate::merge;
use crate::capabilities::Capabilities;
use crate::crypt::rotate::Change;
use crate::exchange::Exchange;
use crate::respond::{self, page_not_found};
use crate::{documents, health};

/// Whether a request without credentials may ask for this path.
pub fn open_to_anonymous(path: &str) -> bool {
    let first = path.trim_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "healthz" | "livez" | "readyz") || path == "/version" || path == "/version/"
}

/// Answers a request for such a path.
pub async fn serve(x: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    if let Some(what) = x.attributes.path.strip_prefix("/kedge/secrets-encrypt/").map(str::to_owned) {
        return encryption(x, &what).await;
    }
    if !matches!(x.parts.method, Method::GET | Method::HEAD) {
        return Ok(match known(x.parts.uri.path()) {
            true => respond::status(&Status::method_not_allowed(), &x.parts.headers),
            false => page_not_found(),
        });
    }
    let path = x.parts.uri.path().trim_end_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let catalog = x.catalog.as_ref();
    match parts.as_slice() {
        [] => json_answer(x, &json!({ "paths": listed(x.server) })),
        ["version"] => json_answer(x, &version(&x.server.config.build)),
        ["healthz" | "livez" | "readyz", ..] => Ok(health::answer(&x.server.health, &x.query, &parts).await),
        ["metrics", "slis"] => Ok(respond::text(StatusCode::OK, health::slis(&x.server.health).await)),
        ["metrics"] => Ok(respond::text(StatusCode::OK, metrics(x.server))),
        [".well-known", "openid-configuration"] => json_answer(x, &x.server.issuer.openid_configuration()),
        ["openid", "v1", "jwks"] => json_answer(x, &x.server.issuer.jwks()),
        ["api"] => aggregated(x, true, &legacy_versions(x.server)).await,
        ["apis"] => {
            let mut plain = discovery::groups(catalog);
            merge::groups(&mut plain, &x.server.aggregation.registry.now());
            aggregated(x, false, &plain).await
        }
        ["apis", group] => {
            found(x, merge::group(discovery::group(catalog, group), &x.server.aggregation.registry.now(), group))
        }
        ["api", version] => found(x, discovery::resources(catalog, GroupVersion { group: "", version })),
        ["apis", group, version] => found(x, discovery::resources(catalog, GroupVersion { group, version })),
        ["openapi", "v2"] => documents::v2(x).await,
        ["openapi", "v3"] => documents::v3_index(x).await,
        ["openapi", "v3", "api", version] => documents::v3(x, "", version).await,
        ["openapi", "v3", "apis", ..]
            if merge::openapi_v3_backend(&x.server.aggregation.registry.now(), &path).is_some() =>
        {
            let Some(service) = merge::openapi_v3_backend(&x.server.aggregation.registry.now(), &path) else {
                return Ok(page_not_found());
            };
            crate::aggregate::proxy::run(x, &service).await
        }
        ["openapi", "v3", "apis", group, version] => documents::v3(x, group, version).await,
        _ => Ok(page_not_found()),
    }
}

/// `kedge secrets-encrypt`: GET status, PUT a change. Only who may everything may this.
async fn encryption(x: &mut Exchange<'_>, what: &str) -> Result<Response<Body>, Status> {
    let Some(encryption) = &x.server.encryption else { return Ok(page_not_found()) };
    let answer = match (&x.parts.method, Change::named(what)) {
        (&Method::GET, None) if what == "status" => encryption.status(&x.server.objects).await?,
        (&Method::PUT, Some(change)) => {
            encryption.change(&x.server.objects, change, x.parts.uri.query() == Some("force=true")).await?
        }
        _ => return Err(Status::method_not_allowed()),
    };
    json_answer(x, &answer)
}

fn known(path: &str) -> bool {
    matches!(
        path.trim_matches('/').split('/').next(),
        Some(
            "" | "version"
                | "healthz"
                | "livez"
                | "readyz"
                | "metrics"
                | "api"
                | "apis"
                | "openapi"
                | "openid"
                | ".well-known"
        )
    )
}

fn output(x: &Exchange<'_>) -> Result<Output, Status> {
    negotiate::output(&x.parts.headers)
}

fn json_answer(x: &Exchange<'_>, value: &Value) -> Result<Response<Body>, Status> {
    Ok(respond::value(StatusCode::OK, value, output(x)?, &x.parts.headers))
}

fn found(x: &Exchange<'_>, value: Option<Value>) -> Result<Response<Body>, Status> {
    match value {
        Some(value) => Ok(respond::discovery(&value, output(x)?, &x.parts.headers)),
        None => Ok(page_not_found()),
    }
}

fn legacy_versions(server: &Capabilities) -> Value {
    discovery::api_versions(
        &std::net::SocketAddr::new(*server.config.advertise_address.borrow(), server.config.advertise_port).to_string(),
    )
}

/// Aggregated discovery for clients that ask for it, the plain form for others.
async fn aggregated(x: &Exchange<'_>, legacy: bool, plain: &Value) -> Result<Response<Body>, Status> {
    let Some((form, content_type)) = aggregated_form(&x.parts.headers) else {
        return Ok(respond::discovery(
            plain,
            negotiate::output(&x.parts.headers).unwrap_or_default(),
            &x.parts.headers,
        ));
    };
    documents::discovery(x, legacy, form, content_type).await
}

/// The first aggregated form that `Accept` offers.
fn aggregated_form(headers: &http::HeaderMap) -> Option<(discovery::Aggregated, &'static str)> {
    let offers =
        headers.get_all(http::header::ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    for offer in offers {
        let parts: Vec<&str> = offer.split(';').map(str::trim).collect();
        if parts.first() != Some(&"application/json")
            || !parts.contains(&"g=apidiscovery.k8s.io")
            || !parts.contains(&"as=APIGroupDiscoveryList")
        {
            continue;
        }
        if parts.contains(&"v=v2") {
            return Some((
                discovery::Aggregated::V2,
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            ));
        }
        if parts.contains(&"v=v2beta1") {
            return Some((
                discovery::Aggregated::V2Beta1,
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            ));
        }
    }
    None
}

fn listed(server: &Capabilities) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend(health::paths());
    for group in server.objects.catalogs.now().groups().iter().filter(|g| !g.name.is_empty()) {
        paths.push(format!("/apis/{}", group.name));
        paths.extend(group.versions.iter().map(|v| format!("/apis/{}/{v}", group.name)));
    }
    paths.sort();
    paths
}

fn metrics(server: &Capabilities) -> String {
    let mut text = server.metrics.render(&server.objects.cache.counts());
    server.admission.times.render(&mut text);
    text.push_str(&server.flow.render());
    text.push_str(&merge::unavailable(&server.objects));
    text.push_str(&(server.config.more_metrics.0)());
    text
}
