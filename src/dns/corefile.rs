//! Reading a Corefile: words, quotes, comments, environment variables, imports, snippets; the result is server blocks
//! with directives, each with the place it stands at.
//!
//! Spec: <https://coredns.io/manual/configuration/>

use std::fs;
use std::path::{Path, PathBuf};

use crate::text_file;

/// Imports within imports; a deeper nest is a circle.
const IMPORT_DEPTH_MAX: usize = 16;

/// Why a Corefile is refused, with the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line} - Error during parsing: {what}")]
pub struct CorefileError {
    /// The file, which may be an imported one.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
    /// The fault, and the remedy.
    pub what: String,
}

/// One line of a block: a name, arguments, and lines of its own in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The first word.
    pub name: String,
    /// The other words of the line.
    pub args: Vec<String>,
    /// Lines between braces.
    pub body: Vec<Directive>,
    /// Where the name stands.
    pub file: String,
    /// The line in `file`.
    pub line: usize,
}

impl Directive {
    /// An error at this directive.
    pub fn error(&self, what: impl Into<String>) -> CorefileError {
        CorefileError { file: self.file.clone(), line: self.line, what: what.into() }
    }
}

/// One server block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerBlock {
    /// Zones with ports as written, e.g. `.:53`.
    pub keys: Vec<String>,
    /// Its plugins, in the order of the file.
    pub directives: Vec<Directive>,
    /// The file that it begins in.
    pub file: Option<String>,
    /// Where it begins.
    pub line: usize,
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    quoted: bool,
    line: usize,
    file: String,
}

/// Reads environment variables; given in so that tests need none.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Words of all files together; imports multiply.
const TOKENS_MAX: usize = 100_000;
/// Braces within braces.
const NESTING_MAX: usize = 32;

/// Parses the text of `path`; imports are relative to its directory.
pub fn parse(path: &Path, text: &str, env: Env<'_>) -> Result<Vec<ServerBlock>, CorefileError> {
    parse_part(path, text, env, &|_| true).0
}

/// Parses with those imported files only that `wanted` names. Also tells all files that are imported, wanted or not.
pub(crate) fn parse_part(
    path: &Path,
    text: &str,
    env: Env<'_>,
    wanted: &dyn Fn(&Path) -> bool,
) -> (Result<Vec<ServerBlock>, CorefileError>, Vec<PathBuf>) {
    let mut imports = Imports { env, wanted, seen: Vec::new(), n_tokens: 0, snippets: Vec::new() };
    let parsed = imports.whole(path, text).and_then(|tokens| Parser { tokens, at: 0, depth: 0 }.blocks());
    (parsed, imports.seen)
}

/// State of the replacement of imports.
struct Imports<'a> {
    env: Env<'a>,
    wanted: &'a dyn Fn(&Path) -> bool,
    seen: Vec<PathBuf>,
    n_tokens: usize,
    snippets: Snippets,
}

