//! Flags of OpenID Connect: `oidc-*` of the API server.

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
    ///
    /// Errors: what the flag wants.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let text = value.to_owned();
        match name {
            "oidc-issuer-url" if value.starts_with("https://") => self.issuer_url = text,
            "oidc-issuer-url" => return Err("wants an https URL".to_owned()),
            "oidc-client-id" => self.client_id = text,
            "oidc-ca-file" => {
                self.ca_pem = std::fs::read_to_string(value).map_err(|err| format!("cannot read {value}: {err}"))?
            }
            "oidc-username-claim" => self.username_claim = text,
            "oidc-username-prefix" => self.username_prefix = Some(text),
            "oidc-groups-claim" => self.groups_claim = text,
            "oidc-groups-prefix" => self.groups_prefix = text,
            "oidc-required-claim" => {
                let pair = value.split_once('=').ok_or("wants KEY=VALUE")?;
                self.required_claims.push((pair.0.to_owned(), pair.1.to_owned()));
            }
            "oidc-signing-algs" => {
                let known = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];
                self.signing_algs =
                    value.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect();
                if let Some(unknown) = self.signing_algs.iter().find(|alg| !known.contains(&alg.as_str())) {
                    return Err(format!("{unknown} is not supported: want some of {}", known.join(", ")));
                }
            }
            _ => return Err("unknown flag".to_owned()),
        }
        Ok(())
    }
}
