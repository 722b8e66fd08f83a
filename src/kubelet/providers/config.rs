//! `CredentialProviderConfig` (kubelet.config.k8s.io/v1): which programs give credentials for which images. Pure.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// Versions of the file.
const FILE_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// Versions that programs are spoken to in.
const EXEC_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// A program that gives credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The program.
    pub path: PathBuf,
    /// Images that it is asked for.
    pub match_images: Vec<String>,
    /// How long an answer is good that does not say it.
    pub cache_duration: Duration,
    /// In which version it is spoken to.
    pub api_version: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables that are added to its environment.
    pub env: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    kind: String,
    api_version: String,
    #[serde(default)]
    providers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    token_attributes: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderConfigError {
    /// The parser's words hold their cause.
    #[error("{0}")]
    Yaml(serde_saphyr::Error),
    /// Another kind of object, or of a version that is not known.
    #[error("it is a {kind} of {api_version}, not a CredentialProviderConfig of {}", FILE_VERSIONS[0])]
    OtherKind {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// It names no program.
    #[error("at least 1 item in providers is required")]
    Empty,
    /// One of its programs.
    #[error("provider {name:?}")]
    Provider {
        /// The program's name.
        name: String,
        /// The fault.
        source: ProviderError,
    },
}

/// A program that is described wrongly.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// A path, for example.
    #[error("its name must be that of a program, without path and spaces")]
    Name,
    /// It wants a feature that is not there.
    #[error("tokenAttributes: this kubelet gives providers no service account tokens")]
    TokenAttributes,
    /// It is to be spoken to in a version that is not known.
    #[error("apiVersion {api_version:?} is none of {}", EXEC_VERSIONS.join(", "))]
    ApiVersion {
        /// The version.
        api_version: String,
    },
    /// It is for no image.
    #[error("at least 1 item in matchImages is required")]
    NoImages,
    /// A pattern that fits no image.
    #[error(
        "matchImages: {pattern:?} is not a host, with a port and a path if wanted, such as *.dkr.ecr.*.amazonaws.com"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
    },
    /// Nothing says how long its answers are good.
    #[error("defaultCacheDuration is required")]
    NoDuration,
    /// The time that its answers are good is none.
    #[error("defaultCacheDuration: {text:?} is not a duration such as 12h")]
    Duration {
        /// The time as it is written.
        text: String,
    },
}

/// Reads one file; programs are in `bin_dir`.
pub fn parse(text: &str, bin_dir: &Path) -> Result<Vec<Provider>, ProviderConfigError> {
    let file: File = serde_saphyr::from_str(text).map_err(ProviderConfigError::Yaml)?;
    if file.kind != "CredentialProviderConfig" || !FILE_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(ProviderConfigError::OtherKind { kind: file.kind, api_version: file.api_version });
    }
    if file.providers.is_empty() {
        return Err(ProviderConfigError::Empty);
    }
    let read = |entry: Entry| {
        let name = entry.name.clone();
        provider(entry, bin_dir).map_err(|source| ProviderConfigError::Provider { name, source })
    };
    file.providers.into_iter().map(read).collect()
}

fn provider(entry: Entry, bin_dir: &Path) -> Result<Provider, ProviderError> {
    let name = entry.name;
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ']) {
        return Err(ProviderError::Name);
    }
    if entry.token_attributes.is_some() {
        return Err(ProviderError::TokenAttributes);
    }
    if !EXEC_VERSIONS.contains(&entry.api_version.as_str()) {
        return Err(ProviderError::ApiVersion { api_version: entry.api_version });
    }
    if entry.match_images.is_empty() {
        return Err(ProviderError::NoImages);
    }
    if let Some(bad) = entry.match_images.iter().find(|pattern| split(pattern).is_none()) {
        return Err(ProviderError::Pattern { pattern: bad.clone() });
    }
    let text = entry.default_cache_duration.ok_or(ProviderError::NoDuration)?;
    let Some(cache_duration) = duration(&text) else { return Err(ProviderError::Duration { text }) };
    Ok(Provider {
        path: bin_dir.join(&name),
        match_images: entry.match_images,
        cache_duration,
        api_version: entry.api_version,
        args: entry.args,
        env: entry.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
    })
}

/// A duration as Go writes it that is not negative.
pub(super) fn duration(text: &str) -> Option<Duration> {
    base::cron::duration(text).and_then(|length| Duration::try_from(length).ok())
}

/// An image's whole repository, as upstream's names it: with its registry, without tag and digest.
pub fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some((host, _)) if host.contains('.') || host.contains(':') || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

/// Host, port and path of a pattern or a repository; `None` if there is no host.
fn split(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let (authority, path) = text.split_once('/').map_or((text, ""), |(authority, path)| (authority, path));
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    if host.is_empty() || host.contains(' ') || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return None;
    }
    Some((host, port, path))
}

