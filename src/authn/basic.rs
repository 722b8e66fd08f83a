//! Users with a password (HTTP Basic): how a machine with a join token says hello.

use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use registry::user::UserInfo;

use super::AuthnError;

/// One user with a password.
#[derive(Clone, Debug)]
pub struct BasicUser {
    /// `server` or `node`.
    pub name: String,
    /// The join token's secret part.
    pub password: Secret<String>,
    /// e.g. `kedge:server`.
    pub groups: Vec<String>,
}

/// All of them.
pub struct Basic(pub Vec<BasicUser>);

impl Basic {
    /// `credential` is what follows `Basic` in the header.
    pub fn authenticate(&self, credential: &str) -> Result<Option<UserInfo>, AuthnError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let refused = || AuthnError("invalid user name or password".to_owned());
        let text =
            STANDARD.decode(credential).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(refused)?;
        let (name, password) = text.split_once(':').ok_or_else(refused)?;
        let user = self
            .0
            .iter()
            .find(|user| user.name == name && same_secret(user.password.expose(), password))
            .ok_or_else(refused)?;
        Ok(Some(UserInfo { name: user.name.clone(), groups: user.groups.clone(), ..UserInfo::default() }))
    }
}

/// Compares in a time that tells nothing about where two secrets of one length differ.
pub(crate) fn same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (x, y)| differs | (x ^ y)) == 0
}
