//! containerd's `certs.d/HOST/hosts.toml`, which it reads at every pull.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use base::files::{FileError, create_private_dir, read_if_exists, write_atomic};

use super::file::{Endpoint, File, Mirror, MirrorError, Tls, own_endpoint};
use crate::registries::places::Places;

/// The first line of files that are ours to change.
const MARK: &str = "# Written by kedge from registries.yaml; changes are lost.";

/// The server that containerd tries last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The registry itself.
    Registry,
    /// The last of its mirrors, if it has any.
    Mirror,
}

/// The files cannot be made, or not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostsError {
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Writes a folder for each registry that the file speaks of and removes those that it no longer does.
pub(super) fn write(places: &Places, file: &File) -> Result<(), HostsError> {
    let last = if places.default_endpoint { Last::Registry } else { Last::Mirror };
    let wanted = render(file, last)?;
    for (name, text) in &wanted {
        let dir = places.certs_dir.join(name);
        create_private_dir(&dir)?;
        let path = dir.join("hosts.toml");
        if read_if_exists(&path)?.as_deref() != Some(text.as_bytes()) {
            write_atomic(&path, text.as_bytes(), 0o600)?;
        }
    }
    let list = fs::read_dir(&places.certs_dir).map_err(FileError::at("cannot list", &places.certs_dir))?;
    for entry in list.flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path().join("hosts.toml"));
        // What a person put there stays.
        let ours = fs::read_to_string(&path).is_ok_and(|text| text.starts_with(MARK));
        if ours && !wanted.contains_key(&name) {
            fs::remove_file(&path).map_err(FileError::at("cannot remove", &path))?;
            let _others_files_keep_it = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}

/// The files by folder. Pure.
fn render(file: &File, last: Last) -> Result<BTreeMap<String, String>, MirrorError> {
    let mut out = BTreeMap::new();
    let bare = |name: &str| name.split_once("://").map_or(name, |(_, rest)| rest).trim_end_matches('/').to_owned();
    let mirrored: BTreeSet<String> = file.mirrors.keys().cloned().collect();
    let configured = file.configs.iter().filter(|(_, config)| config.tls.is_some()).map(|(name, _)| bare(name));
    for registry in mirrored.iter().cloned().chain(configured).collect::<BTreeSet<_>>() {
        let folder = if registry == "*" { "_default".to_owned() } else { registry.clone() };
        out.insert(folder, one(file, &registry, last)?);
    }
    Ok(out)
}

fn one(file: &File, registry: &str, last: Last) -> Result<String, MirrorError> {
    let none = Mirror::default();
    let mirror = file.mirror(registry).unwrap_or(&none);
    let prefix = mirror.prefix()?;
    let mut endpoints = Vec::new();
    for text in &mirror.endpoint {
        endpoints.push((Endpoint::parse(text)?, prefix.as_deref()));
    }
    // containerd tries the server named at the top after all others.
    let top = match registry {
        _ if last == Last::Mirror && !endpoints.is_empty() => endpoints.pop(),
        "*" => None,
        name => Some((own_endpoint(name), None)),
    };
    let mut text = format!("{MARK}\n");
    if let Some((endpoint, prefix)) = &top {
        let server = ServerEntry::of(endpoint, *prefix);
        text += &format!("server = {}\n", quoted(&server.url));
        text += &settings(file, endpoint, &server, "");
    }
    for (endpoint, prefix) in &endpoints {
        let server = ServerEntry::of(endpoint, *prefix);
        text += &format!("\n[host.{}]\n", quoted(&server.url));
        text += &settings(file, endpoint, &server, "  ");
    }
    Ok(text)
}

/// An endpoint as containerd is told of it.
struct ServerEntry {
    url: String,
    /// containerd is to take the URL's path as it is.
    has_whole_path: bool,
}

impl ServerEntry {
    fn of(endpoint: &Endpoint, prefix: Option<&str>) -> ServerEntry {
        let (base, path) = (&endpoint.base, endpoint.path.as_str());
        let url = match (path, prefix) {
            ("" | "/v2", None) => return ServerEntry { url: base.clone(), has_whole_path: false },
            (path, None) => format!("{base}{path}"),
            ("", Some(prefix)) => format!("{base}/v2/{prefix}"),
            (path, Some(prefix)) => format!("{base}{path}/{prefix}"),
        };
        ServerEntry { url, has_whole_path: true }
    }
}

