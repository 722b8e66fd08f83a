//! Additions to containerd's configuration: files that an administrator, or a GPU vendor's program, lays into a folder.
//!
//! They are merged here, table by table: containerd 1.x replaces the whole table of a plugin by that of an import, and
//! with it where the pods' network is. What is merged is judged by containerd itself before it is used. A file that
//! cannot be used is left out and named; the node starts without it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base::chain::Chain;
use base::files::{FileError, write_atomic};
use tracing::{info, warn};

use super::version::VERSION_LIMIT;
use crate::admin_file::{self, AdminFileError};

/// The action of a template of k3s's that stands for the whole of the base.
const BASE: &str = "{{ template \"base\" . }}";

/// Why a file is left out.
#[derive(Debug, thiserror::Error)]
pub(super) enum DropInError {
    #[error(transparent)]
    File(#[from] AdminFileError),
    #[error("is not TOML: {why}")]
    Toml { why: String },
    #[error("{key} is kedge's own: leave it out")]
    Ours { key: String },
    #[error(
        "version = {found} is not {wanted}, which this containerd takes; the tables of plugins have other names there"
    )]
    Version { found: String, wanted: u32 },
    #[error("has Go template actions other than {BASE}, which kedge does not run: lay plain TOML into {folder}")]
    Template { folder: &'static str },
    #[error("containerd does not take it")]
    Refused(#[from] NotTaken),
}

/// containerd does not take a configuration, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotTaken {
    #[error("{0}")]
    Said(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("it cannot be asked")]
    Asked(#[from] io::Error),
}

/// The folder for a version of the configuration, and the template beside it; k3s's names.
const OF_V2: (&str, &str) = ("config.toml.d", "config.toml.tmpl");
const OF_V3: (&str, &str) = ("config-v3.toml.d", "config-v3.toml.tmpl");

/// The configuration as it is written, and the files that are in it.
pub(super) struct Merged {
    pub(super) text: String,
    pub(super) files: Vec<PathBuf>,
}

/// Where additions lie, and what no file may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// The folder that holds the folders.
    pub(super) dir: &'a Path,
    /// Folders that containers write.
    pub(super) of_pods: &'a [PathBuf],
    /// Of the configuration: 2 for containerd 1.x, 3 for 2.x.
    pub(super) version: u32,
}

/// Puts all files over `base`, one after another. `judge` asks containerd about a whole configuration.
pub(super) fn merge(base: String, source: Source<'_>, judge: impl Fn(&str) -> Result<(), NotTaken>) -> Merged {
    let mut merged = Merged { text: base, files: Vec::new() };
    for path in files(source) {
        let added = add(&merged.text, &path, source).and_then(|text| Ok(judge(&text).map(|()| text)?));
        match added {
            Ok(text) => {
                info!(path = %path.display(), "containerd's configuration has this file in it");
                merged.text = text;
                merged.files.push(path);
            }
            Err(err) => warn!(
                path = %path.display(),
                err = %Chain(&err),
                "this file is left out of containerd's configuration"
            ),
        }
    }
    merged
}

/// Asks containerd whether it takes a configuration.
pub(super) fn judge(program: &Path, candidate: &Path, text: &str) -> Result<(), NotTaken> {
    write_atomic(candidate, text.as_bytes(), 0o600)?;
    let mut asked = std::process::Command::new(program);
    asked.arg("--config").arg(candidate).args(["config", "dump"]).env_remove("NOTIFY_SOCKET");
    let said = base::program::output(&mut asked, b"", VERSION_LIMIT)?;
    let words = String::from_utf8_lossy(&said.stderr);
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    if said.status.success() { Ok(()) } else { Err(NotTaken::Said(last.chars().take(300).collect())) }
}

