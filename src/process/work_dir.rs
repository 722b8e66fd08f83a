//! Which data folder a server or agent of this machine works in. Several may run on one, so a name alone says nothing.

use std::fs;
use std::path::{Path, PathBuf};

use base::layout::{DEFAULT, Layout};

/// The variables that name a data folder; the first that is set counts.
const VARIABLES: [&str; 2] = ["KEDGE_DATA_DIR=", "K3S_DATA_DIR="];

/// A process's word about itself.
struct Told<'a> {
    /// Its command line, the program first.
    args: &'a [String],
    /// Its environment, `NAME=value` each.
    environment: &'a [String],
    /// The files that it has open.
    held: &'a [PathBuf],
}

/// Whether the process works in this data folder.
pub(crate) fn works_in(args: &[String], pid: u32, layout: &Layout) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment: Vec<String> =
        environment.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let held: Vec<PathBuf> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    is_of(&Told { args, environment: &environment, held: &held }, layout)
}

/// By its command line; without a word there, by the files of a store that it holds open; without those by its
/// environment; and else it is the default folder, unless a store elsewhere is open: a file of settings named that one.
fn is_of(told: &Told<'_>, layout: &Layout) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let layout = Layout::new(real(layout.data_dir()));
    if let Some(named) = named(told.args) {
        return real(Path::new(&named)) == layout.data_dir();
    }
    if told.held.iter().any(|path| layout.holds(path)) {
        return true;
    }
    if told.held.iter().any(|path| Layout::is_of_a_store(path)) {
        return false;
    }
    real(Path::new(variable(told.environment).as_deref().unwrap_or(DEFAULT))) == layout.data_dir()
}

/// The data folder that a command line names; the last word counts.
pub(crate) fn named(args: &[String]) -> Option<String> {
    let mut args = args.iter();
    let mut named = None;
    while let Some(arg) = args.next() {
        if arg == "-d" || arg == "--data-dir" {
            named = args.next().cloned();
        } else if let Some(dir) =
            arg.strip_prefix("--data-dir=").or_else(|| arg.strip_prefix("-d").filter(|rest| !rest.is_empty()))
        {
            named = Some(dir.trim_start_matches('=').to_owned());
        }
    }
    named
}

/// The data folder that variables name.
pub(crate) fn variable(words: &[String]) -> Option<String> {
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)).map(str::to_owned);
    VARIABLES.into_iter().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn is(args: &str, environment: &str, held: &[&str], data_dir: &str) -> bool {
        let held: Vec<PathBuf> = held.iter().map(PathBuf::from).collect();
        is_of(&Told { args: &words(args), environment: &words(environment), held: &held }, &Layout::new(data_dir))
    }

    #[test]
    fn a_process_is_told_by_its_words_its_files_and_its_environment_in_this_order() {
        assert!(is("kedge server --data-dir=/data", "K3S_DATA_DIR=/other", &[], "/data"));
        assert!(is("kedge agent -d /data", "", &[], "/data") && !is("kedge server -d /data", "", &[], DEFAULT));
        assert!(is("kedge agent --data-dir /a -d=/b", "", &[], "/b"), "the last word counts");
        assert!(is("kedge server", "", &["/data/server/db/state.db"], "/data"), "a file of settings named it");
        assert!(!is("kedge server", "", &["/data/server/db/state.db"], DEFAULT));
        assert!(
            is("kedge agent", "A=b K3S_DATA_DIR=/other", &[], "/other")
                && !is("kedge agent", "K3S_DATA_DIR=/other", &[], DEFAULT)
        );
        assert!(is("kedge agent", "KEDGE_DATA_DIR=/a K3S_DATA_DIR=/b", &[], "/a"));
        assert!(is("kedge agent", "", &[], DEFAULT) && !is("kedge agent", "", &[], "/data"));
    }
}
