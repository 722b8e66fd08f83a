//! Regular expressions as upstream understands them: RE2 in Go's `regexp`, put into the words of the `regex` crate.
//!
//! Most of the two is alike. What differs would let other texts through: `\d`, `\w`, `\s` and `\b` are of ASCII there,
//! `&&` and `[` inside of a class stand for themselves, `\Q…\E` quotes, and `{` that begins no count is a brace. What
//! only the crate knows is refused: the flags `x`, `u` and `R`, `\u0061`, a count beyond 1,000, and `a**`.

use regex::{Regex, RegexBuilder};

/// As `maxRepeat` of Go's `regexp/syntax`.
const COUNT_MAX: u32 = 1_000;

/// Bytes that may be kept of a lazy automaton, as the crate's default.
const DFA_BYTES_MAX: usize = 2 << 20;

/// A pattern that has no program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// A backslash that nothing follows.
    #[error("trailing backslash at end of expression")]
    TrailingBackslash,
    /// `\q`
    #[error("invalid escape sequence: `\\{0}`")]
    Escape(char),
    /// `{1001}`, by what stands between the braces.
    #[error("invalid repeat count: `{{{0}}}`")]
    Count(String),
    /// `**`, by its second operator.
    #[error("invalid nested repetition operator: `{0}`")]
    NestedRepetition(char),
    /// `(?x`, by the first flag; none at the end of the pattern.
    #[error("invalid or unsupported Perl syntax: `(?{0}`")]
    Flag(String),
    /// The crate finds no pattern in it, or its program is too large.
    #[error("{}", last_line(.0))]
    Program(regex::Error),
}

/// The crate's reason, without the pattern that it shows before.
fn last_line(err: &regex::Error) -> String {
    err.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The program of a pattern, of `bytes_max` at most.
///
/// Errors: it is no pattern, or its program is too large.
pub fn compile(pattern: &str, bytes_max: usize) -> Result<Regex, PatternError> {
    let text = translated(pattern)?;
    let made = RegexBuilder::new(&text).size_limit(bytes_max).dfa_size_limit(bytes_max.min(DFA_BYTES_MAX)).build();
    made.map_err(PatternError::Program)
}

/// Whether a text is a pattern at all, however large its program may be.
pub fn is_pattern(pattern: &str) -> bool {
    let Ok(text) = translated(pattern) else { return false };
    // Its program is not wanted.
    !matches!(RegexBuilder::new(&text).size_limit(1).build(), Err(regex::Error::Syntax(_)))
}

/// The place of a character: brackets give most of them another meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Pattern,
    Class,
}

/// The pattern in the crate's words.
fn translated(pattern: &str) -> Result<String, PatternError> {
    let (mut rest, mut out) = (pattern, String::with_capacity(pattern.len() + 8));
    let mut within = Within::Pattern;
    // Whether the piece before was an operator of repetition.
    let mut repeats = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let was_repeat = std::mem::take(&mut repeats);
        rest = match c {
            '\\' => escape(after, within, &mut out)?,
            _ if within == Within::Class => {
                if c == ']' {
                    within = Within::Pattern;
                }
                class_member(c, after, &mut out)
            }
            '[' => {
                within = Within::Class;
                out.push('[');
                let (negation, after) = after.strip_prefix('^').map_or(("", after), |after| ("^", after));
                out.push_str(negation);
                // A bracket at the beginning is a member.
                match after.strip_prefix(']') {
                    Some(after) => {
                        out.push_str("\\]");
                        after
                    }
                    None => after,
                }
            }
            '(' => group(after, &mut out)?,
            '*' | '+' | '?' | '{' => {
                let Some(len) = repetition(c, after)? else {
                    out.push_str("\\{");
                    rest = after;
                    continue;
                };
                if was_repeat {
                    return Err(PatternError::NestedRepetition(c));
                }
                repeats = true;
                let lazy = usize::from(rest[len..].starts_with('?'));
                out.push_str(&rest[..len + lazy]);
                &rest[len + lazy..]
            }
            _ => {
                out.push(c);
                after
            }
        };
    }
    Ok(out)
}

/// How long an operator of repetition is that begins with `c`; `None` if it is a brace that counts nothing.
fn repetition(c: char, after: &str) -> Result<Option<usize>, PatternError> {
    if c != '{' {
        return Ok(Some(1));
    }
    let Some((inside, _)) = after.split_once('}') else { return Ok(None) };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let is_count = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_count(least) || !(most.is_empty() || is_count(most)) {
        return Ok(None);
    }
    let fits = |text: &str| text.is_empty() || text.parse::<u32>().is_ok_and(|n| n <= COUNT_MAX);
    if !fits(least) || !fits(most) {
        return Err(PatternError::Count(inside.to_owned()));
    }
    Ok(Some(inside.len() + 2))
}

