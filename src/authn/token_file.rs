//! `--token-auth-file`: static bearer tokens, one a line: `token,user,uid,"group1,group2"`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use base::secret::Secret;
use registry::user::UserInfo;

use super::AuthnError;
use super::basic::same_secret;
use super::chain::{Authenticated, TokenAuthenticator};

/// A file of tokens that cannot be used. No token is part of it.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// One of its lines is wrong.
    #[error("{}", path.display())]
    Line { path: PathBuf, source: BadLine },
}

/// A line that is no user's; the first has the number 1.
#[derive(Debug, thiserror::Error)]
#[error("line {number}")]
pub struct BadLine {
    number: usize,
    source: LineError,
}

/// Why a line is no user's.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("want token,user,uid and optionally groups; found {n_columns} columns")]
    Columns { n_columns: usize },
    #[error("a bare quote in a column without quotes")]
    BareQuote,
    #[error("a quote that is not closed")]
    OpenQuote,
    #[error("a quote within a column in quotes")]
    InnerQuote,
}

/// Tokens of a file that was read at the start.
pub struct TokenFile(Vec<(Secret<String>, UserInfo)>);

impl TokenFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<TokenFile, TokenFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenFileError::Unreadable { path: path.to_owned(), source })?;
        TokenFile::parse(&text).map_err(|source| TokenFileError::Line { path: path.to_owned(), source })
    }

    /// As upstream v1.36.2 (`apiserver/pkg/authentication/token/tokenfile`) reads it: the last line of a token counts,
    /// and a column of groups that is there but empty is one group without a name.
    fn parse(text: &str) -> Result<TokenFile, BadLine> {
        let mut users = BTreeMap::new();
        for (number, columns) in records(text)? {
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(BadLine { number, source: LineError::Columns { n_columns: columns.len() } });
            };
            let groups = rest.first().map(|groups| groups.split(',').map(str::to_owned).collect()).unwrap_or_default();
            if !token.is_empty() {
                users.insert(
                    token.clone(),
                    UserInfo { name: name.clone(), uid: uid.clone(), groups, ..UserInfo::default() },
                );
            }
        }
        Ok(TokenFile(users.into_iter().map(|(token, user)| (Secret::new(token), user)).collect()))
    }
}

/// The records of a CSV text as Go's `encoding/csv` reads them, each with the number of its first line. Empty lines are
/// none; spaces and `#` are as any other character; a column in quotes may hold commas, ends of lines and, doubled,
/// quotes.
///
/// Errors: a quote where none may be, or one that is not closed.
fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, BadLine> {
    let text = text.replace("\r\n", "\n");
    let mut rest = text.strip_suffix('\r').unwrap_or(&text);
    let (mut out, mut line) = (Vec::new(), 1);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('\n') {
            (rest, line) = (after, line + 1);
            continue;
        }
        let before = rest;
        let mut columns = Vec::new();
        loop {
            let (column, after) = column(rest).map_err(|source| BadLine { number: line, source })?;
            columns.push(column);
            rest = after.strip_prefix([',', '\n']).unwrap_or_default();
            if !after.starts_with(',') {
                break;
            }
        }
        out.push((line, columns));
        line += before[..before.len() - rest.len()].matches('\n').count();
    }
    Ok(out)
}

/// The first column of a text, and what is left behind it: nothing, or what begins with a comma or an end of line.
fn column(text: &str) -> Result<(String, &str), LineError> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let (column, rest) = text.split_at(text.find([',', '\n']).unwrap_or(text.len()));
        return if column.contains('"') { Err(LineError::BareQuote) } else { Ok((column.to_owned(), rest)) };
    };
    let mut column = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or(LineError::OpenQuote)?;
        column.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                column.push('"');
                rest = after;
            }
            None if after.is_empty() || after.starts_with([',', '\n']) => return Ok((column, after)),
            None => return Err(LineError::InnerQuote),
        }
    }
}

#[async_trait]
impl TokenAuthenticator for TokenFile {
    async fn token(&self, token: &str, _audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        let found = self.0.iter().find(|(known, _)| same_secret(known.expose(), token));
        Ok(found.map(|(_, user)| Authenticated { user: user.clone(), audiences: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    fn refused(text: &str) -> String {
        Chain(&TokenFile::parse(text).err().unwrap()).to_string()
    }

    async fn groups(text: &str, token: &str) -> Option<Vec<String>> {
        TokenFile::parse(text).unwrap().token(token, &[]).await.unwrap().map(|it| it.user.groups)
    }

    #[tokio::test]
    async fn groups_stand_in_quotes() {
        let file = TokenFile::parse("secret,bob,7,\"dev,ops\"\nother,eve,8\n").unwrap();
        let bob = file.token("secret", &[]).await.unwrap().unwrap().user;
        assert_eq!((bob.name.as_str(), bob.groups.as_slice()), ("bob", &["dev".to_owned(), "ops".to_owned()][..]));
        assert!(file.token("wrong", &[]).await.unwrap().is_none());
        assert_eq!(refused("secret,bob"), "line 1: want token,user,uid and optionally groups; found 2 columns");
    }

    /// As `encoding/csv` of Go 1.26 and upstream's reader answered.
    #[tokio::test]
    async fn groups_are_those_that_a_genuine_server_reads() {
        for (text, wanted) in [
            ("t,u,1", &[][..]),
            ("t,u,1,", &[""]),
            ("t,u,1,\"\"", &[""]),
            ("t,u,1,\"a,,b\"", &["a", "", "b"]),
            ("t,u,1,\" a, b \"\r\n", &[" a", " b "]),
            ("t,u,1,a,b", &["a"]),
            ("t,u,1,\"a\"\"b\nc\"", &["a\"b\nc"]),
            ("\n\nt,u,1,first\nt,u,1,last\r", &["last"]),
            (",u,1,nobody\nt,u,1", &[]),
        ] {
            assert_eq!(groups(text, "t").await.unwrap(), wanted, "{text}");
        }
        for (text, token) in [(" t,u,1", " t"), ("# t,u,1", "# t")] {
            assert!(
                groups(text, token).await.is_some()
                    && groups(text, token.trim_start_matches(['#', ' '])).await.is_none(),
                "{text}"
            );
        }
        assert_eq!(groups(",u,1", "").await, None);
    }

    #[test]
    fn what_a_genuine_server_does_not_start_with_is_refused_with_its_line() {
        for text in [
            "t,u,\"1\n2\"\n# comment",
            "t,u,1\n\n ",
            "t,u,1\n\nt,u,1\"",
            "a,b,1\n\nt,u,1,\"a\" ",
            "a,b,1\n\nt,u,1,\"a\nb",
        ] {
            let why = refused(text);
            assert!(why.starts_with("line 3: "), "{text}: {why}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_without_its_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.csv");
        let read = || Chain(&TokenFile::read(&path).err().unwrap()).to_string();
        assert!(read().starts_with(&format!("cannot read {}: No such file", path.display())));
        std::fs::write(&path, "hidden,bob,1\nhidden,eve").unwrap();
        let why = read();
        let wanted = "line 2: want token,user,uid and optionally groups; found 2 columns";
        assert_eq!(why, format!("{}: {wanted}", path.display()));
    }
}
