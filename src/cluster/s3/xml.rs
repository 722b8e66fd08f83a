//! Reading S3's answers in XML: lists of objects, an upload's id, errors. Pure.

/// An object in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its whole key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was written, as the server says it.
    pub modified: String,
}

/// One page of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub entries: Vec<Entry>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// The contents of the elements of this name, as they stand in the text. Elements of one name never nest here.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let after = rest.get(rest.find(&open)? + open.len()..)?;
            rest = after;
            // `<Key` also begins `<KeyCount>`.
            if !after.starts_with(['>', ' ', '/']) {
                continue;
            }
            let (attributes, inner) = after.split_once('>')?;
            if attributes.ends_with('/') {
                return Some("");
            }
            let end = inner.find(&close)?;
            rest = &inner[end + close.len()..];
            return Some(&inner[..end]);
        }
    })
}

/// The text of the first element of this name.
pub fn text_of(document: &str, name: &str) -> Option<String> {
    elements(document, name).next().map(unescape)
}

/// A page of ListObjectsV2.
pub fn page(document: &str) -> Page {
    let entry = |element: &str| {
        Some(Entry {
            key: text_of(element, "Key")?,
            size: text_of(element, "Size")?.parse().ok()?,
            modified: text_of(element, "LastModified").unwrap_or_default(),
        })
    };
    let more = text_of(document, "IsTruncated").is_some_and(|text| text == "true");
    Page {
        entries: elements(document, "Contents").filter_map(entry).collect(),
        next: more.then(|| text_of(document, "NextContinuationToken")).flatten(),
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let Some((name, tail)) = after.split_once(';') else {
            out.push('&');
            rest = after;
            continue;
        };
        let number = |digits: &str| match digits.strip_prefix('x') {
            Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok(),
            None => digits.parse().ok(),
        };
        match name {
            "amp" => out.push('&'),
            "lt" => out.push('<'),
            "gt" => out.push('>'),
            "quot" => out.push('"'),
            "apos" => out.push('\''),
            _ => match name.strip_prefix('#').and_then(number).and_then(char::from_u32) {
                Some(c) => out.push(c),
                None => out.push_str(&format!("&{name};")),
            },
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_what_follows_it() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><KeyCount>2</KeyCount>\
            <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>\
            <Contents><Key>f/x&#38;y &lt;1&gt;</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Owner/><Size>12</Size></Contents>\
            <Contents><Key>f/z</Key><Size>3</Size></Contents></ListBucketResult>";
        let entry =
            |key: &str, size, modified: &str| Entry { key: key.to_owned(), size, modified: modified.to_owned() };
        let entries = vec![entry("f/x&y <1>", 12, "2026-01-01T00:00:00.000Z"), entry("f/z", 3, "")];
        assert_eq!(page(text), Page { entries, next: Some("a&b".to_owned()) });
        assert_eq!(page("<ListBucketResult/>"), Page::default());
    }

    #[test]
    fn an_error_is_read_and_broken_text_is_none() {
        let text = "<Error><Code>AccessDenied</Code><Message>Access &quot;Denied&quot;</Message></Error>";
        assert_eq!(text_of(text, "Code").unwrap(), "AccessDenied");
        assert_eq!(text_of(text, "Message").unwrap(), "Access \"Denied\"");
        assert_eq!(text_of("<Code>cut", "Code"), None);
        assert_eq!(unescape("a & b &unknown; &#xe4;"), "a & b &unknown; ä");
    }
}
