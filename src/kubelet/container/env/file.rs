//! Variables from a file in a volume (`fileKeyRef`, KEP-3721): `NAME='value'` a line. The pod writes the file, so it is
//! read below its volume only, at most so many bytes of it, and without waiting for it for ever.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::confined::Dir;
use base::confined::deadline::within;
use k8s_openapi::api::core::v1::{Container, FileKeySelector};
use tracing::warn;

use crate::container::error::ConfigError;

/// Bytes of a file of variables; an object of the API holds no more.
const BYTES_MAX: usize = 1024 * 1024;
/// A volume answers within this.
const LIMIT: Duration = Duration::from_secs(30);

/// By volume and path: the text, or `None` if the volume is not mounted, or the disk's error.
pub(super) type Files = BTreeMap<(String, String), Option<Result<String, Arc<io::Error>>>>;

/// A file of variables that cannot be used.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error(transparent)]
    Read(Arc<io::Error>),
    #[error("invalid environment variable format at line {number}: {fault}")]
    Format { number: usize, fault: FormatFault },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum FormatFault {
    #[error("missing '='")]
    NoEqualsSign,
    #[error("empty variable name")]
    NoName,
    #[error("whitespace before '=' is not allowed")]
    BlankAfterName,
    #[error("value must be enclosed in single quotes")]
    NoQuotes,
    #[error("unclosed single quote")]
    Unclosed,
    #[error("unexpected content after closing quote")]
    ContentAfterQuote,
}

/// Reads each file once.
pub(super) async fn read(container: &Container, volumes: &BTreeMap<String, PathBuf>) -> Files {
    let mut files = Files::new();
    for wish in container.env.iter().flatten().filter_map(|var| var.value_from.as_ref()?.file_key_ref.as_ref()) {
        let key = (wish.volume_name.clone(), wish.path.clone());
        if files.contains_key(&key) {
            continue;
        }
        let found = match volumes.get(&wish.volume_name) {
            None => None,
            Some(volume) => {
                let (root, path) = (volume.clone(), PathBuf::from(&wish.path));
                let text = within(volume, LIMIT, move || Dir::open(&root)?.read(&path, BYTES_MAX)).await;
                Some(text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(Arc::new))
            }
        };
        files.insert(key, found);
    }
    files
}

/// The value of one variable; `None` if it is not there and need not be. Texts as upstream's
/// `makeEnvironmentVariables`.
pub(super) fn value(wish: &FileKeySelector, files: &Files) -> Result<Option<String>, ConfigError> {
    let found = files.get(&(wish.volume_name.clone(), wish.path.clone())).and_then(Option::as_ref);
    let no_volume =
        || ConfigError::new(format!("cannot find the volume \"{}\" referenced by FileKeyRef", wish.volume_name));
    let parsed = match found.ok_or_else(no_volume)? {
        Ok(text) => EnvFile(text).value(&wish.key),
        Err(err) => Err(FileError::Read(Arc::clone(err))),
    };
    let value = parsed.map_err(|err| {
        let (volume, path) = (&wish.volume_name, &wish.path);
        warn!(%volume, %path, err = %Chain(&err), "cannot parse a file of environment variables");
        ConfigError::new("couldn't parse env file".to_owned())
    })?;
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value)),
        None if wish.optional == Some(true) => Ok(None),
        None => {
            let path = Path::new(&wish.path).display();
            Err(ConfigError::new(format!("environment variable key \"{}\" not found in file \"{path}\"", wish.key)))
        }
    }
}

/// The text of a file of variables.
#[derive(Clone, Copy)]
struct EnvFile<'a>(&'a str);

