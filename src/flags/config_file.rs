//! config.yaml and its drop-ins, turned into flags that stand before the user's own.
//!
//! k3s's rules: a later file replaces an earlier value, `key+` appends to it, lists are for repeatable flags, and a
//! flag given on the command line wins (a repeatable one adds). Unlike k3s, an unknown key is an error: a misspelt
//! setting that is skipped is a trap.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::flags::config_source::{MainFile, SourceError, text_of};
use crate::flags::refused;

/// Form of a setting on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagKind {
    /// Takes no value.
    Switch,
    /// Takes one value; the last one wins.
    Single,
    /// May be repeated; values add up.
    List,
}

/// A configuration file that cannot be used. Each says which file, which key, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("configuration file {path} is not valid YAML: {reason}", path = path.display())]
    Yaml { path: PathBuf, reason: String },
    #[error(
        "configuration file {path} must hold keys and values at its top level, like 'node-name: edge-1'",
        path = path.display()
    )]
    NotAMap { path: PathBuf },
    #[error(
        "configuration file {path}: unknown key '{key}'; see 'kedge {role} --help' for the flags, which are the keys",
        path = path.display()
    )]
    UnknownKey { path: PathBuf, key: String, role: String },
    #[error("configuration file {path}: '{key}' is refused: {why}", path = path.display())]
    Refused { path: PathBuf, key: String, why: &'static str },
    #[error("configuration file {path}: the value of '{key}' must be {wanted}", path = path.display())]
    Value { path: PathBuf, key: String, wanted: &'static str },
    #[error(
        "configuration file {path}: '{key}+' adds to a list, and --{key} takes one value; write '{key}:'",
        path = path.display()
    )]
    NoList { path: PathBuf, key: String },
}

/// A value, and the line that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: String,
    pub(crate) file: PathBuf,
    /// From 1 on.
    pub(crate) line: usize,
}

/// The values of all files, by flag name.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, Vec<Setting>>,
    files: Vec<PathBuf>,
}

impl Settings {
    /// Reads `main` and `main.d/*.yaml` in name order. A missing main file is an error only if the user named it.
    pub(crate) fn read(
        role: &str,
        main: MainFile<'_>,
        flags: &BTreeMap<String, FlagKind>,
    ) -> Result<Settings, ConfigError> {
        let mut settings = Settings { files: main.files()?, ..Settings::default() };
        for path in settings.files.clone() {
            settings.merge(role, &path, &text_of(&path)?, flags)?;
        }
        Ok(settings)
    }

    fn merge(
        &mut self,
        role: &str,
        path: &Path,
        text: &str,
        flags: &BTreeMap<String, FlagKind>,
    ) -> Result<(), ConfigError> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(());
        }
        let document: Value = serde_saphyr::from_str(text)
            .map_err(|err| ConfigError::Yaml { path: path.to_owned(), reason: err.to_string() })?;
        let Value::Object(map) = document else { return Err(ConfigError::NotAMap { path: path.to_owned() }) };
        for (key, value) in map {
            let (name, append) = match key.strip_suffix('+') {
                Some(name) => (name, true),
                None => (key.as_str(), false),
            };
            let Some(kind) = flags.get(name) else {
                if let Some(why) = refused::why(name) {
                    return Err(ConfigError::Refused { path: path.to_owned(), key, why });
                }
                return Err(ConfigError::UnknownKey { path: path.to_owned(), key, role: role.to_owned() });
            };
            let values = values_of(&value, *kind).map_err(|wanted| ConfigError::Value {
                path: path.to_owned(),
                key: name.to_owned(),
                wanted,
            })?;
            if append && *kind != FlagKind::List {
                return Err(ConfigError::NoList { path: path.to_owned(), key: name.to_owned() });
            }
            let slot = self.values.entry(name.to_owned()).or_default();
            if !append {
                slot.clear();
            }
            let line = line_of(text, Key(&key));
            slot.extend(values.into_iter().map(|value| Setting { value, file: path.to_owned(), line }));
        }
        Ok(())
    }

    /// The settings as flags, each in one word: `--key=value`. A switch that is false is left out.
    pub(crate) fn to_args(&self, flags: &BTreeMap<String, FlagKind>) -> Vec<String> {
        let mut args = Vec::new();
        for (key, values) in &self.values {
            match flags.get(key) {
                Some(FlagKind::Switch) => {
                    let is_on = values.last().is_some_and(|setting| setting.value == "true");
                    args.extend(is_on.then(|| format!("--{key}")));
                }
                _ => args.extend(values.iter().map(|setting| format!("--{key}={}", setting.value))),
            }
        }
        args
    }

    /// Whether some file sets this flag.
    pub(crate) fn sets(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The values that files give this flag.
    pub(crate) fn of(&self, key: &str) -> &[Setting] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Switches that are said to be off.
    pub(crate) fn switched_off(&self, flags: &BTreeMap<String, FlagKind>) -> BTreeSet<String> {
        let is_off = |key: &str, values: &[Setting]| {
            flags.get(key) == Some(&FlagKind::Switch) && values.last().is_some_and(|setting| setting.value == "false")
        };
        self.values.iter().filter(|(key, values)| is_off(key, values)).map(|(key, _)| key.clone()).collect()
    }

    /// The files that were read.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

/// A key as it is written, its `+` included.
#[derive(Clone, Copy)]
struct Key<'a>(&'a str);