fn settings(file: &File, endpoint: &Endpoint, server: &ServerEntry, indent: &str) -> String {
    let mut text = format!("{indent}capabilities = [\"pull\", \"resolve\"]\n");
    if server.has_whole_path {
        text += &format!("{indent}override_path = true\n");
    }
    let tls = file.config(&endpoint.host).and_then(|config| config.tls.clone()).unwrap_or_default();
    let Tls { ca_file, cert_file, key_file, insecure_skip_verify } = tls;
    if !ca_file.is_empty() {
        text += &format!("{indent}ca = [{}]\n", quoted(&ca_file));
    }
    if !cert_file.is_empty() {
        text += &format!("{indent}client = [[{}, {}]]\n", quoted(&cert_file), quoted(&key_file));
    }
    if insecure_skip_verify {
        text += &format!("{indent}skip_verify = true\n");
    }
    text
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
        mirrors: {docker.io: {endpoint: ['https://m.lan:5000', 'http://n.lan/v2/sub'], rewrite: {'^(.*)$': 'hub/$1'}}, \
        '*': {endpoint: ['https://m.lan:5000']}}\n\
        configs: {'m.lan:5000': {tls: {ca_file: /ca.pem}}}\n";

    #[test]
    fn mirrors_come_before_the_registry_itself_unless_that_is_not_wanted() {
        let file = File::parse(TEXT).unwrap();
        let all = render(&file, Last::Registry).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["_default", "docker.io", "m.lan:5000"]);
        assert_eq!(
            all["docker.io"].strip_prefix(MARK).unwrap(),
            "\nserver = \"https://registry-1.docker.io\"\ncapabilities = [\"pull\", \"resolve\"]\n\n\
             [host.\"https://m.lan:5000/v2/hub\"]\n  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n  \
             ca = [\"/ca.pem\"]\n\n\
             [host.\"http://n.lan/v2/sub/hub\"]\n  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n"
        );
        assert!(!all["_default"].contains("server"));
        let only = render(&file, Last::Mirror).unwrap();
        assert!(
            only["docker.io"].contains("server = \"http://n.lan/v2/sub/hub\"")
                && !only["docker.io"].contains("registry-1")
        );
    }

    #[test]
    fn files_of_registries_that_are_no_longer_named_go_and_a_persons_stay() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { file: "/none".into(), certs_dir: dir.path().to_owned(), default_endpoint: true };
        write(&places, &File::parse(TEXT).unwrap()).unwrap();
        fs::create_dir(dir.path().join("own.io")).unwrap();
        fs::write(dir.path().join("own.io/hosts.toml"), "server = \"x\"").unwrap();
        write(&places, &File::default()).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["own.io"]);
    }

    #[test]
    fn a_hosts_certificates_and_trust_stand_with_it() {
        let text = "configs: {'https://m.lan/': {tls: {cert_file: /c, key_file: /k, insecure_skip_verify: true}}}";
        let all = render(&File::parse(text).unwrap(), Last::Registry).unwrap();
        assert_eq!(
            all["m.lan"].strip_prefix(MARK).unwrap(),
            "\nserver = \"https://m.lan\"\ncapabilities = [\"pull\", \"resolve\"]\n\
             client = [[\"/c\", \"/k\"]]\nskip_verify = true\n"
        );
    }

    #[test]
    fn a_path_is_containerds_own_or_taken_as_it_is() {
        let of = |text: &str, prefix: Option<&str>| {
            let server = ServerEntry::of(&Endpoint::parse(text).unwrap(), prefix);
            (server.url, server.has_whole_path)
        };
        assert_eq!(of("https://m.lan", None), ("https://m.lan".to_owned(), false));
        assert_eq!(of("https://m.lan/v2", None), ("https://m.lan".to_owned(), false));
        assert_eq!(of("https://m.lan/x", None), ("https://m.lan/x".to_owned(), true));
        assert_eq!(of("https://m.lan", Some("hub")), ("https://m.lan/v2/hub".to_owned(), true));
        assert_eq!(of("https://m.lan/v2", Some("hub")), ("https://m.lan/v2/hub".to_owned(), true));
    }
}