impl Imports<'_> {
    fn whole(&mut self, path: &Path, text: &str) -> Result<Vec<Token>, CorefileError> {
        let mut tokens = tokenize(Source { file: &path.display().to_string(), text }, self.env)?;
        self.snippets = take_snippets(&mut tokens)?;
        self.expand(tokens, path.parent().unwrap_or(Path::new(".")), 0)
    }

    /// Replaces `import NAME` by a snippet and `import GLOB` by files.
    fn expand(&mut self, tokens: Vec<Token>, dir: &Path, depth: usize) -> Result<Vec<Token>, CorefileError> {
        let mut out: Vec<Token> = Vec::new();
        let mut input = tokens.into_iter().peekable();
        while let Some(token) = input.next() {
            let first_on_line = out
                .last()
                .is_none_or(|last: &Token| last.line != token.line || last.file != token.file || last.text == "{");
            let error = |what: String| CorefileError { file: token.file.clone(), line: token.line, what };
            self.n_tokens += 1;
            if self.n_tokens > TOKENS_MAX {
                return Err(error(format!("the Corefile has more than {TOKENS_MAX} words with all its imports")));
            }
            if token.text != "import" || token.quoted || !first_on_line {
                out.push(token);
                continue;
            }
            if depth >= IMPORT_DEPTH_MAX {
                return Err(error("imports are nested too deeply".to_owned()));
            }
            let Some(pattern) = input.next_if(|next| next.line == token.line && next.file == token.file) else {
                return Err(error("Wrong argument count or unexpected line ending after 'import'".to_owned()));
            };
            if input.peek().is_some_and(|next| next.line == token.line && next.file == token.file && next.text != "}") {
                return Err(error(
                    "import takes one argument here; arguments for snippets are not supported".to_owned(),
                ));
            }
            if let Some((_, body)) = self.snippets.iter().find(|(name, _)| *name == pattern.text) {
                let body = body.clone();
                out.extend(self.expand(body, dir, depth + 1)?);
                continue;
            }
            out.extend(self.files(&token, &pattern.text, dir, depth)?);
        }
        Ok(out)
    }

    fn files(&mut self, token: &Token, pattern: &str, dir: &Path, depth: usize) -> Result<Vec<Token>, CorefileError> {
        let error = |what: String| CorefileError { file: token.file.clone(), line: token.line, what };
        let glob = pattern.contains(['*', '?', '[']);
        let files =
            matching_files(&dir.join(pattern)).map_err(|err| error(format!("cannot import {pattern}: {err}")))?;
        if files.is_empty() && !glob {
            return Err(error(format!("File to import not found: {pattern}")));
        }
        let mut out = Vec::new();
        for path in files {
            if !self.seen.contains(&path) {
                self.seen.push(path.clone());
            }
            if !(self.wanted)(&path) {
                continue;
            }
            let text = text_file::read(&path, text_file::CONFIG_BYTES_MAX)
                .map_err(|err| error(format!("Could not import {}: {err}", path.display())))?;
            let imported = tokenize(Source { file: &path.display().to_string(), text: &text }, self.env)?;
            out.extend(self.expand(imported, path.parent().unwrap_or(dir), depth + 1)?);
        }
        Ok(out)
    }
}

/// A file's name and what it says.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

fn tokenize(Source { file, text }: Source<'_>, env: Env<'_>) -> Result<Vec<Token>, CorefileError> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while let Some(c) = chars.next() {
        match c {
            '\n' => line += 1,
            c if c.is_whitespace() => {}
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            '"' => {
                let (start, mut word, mut closed) = (line, String::new(), false);
                while let Some(c) = chars.next() {
                    match c {
                        '"' => {
                            closed = true;
                            break;
                        }
                        '\\' if chars.peek() == Some(&'"') => word.extend(chars.next()),
                        c => {
                            line += usize::from(c == '\n');
                            word.push(c);
                        }
                    }
                }
                if !closed {
                    return Err(CorefileError {
                        file: file.to_owned(),
                        line: start,
                        what: "a quote is never closed".to_owned(),
                    });
                }
                tokens.push(Token { text: replace_env(&word, env), quoted: true, line: start, file: file.to_owned() });
            }
            c => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
                tokens.push(Token { text: replace_env(&word, env), quoted: false, line, file: file.to_owned() });
            }
        }
    }
    Ok(tokens)
}

/// `{$NAME}` and `{%NAME%}`; an unset variable is empty. What a variable holds is not looked at again.
fn replace_env(word: &str, env: Env<'_>) -> String {
    let mut out = word.to_owned();
    for (open, close) in [("{$", "}"), ("{%", "%}")] {
        let mut from = 0;
        while let Some(start) = out[from..].find(open).map(|at| from + at) {
            let Some(len) = out[start..].find(close).filter(|len| *len >= open.len()) else { break };
            let value = env(&out[start + open.len()..start + len]).unwrap_or_default();
            out.replace_range(start..start + len + close.len(), &value);
            from = start + value.len();
        }
    }
    out
}

type Snippets = Vec<(String, Vec<Token>)>;

/// Takes `(name) { … }` blocks out of the tokens.
fn take_snippets(tokens: &mut Vec<Token>) -> Result<Snippets, CorefileError> {
    let (mut snippets, mut rest, mut depth) = (Vec::new(), Vec::new(), 0usize);
    let mut input = std::mem::take(tokens).into_iter().peekable();
    while let Some(token) = input.next() {
        let name = token.text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).map(str::to_owned);
        let Some(name) =
            name.filter(|_| depth == 0 && !token.quoted && input.peek().is_some_and(|next| next.text == "{"))
        else {
            depth = match token.text.as_str() {
                "{" if !token.quoted => depth + 1,
                "}" if !token.quoted => depth.saturating_sub(1),
                _ => depth,
            };
            rest.push(token);
            continue;
        };
        input.next();
        let (mut body, mut inner) = (Vec::new(), 1);
        for next in input.by_ref() {
            inner += match next.text.as_str() {
                "{" if !next.quoted => 1,
                "}" if !next.quoted => -1,
                _ => 0,
            };
            if inner == 0 {
                break;
            }
            body.push(next);
        }
        if inner != 0 {
            return Err(CorefileError {
                file: token.file,
                line: token.line,
                what: format!("the snippet ({name}) is never closed"),
            });
        }
        snippets.push((name, body));
    }
    *tokens = rest;
    Ok(snippets)
}