/// The files in their order: the template first, then the folder by name. Of the other version none is read, and that
/// is said.
fn files(source: Source<'_>) -> Vec<PathBuf> {
    let (own, other) = if source.version == 2 { (OF_V2, OF_V3) } else { (OF_V3, OF_V2) };
    let listed = |folder: &str| {
        let entries = fs::read_dir(source.dir.join(folder)).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        all.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        all.sort();
        all
    };
    let unread = listed(other.0).into_iter().chain([source.dir.join(other.1)].into_iter().filter(|path| path.exists()));
    for path in unread {
        warn!(
            path = %path.display(),
            wanted = own.0,
            "this file is for another version of containerd's configuration and is not read"
        );
    }
    let template = source.dir.join(own.1);
    template.exists().then_some(template).into_iter().chain(listed(own.0)).collect()
}

fn add(base: &str, path: &Path, source: Source<'_>) -> Result<String, DropInError> {
    let mut text = admin_file::read(path, source.of_pods)?;
    if path.extension().is_some_and(|ending| ending == "tmpl") {
        text = plain(&text, source)?;
    }
    let parse =
        |text: &str| text.parse::<toml::Table>().map_err(|err| DropInError::Toml { why: err.message().to_owned() });
    let mut whole = parse(base)?;
    let mut more = parse(&text)?;
    check(&mut more, source)?;
    over(&mut whole, more);
    Ok(format!(
        "# Written by kedge at each start; changes are lost. It has files of {} in it.\n{whole}",
        source.dir.display()
    ))
}

/// A template without its one action.
fn plain(text: &str, source: Source<'_>) -> Result<String, DropInError> {
    let squeezed = |action: &str| action.split_whitespace().collect::<String>();
    let mut plain = String::new();
    let mut rest = text;
    let folder = if source.version == 2 { OF_V2.0 } else { OF_V3.0 };
    while let Some(start) = rest.find("{{") {
        let end = rest[start..].find("}}").ok_or(DropInError::Template { folder })? + start + 2;
        let action = squeezed(&rest[start..end]).replace("{{-", "{{").replace("-}}", "}}");
        if action != squeezed(BASE) {
            return Err(DropInError::Template { folder });
        }
        plain += &rest[..start];
        rest = &rest[end..];
    }
    Ok(plain + rest)
}

/// Keys that hold the node together: where containerd is reached and keeps its things, and the pods' network.
const OURS: [&str; 9] =
    ["root", "state", "imports", "plugin_dir", "required_plugins", "disabled_plugins", "grpc", "ttrpc", "oom_score"];

/// Tables of plugins that have the pods' network in them.
const WITH_CNI: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// Refuses what is kedge's own, and takes the version out.
fn check(more: &mut toml::Table, source: Source<'_>) -> Result<(), DropInError> {
    if let Some(found) = more.remove("version")
        && found.as_integer() != Some(i64::from(source.version))
    {
        return Err(DropInError::Version { found: found.to_string(), wanted: source.version });
    }
    // Vendors' programs write the lists that are empty, too.
    let is_empty = |value: &toml::Value| value.as_array().is_some_and(Vec::is_empty);
    more.retain(|key, value| !(OURS.contains(&key) && is_empty(value)));
    if let Some(key) = OURS.iter().find(|key| more.contains_key(**key)) {
        return Err(DropInError::Ours { key: (*key).to_owned() });
    }
    let plugins = more.get("plugins").and_then(toml::Value::as_table);
    for name in WITH_CNI {
        let table = plugins.and_then(|all| all.get(name)).and_then(toml::Value::as_table);
        if table.is_some_and(|table| table.contains_key("cni")) {
            return Err(DropInError::Ours { key: format!("plugins.{name:?}.cni") });
        }
    }
    Ok(())
}

