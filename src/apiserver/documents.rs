//! Discovery and OpenAPI over HTTP: tags by which clients keep documents, and the addresses under which they may keep
//! them for ever.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, Response, StatusCode};
use jiff::SignedDuration;
use registry::negotiate::{self, Format};
use registry::status::Status;
use registry::version::GIT_VERSION;
use schema::discovery::{self, Aggregated, order::InOrder};
use schema::openapi;
use schema::table::GroupVersion;
use serde_json::Value;
use wire::Body;

use crate::aggregate::merge;
use crate::exchange::Exchange;
use crate::pages::{Made, Name, Origin, Page};
use crate::respond::{self, page_not_found};

/// A document with a hash in its address is good for this long.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The document as it is kept, or as `make` makes it.
async fn page(x: &Exchange<'_>, name: Name, make: BoxFuture<'_, Made>) -> Result<Option<Arc<Page>>, Status> {
    let origin = Origin { catalog: Arc::clone(&x.catalog), known: x.server.aggregation.registry.now() };
    x.server.pages.page(name, origin, &x.server.group, make).await
}

/// `/openapi/v2`, in JSON or in the protobuf that kubectl asks for.
pub(crate) async fn v2(x: &Exchange<'_>) -> Result<Response<Body>, Status> {
    let accepts = x.parts.headers.get_all(http::header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let mut offers = accepts.flat_map(|v| v.split(','));
    let protobuf = offers.any(|offer| offer.contains("proto-openapi.spec.v2") && offer.contains("+protobuf"));
    let make = async {
        let mut document = openapi::v2(&x.catalog, GIT_VERSION);
        merge::openapi_v2(&x.server.aggregation.documents, &mut document, &x.server.aggregation.registry.now()).await;
        if protobuf {
            return Ok(Some((openapi::v2_protobuf::MEDIA_TYPE, openapi::v2_protobuf::encode(&document))));
        }
        Ok(Some(("application/json", serde_json::to_vec(&document).map_err(Status::internal)?)))
    };
    let Some(page) = page(x, Name::V2 { protobuf }, make.boxed()).await? else { return Ok(page_not_found()) };
    let tag = format!("\"{}\"", page.hash);
    let mut response = if fits(&x.parts.headers, &tag) { not_modified() } else { page.answer(&x.parts.headers) };
    put(&mut response, ETAG, &tag);
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// `/openapi/v3`: where each group version's document is.
pub(crate) async fn v3_index(x: &Exchange<'_>) -> Result<Response<Body>, Status> {
    let format = negotiate::output(&x.parts.headers)?.format;
    let make = async {
        let mut index = openapi::v3_index(&x.catalog, GIT_VERSION);
        merge::openapi_v3_index(&x.server.aggregation.documents, &mut index, &x.server.aggregation.registry.now())
            .await;
        Ok(Some(text(&index, format)))
    };
    let page = page(x, Name::V3Index(format), make.boxed()).await?;
    Ok(page.map_or_else(page_not_found, |page| page.answer(&x.parts.headers)))
}

/// `/openapi/v3/apis/GROUP/VERSION`. An address with the hash of another time leads to the present one.
pub(crate) async fn v3(x: &Exchange<'_>, group: &str, version: &str) -> Result<Response<Body>, Status> {
    let hash = openapi::v3_hash(&x.catalog, GroupVersion { group, version }, GIT_VERSION);
    let asked = x.query.text("hash");
    if !asked.is_empty() && asked != hash {
        let mut response = respond::text(StatusCode::MOVED_PERMANENTLY, "");
        put(
            &mut response,
            LOCATION,
            &format!("/openapi/v3/{}?hash={hash}", openapi::path_of(GroupVersion { group, version })),
        );
        return Ok(response);
    }
    let tag = format!("\"{hash}\"");
    let mut response = if fits(&x.parts.headers, &tag) {
        not_modified()
    } else {
        // Asked for by a name that nobody has, as many times as somebody likes: nobody else waits for it.
        if x.catalog.of_version(GroupVersion { group, version }).next().is_none() {
            return Ok(page_not_found());
        }
        let format = negotiate::output(&x.parts.headers)?.format;
        let make = async {
            Ok(openapi::v3(&x.catalog, GroupVersion { group, version }).map(|document| text(&document, format)))
        };
        let page = page(x, Name::V3(format, group.to_owned(), version.to_owned()), make.boxed()).await?;
        let Some(page) = page else { return Ok(page_not_found()) };
        page.answer(&x.parts.headers)
    };
    put(&mut response, ETAG, &tag);
    if !asked.is_empty() {
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
        put(&mut response, CACHE_CONTROL, "public, immutable");
        if let Ok(end) = x.server.objects.clock.now().checked_add(KEPT_FOR) {
            put(&mut response, EXPIRES, &end.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        }
    }
    Ok(response)
}

/// `/api` and `/apis` in an aggregated form, whose media type is `media`.
pub(crate) async fn discovery(
    x: &Exchange<'_>,
    legacy: bool,
    form: Aggregated,
    media: &'static str,
) -> Result<Response<Body>, Status> {
    let make = async {
        let mut document = discovery::aggregated(&x.catalog, legacy, form);
        if !legacy {
            merge::aggregated(&x.server.aggregation.documents, &mut document, &x.server.aggregation.registry.now())
                .await;
        }
        Ok(Some((media, serde_json::to_vec(&InOrder(&document)).map_err(Status::internal)?)))
    };
    let page = page(x, Name::Discovery { legacy, form }, make.boxed()).await?;
    let mut response = page.map_or_else(page_not_found, |page| page.answer(&x.parts.headers));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// Upstream never indents these.
fn text(document: &Value, format: Format) -> (&'static str, Vec<u8>) {
    (format.content_type(), respond::written(document, format, false))
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
