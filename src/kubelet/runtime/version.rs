//! The version of the containerd that was found.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::error::Error;

/// A program says its version within this: an old card reads for half a minute until it begins.
pub(super) const VERSION_LIMIT: Duration = Duration::from_secs(120);

/// The version of containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// Asks the program.
pub(super) async fn version(program: &Path) -> Result<Version, Error> {
    let failed = |source| Error::Spawn { program: program.to_owned(), source };
    let asked = Command::new(program).arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    let late = |_| failed(io::ErrorKind::TimedOut.into());
    let output = tokio::time::timeout(VERSION_LIMIT, asked).await.map_err(late)?.map_err(failed)?;
    let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    parse_version(&answer).ok_or_else(|| Error::Version { path: program.to_owned(), answer })
}

/// `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3` or `… v2.1.0 <commit>`.
fn parse_version(answer: &str) -> Option<Version> {
    let mut parts = answer.split_whitespace().nth(2)?.trim_start_matches('v').split('.');
    Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_debian_and_of_releases_are_read() {
        let of = |answer: &str| parse_version(answer).map(|v| (v.major, v.minor));
        assert_eq!(of("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3"), Some((1, 6)));
        assert_eq!(of("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7"), Some((2, 1)));
        assert_eq!(of("what?"), None);
    }
}
