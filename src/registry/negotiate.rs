//! Media types: what the client sends and what it wants back.

use base::url::Query;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};

use crate::status::Status;

/// Everything the server reads and writes.
pub const MEDIA_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
/// The same where there is no protobuf: custom resources, discovery.
const TEXT_MEDIA_TYPES: &str = "application/json, application/yaml";

/// Wire form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `application/json`
    #[default]
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// Form of the object when it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// Nothing.
    #[default]
    Object,
    /// `as=Table`
    Table,
    /// `as=PartialObjectMetadata` or `as=PartialObjectMetadataList`
    Metadata,
}

/// How to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Wire form.
    pub format: Format,
    /// Shape.
    pub transform: Transform,
    /// Version of `meta.k8s.io` of a Table or PartialObjectMetadata: `v1beta1` was asked for.
    pub beta: bool,
    /// With line breaks and indentation.
    pub pretty: bool,
}

impl Format {
    /// For the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => schema::protobuf::MEDIA_TYPE,
        }
    }
}

/// Chooses among what `Accept` offers, best quality first, for answers that are never protobuf.
///
/// Errors: 406 when nothing offered can be had.
pub fn output(headers: &HeaderMap) -> Result<Output, Status> {
    let text = |output: &Output| output.format != Format::Protobuf;
    choose(headers, text).ok_or_else(|| Status::not_acceptable(TEXT_MEDIA_TYPES))
}

/// The same for objects whose types have protobuf tags. A Table has none.
///
/// Errors: 406 when nothing offered can be had.
pub fn output_with_protobuf(headers: &HeaderMap) -> Result<Output, Status> {
    let known = |output: &Output| output.format != Format::Protobuf || output.transform != Transform::Table;
    choose(headers, known).ok_or_else(|| Status::not_acceptable(MEDIA_TYPES))
}

/// The same for custom objects: only their metadata has a protobuf form.
///
/// Errors: 406 when nothing offered can be had.
pub fn output_of_custom(headers: &HeaderMap) -> Result<Output, Status> {
    let known = |output: &Output| output.format != Format::Protobuf || output.transform == Transform::Metadata;
    choose(headers, known).ok_or_else(|| Status::not_acceptable(TEXT_MEDIA_TYPES))
}

fn choose(headers: &HeaderMap, had: impl Fn(&Output) -> bool) -> Option<Output> {
    let person = is_person(headers);
    let offers: Vec<&str> =
        headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).collect();
    if offers.iter().all(|offer| offer.trim().is_empty()) {
        return Some(Output { pretty: person, ..Output::default() });
    }
    let mut ranked: Vec<(f32, Output)> =
        offers.into_iter().filter_map(offer).filter(|(_, output)| had(output)).collect();
    // A stable sort: of equal quality the first one wins, as upstream's goautoneg.
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranked.first().map(|(_, output)| Output { pretty: output.pretty || person, ..*output })
}

/// Programs that people read the answers of: browsers, curl, wget.
///
/// Spec: upstream v1.36 `negotiation.isPrettyPrint`.
fn is_person(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|start| agent.starts_with(start))
}

/// Whether JSON is indented: `pretty` of the query overrules what media type and program say.
pub fn is_pretty(query: &Query, output: Output) -> bool {
    match query.text("pretty") {
        "" => output.pretty,
        said => matches!(said, "1" | "t" | "T" | "true" | "TRUE" | "True"),
    }
}

