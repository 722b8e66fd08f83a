//! CEL's text to its tokens.

use super::issue::Issue;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Ident(String),
    Literal(LiteralToken),
    Op(&'static str),
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum LiteralToken {
    Int(String),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

const OPS: [&str; 29] = [
    "&&", "||", "==", "!=", "<=", ">=", "[?", "{?", ".?", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "+", "-",
    "*", "/", "%", "!", "<", ">", "=", "@",
];

pub(super) fn lex(text: &str) -> Result<Vec<(usize, Token)>, Issue> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut out) = (0, Vec::new());
    while at < chars.len() {
        let c = chars[at];
        if c.is_whitespace() {
            at += 1;
        } else if c == '/' && chars.get(at + 1) == Some(&'/') {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if let Some((token, end)) = text_literal(&chars, at)? {
            out.push((at, token));
            at = end;
        } else if c.is_ascii_alphabetic() || c == '_' {
            let end = (at..chars.len())
                .find(|i| !(chars[*i].is_ascii_alphanumeric() || chars[*i] == '_'))
                .unwrap_or(chars.len());
            out.push((at, Token::Ident(chars[at..end].iter().collect())));
            at = end;
        } else if c == '`' {
            (at + 1..chars.len()).find(|i| chars[*i] == '`').ok_or_else(|| bad_token(at, "`"))?;
            // Upstream does not turn quoted names on.
            return Err(Issue { at, text: "unsupported syntax: '`'".into() });
        } else if c.is_ascii_digit() || (c == '.' && chars.get(at + 1).is_some_and(char::is_ascii_digit)) {
            let (token, end) = number(&chars, at)?;
            out.push((at, token));
            at = end;
        } else {
            let fits = |op: &&&str| op.chars().enumerate().all(|(i, o)| chars.get(at + i) == Some(&o));
            let op = OPS.iter().find(fits).ok_or_else(|| bad_token(at, &c.to_string()))?;
            out.push((at, Token::Op(op)));
            at += op.len();
        }
    }
    out.push((chars.len(), Token::End));
    Ok(out)
}

fn bad_token(at: usize, what: &str) -> Issue {
    Issue { at, text: format!("Syntax error: token recognition error at: '{what}'") }
}

fn number(chars: &[char], from: usize) -> Result<(Token, usize), Issue> {
    let mut end = from;
    if chars[from] == '0' && matches!(chars.get(from + 1), Some('x' | 'X')) {
        end = (from + 2..chars.len()).find(|i| !chars[*i].is_ascii_hexdigit()).unwrap_or(chars.len());
        let digits: String = chars[from + 2..end].iter().collect();
        let value =
            u64::from_str_radix(&digits, 16).map_err(|_| Issue { at: from, text: "invalid int literal".into() })?;
        return Ok(match chars.get(end) {
            Some('u' | 'U') => (Token::Literal(LiteralToken::Uint(value)), end + 1),
            _ => (Token::Literal(LiteralToken::Int(value.to_string())), end),
        });
    }
    let mut is_double = false;
    while let Some(c) = chars.get(end) {
        let next_is_digit = chars.get(end + 1).is_some_and(char::is_ascii_digit);
        let exponent = matches!(c, 'e' | 'E')
            && (next_is_digit
                || (matches!(chars.get(end + 1), Some('+' | '-'))
                    && chars.get(end + 2).is_some_and(char::is_ascii_digit)));
        if c.is_ascii_digit() {
            end += 1;
        } else if *c == '.' && next_is_digit && !is_double {
            is_double = true;
            end += 1;
        } else if exponent {
            is_double = true;
            end += 2;
        } else {
            break;
        }
    }
    let text: String = chars[from..end].iter().collect();
    if is_double {
        let value = text.parse().map_err(|_| Issue { at: from, text: "invalid double literal".into() })?;
        return Ok((Token::Literal(LiteralToken::Double(value)), end));
    }
    if matches!(chars.get(end), Some('u' | 'U')) {
        let value = text.parse().map_err(|_| Issue { at: from, text: "invalid uint literal".into() })?;
        return Ok((Token::Literal(LiteralToken::Uint(value)), end + 1));
    }
    Ok((Token::Literal(LiteralToken::Int(text)), end))
}

/// `"a"`, `'''a'''`, `r"a"`, `b'a'`, `br"a"`.
fn text_literal(chars: &[char], from: usize) -> Result<Option<(Token, usize)>, Issue> {
    let (mut at, mut raw, mut bytes) = (from, false, false);
    while let Some(c) = chars.get(at) {
        match c {
            'r' | 'R' if !raw => raw = true,
            'b' | 'B' if !bytes && !raw => bytes = true,
            '"' | '\'' => break,
            _ => return Ok(None),
        }
        at += 1;
    }
    let Some(quote) = chars.get(at).copied() else { return Ok(None) };
    let triple = chars.get(at + 1) == Some(&quote) && chars.get(at + 2) == Some(&quote);
    let width = if triple { 3 } else { 1 };
    at += width;
    let mut out: Vec<u8> = Vec::new();
    loop {
        let Some(c) = chars.get(at).copied().filter(|c| triple || *c != '\n') else {
            return Err(bad_token(from, &chars[from..at.min(chars.len())].iter().collect::<String>()));
        };
        if c == quote && (!triple || (chars.get(at + 1) == Some(&quote) && chars.get(at + 2) == Some(&quote))) {
            at += width;
            break;
        }
        if c == '\\' && !raw {
            at = escape(chars, at + 1, bytes, &mut out).ok_or_else(|| bad_token(from, "\\"))?;
            continue;
        }
        out.extend(c.encode_utf8(&mut [0; 4]).bytes());
        at += 1;
    }
    let token =
        if bytes { LiteralToken::Bytes(out) } else { LiteralToken::Text(String::from_utf8_lossy(&out).into_owned()) };
    Ok(Some((Token::Literal(token), at)))
}

fn escape(chars: &[char], at: usize, bytes: bool, out: &mut Vec<u8>) -> Option<usize> {
    let c = *chars.get(at)?;
    let simple = match c {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(10),
        'r' => Some(13),
        't' => Some(9),
        'v' => Some(11),
        '\\' | '\'' | '"' | '`' | '?' => Some(c as u8),
        _ => None,
    };
    if let Some(byte) = simple {
        out.push(byte);
        return Some(at + 1);
    }
    let (start, len, radix) = match c {
        'x' | 'X' => (at + 1, 2, 16),
        'u' if !bytes => (at + 1, 4, 16),
        'U' if !bytes => (at + 1, 8, 16),
        '0'..='3' => (at, 3, 8),
        _ => return None,
    };
    let digits: String = chars.get(start..start + len)?.iter().collect();
    let code = u32::from_str_radix(&digits, radix).ok()?;
    if bytes {
        out.push(u8::try_from(code).ok()?);
    } else {
        out.extend(char::from_u32(code)?.encode_utf8(&mut [0; 4]).bytes());
    }
    Some(start + len)
}
