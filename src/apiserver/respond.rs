//! Writing answers: objects, statuses and lists in the form the client asked for.

use std::io;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY};
use http::{HeaderMap, Response, StatusCode};
use registry::negotiate::{self, Format, Output};
use registry::status::Status;
use schema::discovery::order::InOrder;
use serde_json::Value;
use wire::Body;

/// Answers from this size on are compressed for clients that ask, as upstream's `defaultGzipThresholdBytes`.
const GZIP_FROM_BYTES: usize = 128 * 1024;

/// Line breaks and indentation may make an answer so many times as long as it is without them, beside [`SPACES_BYTES`]:
/// of what is nested deeply there would be hundreds of spaces for each byte.
const SPACES_TIMES_MAX: usize = 8;
const SPACES_BYTES: usize = 64 * 1024;

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
        Format::Protobuf => match schema::protobuf::encode(value) {
            Ok(bytes) => bytes,
            Err(err) => return unencodable(&err, headers),
        },
        format => written(value, format, output.pretty),
    };
    chunks(code, output.format.content_type(), vec![bytes.into()], headers)
}

/// A value as text: YAML, or else JSON. (JSON is YAML, too.)
pub fn written(value: &Value, format: Format, pretty: bool) -> Vec<u8> {
    let spacious = match format {
        Format::Yaml => yaml(value),
        _ if pretty => spacious(value, |writer, value| serde_json::to_writer_pretty(writer, value)),
        _ => {
            let mut out = serde_json::to_vec(value).unwrap_or_default();
            out.push(b'\n');
            return out;
        }
    };
    spacious.unwrap_or_else(|| serde_json::to_vec(value).unwrap_or_default())
}

/// A value as YAML; nothing if that would be made of spaces.
pub fn yaml(value: &Value) -> Option<Vec<u8>> {
    spacious(value, serde_saphyr::to_fmt_writer)
}

/// Takes no more than there is room for.
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| std::fmt::Error)
    }
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value with the spaces that `write` gives it; nothing where those would be most of the answer.
fn spacious<E>(value: &Value, write: impl Fn(&mut Bounded, &Value) -> Result<(), E>) -> Option<Vec<u8>> {
    let mut plain = Length(0);
    serde_json::to_writer(&mut plain, value).ok()?;
    let mut bounded =
        Bounded { bytes: Vec::new(), max: plain.0.saturating_mul(SPACES_TIMES_MAX).saturating_add(SPACES_BYTES) };
    write(&mut bounded, value).ok()?;
    Some(bounded.bytes)
}

/// Refusal of an object that cannot be protobuf.
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
        put_packed(&mut response, packed);
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

fn put_packed(response: &mut Response<Body>, packed: Bytes) {
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(packed.len()));
    *response.body_mut() = wire::body::full(packed);
}

/// The answer that [`chunks`] gives, of what is compressed already and has `length` bytes when it is not. Who wants it
/// plain gets it piece by piece.
pub fn packed(content_type: &'static str, packed: &Bytes, length: usize, headers: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(wire::body::empty());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if length >= GZIP_FROM_BYTES && wire::gzip::accepted(headers) {
        put_packed(&mut response, packed.clone());
        return response;
    }
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    *response.body_mut() = wire::body::stream(futures_util::stream::iter(wire::gzip::opened(packed.clone())));
    response
}

/// Go's answer for a path that nobody handles.
pub fn page_not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    // security-3 F1: an object of a megabyte was hundreds of megabytes long once it was indented.
    #[tokio::test]
    async fn an_answer_is_not_made_of_spaces() {
        let deep = (0..100).fold(Value::from(vec![0; 100_000]), |inner, _| Value::from(vec![inner]));
        let plain = serde_json::to_vec(&deep).unwrap();
        let shallow = serde_json::json!({ "a": [1, { "b": "c" }] });
        for (format, spaced) in [
            (Format::Json, serde_json::to_string_pretty(&shallow).unwrap()),
            (Format::Yaml, serde_saphyr::to_string(&shallow).unwrap()),
        ] {
            let said = async |of: &Value| {
                let output = Output { format, pretty: true, ..Output::default() };
                let answer = value(StatusCode::OK, of, output, &HeaderMap::new());
                wire::body::collect(answer.into_body(), usize::MAX).await.unwrap()
            };
            assert_eq!(said(&shallow).await, spaced);
            assert_eq!(said(&deep).await, plain);
        }
    }
}
