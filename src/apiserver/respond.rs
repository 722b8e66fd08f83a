//! Writing answers: objects, statuses and lists in the form the client asked for.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY};
use http::{HeaderMap, Response, StatusCode};
use schema::discovery::order::InOrder;
use serde_json::Value;
use wire::Body;

use crate::negotiate::{self, Format, Output};
use crate::status::Status;

/// Answers from this size on are compressed for clients that ask, as upstream's `defaultGzipThresholdBytes`.
const GZIP_FROM_BYTES: usize = 128 * 1024;

/// A failure. A client that accepts nothing we speak gets JSON.
pub fn status(status: &Status, headers: &HeaderMap) -> Response<Body> {
    let output = negotiate::output_with_protobuf(headers).unwrap_or_default();
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = value(code, &status.to_value(), output, headers);
    if status.retry_after > 0 {
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(status.retry_after));
    }
    response
}

/// A JSON value in the wanted format. What cannot be protobuf becomes a failure that says so: 406 for a kind without
/// tags, 500 for a stored value that is not of its type.
pub fn value(code: StatusCode, value: &Value, output: Output, headers: &HeaderMap) -> Response<Body> {
    let bytes = match output.format {
        Format::Json if output.pretty => serde_json::to_vec_pretty(value).unwrap_or_default(),
        Format::Protobuf => match schema::protobuf::encode(value) {
            Ok(bytes) => bytes,
            Err(err) => return unencodable(&err, headers),
        },
        Format::Json => {
            let mut out = serde_json::to_vec(value).unwrap_or_default();
            out.push(b'\n');
            out
        }
        Format::Yaml => serde_saphyr::to_string(value).unwrap_or_default().into_bytes(),
    };
    chunks(code, output.format.content_type(), vec![bytes.into()], headers)
}

/// What cannot be protobuf.
pub fn unencodable(why: &schema::protobuf::ProtobufError, headers: &HeaderMap) -> Response<Body> {
    let failure = match why {
        schema::protobuf::ProtobufError::NoTags(_) => Status::new(406, "NotAcceptable", why.to_string()),
        why => Status::internal(why),
    };
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let bytes = schema::protobuf::encode(&failure.to_value()).unwrap_or_default();
    chunks(code, Format::Protobuf.content_type(), vec![bytes.into()], headers)
}

/// A body that is made while the client reads.
pub fn streamed(code: StatusCode, content_type: &'static str, is_packed: bool, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if is_packed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// A discovery document: JSON with its keys in upstream's order.
pub fn discovery(document: &Value, output: Output, headers: &HeaderMap) -> Response<Body> {
    let bytes = match output.format {
        Format::Json if output.pretty => serde_json::to_vec_pretty(&InOrder(document)),
        Format::Json => serde_json::to_vec(&InOrder(document)),
        Format::Yaml | Format::Protobuf => return value(StatusCode::OK, document, output, headers),
    };
    let mut bytes = bytes.unwrap_or_default();
    if !output.pretty {
        bytes.push(b'\n');
    }
    chunks(StatusCode::OK, output.format.content_type(), vec![bytes.into()], headers)
}

/// Bytes that are JSON already.
pub fn json(code: StatusCode, json: Bytes, output: Output, headers: &HeaderMap) -> Response<Body> {
    if output.format == Format::Json && !output.pretty {
        return chunks(code, Format::Json.content_type(), vec![json], headers);
    }
    value(code, &serde_json::from_slice::<Value>(&json).unwrap_or_default(), output, headers)
}

/// A text.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    chunks(code, "text/plain; charset=utf-8", vec![text.into()], &HeaderMap::new())
}

/// Pieces that together are the body, compressed if they are large and the client wants it.
pub fn chunks(code: StatusCode, content_type: &'static str, pieces: Vec<Bytes>, headers: &HeaderMap) -> Response<Body> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let mut response = Response::new(wire::body::empty());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if length >= GZIP_FROM_BYTES
        && wire::gzip::accepted(headers)
        && let Ok(packed) = wire::gzip::compress(&pieces)
    {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(packed.len()));
        *response.body_mut() = wire::body::full(packed);
        return response;
    }
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    let mut pieces = pieces.into_iter();
    *response.body_mut() = match (pieces.next(), pieces.len()) {
        (Some(only), 0) => wire::body::full(only),
        (first, _) => {
            let all = first.into_iter().chain(pieces).map(Ok::<_, std::convert::Infallible>);
            wire::body::stream(futures_util::stream::iter(all))
        }
    };
    response
}
