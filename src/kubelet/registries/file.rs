//! The content of `registries.yaml`. Pure.

use std::collections::BTreeMap;

use base::secret::Secret;
use k8s_cri::v1 as cri;
use serde::Deserialize;

/// The registry of images that name none.
const DOCKER: &str = "docker.io";
/// Where it really is.
const DOCKER_HOST: &str = "registry-1.docker.io";

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// By registry, or `*` for all others.
    #[serde(default)]
    pub(crate) mirrors: BTreeMap<String, Mirror>,
    /// By host.
    #[serde(default)]
    pub(crate) configs: BTreeMap<String, HostConfig>,
}

/// Where a registry's images are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mirror {
    /// URLs, tried in this order.
    #[serde(default, alias = "endpoints")]
    pub(crate) endpoint: Vec<String>,
    /// Regular expressions of repositories and what they become.
    #[serde(default)]
    pub(crate) rewrite: BTreeMap<String, String>,
}

/// How a host is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostConfig {
    #[serde(default)]
    pub(crate) auth: Option<Auth>,
    #[serde(default)]
    pub(crate) tls: Option<Tls>,
}

/// Credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    #[serde(default)]
    pub(crate) username: String,
    #[serde(default, deserialize_with = "secret")]
    pub(crate) password: Secret<String>,
    /// Both, as in a docker configuration.
    #[serde(default, deserialize_with = "secret")]
    pub(crate) auth: Secret<String>,
    #[serde(default, alias = "identitytoken", deserialize_with = "secret")]
    pub(crate) identity_token: Secret<String>,
}

fn secret<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Secret<String>, D::Error> {
    String::deserialize(from).map(Secret::new)
}

/// Files and trust of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    #[serde(default)]
    pub(crate) ca_file: String,
    #[serde(default)]
    pub(crate) cert_file: String,
    #[serde(default)]
    pub(crate) key_file: String,
    #[serde(default)]
    pub(crate) insecure_skip_verify: bool,
}

/// A URL of an endpoint, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `https://mirror.lan:5000`
    pub(crate) base: String,
    /// `mirror.lan:5000`
    pub(crate) host: String,
    /// `/v2` and below; empty if none was given.
    pub(crate) path: String,
}

/// A URL that is none, or none of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint '{text}' is no URL such as https://mirror.example:5000")]
pub(crate) struct EndpointError {
    text: String,
}

/// Rewrites that containerd cannot do: it takes a prefix for all repositories of a mirror and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rewrite '{patterns}': containerd can only put one prefix before all repositories of a mirror: \
     want '^(.*)$': 'some/prefix/$1'"
)]
pub(crate) struct RewriteError {
    patterns: String,
}

/// A mirror that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MirrorError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistriesFileError {
    /// The parser's words hold their cause.
    #[error("{0}")]
    Yaml(serde_saphyr::Error),
    #[error("mirror {name}")]
    Mirror { name: String, source: MirrorError },
    #[error("mirror {name}: that is no name of a registry")]
    Name { name: String },
}

impl Endpoint {
    /// Reads `https://mirror.lan:5000/v2/sub`; without a scheme, http is meant for this machine and https for others.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let bad = || EndpointError { text: text.to_owned() };
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            Some(_) => return Err(bad()),
            None => (if is_local(text) { "http" } else { "https" }, text),
        };
        let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(fits) || path.contains(['"', '\\', '?', '#', ' ', '\n']) {
            return Err(bad());
        }
        let path = path.trim_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Endpoint { base: format!("{scheme}://{host}"), host: host.to_owned(), path })
    }
}

/// As containerd has it: this machine's registries speak plain HTTP.
fn is_local(host: &str) -> bool {
    let name = host.split('/').next().unwrap_or_default();
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// Where a registry of that name answers.
pub(crate) fn own_endpoint(registry: &str) -> Endpoint {
    let host = if registry == DOCKER { DOCKER_HOST } else { registry };
    let scheme = if is_local(host) { "http" } else { "https" };
    Endpoint { base: format!("{scheme}://{host}"), host: host.to_owned(), path: String::new() }
}

/// The registry that an image's name means.
pub(crate) fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains('.') || host.contains(':') || host == "localhost" => host,
        _ => DOCKER,
    }
}

impl Mirror {
    fn check(&self) -> Result<(), MirrorError> {
        self.prefix()?;
        for endpoint in &self.endpoint {
            Endpoint::parse(endpoint)?;
        }
        Ok(())
    }