/// Translates the flags behind an opening parenthesis, if Go has them.
fn group<'p>(after: &'p str, out: &mut String) -> Result<&'p str, PatternError> {
    out.push('(');
    let Some(flags) = after.strip_prefix('?') else { return Ok(after) };
    if !flags.starts_with(['P', '<']) {
        let end = flags.find([')', ':']).unwrap_or(flags.len());
        if !flags[..end].chars().all(|flag| "imsU-".contains(flag)) {
            return Err(PatternError::Flag(flags.chars().take(1).collect()));
        }
    }
    Ok(after)
}

fn class_member<'p>(c: char, after: &'p str, out: &mut String) -> &'p str {
    match c {
        '[' => {
            // `[:alpha:]` is a class of its own, any other bracket is itself.
            if let Some(end) = after.strip_prefix(':').and_then(|name| name.find(":]")) {
                out.push('[');
                out.push_str(&after[..end + 3]);
                return &after[end + 3..];
            }
            out.push_str("\\[");
        }
        '&' | '~' => {
            out.push('\\');
            out.push(c);
        }
        _ => out.push(c),
    }
    after
}

/// Translates an escape, from behind its backslash.
fn escape<'p>(after: &'p str, within: Within, out: &mut String) -> Result<&'p str, PatternError> {
    let in_class = within == Within::Class;
    let Some(c) = after.chars().next() else { return Err(PatternError::TrailingBackslash) };
    let next = &after[c.len_utf8()..];
    match c {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\f\\r ]"),
        'S' => out.push_str("[^\\t\\n\\f\\r ]"),
        'b' if !in_class => out.push_str("(?-u:\\b)"),
        'Q' if !in_class => {
            let (quoted, next) = next.split_once("\\E").unwrap_or((next, ""));
            out.push_str(&regex::escape(quoted));
            return Ok(next);
        }
        '0' => {
            let n_more = next.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let code = u32::from_str_radix(&after[..=n_more], 8).expect("three octal digits at most");
            out.push_str(&format!("\\x{{{code:x}}}"));
            return Ok(&next[n_more..]);
        }
        'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'x' | 'p' | 'P' => {
            out.push('\\');
            out.push(c);
            // The braces are part of it.
            if let Some(end) = next.strip_prefix('{').and_then(|name| name.find('}')) {
                out.push_str(&next[..end + 2]);
                return Ok(&next[end + 2..]);
            }
        }
        'A' | 'z' | 'B' if !in_class => {
            out.push('\\');
            out.push(c);
        }
        c if c.is_ascii_punctuation() => out.push_str(&if in_class {
            format!("\\x{{{:x}}}", u32::from(c))
        } else {
            regex::escape(c.encode_utf8(&mut [0; 4]))
        }),
        c => return Err(PatternError::Escape(c)),
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of Go's `regexp` 1.25.
    #[test]
    fn patterns_match_what_gos_match() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "\u{663}", false),
            (r"^\w$", "é", false),
            (r"^\W$", "é", true),
            (r"^\s$", "\u{a0}", false),
            (r"^[\d.]+$", "1.2", true),
            (r"^[^\d]$", "a", true),
            (r"é\b", "é", false),
            (r"a\b", "a", true),
            ("^[a&&b]+$", "a&b", true),
            ("^[[a]+$", "[a", true),
            ("^[]a]+$", "]a", true),
            ("^[^]a]$", "b", true),
            ("^[[:alpha:]_]+$", "a_", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            ("^a{,2}$", "a{,2}", true),
            ("^a{2}$", "aa", true),
            ("^a{1,2}?$", "aa", true),
            ("^{$", "{", true),
            (r"^\x41\x{42}$", "AB", true),
            (r"^\pL$", "é", true),
            (r"^\p{Greek}$", "α", true),
            (r"^\<\.\-$", "<.-", true),
            (r"^[\]\-\.]+$", "]-.", true),
            (r"^\012$", "\n", true),
            ("(?i)ABC", "abc", true),
            ("(?i:A)b", "ab", true),
            ("(?P<n>a)", "a", true),
            ("(?<n>a)", "a", true),
            ("(?:a|b)+", "ab", true),
            ("a.b", "a\nb", false),
            ("(?s)a.b", "a\nb", true),
            (r"\z", "", true),
        ] {
            assert_eq!(compile(pattern, 1 << 20).map(|made| made.is_match(text)), Ok(matches), "{pattern} {text}");
        }
    }

    #[test]
    fn what_only_the_crate_knows_is_no_pattern() {
        for pattern in [
            "(?x) a",
            "(?u)a",
            r"\u0061",
            r"\U00000061",
            "a{1001}",
            "a**",
            "a+*",
            "a{2}{3}",
            r"\C",
            r"\Z",
            "a(?=b)",
            r"\1",
            "[",
            "(",
            r"\8",
            "\\",
        ] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
        assert!(is_pattern("((x{100}){100}){100}"), "large, but a pattern");
    }
}
