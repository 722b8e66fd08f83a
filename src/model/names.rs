//! The shapes that names may have: labels, subdomains, keys, ports, paths. Each returns upstream's texts, empty when
//! fine.

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FMT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// A check of a name; the flag says that it is a prefix to which something will be appended.
pub type NameCheck = fn(&str, NameUse) -> Vec<String>;

/// Whether a text is a name or the beginning of one (`generateName`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameUse {
    /// `metadata.name`
    Whole,
    /// `metadata.generateName`: a trailing dash is fine.
    Prefix,
}

fn regex_error(message: &str, format: &str, examples: &[&str]) -> String {
    let examples = examples.iter().map(|e| format!("'{e}', ")).collect::<Vec<_>>().join(" or ");
    format!("{message} (e.g. {examples}regex used for validation is '{format}')")
}

/// DNS names and ports count `characters`, label keys and values `bytes`: upstream's texts differ so.
fn too_long(max: usize, unit: &str) -> String {
    format!("must be no more than {max} {unit}")
}

fn lower_or_digit(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_dns_label(text: &str) -> bool {
    let b = text.as_bytes();
    !b.is_empty()
        && lower_or_digit(b[0])
        && lower_or_digit(b[b.len() - 1])
        && b.iter().all(|c| lower_or_digit(*c) || *c == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// RFC 1123 label: `my-name`, at most 63.
pub fn dns_label_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63, "characters"));
    }
    if !is_dns_label(text) {
        if is_subdomain(text) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(regex_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character",
                LABEL_FMT,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

/// RFC 1123 subdomain: `example.com`, at most 253.
pub fn dns_subdomain_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253, "characters"));
    }
    if !is_subdomain(text) {
        errors.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN_FMT,
            &["example.com"],
        ));
    }
    errors
}

/// RFC 1035 label: starts with a letter, at most 63.
pub fn dns_1035_label_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63, "characters"));
    }
    if !is_dns_label(text) || !text.as_bytes()[0].is_ascii_lowercase() {
        errors.push(regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// `*.example.com`.
pub fn wildcard_subdomain_errors(text: &str) -> Vec<String> {
    if text.strip_prefix("*.").is_some_and(is_subdomain) && text.len() <= 253 {
        return Vec::new();
    }
    vec![regex_error(
        "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
         lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
        &format!(r"\*\.{SUBDOMAIN_FMT}"),
        &["*.example.com"],
    )]
}

fn is_qualified_part(text: &str) -> bool {
    let b = text.as_bytes();
    !b.is_empty()
        && b[0].is_ascii_alphanumeric()
        && b[b.len() - 1].is_ascii_alphanumeric()
        && b.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

/// A label or annotation key: `name` or `prefix/name`.
pub fn qualified_name_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns_subdomain_errors(prefix).into_iter().map(|e| format!("prefix part {e}")));
            }
            name
        }
        _ => {
            let message = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start \
                           and end with an alphanumeric character";
            let text = regex_error(message, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
            return vec![format!("{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", too_long(63, "bytes")));
    }
    if !is_qualified_part(name) {
        let message = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                       alphanumeric character";
        errors.push(format!("name part {}", regex_error(message, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"])));
    }
    errors
}

/// A label's value: empty or up to 63 plain characters.
pub fn label_value_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63, "bytes"));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        errors.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            &format!("({QUALIFIED_FMT})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// A key of a ConfigMap or Secret.
pub fn config_key_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push("must be no more than 253 characters".to_owned());
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        errors.push(regex_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    errors.extend(parent_dir_errors(text));
    errors
}

fn parent_dir_errors(text: &str) -> Option<String> {
    match text {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// An environment variable's name: any printable ASCII but `=`.
pub fn env_name_errors(text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if text.bytes().any(|b| !(b' '..=b'~').contains(&b) || b == b'=') {
        return vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ];
    }
    Vec::new()
}

/// A container port's or service target port's name.
pub fn port_name_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if text.is_empty() || !text.bytes().all(|b| lower_or_digit(b) || b == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// A port number.
pub fn port_number_errors(port: i64) -> Vec<String> {
    range_errors(port, 1, 65535)
}

/// A number within bounds, both allowed.
pub fn range_errors(n: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&n) { Vec::new() } else { vec![format!("must be between {low} and {high}, inclusive")] }
}

/// `50%`.
pub fn percent_errors(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    let message = "a valid percent string must be a numeric string followed by an ending '%'";
    vec![regex_error(message, "[0-9]+%", &["1%", "93%"])]
}

/// An HTTP header's name in a probe.
pub fn http_header_errors(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    let message = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(message, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// A text that becomes one segment of a URL path: RBAC names.
pub fn path_segment_errors(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    path_segment_prefix_errors(text)
}

/// The same for the beginning of such a text.
pub fn path_segment_prefix_errors(text: &str) -> Vec<String> {
    ["/", "%"].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// `generateName` may end in a dash: what is appended makes it a name.
fn masked(text: &str, name_use: NameUse) -> String {
    match name_use {
        NameUse::Prefix if text.len() > 1 && text.ends_with('-') => format!("{}a", &text[..text.len() - 2]),
        _ => text.to_owned(),
    }
}

/// [`dns_subdomain_errors`] as a [`NameCheck`].
pub fn subdomain(text: &str, name_use: NameUse) -> Vec<String> {
    dns_subdomain_errors(&masked(text, name_use))
}

/// [`dns_label_errors`] as a [`NameCheck`].
pub fn label(text: &str, name_use: NameUse) -> Vec<String> {
    dns_label_errors(&masked(text, name_use))
}

/// [`path_segment_errors`] as a [`NameCheck`].
pub fn path_segment(text: &str, name_use: NameUse) -> Vec<String> {
    match name_use {
        NameUse::Whole => path_segment_errors(text),
        NameUse::Prefix => path_segment_prefix_errors(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_show_examples_as_upstream() {
        assert_eq!(
            dns_subdomain_errors("Web"),
            ["a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                 must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"]
        );
        assert_eq!(
            dns_label_errors("A"),
            ["a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"]
        );
        assert_eq!(dns_label_errors("a.b"), ["must not contain dots"]);
    }

    #[test]
    fn a_generated_name_may_end_in_a_dash() {
        assert!(subdomain("web-", NameUse::Prefix).is_empty());
        assert!(!subdomain("web-", NameUse::Whole).is_empty());
    }

    #[test]
    fn keys_may_have_one_prefix() {
        assert!(qualified_name_errors("example.com/My_name.x").is_empty());
        assert_eq!(qualified_name_errors("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name_errors("a/b/c").len(), 1);
        assert!(!qualified_name_errors("a/").is_empty());
    }
}