/// Tables are merged, all else is replaced.
fn over(base: &mut toml::Table, more: toml::Table) {
    for (key, value) in more {
        let merged = match (base.remove(&key), value) {
            (Some(toml::Value::Table(mut below)), toml::Value::Table(more)) => {
                over(&mut below, more);
                toml::Value::Table(below)
            }
            (_, value) => value,
        };
        base.insert(key, merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "version = 2\nroot = \"/r\"\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/b\"\n";

    /// The outcome with one file of this name.
    fn with(name: &str, text: &str) -> Merged {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        merge(OWN.to_owned(), Source { dir: dir.path(), of_pods: &[], version: 2 }, |_| Ok(()))
    }

    /// Why a file is left out.
    fn why(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        fs::write(&path, text).unwrap();
        let source = Source { dir: dir.path(), of_pods: &[], version: 2 };
        add(OWN, &path, source).unwrap_err().to_string()
    }

    // The form that `nvidia-ctk runtime configure --config=… --drop-in-config` writes for containerd 1.x.
    #[test]
    fn a_vendors_file_is_merged_and_the_pods_network_stays() {
        let file = "version = 2\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    \
                    [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n      \
                    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n        \
                    runtime_type = \"io.containerd.runc.v2\"\n        \
                    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n          \
                    BinaryName = \"/usr/bin/nvidia-container-runtime\"\n";
        let merged = with("config.toml.d/99-nvidia.toml", file);
        assert_eq!(merged.files.len(), 1);
        let table: toml::Table = merged.text.parse().unwrap();
        let cri = &table["plugins"]["io.containerd.grpc.v1.cri"];
        assert_eq!(cri["cni"]["bin_dir"].as_str(), Some("/b"));
        let nvidia = &cri["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"];
        assert_eq!(nvidia.as_str(), Some("/usr/bin/nvidia-container-runtime"));
        assert_eq!((table["root"].as_str(), table["version"].as_integer()), (Some("/r"), Some(2)));
    }

    #[test]
    fn what_holds_the_node_together_cannot_be_changed() {
        for (text, said) in [
            ("root = \"/x\"", "root is kedge's own: leave it out"),
            ("state = \"/x\"", "state is kedge's own: leave it out"),
            ("imports = [\"/x\"]", "imports is kedge's own: leave it out"),
            ("disabled_plugins = [\"cri\"]", "disabled_plugins is kedge's own: leave it out"),
            ("[grpc]\naddress = \"/x\"", "grpc is kedge's own: leave it out"),
            (
                "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/x\"",
                "plugins.\"io.containerd.grpc.v1.cri\".cni is kedge's own: leave it out",
            ),
            (
                "version = 3",
                "version = 3 is not 2, which this containerd takes; the tables of plugins have other names there",
            ),
            ("= 1", "is not TOML: "),
            ("a = 1\na = 2", "is not TOML: "),
        ] {
            assert!(why(text).starts_with(said), "{text}: {}", why(text));
        }
        assert!(why(&format!("a = {}{}", "[".repeat(50_000), "]".repeat(50_000))).starts_with("is not TOML"));
        assert!(with("config.toml.d/x.toml", "disabled_plugins = []\nimports = []").files.len() == 1);
    }

    #[test]
    fn a_file_that_cannot_be_used_is_left_out_and_the_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("config.toml.d").join(name);
        fs::create_dir_all(at("")).unwrap();
        for (name, text) in
            [("1.toml", "[debug]\nlevel = \"info\""), ("2.toml", "nonsense"), ("3.toml", "[bad]"), ("4", "x")]
        {
            fs::write(at(name), text).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, at("0.toml"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let source = Source { dir: dir.path(), of_pods: &[], version: 2 };
        let judge = |text: &str| if text.contains("[bad]") { Err(NotTaken::Said("no".to_owned())) } else { Ok(()) };
        let merged = merge(OWN.to_owned(), source, judge);
        assert_eq!(merged.files, [at("1.toml")]);
        assert!(merged.text.contains("level"));
        let v3 = merge(OWN.to_owned(), Source { version: 3, ..source }, judge);
        assert_eq!((v3.files.len(), v3.text.as_str()), (0, OWN), "the folder is that of another version");
    }

    #[test]
    fn a_template_that_only_adds_is_taken() {
        let merged = with("config.toml.tmpl", "{{- template \"base\" . -}}\n[debug]\nlevel = \"debug\"\n");
        assert_eq!(merged.files.len(), 1);
        assert!(merged.text.contains("level = \"debug\""));
        for text in ["{{ template \"base\" . }}\n{{ if .IsRunningInUserNS }}\n{{end}}", "{{ open"] {
            assert_eq!(with("config.toml.tmpl", text).text, OWN);
        }
    }
}
