//! Settings from flags and files: which files there are, what stands over what, and what is refused.
//!
//! From below: kedge's defaults, the files in order, the flags. The files are those of the node's own folder of
//! drop-ins; `config` stands among them as `10-cli-config.conf` and `config-dir` as `20-cli-config-dir`, as k3s lays
//! them there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::file::{self, FileFault, Found};
use super::merged::{self, Clash};
use super::row::Row;
use super::tree::{self, Leaf};
use super::value::ValueError;
use super::{Settings, table};
use crate::providers::{Providers, ReadError};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SettingsError(#[from] Fault);

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{word:?}: expected name=value")]
    NotAssigned { word: String },
    #[error("{name}")]
    Value { name: String, source: ValueError },
    #[error("{path}", path = path.display())]
    File { path: PathBuf, source: FileFault },
    #[error("image-credential-provider-config")]
    Providers(#[source] ReadError),
    #[error(transparent)]
    Clash(#[from] Clash),
}

/// Folders that matter for files of settings.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// The node's own drop-ins, if there are any.
    pub drop_ins: Option<PathBuf>,
    /// Folders that containers write: no file there is configuration.
    pub of_pods: Vec<PathBuf>,
}

/// The words of `--kubelet-arg`, told apart.
#[derive(Default)]
struct Flags {
    config: Option<PathBuf>,
    config_dir: Option<PathBuf>,
    /// In the order of their first mention.
    given: Vec<(&'static Row, Value)>,
}

impl Settings {
    /// Reads `name=value` words, where there is no folder of drop-ins.
    ///
    /// Errors: as [`Settings::read`].
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Settings, SettingsError> {
        Settings::read(words, &Folders::default())
    }

    /// Reads `name=value` words and the files.
    ///
    /// Errors: a name that this kubelet does not have, a value that does not fit, for the operator; a file that cannot
    /// be used. Nothing was changed anywhere.
    pub fn read<'a>(words: impl IntoIterator<Item = &'a str>, folders: &Folders) -> Result<Settings, SettingsError> {
        let flags = Flags::parse(words)?;
        let mut given = files(&flags, folders)?;
        tidy(&mut given);
        let mut settings = Settings::default();
        for (row, value) in &flags.given {
            if !row.field.is_empty() {
                over(&mut given, row, value.clone());
            } else {
                row.apply(&mut settings, value).map_err(|source| named(row.flag, source))?;
            }
        }
        for leaf in tree::leaves(&given) {
            let Leaf::Known(row, value) = leaf else { continue };
            row.apply(&mut settings, value).map_err(|source| named(row.field, source))?;
        }
        merged::check(&settings).map_err(Fault::from)?;
        if let (Some(config), Some(bin_dir)) = (&settings.provider_config, &settings.provider_bin_dir) {
            settings.providers = Some(Arc::new(Providers::read(config, bin_dir).map_err(Fault::Providers)?));
        }
        settings.given = given;
        Ok(settings)
    }
}

fn named(name: &str, source: ValueError) -> Fault {
    Fault::Value { name: name.to_owned(), source }
}

impl Flags {
    fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Flags, Fault> {
        let mut flags = Flags::default();
        for word in words {
            let bare = word.trim_start_matches("--");
            let (name, text) = match bare.split_once('=') {
                Some((name, text)) => (name.replace('_', "-"), Some(text)),
                None => (bare.replace('_', "-"), None),
            };
            let not_assigned = || Fault::NotAssigned { word: word.to_owned() };
            match name.as_str() {
                "config" => flags.config = Some(text.ok_or_else(not_assigned)?.into()),
                "config-dir" => flags.config_dir = Some(text.ok_or_else(not_assigned)?.into()),
                _ => flags.add(&name, text, word)?,
            }
        }
        Ok(flags)
    }

    fn add(&mut self, name: &str, text: Option<&str>, word: &str) -> Result<(), Fault> {
        let row = table::by_flag(name).ok_or_else(|| named(name, ValueError::Unknown))?;
        // A switch that is named alone is on.
        let switch = (row.form == super::form::Form::Bool).then_some("true");
        let text = text.or(switch).ok_or_else(|| Fault::NotAssigned { word: word.to_owned() })?;
        let value = row.form.read(text).map_err(|source| named(name, source))?;
        // Judged by itself, so that the flag is named and not the field.
        row.apply(&mut Settings::default(), &value).map_err(|source| named(name, source))?;
        match self.given.iter_mut().find(|(known, _)| known.flag == row.flag) {
            // Lists and maps that are given twice add up, as upstream's flags do.
            Some((_, Value::Object(before))) if value.is_object() => {
                before.extend(value.as_object().cloned().unwrap_or_default());
            }
            Some((_, Value::Array(before))) if value.is_array() => {
                before.extend(value.as_array().cloned().unwrap_or_default());
            }
            Some((_, before)) => *before = value,
            None => self.given.push((row, value)),
        }
        Ok(())
    }
}

/// All files, one over another.
fn files(flags: &Flags, folders: &Folders) -> Result<Map<String, Value>, Fault> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Fault::File { path, source }
    };
    let mut all = Vec::new();
    if let Some(own) = folders.drop_ins.as_deref().filter(|own| own.exists()) {
        all.extend(file::drop_ins(own, Path::new("")).map_err(at(own))?);
    }
    if let Some(path) = &flags.config {
        all.push(Found { order: "10-cli-config.conf".into(), path: path.clone() });
    }
    if let Some(folder) = &flags.config_dir {
        all.extend(file::drop_ins(folder, Path::new("20-cli-config-dir")).map_err(at(folder))?);
    }
    all.sort_by(|a, b| a.order.cmp(&b.order));
    let mut tree = Map::new();
    for Found { path, .. } in all {
        tree::merge(&mut tree, file::read(&path, &folders.of_pods).map_err(at(&path))?);
    }
    Ok(tree)
}

/// Takes out what says nothing: zeros of Go's structs.
fn tidy(tree: &mut Map<String, Value>) {
    let mut said = Map::new();
    for leaf in tree::leaves(tree) {
        if let Leaf::Known(row, value) = leaf
            && !row.is_unset(value)
        {
            tree::set(&mut said, row.field, value.clone());
        }
    }
    *tree = said;
}

/// Puts a flag over the files. Gates that it does not name stay, as upstream.
fn over(tree: &mut Map<String, Value>, row: &Row, value: Value) {
    let value = match (row.form, tree::get(tree, row.field), value) {
        (super::form::Form::Bools, Some(Value::Object(before)), Value::Object(now)) => {
            let mut both = before.clone();
            both.extend(now);
            Value::Object(both)
        }
        (_, _, value) => value,
    };
    tree::set(tree, row.field, value);
}
