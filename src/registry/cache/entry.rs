//! One object as the watch cache keeps it: its final JSON and the few facts that selectors need.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use schema::table::Name;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::keys;

/// How the stored objects of a resource are read.
#[derive(Clone, Default)]
pub struct Form {
    /// The selectable fields besides `metadata.name` and `metadata.namespace`.
    pub selectable: Arc<[Name]>,
    /// Brings what an older definition let in into the form of today's (custom resources).
    pub normal: Option<Arc<Normal>>,
}

/// See [`Form::normal`]: `None` when the bytes are in that form already.
pub type Normal = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

/// An object at one revision.
#[derive(Debug)]
pub struct Entry {
    /// `namespace/name`, or `name`.
    pub key: Box<str>,
    /// The revision that wrote it.
    pub rv: u64,
    /// JSON in the storage version, `metadata.resourceVersion` included.
    pub json: Bytes,
    /// The selectable fields in the resource's order, then each label's key and value, sorted by key.
    texts: Texts,
    n_fields: usize,
    rv_at: usize,
}

/// Several texts in two pieces of memory: every object has a dozen, and most are shorter than what a piece of their own
/// would cost.
#[derive(Debug)]
struct Texts {
    all: Box<str>,
    ends: Box<[u32]>,
}

impl Texts {
    fn of<'t>(texts: impl Iterator<Item = &'t str>) -> Texts {
        let (mut all, mut ends) = (String::new(), Vec::new());
        for text in texts {
            all.push_str(text);
            // An object has less than 3 MiB.
            ends.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
        }
        Texts { all: all.into(), ends: ends.into() }
    }

    fn get(&self, n: usize) -> Option<&str> {
        let end = *self.ends.get(n)? as usize;
        let start = n.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.all.get(start..end)
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
struct Labels {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

const RV_FIELD: &str = "\"resourceVersion\":\"";

impl Entry {
    /// Builds the entry from what the store holds (JSON without `resourceVersion`).
    ///
    /// Errors: the stored bytes are no object with metadata.
    pub fn build(local_key: &str, stored: &[u8], rv: u64, form: &Form) -> Result<Entry, serde_json::Error> {
        let normal = form.normal.as_ref().and_then(|normal| normal(stored));
        let (stored, selectable) = (normal.as_deref().unwrap_or(stored), form.selectable.as_ref());
        let envelope: Envelope<'_> = serde_json::from_slice(stored)?;
        let metadata = envelope.metadata.get();
        let labels: Labels = serde_json::from_str(metadata)?;
        // Both slices point into the same buffer; the brace of `metadata` is where the version goes in.
        let brace = metadata.as_ptr().addr() - stored.as_ptr().addr() + 1;
        let digits = rv.to_string();
        let mut json = Vec::with_capacity(stored.len() + RV_FIELD.len() + digits.len() + 2);
        json.extend_from_slice(&stored[..brace]);
        json.extend_from_slice(RV_FIELD.as_bytes());
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(if metadata.trim_start_matches('{').trim_start().starts_with('}') {
            b"\""
        } else {
            b"\","
        });
        json.extend_from_slice(&stored[brace..]);
        let (fields, labels) = (texts(stored, selectable)?, labels.labels.unwrap_or_default());
        let of_labels = labels.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
        Ok(Entry {
            key: local_key.into(),
            rv,
            json: json.into(),
            texts: Texts::of(fields.iter().map(AsRef::as_ref).chain(of_labels)),
            n_fields: fields.len(),
            rv_at: brace + RV_FIELD.len(),
        })
    }

    /// The same object with another resource version: what a DELETED event carries.
    pub fn json_at(&self, rv: u64) -> Bytes {
        let old = self.rv.to_string();
        let mut json = Vec::with_capacity(self.json.len() + 4);
        json.extend_from_slice(&self.json[..self.rv_at]);
        json.extend_from_slice(rv.to_string().as_bytes());
        json.extend_from_slice(&self.json[self.rv_at + old.len()..]);
        json.into()
    }

    /// Namespace, empty in cluster scope.
    pub fn namespace(&self) -> &str {
        keys::split_local(&self.key).0
    }

    /// Name.
    pub fn name(&self) -> &str {
        keys::split_local(&self.key).1
    }

    /// The parsed object. What is in the cache was parsed once already, so `Null` is never seen.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// The text of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let mut keys = (self.n_fields..self.texts.ends.len()).step_by(2);
        let at = keys.find(|at| self.texts.get(*at) == Some(key))?;
        self.texts.get(at + 1)
    }

    /// The text of the selectable field at this place in the resource's order.
    pub fn field(&self, at: usize) -> Option<&str> {
        self.texts.get(at).filter(|_| at < self.n_fields)
    }
}

/// Of events: who told it.
const SOURCE: &str = "source";

/// Reads the texts at some dotted paths in one pass; missing ones are empty, or `false` for the two booleans upstream
/// prints.
fn texts(json: &[u8], paths: &[Name]) -> Result<Box<[Box<str>]>, serde_json::Error> {
    let mut out: Vec<Box<str>> = paths
        .iter()
        .map(|path| {
            if matches!(path.as_ref(), "spec.unschedulable" | "spec.hostNetwork") { "false".into() } else { "".into() }
        })
        .collect();
    if paths.iter().any(|path| !matches!(path.as_ref(), "metadata.name" | "metadata.namespace")) {
        let wanted: Vec<(usize, &str)> = paths
            .iter()
            .map(|path| if path == SOURCE { "source.component" } else { path.as_ref() })
            .enumerate()
            .collect();
        let mut reader = serde_json::Deserializer::from_slice(json);
        Fields { wanted, out: &mut out }.deserialize(&mut reader)?;
    }
    // Newer clients name an event's source in another field only.
    let at = |name: &str| paths.iter().position(|path| path == name);
    if let (Some(source), Some(newer)) = (at(SOURCE).filter(|at| out[*at].is_empty()), at("reportingComponent")) {
        out[source] = out[newer].clone();
    }
    Ok(out.into())
}

/// Walks into a document along several paths at once; `wanted` are the rests of the paths that lead here.
struct Fields<'a, 'p> {
    wanted: Vec<(usize, &'p str)>,
    out: &'a mut Vec<Box<str>>,
}

impl<'de> DeserializeSeed<'de> for Fields<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Fields<'_, '_> {
    fn found(self, text: &str) {
        for (idx, rest) in self.wanted {
            if rest.is_empty() {
                self.out[idx] = text.into();
            }
        }
    }
}

impl<'de> Visitor<'de> for Fields<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let inner: Vec<(usize, &str)> = self
                .wanted
                .iter()
                .filter_map(|(idx, rest)| {
                    let (first, tail) = rest.split_once('.').unwrap_or((rest, ""));
                    (first == key).then_some((*idx, tail))
                })
                .collect();
            if inner.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Fields { wanted: inner, out: self.out })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.found(text);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.found(if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.found(&value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.found(&value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.found(&value.to_string());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &[u8] = concat!(
        r#"{"data":{"metadata":{}},"metadata":{"labels":{"b":"","a":"1"},"name":"x","namespace":"n"},"#,
        r#""spec":{"containers":[{}],"nodeName":"n1"},"status":{"phase":"Running"}}"#
    )
    .as_bytes();

    #[test]
    fn the_version_goes_into_the_metadata_and_nowhere_else() {
        let selectable: Vec<Name> =
            vec!["spec.nodeName".into(), "status.phase".into(), "spec.hostNetwork".into(), "status.podIP".into()];
        let entry = Entry::build("n/x", POD, 7, &Form { selectable: selectable.into(), normal: None }).unwrap();
        assert_eq!(entry.value()["metadata"]["resourceVersion"], "7");
        assert_eq!((entry.label("a"), entry.label("b"), entry.label("1")), (Some("1"), Some(""), None));
        assert_eq!((0..5).map_while(|at| entry.field(at)).collect::<Vec<_>>(), ["n1", "Running", "false", ""]);
        let later: Value = serde_json::from_slice(&entry.json_at(1234)).unwrap();
        assert_eq!(later["metadata"]["resourceVersion"], "1234");
        assert_eq!(later["metadata"]["name"], "x");
    }

    #[test]
    fn an_event_is_found_by_the_component_that_told_it() {
        let selectable: Vec<Name> = vec!["reportingComponent".into(), "source".into()];
        let form = Form { selectable: selectable.into(), normal: None };
        let source = |event: &[u8]| Entry::build("n/x", event, 7, &form).unwrap().field(1).unwrap().to_owned();
        assert_eq!(
            source(br#"{"metadata":{},"source":{"component":"kubelet"},"reportingComponent":"other"}"#),
            "kubelet"
        );
        assert_eq!(source(br#"{"metadata":{},"source":{},"reportingComponent":"kubelet"}"#), "kubelet");
    }
}