fn offer(text: &str) -> Option<(f32, Output)> {
    let mut parts = text.split(';').map(str::trim);
    let format = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/json" | "*/*" | "application/*" => Format::Json,
        "application/yaml" => Format::Yaml,
        schema::protobuf::MEDIA_TYPE => Format::Protobuf,
        _ => return None,
    };
    let mut output = Output { format, ..Output::default() };
    let (mut quality, mut group) = (1.0, "");
    for (key, value) in parts.filter_map(|p| p.split_once('=')) {
        match (key, value) {
            ("q", q) => quality = q.parse().unwrap_or(0.0),
            ("as", "Table") => output.transform = Transform::Table,
            ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => output.transform = Transform::Metadata,
            ("as", _) => return None,
            ("g", g) => group = g,
            ("v", v) => output.beta = v == "v1beta1",
            ("pretty", p) => output.pretty = p == "1" || p == "true",
            _ => {}
        }
    }
    let wrong_group = output.transform != Transform::Object && group != "meta.k8s.io";
    (!wrong_group && quality > 0.0).then_some((quality, output))
}

/// Form of the request's body.
///
/// Errors: 415 for a form that is not understood.
pub fn input(headers: &HeaderMap) -> Result<Format, Status> {
    match media_type(headers).as_str() {
        "" | "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        schema::protobuf::MEDIA_TYPE => Ok(Format::Protobuf),
        _ => Err(Status::unsupported_media_type(MEDIA_TYPES)),
    }
}

/// The bare media type of the body, lower case; empty without one.
pub fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &str) -> Result<Output, Status> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().unwrap());
        output(&headers)
    }

    #[test]
    fn kubectl_gets_a_table_and_protobuf_falls_back_to_json() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,\
            application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accept(kubectl).unwrap().transform, Transform::Table);
        assert_eq!(accept("application/vnd.kubernetes.protobuf,application/json").unwrap(), Output::default());
        assert_eq!(accept("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        assert_eq!(accept("application/json;q=0.5,application/yaml").unwrap().format, Format::Yaml);
    }

    #[test]
    fn protobuf_is_chosen_where_it_is_spoken_but_never_for_a_table() {
        let chosen = |text: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, text.parse().unwrap())]);
            output_with_protobuf(&headers).map(|o| (o.format, o.transform))
        };
        assert_eq!(
            chosen("application/vnd.kubernetes.protobuf,application/json").unwrap(),
            (Format::Protobuf, Transform::Object)
        );
        assert_eq!(chosen("application/vnd.kubernetes.protobuf;stream=watch").unwrap().0, Format::Protobuf);
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(
            chosen(&format!("{table},application/json;as=Table;v=v1;g=meta.k8s.io")).unwrap(),
            (Format::Json, Transform::Table)
        );
        assert_eq!(chosen(table).unwrap_err().code, 406);
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        assert_eq!(chosen(metadata).unwrap(), (Format::Protobuf, Transform::Metadata));
        let custom =
            |text: &str| output_of_custom(&HeaderMap::from_iter([(ACCEPT, text.parse().unwrap())])).map(|o| o.format);
        assert_eq!(custom(metadata).unwrap(), Format::Protobuf);
        assert_eq!(custom("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }

    #[test]
    fn the_best_of_what_is_offered_is_chosen() {
        let json = Output::default();
        let yaml = Output { format: Format::Yaml, ..json };
        for (text, expected) in [
            ("", Some(json)),
            ("*/*", Some(json)),
            ("application/*", Some(json)),
            ("text/html, */*;q=0.1", Some(json)),
            ("APPLICATION/YAML", Some(yaml)),
            ("application/yaml;q=0.9,application/json;q=0.8", Some(yaml)),
            ("application/yaml,application/json", Some(yaml)),
            ("application/json;q=0,application/yaml;q=0.1", Some(yaml)),
            ("application/json;q=bad", None),
            ("application/json;pretty=1", Some(Output { pretty: true, ..json })),
            (
                "application/json;as=Table;g=meta.k8s.io;v=v1beta1",
                Some(Output { transform: Transform::Table, beta: true, ..json }),
            ),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Some(Output { transform: Transform::Metadata, ..json }),
            ),
            // Shapes that nobody knows, and a group that has none.
            ("application/json;as=Other;g=meta.k8s.io", None),
            ("application/json;as=Table;g=apps", None),
            ("application/json;as=Table", None),
            ("text/html", None),
        ] {
            assert_eq!(accept(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_refusal_names_what_can_be_had() {
        let headers = HeaderMap::from_iter([(ACCEPT, "text/html".parse().unwrap())]);
        for (refused, expected) in [
            (output(&headers), "application/json, application/yaml"),
            (output_of_custom(&headers), "application/json, application/yaml"),
            (output_with_protobuf(&headers), "application/json, application/yaml, application/vnd.kubernetes.protobuf"),
        ] {
            let status = refused.unwrap_err();
            assert_eq!(status.message, format!("only the following media types are accepted: {expected}"));
        }
    }

    #[test]
    fn programs_of_people_get_line_breaks_unless_they_say_otherwise() {
        for (agent, query, pretty) in [
            ("curl/8.5.0", "", true),
            ("Wget/1.21", "", true),
            ("Mozilla/5.0 (X11)", "", true),
            ("kubectl/v1.36", "", false),
            ("kubectl/v1.36", "pretty=true", true),
            ("kubectl/v1.36", "pretty=1", true),
            ("curl/8.5.0", "pretty=false", false),
            ("curl/8.5.0", "pretty=yes", false),
            ("curl/8.5.0", "pretty=", true),
        ] {
            let headers = HeaderMap::from_iter([(USER_AGENT, agent.parse().unwrap())]);
            assert_eq!(is_pretty(&Query::parse(query), output(&headers).unwrap()), pretty, "{agent} {query}");
        }
    }

    #[test]
    fn a_body_is_read_by_its_media_type() {
        for (text, expected) in [
            ("", Some(Format::Json)),
            ("application/json", Some(Format::Json)),
            ("Application/JSON ; charset=utf-8", Some(Format::Json)),
            ("application/yaml", Some(Format::Yaml)),
            ("application/vnd.kubernetes.protobuf", Some(Format::Protobuf)),
            ("application/xml", None),
            ("application/json-patch+json", None),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, text.parse().unwrap())]);
            let read = input(&headers);
            assert_eq!(read.as_ref().ok().copied(), expected, "{text}");
            assert_eq!(read.err().map(|status| status.code), expected.is_none().then_some(415), "{text}");
        }
        assert_eq!(input(&HeaderMap::new()).ok(), Some(Format::Json));
    }
}
