//! OpenAPI over HTTP: tags by which clients keep documents, and the addresses under which they may keep them for ever.

use http::header::{CACHE_CONTROL, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, Response, StatusCode};
use jiff::SignedDuration;
use schema::openapi;
use serde_json::Value;
use wire::Body;

use crate::aggregate::merge;
use crate::paths::GIT_VERSION;
use crate::pipeline::Exchange;
use crate::respond;
use crate::status::Status;
use crate::verbs::page_not_found;

/// A document with a hash in its address is good for this long.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(365 * 24);

/// `/openapi/v2`, in JSON or in the protobuf that kubectl asks for.
pub(crate) async fn v2(x: &Exchange<'_>) -> Result<Response<Body>, Status> {
    let mut document = openapi::v2(&x.catalog, GIT_VERSION);
    merge::openapi_v2(x.server, &mut document, &x.server.aggregation.now()).await;
    let accepts = x.parts.headers.get_all(http::header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let mut offers = accepts.flat_map(|v| v.split(','));
    let (media, bytes) = if offers.any(|offer| offer.contains("proto-openapi.spec.v2") && offer.contains("+protobuf")) {
        (openapi::v2_protobuf::MEDIA_TYPE, openapi::v2_protobuf::encode(&document))
    } else {
        ("application/json", serde_json::to_vec(&document).map_err(Status::internal)?)
    };
    let tag = format!("\"{}\"", openapi::hash_of(&bytes));
    let mut response = if fits(&x.parts.headers, &tag) {
        not_modified()
    } else {
        respond::chunks(StatusCode::OK, media, vec![bytes.into()], &x.parts.headers)
    };
    put(&mut response, ETAG, &tag);
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// `/openapi/v3`: where each group version's document is.
pub(crate) async fn v3_index(x: &Exchange<'_>) -> Result<Response<Body>, Status> {
    let mut index = openapi::v3_index(&x.catalog, GIT_VERSION);
    merge::openapi_v3_index(x.server, &mut index, &x.server.aggregation.now()).await;
    json(x, &index)
}

/// `/openapi/v3/apis/GROUP/VERSION`. An address with the hash of another time leads to the present one.
pub(crate) fn v3(x: &Exchange<'_>, group: &str, version: &str) -> Result<Response<Body>, Status> {
    let hash = openapi::v3_hash(&x.catalog, group, version, GIT_VERSION);
    let asked = x.query.text("hash");
    if !asked.is_empty() && asked != hash {
        let mut response = respond::text(StatusCode::MOVED_PERMANENTLY, "");
        put(&mut response, LOCATION, &format!("/openapi/v3/{}?hash={hash}", openapi::path_of(group, version)));
        return Ok(response);
    }
    let tag = format!("\"{hash}\"");
    let mut response = if fits(&x.parts.headers, &tag) {
        not_modified()
    } else {
        let Some(document) = openapi::v3(&x.catalog, group, version) else { return Ok(page_not_found()) };
        json(x, &document)?
    };
    put(&mut response, ETAG, &tag);
    if !asked.is_empty() {
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
        put(&mut response, CACHE_CONTROL, "public, immutable");
        if let Ok(end) = x.server.config.clock.now().checked_add(KEPT_FOR) {
            put(&mut response, EXPIRES, &end.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        }
    }
    Ok(response)
}

fn json(x: &Exchange<'_>, value: &Value) -> Result<Response<Body>, Status> {
    let mut output = crate::negotiate::output(&x.parts.headers)?;
    // Upstream never indents these.
    output.pretty = false;
    Ok(respond::value(StatusCode::OK, value, output, &x.parts.headers))
}

fn put(response: &mut Response<Body>, name: http::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        response.headers_mut().insert(name, value);
    }
}

fn not_modified() -> Response<Body> {
    let mut response = Response::new(wire::body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

/// Whether the client has the document of this tag.
fn fits(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
    given.map(|t| t.trim().trim_start_matches("W/")).any(|t| t == "*" || t == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_tags_is_enough() {
        let mut headers = HeaderMap::new();
        assert!(!fits(&headers, "\"a\""));
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("\"b\", W/\"a\""));
        assert!(fits(&headers, "\"a\"") && !fits(&headers, "\"c\""));
    }
}
