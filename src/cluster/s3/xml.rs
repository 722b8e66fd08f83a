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

/// A document, or the content of an element of one.
#[derive(Clone, Copy, Debug)]
pub struct Xml<'a>(pub &'a str);

impl<'a> Xml<'a> {
    /// The text of the first element of this name.
    pub fn text_of(self, name: &str) -> Option<String> {
        self.elements(name).next().map(|element| unescape(element.0))
    }

    /// The elements of this name, as they stand in the text. Elements of one name never nest here.
    fn elements(self, name: &str) -> impl Iterator<Item = Xml<'a>> {
        let (open, close) = (format!("<{name}"), format!("</{name}>"));
        let mut rest = self.0;
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
                    return Some(Xml(""));
                }
                let end = inner.find(&close)?;
                rest = &inner[end + close.len()..];
                return Some(Xml(&inner[..end]));
            }
        })
    }
}

/// A page of ListObjectsV2.
pub fn page(document: Xml<'_>) -> Page {
    let entry = |element: Xml<'_>| {
        Some(Entry {
            key: element.text_of("Key")?,
            size: element.text_of("Size")?.parse().ok()?,
            modified: element.text_of("LastModified").unwrap_or_default(),
        })
    };
    let more = document.text_of("IsTruncated").is_some_and(|text| text == "true");
    Page {
        entries: document.elements("Contents").filter_map(entry).collect(),
        next: more.then(|| document.text_of("NextContinuationToken")).flatten(),
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
        let text = "<?xml version=\"1.0\"?>\
            <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><KeyCount>2</KeyCount>\
            <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>\
            <Contents><Key>f/x&#38;y &lt;1&gt;</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
            <Owner/><Size>12</Size></Contents>\
            <Contents><Key>f/z</Key><Size>3</Size></Contents></ListBucketResult>";
        let entry =
            |key: &str, size, modified: &str| Entry { key: key.to_owned(), size, modified: modified.to_owned() };
        let entries = vec![entry("f/x&y <1>", 12, "2026-01-01T00:00:00.000Z"), entry("f/z", 3, "")];
        assert_eq!(page(Xml(text)), Page { entries, next: Some("a&b".to_owned()) });
        assert_eq!(page(Xml("<ListBucketResult/>")), Page::default());
    }

    #[test]
    fn an_error_is_read_and_broken_text_is_none() {
        let text = "<Error><Code>AccessDenied</Code><Message>Access &quot;Denied&quot;</Message></Error>";
        assert_eq!(Xml(text).text_of("Code").unwrap(), "AccessDenied");
        assert_eq!(Xml(text).text_of("Message").unwrap(), "Access \"Denied\"");
        assert_eq!(Xml("<Code>cut").text_of("Code"), None);
        assert_eq!(unescape("a & b &unknown; &#xe4;"), "a & b &unknown; ä");
    }

    #[test]
    fn an_element_is_found_by_its_whole_name_with_attributes_or_empty() {
        for (text, want) in [
            ("<KeyCount>2</KeyCount><Key>a</Key>", Some("a")),
            ("<Key xml:space=\"preserve\"> a </Key>", Some(" a ")),
            ("<Key/>", Some("")),
            ("<Key />", Some("")),
            ("<Key></Key><Key>b</Key>", Some("")),
            ("<Key>a<Key", None),
            ("<key>a</key>", None),
            ("", None),
        ] {
            assert_eq!(Xml(text).text_of("Key").as_deref(), want, "{text}");
        }
    }

    #[test]
    fn a_page_that_ends_the_list_names_no_next_one_and_a_broken_entry_is_left_out() {
        let text = "<L><IsTruncated>false</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
            <Contents><Key>a</Key><Size>many</Size></Contents><Contents><Size>1</Size></Contents>\
            <Contents><Key>b</Key><Size>1</Size></Contents></L>";
        let found = page(Xml(text));
        assert_eq!(found.next, None);
        assert_eq!(found.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(page(Xml("<L><IsTruncated>true</IsTruncated></L>")).next, None, "it does not say how to go on");
    }

    #[test]
    fn references_are_characters_and_broken_ones_stay_as_they_are() {
        for (text, want) in [
            ("&amp;&lt;&gt;&quot;&apos;", "&<>\"'"),
            ("&#65;&#x42;&#x1F600;", "AB\u{1F600}"),
            ("&amp;amp;", "&amp;"),
            ("&#;&#x;&#xD800;&#99999999;", "&#;&#x;&#xD800;&#99999999;"),
            ("a&", "a&"),
            ("&amp", "&amp"),
        ] {
            assert_eq!(unescape(text), want, "{text}");
        }
    }
}