impl EnvFile<'_> {
    /// Finds the value of `key`. Lines before it must be right, lines after it are not looked at. Rules as upstream's
    /// `pkg/kubelet/util/env/env_util.go` (v1.36).
    fn value(self, key: &str) -> Result<Option<String>, FileError> {
        let invalid = |number: usize, fault: FormatFault| FileError::Format { number, fault };
        let blank = [' ', '\t'];
        let mut lines = self.0.lines().enumerate().map(|(idx, line)| (idx + 1, line));
        while let Some((number, line)) = lines.next() {
            let line = line.trim_start_matches(blank);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once('=').ok_or_else(|| invalid(number, FormatFault::NoEqualsSign))?;
            if name.trim_end_matches(blank).is_empty() {
                return Err(invalid(number, FormatFault::NoName));
            }
            if name.ends_with(blank) {
                return Err(invalid(number, FormatFault::BlankAfterName));
            }
            if value.starts_with(blank) {
                // As a shell reads it: the value is empty, and what follows is another word.
                if name == key {
                    return Ok(Some(String::new()));
                }
                continue;
            }
            let Some(mut rest) = value.strip_prefix('\'') else {
                return Err(invalid(number, FormatFault::NoQuotes));
            };
            let (mut whole, mut last) = (String::new(), number);
            let after = loop {
                if let Some((end, after)) = rest.split_once('\'') {
                    whole.push_str(end);
                    break after.trim_start_matches(blank);
                }
                whole.push_str(rest);
                whole.push('\n');
                (last, rest) = lines.next().ok_or_else(|| invalid(number, FormatFault::Unclosed))?;
            };
            if !after.is_empty() && !after.starts_with('#') {
                return Err(invalid(last, FormatFault::ContentAfterQuote));
            }
            if name == key {
                return Ok(Some(whole));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_as_a_shell_finds_it() {
        let text = "# first\n\n  A='1'\n\tB='two words' # said\nC='l1\nl2'\nD= 'x'\nE=''\nA='later'\n";
        let of = |key| EnvFile(text).value(key).unwrap();
        assert_eq!(of("A").unwrap(), "1");
        assert_eq!(of("B").unwrap(), "two words");
        assert_eq!(of("C").unwrap(), "l1\nl2");
        assert_eq!((of("D").unwrap(), of("E").unwrap(), of("F")), (String::new(), String::new(), None));
    }

    #[test]
    fn what_is_not_in_the_form_is_an_error_up_to_the_key() {
        for (bad, fault) in [
            ("A", "missing '='"),
            ("='1'", "empty variable name"),
            ("A ='1'", "whitespace before '=' is not allowed"),
            ("A=1", "value must be enclosed in single quotes"),
            ("A=\"1\"", "value must be enclosed in single quotes"),
            ("A='1", "unclosed single quote"),
            ("A='1'x", "unexpected content after closing quote"),
        ] {
            let why = EnvFile(&format!("# first\n{bad}")).value("A").unwrap_err().to_string();
            assert_eq!(why, format!("invalid environment variable format at line 2: {fault}"));
            assert!(EnvFile(&format!("K='v'\n{bad}")).value("K").is_ok(), "{bad}");
        }
        let why = EnvFile("A='1\n2'x").value("A").unwrap_err().to_string();
        assert!(why.contains("at line 2"), "the line of the quote that closes: {why}");
    }

    #[tokio::test]
    async fn a_file_is_read_below_its_volume_only_and_never_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(dir.path().join("secret"), "K='secret'").unwrap();
        std::fs::write(volume.join("good"), "K='v'").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), volume.join("link")).unwrap();
        std::fs::File::create(volume.join("huge")).unwrap().set_len(1 << 40).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            volume.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let volumes = BTreeMap::from([("v".to_owned(), volume)]);
        let wish = |name: &str, path: &str, key: &str| FileKeySelector {
            volume_name: name.to_owned(),
            path: path.to_owned(),
            key: key.to_owned(),
            optional: None,
        };
        let of = async |wish: FileKeySelector| {
            let var = serde_json::json!({"env": [{"name": "N", "valueFrom": {"fileKeyRef":
                {"volumeName": wish.volume_name, "path": wish.path, "key": wish.key}}}], "name": "c"});
            value(&wish, &read(&serde_json::from_value(var).unwrap(), &volumes).await).map_err(|err| err.message)
        };
        assert_eq!(of(wish("v", "good", "K")).await.unwrap().unwrap(), "v");
        for path in ["link", "../secret", "huge", "fifo", "nothing"] {
            assert_eq!(of(wish("v", path, "K")).await.unwrap_err(), "couldn't parse env file", "{path}");
        }
        assert_eq!(
            of(wish("v", "good", "X")).await.unwrap_err(),
            "environment variable key \"X\" not found in file \"good\""
        );
        assert_eq!(
            of(wish("w", "good", "K")).await.unwrap_err(),
            "cannot find the volume \"w\" referenced by FileKeyRef"
        );
        let optional = FileKeySelector { optional: Some(true), ..wish("v", "good", "X") };
        assert_eq!(of(optional).await.unwrap(), None);
    }
}

#[cfg(test)]
mod fuzz_tests {
    use super::EnvFile;
    use base::fuzz;

    /// The file is a container's.
    #[test]
    fn files_of_any_words_give_a_value_or_an_error() {
        let rng = fuzz::rng(1);
        let whole = "# no\nA='one'\nB='two\nlines' # rest\n\tC= x\nKEY='v'\n";
        let words = ["'", "=", "\n", "#", "KEY", " ", "\t", "é", "\r"];
        for _ in fuzz::rounds(4_000) {
            let _any = EnvFile(&fuzz::mutated_text(&rng, whole, &words)).value("KEY");
        }
    }
}
