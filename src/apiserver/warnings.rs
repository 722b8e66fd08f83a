//! `Warning` headers of an answer: each text once, and never more than a client's parser of headers takes.

use std::collections::HashSet;

use http::HeaderValue;

/// Characters in all warnings of an answer, before texts are cut (apiserver `endpoints/filters/warning.go`, 1.36.2).
const TOTAL_MAX: usize = 4 * 1024;
/// Characters of one text where texts are cut.
const CUT_AT: usize = 256;

/// The headers' values, in the order of `texts`.
///
/// Where the texts are longer than 4096 characters together, each is cut to 256, and those beyond the 4096 are left
/// out.
pub(crate) fn headers(texts: impl IntoIterator<Item = String>) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty() && seen.insert(text.clone())).collect();
    let total: usize = texts.iter().map(|text| text.chars().count()).sum();
    let cut = |text: &String| if total > TOTAL_MAX { text.chars().take(CUT_AT).collect() } else { text.clone() };
    let mut written = 0;
    let mut out = Vec::new();
    for text in texts.iter().map(cut) {
        if written >= TOTAL_MAX {
            break;
        }
        written += text.chars().count();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        out.extend(HeaderValue::from_str(&format!("299 - \"{quoted}\"")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(texts: Vec<String>) -> Vec<usize> {
        headers(texts).iter().map(HeaderValue::len).collect()
    }

    #[test]
    fn a_warning_is_said_once() {
        let said = headers(["a \"b\"\n".to_owned(), "c".to_owned(), "a \"b\"\n".to_owned(), String::new()]);
        assert_eq!(said, ["299 - \"a \\\"b\\\" \"", "299 - \"c\""]);
    }

    #[test]
    fn many_warnings_do_not_make_an_answer_that_nobody_can_read() {
        let long = |n: usize| (0..n).map(|i| format!("{i:04}{}", "x".repeat(496))).collect::<Vec<_>>();
        assert_eq!(sizes(long(8)), [508; 8]);
        // 256 characters each from the ninth on, 16 of them.
        assert_eq!(sizes(long(9)), [264; 9]);
        assert_eq!(sizes(long(100_000)), [264; 16]);
    }
}
