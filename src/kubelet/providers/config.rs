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
    /// What is added to its environment.
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

/// Reads one file; programs are in `bin_dir`.
///
/// Errors: a sentence that names what is wrong.
pub fn parse(text: &str, bin_dir: &Path) -> Result<Vec<Provider>, String> {
    let file: File = serde_saphyr::from_str(text).map_err(|err| err.to_string())?;
    if file.kind != "CredentialProviderConfig" || !FILE_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!(
            "it is a {} of {}, not a CredentialProviderConfig of {}",
            file.kind, file.api_version, FILE_VERSIONS[0]
        ));
    }
    if file.providers.is_empty() {
        return Err("at least 1 item in providers is required".to_owned());
    }
    file.providers.into_iter().map(|entry| provider(entry, bin_dir)).collect()
}

fn provider(entry: Entry, bin_dir: &Path) -> Result<Provider, String> {
    let name = entry.name;
    let wrong = |why: String| Err(format!("provider {name:?}: {why}"));
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ']) {
        return wrong("its name must be that of a program, without path and spaces".to_owned());
    }
    if entry.token_attributes.is_some() {
        return wrong("tokenAttributes: this kubelet gives providers no service account tokens".to_owned());
    }
    if !EXEC_VERSIONS.contains(&entry.api_version.as_str()) {
        return wrong(format!("apiVersion {:?} is none of {}", entry.api_version, EXEC_VERSIONS.join(", ")));
    }
    if entry.match_images.is_empty() {
        return wrong("at least 1 item in matchImages is required".to_owned());
    }
    if let Some(bad) = entry.match_images.iter().find(|pattern| split(pattern).is_none()) {
        return wrong(format!(
            "matchImages: {bad:?} is not a host, with a port and a path if wanted, such as *.dkr.ecr.*.amazonaws.com"
        ));
    }
    let Some(cache) = entry.default_cache_duration else { return wrong("defaultCacheDuration is required".to_owned()) };
    let Some(cache_duration) = duration(&cache) else {
        return wrong(format!("defaultCacheDuration: {cache:?} is not a duration such as 12h"));
    };
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

/// Whether an image is one of a pattern's: host by host part with `*` and `?`, the same port, and a path that begins
/// the image's.
pub fn matches(pattern: &str, repository: &str) -> bool {
    let (Some((host, port, path)), Some((image_host, image_port, image_path))) = (split(pattern), split(repository))
    else {
        return false;
    };
    let (parts, image_parts): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), image_host.split('.').collect());
    parts.len() == image_parts.len()
        && port == image_port
        && parts.iter().zip(image_parts).all(|(part, image_part)| fits(part.as_bytes(), image_part.as_bytes()))
        && image_path.starts_with(path)
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
    use super::*;

    const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: ecr\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  \
        matchImages: ['*.dkr.ecr.*.amazonaws.com']\n  defaultCacheDuration: 12h\n  args: [get]\n  env: [{name: AWS_PROFILE, value: p}]\n";

    #[test]
    fn a_file_names_programs_and_what_is_wrong_in_it() {
        let read = parse(GOOD, Path::new("/bin-dir")).unwrap();
        assert_eq!(
            (read[0].path.as_path(), read[0].cache_duration),
            (Path::new("/bin-dir/ecr"), Duration::from_secs(43_200))
        );
        assert_eq!(read[0].env, [("AWS_PROFILE".to_owned(), "p".to_owned())]);
        for (from, to, words) in [
            ("CredentialProviderConfig", "KubeletConfiguration", "not a CredentialProviderConfig"),
            ("name: ecr", "name: ../ecr", "without path"),
            ("12h", "long", "is not a duration"),
            ("'*.dkr.ecr.*.amazonaws.com'", "", "matchImages"),
            ("args:", "arguments:", "arguments"),
            ("args: [get]", "tokenAttributes: {cacheType: Token}", "tokenAttributes"),
            ("kubelet.k8s.io/v1\n  ", "kubelet.k8s.io/v2\n  ", "is none of"),
        ] {
            let why = parse(&GOOD.replace(from, to), Path::new("/b")).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn images_are_matched_as_upstream_documents_it() {
        let ecr = repository("123.dkr.ecr.eu-west-1.amazonaws.com/team/web:1.2");
        assert!(matches("*.dkr.ecr.*.amazonaws.com", &ecr) && matches("*.dkr.ecr.*.amazonaws.com/team", &ecr));
        assert!(!matches("*.amazonaws.com", &ecr), "a star stands for one part of a host");
        assert!(!matches("*.dkr.ecr.*.amazonaws.com/other", &ecr));
        assert_eq!(repository("busybox@sha256:00"), "docker.io/library/busybox");
        assert!(
            matches("docker.io", &repository("a/b:1"))
                && matches("registry.io:8080/path", &repository("registry.io:8080/path/x:1"))
        );
        assert!(!matches("registry.io", &repository("registry.io:8080/path")));
        assert!(matches("ap*.k8s.?o", "app.k8s.io/x"));
    }
}
