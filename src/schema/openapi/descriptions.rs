//! The sentences for types and fields, collected at build time from the k8s-openapi crate (build.rs).

use std::collections::BTreeMap;

static TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/descriptions.txt"));

/// apiVersion and kind are no fields of the crate's structs, but this type spells them out.
const TYPE_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// An index that lives as long as one document is made.
pub(super) struct Descriptions {
    types: BTreeMap<&'static str, &'static str>,
    fields: BTreeMap<(&'static str, &'static str), &'static str>,
}

impl Descriptions {
    pub(super) fn read() -> Descriptions {
        let mut all = Descriptions { types: BTreeMap::new(), fields: BTreeMap::new() };
        let mut lines = TEXT.lines();
        let mut owner = "";
        while let (Some(head), Some(sentence)) = (lines.next(), lines.next()) {
            if let Some(name) = head.strip_prefix("T ") {
                owner = name;
                all.types.insert(name, sentence);
            } else if let Some(field) = head.strip_prefix("F ") {
                all.fields.insert((owner, field), sentence);
            }
        }
        all
    }

    pub(super) fn of_type(&self, name: &str) -> Option<String> {
        self.types.get(name).map(|s| plain(s)).filter(|s| !s.is_empty())
    }

    pub(super) fn of_field(&self, owner: &str, json_name: &str) -> Option<String> {
        let key: String = json_name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let of = |owner: &str| self.fields.get(&(owner, key.as_str())).map(|s| plain(s));
        of(owner).or_else(|| if matches!(json_name, "apiVersion" | "kind") { of(TYPE_META) } else { None }).filter(|s| !s.is_empty())
    }
}

/// Undoes what a doc comment needs and a sentence does not: escaped punctuation and our own line breaks.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('n')) => {
                chars.next();
                out.push('\n');
            }
            ('\\', Some(next)) if next.is_ascii_punctuation() => {}
            _ => out.push(c),
        }
    }
    out
}
