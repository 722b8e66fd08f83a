//! Flags of OpenID Connect: `oidc-*` of the API server.

use std::io;

/// Every signature algorithm that a token may have.
pub const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];

/// Why a flag cannot have a value.
#[derive(Debug, thiserror::Error)]
pub enum OidcFlagError {
    /// An issuer is asked over TLS alone.
    #[error("wants an https URL")]
    NotHttps,
    /// A claim without a value.
    #[error("wants KEY=VALUE")]
    NoPair,
    /// The file of authorities.
    #[error("cannot read {path}")]
    Unreadable { path: String, source: io::Error },
    /// An algorithm that is none of those.
    #[error("{name} is not supported: want some of {}", ALGORITHMS.join(", "))]
    Algorithm { name: String },
    /// No such flag.
    #[error("unknown flag")]
    Unknown,
}

/// Values of the flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oidc {
    /// `oidc-issuer-url`; empty: no OIDC.
    pub issuer_url: String,
    /// `oidc-client-id`
    pub client_id: String,
    /// Contents of `oidc-ca-file`; empty: the system's authorities.
    pub ca_pem: String,
    /// `oidc-username-claim`
    pub username_claim: String,
    /// `oidc-username-prefix`
    pub username_prefix: Option<String>,
    /// `oidc-groups-claim`
    pub groups_claim: String,
    /// `oidc-groups-prefix`
    pub groups_prefix: String,
    /// `oidc-required-claim`
    pub required_claims: Vec<(String, String)>,
    /// `oidc-signing-algs`
    pub signing_algs: Vec<String>,
}

impl Oidc {
    /// Takes the value of one flag.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OidcFlagError> {
        let text = value.to_owned();
        match name {
            "oidc-issuer-url" if value.starts_with("https://") => self.issuer_url = text,
            "oidc-issuer-url" => return Err(OidcFlagError::NotHttps),
            "oidc-client-id" => self.client_id = text,
            "oidc-ca-file" => {
                self.ca_pem = std::fs::read_to_string(value)
                    .map_err(|source| OidcFlagError::Unreadable { path: value.to_owned(), source })?;
            }
            "oidc-username-claim" => self.username_claim = text,
            "oidc-username-prefix" => self.username_prefix = Some(text),
            "oidc-groups-claim" => self.groups_claim = text,
            "oidc-groups-prefix" => self.groups_prefix = text,
            "oidc-required-claim" => {
                let pair = value.split_once('=').ok_or(OidcFlagError::NoPair)?;
                self.required_claims.push((pair.0.to_owned(), pair.1.to_owned()));
            }
            "oidc-signing-algs" => {
                self.signing_algs =
                    value.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect();
                if let Some(name) = self.signing_algs.iter().find(|alg| !ALGORITHMS.contains(&alg.as_str())) {
                    return Err(OidcFlagError::Algorithm { name: name.clone() });
                }
            }
            _ => return Err(OidcFlagError::Unknown),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    #[test]
    fn flags_take_their_values() {
        let mut oidc = Oidc::default();
        for (name, value) in [
            ("oidc-issuer-url", "https://i"),
            ("oidc-client-id", "c"),
            ("oidc-username-claim", "sub"),
            ("oidc-username-prefix", "-"),
            ("oidc-groups-claim", "groups"),
            ("oidc-groups-prefix", "g:"),
            ("oidc-required-claim", "a=b=c"),
            ("oidc-required-claim", "d="),
            ("oidc-signing-algs", "RS256, ,ES384"),
        ] {
            oidc.set(name, value).unwrap();
        }
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let wanted = Oidc {
            issuer_url: "https://i".to_owned(),
            client_id: "c".to_owned(),
            ca_pem: String::new(),
            username_claim: "sub".to_owned(),
            username_prefix: Some("-".to_owned()),
            groups_claim: "groups".to_owned(),
            groups_prefix: "g:".to_owned(),
            required_claims: vec![pair("a", "b=c"), pair("d", "")],
            signing_algs: vec!["RS256".to_owned(), "ES384".to_owned()],
        };
        assert_eq!(oidc, wanted);
    }

    #[test]
    fn a_value_that_cannot_be_obeyed_is_refused() {
        for (name, value, wanted) in [
            ("oidc-issuer-url", "http://i", "wants an https URL"),
            ("oidc-required-claim", "a", "wants KEY=VALUE"),
            ("oidc-ca-file", "/nothing/here", "cannot read /nothing/here: No such file or directory (os error 2)"),
            (
                "oidc-signing-algs",
                "RS256,HS256",
                "HS256 is not supported: want some of RS256, RS384, RS512, ES256, ES384, PS256, PS384, PS512",
            ),
            ("oidc-nonsense", "x", "unknown flag"),
        ] {
            let err = Oidc::default().set(name, value).unwrap_err();
            assert_eq!(Chain(&err).to_string(), wanted, "{name}");
        }
    }
}
