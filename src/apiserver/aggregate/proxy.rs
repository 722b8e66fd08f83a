//! Passing a request on to the server behind an APIService, as the user who asked, with this server's own proof of who
//! it is.

use http::{Response, StatusCode};
use registry::status::Status;
use wire::Body;

use super::caller::says_who;
use super::registry::ApiService;
use crate::exchange::Exchange;
use crate::respond;

/// Passes the request on, upgrades and watches included; what this server computes it answers.
pub async fn run(x: &mut Exchange<'_>, service: &ApiService) -> Result<Response<Body>, Status> {
    if service.computed {
        return crate::usage::serve::run(x).await;
    }
    let Some(endpoint) = service.service.clone().filter(|_| service.available) else {
        return Ok(unavailable("service unavailable"));
    };
    let caller = &x.server.aggregation.caller;
    let path = x.parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
    let stream = match caller.webhooks.open(&endpoint, &caller.identity_to(service)).await {
        Ok(stream) => stream,
        Err(err) => return Ok(unavailable(&format!("error trying to reach service: {err}\n"))),
    };
    let body = x.take_body().unwrap_or_else(wire::body::empty);
    let parts = std::mem::replace(&mut x.parts, http::Request::new(()).into_parts().0);
    let headers = parts.headers.clone();
    let request = http::Request::from_parts(parts, body);
    let said = says_who(&x.attributes.user).ok_or_else(|| {
        Status::bad_request(
            "the user's name, groups or extra cannot be told to the server behind this API: they are \
            no text of a header",
        )
    })?;
    let answer = wire::proxy::forward_over(
        request,
        stream,
        &endpoint.authority(),
        &path,
        said,
        x.server.aggregation.caller.webhooks.group(),
    )
    .await;
    x.parts.headers = headers;
    Ok(answer
        .unwrap_or_else(|err| unavailable(&format!("error trying to reach service: {}\n", base::chain::Chain(&err)))))
}

fn unavailable(text: &str) -> Response<Body> {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
}