    /// The prefix of every repository, if that is what the rewrites say.
    pub(crate) fn prefix(&self) -> Result<Option<String>, RewriteError> {
        let mut rules = self.rewrite.iter();
        let (Some((pattern, into)), None) = (rules.next(), rules.next()) else {
            return if self.rewrite.is_empty() {
                Ok(None)
            } else {
                let patterns: Vec<&str> = self.rewrite.keys().map(String::as_str).collect();
                Err(RewriteError { patterns: patterns.join("', '") })
            };
        };
        let all = matches!(pattern.as_str(), "^(.*)$" | "(.*)" | "^(.*)" | "(.*)$" | "^(.+)$" | "(.+)" | "^(.+)");
        let prefix =
            into.strip_suffix("$1").or_else(|| into.strip_suffix("${1}")).and_then(|prefix| prefix.strip_suffix('/'));
        let plain =
            |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c));
        match prefix.filter(plain).filter(|_| all) {
            Some(prefix) => Ok(Some(prefix.trim_matches('/').to_owned())),
            None => Err(RewriteError { patterns: pattern.clone() }),
        }
    }
}

impl File {
    /// Reads the text; an empty one says nothing.
    pub(crate) fn parse(text: &str) -> Result<File, RegistriesFileError> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(File::default());
        }
        let file: File = serde_saphyr::from_str(text).map_err(RegistriesFileError::Yaml)?;
        for (name, mirror) in &file.mirrors {
            mirror.check().map_err(|source| RegistriesFileError::Mirror { name: name.clone(), source })?;
            if name != "*" {
                Endpoint::parse(name).map_err(|_| RegistriesFileError::Name { name: name.clone() })?;
            }
        }
        Ok(file)
    }

    /// The settings of a host, which the file may name with a scheme.
    pub(crate) fn config(&self, host: &str) -> Option<&HostConfig> {
        let bare = |name: &str| name.split_once("://").map_or(name, |(_, rest)| rest).trim_end_matches('/').to_owned();
        let named = |wanted: &str| self.configs.iter().find(|(name, _)| bare(name) == wanted).map(|(_, config)| config);
        named(host).or_else(|| (host == DOCKER_HOST).then(|| named(DOCKER)).flatten())
    }

    /// The mirror of a registry.
    pub(crate) fn mirror(&self, registry: &str) -> Option<&Mirror> {
        self.mirrors.get(registry).or_else(|| self.mirrors.get("*"))
    }

    /// Credentials for each host that may be asked for an image, in the order in which they are asked.
    pub(crate) fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let registry = registry_of(image);
        let mirrors = self
            .mirror(registry)
            .into_iter()
            .flat_map(|mirror| &mirror.endpoint)
            .filter_map(|text| Endpoint::parse(text).ok());
        let hosts = mirrors.chain([own_endpoint(registry)]);
        let auth = |endpoint: Endpoint| {
            let auth = self.config(&endpoint.host)?.auth.as_ref()?;
            Some(cri::AuthConfig {
                username: auth.username.clone(),
                password: auth.password.expose().clone(),
                auth: auth.auth.expose().clone(),
                identity_token: auth.identity_token.expose().clone(),
                // containerd gives them to this host and to no other.
                server_address: endpoint.base,
                ..Default::default()
            })
        };
        hosts.filter_map(auth).collect()
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    const TEXT: &str = r#"
mirrors:
  docker.io:
    endpoint: ["https://mirror.lan:5000", "http://other.lan/v2/sub"]
    rewrite: {"^(.*)$": "hub/$1"}
  "*":
    endpoint: ["https://all.lan"]
configs:
  "mirror.lan:5000":
    auth: {username: u, password: p}
    tls: {ca_file: /ca.pem}
  registry-1.docker.io:
    auth: {auth: dTpw}