/// A pattern of images: a host, with a port and a path if wanted.
#[derive(Clone, Copy, Debug)]
pub struct Pattern<'a>(pub &'a str);

impl Pattern<'_> {
    /// Whether it is the pattern of a repository: host by host part with `*` and `?`, the same port, and a path that
    /// begins the repository's.
    pub fn matches(self, repository: &str) -> bool {
        let (Some((host, port, path)), Some((own_host, own_port, own_path))) = (split(self.0), split(repository))
        else {
            return false;
        };
        let (parts, own_parts): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), own_host.split('.').collect());
        parts.len() == own_parts.len()
            && port == own_port
            && parts.iter().zip(own_parts).all(|(part, own)| fits(part.as_bytes(), own.as_bytes()))
            && own_path.starts_with(path)
    }
}

fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
        Some((b'?', rest)) => !text.is_empty() && fits(rest, &text[1..]),
        Some((byte, rest)) => text.first() == Some(byte) && fits(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    const GOOD: &str = "\
        apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: ecr\n  \
        apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: ['*.dkr.ecr.*.amazonaws.com']\n  \
        defaultCacheDuration: 12h\n  args: [get]\n  env: [{name: AWS_PROFILE, value: p}]\n";

    #[test]
    fn a_file_names_programs() {
        let read = parse(GOOD, Path::new("/bin-dir")).unwrap();
        assert_eq!(
            (read[0].path.as_path(), read[0].cache_duration),
            (Path::new("/bin-dir/ecr"), Duration::from_secs(43_200))
        );
        assert_eq!(read[0].env, [("AWS_PROFILE".to_owned(), "p".to_owned())]);
    }

    #[test]
    fn a_file_that_cannot_be_used_says_why() {
        let why = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            Chain(&parse(&GOOD.replace(from, to), Path::new("/b")).unwrap_err()).to_string()
        };
        assert!(why("args:", "arguments:").contains("arguments"));
        for (from, to, text) in [
            (
                "CredentialProviderConfig",
                "KubeletConfiguration",
                "it is a KubeletConfiguration of kubelet.config.k8s.io/v1, \
                 not a CredentialProviderConfig of kubelet.config.k8s.io/v1",
            ),
            (
                "name: ecr",
                "name: ../ecr",
                "provider \"../ecr\": its name must be that of a program, without path and spaces",
            ),
            ("12h", "long", "provider \"ecr\": defaultCacheDuration: \"long\" is not a duration such as 12h"),
            ("  defaultCacheDuration: 12h\n", "", "provider \"ecr\": defaultCacheDuration is required"),
            ("'*.dkr.ecr.*.amazonaws.com'", "", "provider \"ecr\": at least 1 item in matchImages is required"),
            (
                "'*.dkr.ecr.*.amazonaws.com'",
                "'/path'",
                "provider \"ecr\": matchImages: \"/path\" is not a host, with a port and a path if wanted, \
                 such as *.dkr.ecr.*.amazonaws.com",
            ),
            (
                "args: [get]",
                "tokenAttributes: {cacheType: Token}",
                "provider \"ecr\": tokenAttributes: this kubelet gives providers no service account tokens",
            ),
            (
                "kubelet.k8s.io/v1\n  ",
                "kubelet.k8s.io/v2\n  ",
                "provider \"ecr\": apiVersion \"credentialprovider.kubelet.k8s.io/v2\" is none of \
                 credentialprovider.kubelet.k8s.io/v1, credentialprovider.kubelet.k8s.io/v1beta1, \
                 credentialprovider.kubelet.k8s.io/v1alpha1",
            ),
        ] {
            assert_eq!(why(from, to), text);
        }
        let none = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        let err = parse(none, Path::new("/b")).unwrap_err();
        assert_eq!(err.to_string(), "at least 1 item in providers is required");
    }

    #[test]
    fn images_are_matched_as_upstream_documents_it() {
        let ecr = repository("123.dkr.ecr.eu-west-1.amazonaws.com/team/web:1.2");
        assert!(
            Pattern("*.dkr.ecr.*.amazonaws.com").matches(&ecr)
                && Pattern("*.dkr.ecr.*.amazonaws.com/team").matches(&ecr)
        );
        assert!(!Pattern("*.amazonaws.com").matches(&ecr), "a star stands for one part of a host");
        assert!(!Pattern("*.dkr.ecr.*.amazonaws.com/other").matches(&ecr));
        assert_eq!(repository("busybox@sha256:00"), "docker.io/library/busybox");
        assert!(
            Pattern("docker.io").matches(&repository("a/b:1"))
                && Pattern("registry.io:8080/path").matches(&repository("registry.io:8080/path/x:1"))
        );
        assert!(!Pattern("registry.io").matches(&repository("registry.io:8080/path")));
        assert!(Pattern("ap*.k8s.?o").matches("app.k8s.io/x"));
    }
}