/// The line on which a key of the top level stands, from 1 on.
fn line_of(text: &str, Key(key): Key<'_>) -> usize {
    let is_said = |line: &str| {
        let line = line.trim_start_matches(['{', ' ']);
        let rest =
            ["", "'", "\""].iter().find_map(|quote| line.strip_prefix(quote)?.strip_prefix(key)?.strip_prefix(quote));
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    text.lines().position(is_said).map_or(1, |at| at + 1)
}

fn values_of(value: &Value, kind: FlagKind) -> Result<Vec<String>, &'static str> {
    match (kind, value) {
        (FlagKind::Switch, Value::Bool(on)) => Ok(vec![on.to_string()]),
        (FlagKind::Switch, _) => Err("true or false"),
        (FlagKind::List, Value::Array(items)) => {
            items.iter().map(|item| scalar(item).ok_or("a list of plain values")).collect()
        }
        (FlagKind::List, one) => scalar(one).map(|one| vec![one]).ok_or("a list of plain values"),
        (FlagKind::Single, one) => scalar(one).map(|one| vec![one]).ok_or("one plain value"),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(on.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base::chain::Chain;

    use super::*;

    fn flags() -> BTreeMap<String, FlagKind> {
        [
            ("node-name", FlagKind::Single),
            ("disable", FlagKind::List),
            ("debug", FlagKind::Switch),
            ("https-listen-port", FlagKind::Single),
        ]
        .map(|(name, kind)| (name.to_owned(), kind))
        .into()
    }

    fn read(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("config.yaml.d")).unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let main = dir.path().join("config.yaml");
        let settings = Settings::read("server", MainFile::Usual(&[&main]), &flags()).map_err(|err| err.to_string())?;
        Ok(settings.to_args(&flags()))
    }

    #[test]
    fn a_later_file_replaces_and_a_plus_appends() {
        let args = read(&[
            ("config.yaml", "node-name: a\ndisable: [x]\nhttps-listen-port: 7443\n"),
            ("config.yaml.d/10.yaml", "node-name: b\ndisable+: [w]\n"),
            ("config.yaml.d/20.yaml", "debug: true\ndisable+: z\n"),
        ]);
        let expected =
            ["--debug", "--disable=x", "--disable=w", "--disable=z", "--https-listen-port=7443", "--node-name=b"];
        assert_eq!(args.unwrap(), expected);
    }

    #[test]
    fn bad_content_names_file_key_and_remedy() {
        assert!(read(&[("config.yaml", "node-nam: a")]).unwrap_err().ends_with(
            "config.yaml: unknown key 'node-nam'; see 'kedge server --help' for the flags, which are the keys"
        ));
        assert!(
            read(&[("config.yaml", "docker: true")])
                .unwrap_err()
                .contains("'docker' is refused: kedge drives containerd")
        );
        assert!(
            read(&[("config.yaml", "debug: 3")]).unwrap_err().ends_with("the value of 'debug' must be true or false")
        );
        assert!(read(&[("config.yaml", "- a")]).unwrap_err().contains("must hold keys and values"));
    }

    #[test]
    fn an_empty_or_absent_file_sets_nothing() {
        assert!(read(&[]).unwrap().is_empty());
        assert!(read(&[("config.yaml", "# nothing yet\n")]).unwrap().is_empty());
    }

    #[test]
    fn a_value_has_the_form_of_its_flag() {
        for (text, args) in [
            ("debug: false", Ok(vec![])),
            ("debug: true", Ok(vec!["--debug"])),
            ("node-name: 7", Ok(vec!["--node-name=7"])),
            ("node-name: true", Ok(vec!["--node-name=true"])),
            ("disable: one", Ok(vec!["--disable=one"])),
            ("disable: []", Ok(vec![])),
            ("node-name: [a]", Err("the value of 'node-name' must be one plain value")),
            ("node-name: {a: b}", Err("the value of 'node-name' must be one plain value")),
            ("disable: [[a]]", Err("the value of 'disable' must be a list of plain values")),
            ("debug: 'true'", Err("the value of 'debug' must be true or false")),
            ("disable+: [a]\nnode-name: b", Ok(vec!["--disable=a", "--node-name=b"])),
            ("node-name+: b", Err("'node-name+' adds to a list, and --node-name takes one value; write 'node-name:'")),
            ("debug+: true", Err("'debug+' adds to a list, and --debug takes one value; write 'debug:'")),
        ] {
            match (read(&[("config.yaml", text)]), args) {
                (Ok(read), Ok(args)) => assert_eq!(read, args, "{text}"),
                (Err(said), Err(end)) => assert!(said.ends_with(end), "{text}: {said}"),
                (read, args) => panic!("{text}: {read:?}, {args:?}"),
            }
        }
    }

    #[test]
    fn drop_ins_are_yaml_files_in_the_order_of_their_names() {
        let args = read(&[
            ("config.yaml.d/20.yml", "node-name: second"),
            ("config.yaml.d/10.yaml", "node-name: first"),
            ("config.yaml.d/30.txt", "node-name: none"),
        ]);
        assert_eq!(args.unwrap(), ["--node-name=second"]);
        assert!(
            read(&[("config.yaml.d/10.yaml", "node-name: [")]).unwrap_err().contains("10.yaml is not valid YAML: ")
        );
    }

    // The system's words stood twice in the line that says why a server does not start.
    #[test]
    fn a_missing_file_is_an_error_if_it_was_named_and_its_cause_is_printed_once() {
        let path = Path::new("/no/such/config.yaml");
        assert!(Settings::read("server", MainFile::Usual(&[path]), &flags()).unwrap().to_args(&flags()).is_empty());
        let err = Settings::read("server", MainFile::Named(path), &flags()).unwrap_err();
        assert_eq!(
            Chain(&err).to_string(),
            "cannot read configuration file /no/such/config.yaml: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn a_key_that_stands_twice_and_a_bomb_of_aliases_are_refused() {
        let twice = read(&[("config.yaml", "node-name: a\nnode-name: b\n")]).unwrap_err();
        assert!(twice.contains("is not valid YAML: ") && twice.contains("node-name"), "{twice}");
        let mut bomb = "disable: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let alias = format!("*a{}", n - 1);
            let list = [alias.as_str(); 10].join(", ");
            bomb.push_str(&format!("k{n}: &a{n} [{list}]\n"));
        }
        let said = read(&[("config.yaml", &bomb)]).unwrap_err();
        assert!(said.contains("is not valid YAML: "), "{said}");
        let deep = format!("disable: {}", "[".repeat(200_000));
        assert!(read(&[("config.yaml", &deep)]).unwrap_err().contains("is not valid YAML: "));
    }

    #[test]
    fn a_setting_tells_its_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("config.yaml");
        fs::create_dir(dir.path().join("config.yaml.d")).unwrap();
        fs::write(&main, "# mine\n\n\"node-name\": a\ndisable:\n  - node-name\n").unwrap();
        fs::write(dir.path().join("config.yaml.d/a.yaml"), "debug : true\n'disable+': [b]\n").unwrap();
        let settings = Settings::read("server", MainFile::Usual(&[&main]), &flags()).unwrap();
        let lines = |key: &str| settings.of(key).iter().map(|setting| setting.line).collect::<Vec<_>>();
        assert_eq!((lines("node-name"), lines("disable"), lines("debug")), (vec![3], vec![4, 2], vec![1]));
        assert_eq!(settings.of("debug").first().unwrap().file, dir.path().join("config.yaml.d/a.yaml"));
    }
}
