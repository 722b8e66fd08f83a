//! `--token-auth-file`: static bearer tokens, one a line: `token,user,uid,"group1,group2"`.

use std::path::Path;

use async_trait::async_trait;
use base::secret::Secret;

use super::AuthnError;
use super::basic::same_secret;
use super::chain::{Authenticated, TokenAuthenticator};
use crate::user::UserInfo;

/// Tokens of a file that was read at the start.
pub struct TokenFile(Vec<(Secret<String>, UserInfo)>);

impl TokenFile {
    /// Reads the file.
    ///
    /// Errors: a text with the file's name; never with a token.
    pub fn read(path: &Path) -> Result<TokenFile, String> {
        let text = std::fs::read_to_string(path).map_err(|err| format!("cannot read {}: {err}", path.display()))?;
        TokenFile::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<TokenFile, String> {
        let mut users = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#')) {
            let columns = columns(line);
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(format!("line {}: want token,user,uid and optionally groups", number + 1));
            };
            if token.is_empty() {
                continue;
            }
            let groups =
                rest.first().map(|g| g.split(',').map(|g| g.trim().to_owned()).filter(|g| !g.is_empty()).collect()).unwrap_or_default();
            users.push((Secret::new(token.clone()), UserInfo { name: name.clone(), uid: uid.clone(), groups, ..UserInfo::default() }));
        }
        Ok(TokenFile(users))
    }
}

/// The columns of a CSV line; quotes may hold commas.
fn columns(line: &str) -> Vec<String> {
    let (mut out, mut quoted) = (vec![String::new()], false);
    for c in line.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            c => {
                if let Some(last) = out.last_mut() {
                    last.push(c);
                }
            }
        }
    }
    out.into_iter().map(|column| column.trim().to_owned()).collect()
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
    use super::*;

    #[tokio::test]
    async fn groups_stand_in_quotes() {
        let file = TokenFile::parse("# comment\nsecret,bob,7,\"dev,ops\"\nother,eve,8\n").unwrap();
        let bob = file.token("secret", &[]).await.unwrap().unwrap().user;
        assert_eq!((bob.name.as_str(), bob.groups.as_slice()), ("bob", &["dev".to_owned(), "ops".to_owned()][..]));
        assert!(file.token("wrong", &[]).await.unwrap().is_none());
        assert!(TokenFile::parse("secret,bob").err().unwrap().contains("line 1"));
    }
}