/// Files of one directory whose name matches, by name; only the last part of the path may have wildcards.
fn matching_files(pattern: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    if !name.contains(['*', '?']) {
        return Ok(if pattern.is_file() { vec![pattern.to_owned()] } else { Vec::new() });
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let matches = path
            .file_name()
            .and_then(|n| n.to_str())
            .is_some_and(|n| !n.starts_with('.') && wildcard(name.as_bytes(), n.as_bytes()));
        if matches && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Goes back to the last star only, so that many stars cost no more than one.
fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn blocks(mut self) -> Result<Vec<ServerBlock>, CorefileError> {
        let mut blocks = Vec::new();
        while let Some(first) = self.tokens.get(self.at).cloned() {
            let mut keys = Vec::new();
            while let Some(token) = self.tokens.get(self.at) {
                if token.text == "{" && !token.quoted {
                    break;
                }
                // A key list goes on over lines only after a comma.
                let continued = self.at > 0 && self.tokens[self.at - 1].text.ends_with(',');
                if !keys.is_empty() && token.line != first.line && !continued {
                    break;
                }
                keys.extend(token.text.split(',').filter(|key| !key.is_empty()).map(str::to_owned));
                self.at += 1;
            }
            let directives = match self.tokens.get(self.at) {
                Some(token) if token.text == "{" && !token.quoted => {
                    self.at += 1;
                    self.body(&first)?
                }
                // A file of one server block may leave the braces out.
                _ if blocks.is_empty() => self.lines(None)?,
                _ => {
                    return Err(CorefileError {
                        file: first.file,
                        line: first.line,
                        what: format!("'{{' expected after {:?}", first.text),
                    });
                }
            };
            if keys.is_empty() {
                return Err(CorefileError {
                    file: first.file,
                    line: first.line,
                    what: "a server block needs a zone, e.g. '.:53'".to_owned(),
                });
            }
            blocks.push(ServerBlock { keys, directives, file: Some(first.file), line: first.line });
        }
        Ok(blocks)
    }

    fn body(&mut self, opened: &Token) -> Result<Vec<Directive>, CorefileError> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            let what = format!("more than {NESTING_MAX} braces within braces");
            return Err(CorefileError { file: opened.file.clone(), line: opened.line, what });
        }
        let lines = self.lines(Some(opened));
        self.depth -= 1;
        lines
    }

    /// Directives up to the closing brace of `opened`, or to the end of the file.
    fn lines(&mut self, opened: Option<&Token>) -> Result<Vec<Directive>, CorefileError> {
        let mut directives = Vec::new();
        loop {
            let Some(token) = self.tokens.get(self.at).cloned() else {
                return match opened {
                    None => Ok(directives),
                    Some(open) => Err(CorefileError {
                        file: open.file.clone(),
                        line: open.line,
                        what: "a '{' is never closed".to_owned(),
                    }),
                };
            };
            self.at += 1;
            if token.text == "}" && !token.quoted {
                if opened.is_none() {
                    return Err(CorefileError {
                        file: token.file,
                        line: token.line,
                        what: "unexpected '}'".to_owned(),
                    });
                }
                return Ok(directives);
            }
            let mut directive = Directive {
                name: token.text.clone(),
                args: Vec::new(),
                body: Vec::new(),
                file: token.file.clone(),
                line: token.line,
            };
            while let Some(next) = self.tokens.get(self.at).cloned() {
                if next.line != token.line || next.file != token.file || (next.text == "}" && !next.quoted) {
                    break;
                }
                self.at += 1;
                if next.text == "{" && !next.quoted {
                    directive.body = self.body(&next)?;
                    break;
                }
                directive.args.push(next.text);
            }
            directives.push(directive);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<ServerBlock> {
        parse(Path::new("/nowhere/Corefile"), text, &|name| (name == "ZONE").then(|| "cluster.local".to_owned()))
            .unwrap()
    }

    #[test]
    fn blocks_have_keys_directives_and_bodies() {
        let blocks = check(
            ".:53 {\n  errors\n  kubernetes {$ZONE} in-addr.arpa {\n    pods insecure # why\n  }\n}\n\
             example.org, example.com:54 {\n log\n}\n",
        );
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0].directives[1].args, ["cluster.local", "in-addr.arpa"]);
        assert_eq!(blocks[0].directives[1].body[0].args, ["insecure"]);
        assert_eq!(blocks[1].keys, ["example.org", "example.com:54"]);
        assert_eq!(blocks[1].directives[0].line, 8);
    }

    #[test]
    fn snippets_and_globs_are_imported() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.override"), "log\n").unwrap();
        fs::write(dir.path().join("a.override"), "errors\n").unwrap();
        fs::write(dir.path().join("x.server"), "x.org {\n whoami\n}\n").unwrap();
        let text =
            "(snip) {\n cache 30\n}\n. {\n import snip\n import *.override\n}\nimport *.server\nimport none/*.server\n";
        let blocks = parse(&dir.path().join("Corefile"), text, &|_| None).unwrap();
        let names: Vec<&str> = blocks[0].directives.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["cache", "errors", "log"]);
        assert_eq!(blocks[1].keys, ["x.org"]);
    }

    #[test]
    fn what_multiplies_and_what_nests_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Corefile");
        let text = "import *file\n".repeat(10);
        fs::write(&path, &text).unwrap();
        let err = parse(&path, &text, &|_| None).unwrap_err();
        assert!(err.what.contains("nested too deeply") || err.what.contains("more than"), "{err}");
        let snippets = format!("(s) {{\n{}}}\n. {{\n import s\n}}\n", " import s\n".repeat(10));
        assert!(parse(&path, &snippets, &|_| None).is_err());
        let deep = format!(". {{\n{}", "a {\n".repeat(200_000));
        assert!(parse(&path, &deep, &|_| None).is_err());
        assert!(
            wildcard(b"*.override", b"a.override") && !wildcard(b"*.override", b"a.server") && wildcard(b"a?*", b"ab")
        );
        assert!(!wildcard("*a".repeat(60).as_bytes(), "a".repeat(59).as_bytes()));
    }

    #[test]
    fn errors_name_the_line() {
        let err = parse(Path::new("Corefile"), ". {\n errors\n", &|_| None).unwrap_err();
        assert_eq!(err.to_string(), "Corefile:1 - Error during parsing: a '{' is never closed");
    }

    #[test]
    fn what_is_no_corefile_is_refused_with_the_place() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("bad"), "errors\n}\n").unwrap();
        let path = dir.path().join("Corefile");
        for (text, line, wanted) in [
            (". {\n \"abc\n}\n", 2, "a quote is never closed"),
            (". {\n health {\n lameduck 5s\n}\n", 1, "a '{' is never closed"),
            ("(snip) {\n errors\n", 1, "the snippet (snip) is never closed"),
            (". {\n import\n}\n", 2, "Wrong argument count or unexpected line ending after 'import'"),
            (
                "(s) {\n log\n}\n. {\n import s x\n}\n",
                5,
                "import takes one argument here; arguments for snippets are not supported",
            ),
            (". {\n import nothing\n}\n", 2, "File to import not found: nothing"),
        ] {
            let err = parse(&path, text, &|_| None).unwrap_err();
            assert_eq!((err.line, err.what.as_str()), (line, wanted), "{text}");
            assert_eq!(err.file, path.display().to_string(), "{text}");
        }
        // A file's braces end in that file's lines.
        assert!(parse(&path, "import bad\n", &|_| None).is_err());
    }

    #[test]
    fn words_are_plain_quoted_or_of_the_environment() {
        let env = |name: &str| match name {
            "A" => Some("x y".to_owned()),
            "B" => Some("{$A}".to_owned()),
            _ => None,
        };
        let words = |text: &str| -> Vec<String> {
            let source = Source { file: "Corefile", text };
            tokenize(source, &env).unwrap().into_iter().map(|token| token.text).collect()
        };
        assert_eq!(words("a \"b c\" # d\ne"), ["a", "b c", "e"]);
        assert_eq!(words(r#""a \" b" c\d"#), ["a \" b", r"c\d"]);
        assert_eq!(words("{$A} {%A%} p{$A}s {$NONE}."), ["x y", "x y", "px ys", "."]);
        assert_eq!(words("{$B} {$"), ["{$A}", "{$"], "what a variable holds is not looked at again");
    }
}
