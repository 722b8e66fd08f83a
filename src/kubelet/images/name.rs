//! Names that images can have. Spec: the distribution project's reference grammar.

/// A name that no image can have, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    #[error("invalid reference format")]
    Format,
    #[error("invalid reference format: repository name ({repository}) must be lowercase")]
    Uppercase { repository: String },
}

/// Whether a name is one that an image can have.
pub(super) fn check(image: &str) -> Result<(), NameError> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (name, None),
    };
    if !digest.is_none_or(is_digest) || !tag.is_none_or(is_tag) {
        return Err(NameError::Format);
    }
    let host = |part: &str| part.contains('.') || part.contains(':') || part == "localhost";
    let parts: Vec<&str> = path.split('/').collect();
    let rest = if parts.len() > 1 && host(parts[0]) { &parts[1..] } else { &parts[..] };
    if rest.iter().any(|part| part.bytes().any(|b| b.is_ascii_uppercase())) {
        let repository = if parts.len() == 1 { format!("library/{path}") } else { path.to_owned() };
        return Err(NameError::Uppercase { repository });
    }
    if rest.iter().all(|part| is_component(part)) { Ok(()) } else { Err(NameError::Format) }
}

fn is_digest(digest: &str) -> bool {
    let hex = digest.split_once(':').map(|(_, hex)| hex);
    hex.is_some_and(|hex| hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128 && tag.bytes().next().is_some_and(word) && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// A part of a repository's path.
fn is_component(part: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let has_edges = part.bytes().next().is_some_and(inner) && part.bytes().last().is_some_and(inner);
    has_edges && part.bytes().all(|b| inner(b) || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_image_can_have_are_refused() {
        let hex = "0123456789abcdef0123456789abcdef";
        let long_tag = format!("a:{}", "t".repeat(128));
        for good in [
            "a",
            "a:1",
            "a:_x.y-z",
            "r.io:5000/a/b_c-d:v1.0",
            &format!("a@sha256:{hex}"),
            &format!("r.io/a:1@sha256:{hex}"),
            "localhost/x",
            "R.io/a",
            &long_tag,
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let (short, odd) = (format!("a@sha256:{}", &hex[1..]), format!("a@sha256:{}g", &hex[1..]));
        for bad in [
            "",
            "a:",
            "a b",
            "-a",
            "a-",
            "a//b",
            "a@sha256:zz",
            "a@",
            &format!("a@{hex}"),
            &short,
            &odd,
            ":1",
            "a:-1",
            "a:x y",
            &format!("{long_tag}t"),
        ] {
            assert_eq!(check(bad), Err(NameError::Format), "{bad}");
        }
    }

    #[test]
    fn a_repository_with_capitals_is_named_in_full() {
        for (image, repository) in [("Foo", "library/Foo"), ("a/Foo:1", "a/Foo"), ("r.io/Foo", "r.io/Foo")] {
            let why = check(image).unwrap_err().to_string();
            assert_eq!(why, format!("invalid reference format: repository name ({repository}) must be lowercase"));
        }
    }
}
