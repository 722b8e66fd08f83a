//! The sentences for types and fields, collected at build time from the k8s-openapi crate (build.rs).

use std::ops::Range;

/// Compressed, for it is a big part of the program and rarely asked for.
static TEXT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.zst"));

/// apiVersion and kind are no fields of the crate's structs, but this type spells them out.
const TYPE_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// An index that lives as long as one document is made.
pub(super) struct Descriptions {
    text: String,
    /// Type, field (empty: the type itself) and sentence, as places in `text`, sorted by the first two.
    index: Vec<[Range<usize>; 3]>,
}

impl Descriptions {
    pub(super) fn read() -> Descriptions {
        let text = zstd::decode_all(TEXT).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let place = |part: &str| {
            let start = part.as_ptr().addr() - text.as_ptr().addr();
            start..start + part.len()
        };
        let mut index = Vec::new();
        let mut lines = text.lines();
        let mut owner = "";
        while let (Some(head), Some(sentence)) = (lines.next(), lines.next()) {
            if let Some(name) = head.strip_prefix("T ") {
                owner = name;
                index.push([place(name), 0..0, place(sentence)]);
            } else if let Some(field) = head.strip_prefix("F ") {
                index.push([place(owner), place(field), place(sentence)]);
            }
        }
        index.sort_by(|[o1, f1, _], [o2, f2, _]| {
            (&text[o1.clone()], &text[f1.clone()]).cmp(&(&text[o2.clone()], &text[f2.clone()]))
        });
        Descriptions { text, index }
    }

    fn find(&self, owner: &str, field: &str) -> Option<String> {
        let key = |[owner, field, _]: &[Range<usize>; 3]| (&self.text[owner.clone()], &self.text[field.clone()]);
        let at = self.index.binary_search_by(|entry| key(entry).cmp(&(owner, field))).ok()?;
        Some(plain(&self.text[self.index[at][2].clone()]))
    }

    pub(super) fn of_type(&self, name: &str) -> Option<String> {
        self.find(name, "").filter(|s| !s.is_empty())
    }

    pub(super) fn of_field(&self, owner: &str, json_name: &str) -> Option<String> {
        let key: String =
            json_name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let of = |owner: &str| self.find(owner, &key);
        of(owner)
            .or_else(|| if matches!(json_name, "apiVersion" | "kind") { of(TYPE_META) } else { None })
            .filter(|s| !s.is_empty())
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