"#;

    #[test]
    fn each_host_that_may_be_asked_gets_its_own_credentials_and_no_others() {
        let file = File::parse(TEXT).unwrap();
        let hosts = |image: &str| {
            file.credentials(image).into_iter().map(|a| (a.server_address, a.username, a.auth)).collect::<Vec<_>>()
        };
        let own = |server: &str, user: &str, auth: &str| (server.to_owned(), user.to_owned(), auth.to_owned());
        assert_eq!(
            hosts("nginx"),
            [own("https://mirror.lan:5000", "u", ""), own("https://registry-1.docker.io", "", "dTpw")]
        );
        assert!(hosts("quay.io/a/b").is_empty());
        assert_eq!(file.mirror("quay.io").unwrap().endpoint, ["https://all.lan"]);
        assert_eq!(file.mirrors["docker.io"].prefix(), Ok(Some("hub".to_owned())));
        assert!(!format!("{file:?}").contains("dTpw"), "secrets are not printed");
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_name() {
        for (text, names) in [
            ("mirrors: {a.io: {endpoint: ['ftp://x']}}", "ftp://x"),
            ("mirrors: {a.io: {endpoint: ['https://x'], rewrite: {'^team/(.*)': 'b/$1'}}}", "^team/(.*)"),
            ("mirror: {}", "mirror"),
            ("configs: {h: {tls: {cafile: x}}}", "cafile"),
        ] {
            let why = Chain(&File::parse(text).unwrap_err()).to_string();
            assert!(why.contains(names), "{why}");
        }
        assert_eq!(File::parse("# nothing\n\n").unwrap(), File::default());
    }

    #[test]
    fn what_is_wrong_with_a_mirror_is_told_with_its_name() {
        for (text, why) in [
            (
                "mirrors: {a.io: {endpoint: ['ftp://x']}}",
                "mirror a.io: endpoint 'ftp://x' is no URL such as https://mirror.example:5000",
            ),
            ("mirrors: {'a b': {}}", "mirror a b: that is no name of a registry"),
            (
                "mirrors: {a.io: {rewrite: {'^a$': 'b', '^c$': 'd'}}}",
                "mirror a.io: rewrite '^a$', '^c$': containerd can only put one prefix before all repositories of a \
                 mirror: want '^(.*)$': 'some/prefix/$1'",
            ),
        ] {
            assert_eq!(Chain(&File::parse(text).unwrap_err()).to_string(), why);
        }
    }

    #[test]
    fn an_endpoint_is_a_url_whose_scheme_may_be_left_out() {
        let parts = |text: &str| Endpoint::parse(text).map(|e| (e.base, e.host, e.path)).ok();
        let own = |base: &str, host: &str, path: &str| Some((base.to_owned(), host.to_owned(), path.to_owned()));
        assert_eq!(parts("m.lan:5000"), own("https://m.lan:5000", "m.lan:5000", ""));
        assert_eq!(parts("localhost:5000"), own("http://localhost:5000", "localhost:5000", ""));
        assert_eq!(parts("[::1]:5000"), own("http://[::1]:5000", "[::1]:5000", ""));
        assert_eq!(parts("http://m.lan/v2/sub/"), own("http://m.lan", "m.lan", "/v2/sub"));
        for bad in ["", "https://", "ftp://m.lan", "https://m lan", "https://m.lan/a b", "https://m.lan/?q", "a\"b"] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_rewrite_is_a_prefix_for_all_or_it_is_refused() {
        let prefix = |pattern: &str, into: &str| {
            let rewrite = BTreeMap::from([(pattern.to_owned(), into.to_owned())]);
            Mirror { rewrite, ..Mirror::default() }.prefix().ok()
        };
        for pattern in ["^(.*)$", "(.*)", "^(.+)$"] {
            assert_eq!(prefix(pattern, "hub/$1"), Some(Some("hub".to_owned())), "{pattern}");
        }
        assert_eq!(prefix("^(.*)$", "a/b/${1}"), Some(Some("a/b".to_owned())));
        for (pattern, into) in [("^x/(.*)$", "hub/$1"), ("^(.*)$", "$1"), ("^(.*)$", "hub$1"), ("^(.*)$", "h b/$1")] {
            assert_eq!(prefix(pattern, into), None, "{pattern} {into}");
        }
        assert_eq!(Mirror::default().prefix(), Ok(None));
    }

    #[test]
    fn an_image_belongs_to_the_registry_that_its_name_begins_with() {
        for (image, registry) in [
            ("nginx", "docker.io"),
            ("library/nginx:1", "docker.io"),
            ("quay.io/a/b", "quay.io"),
            ("localhost/a", "localhost"),
            ("host:5000/a", "host:5000"),
        ] {
            assert_eq!(registry_of(image), registry);
        }
        assert_eq!(own_endpoint("docker.io").base, "https://registry-1.docker.io");
        assert_eq!(own_endpoint("localhost:5000").base, "http://localhost:5000");
    }
}
