//! The machine's own programs that mount, make and look through filesystems, by [`base::program`]: one that is late is
//! killed with what it has started, as `mount` and `fsck` leave the work to others. All of it blocks its thread.

use std::io;
use std::process::Command;
use std::time::Duration;

use super::faults::{MountError, ProgramError};

/// How a program ended: its exit status, `-1` if a signal ended it, and what it said.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: i32,
    pub(super) output: String,
}

impl Ended {
    /// The output of a program that succeeded.
    ///
    /// Errors: it did not.
    pub(super) fn well(self) -> Result<String, ProgramError> {
        let Ended { status, output } = self;
        if status == 0 { Ok(output) } else { Err(ProgramError::Failed { status, output }) }
    }
}

/// Runs a program of the machine to its end.
///
/// Errors: it did not start or did not end in time.
pub(super) fn run(program: &str, args: &[String], limit: Duration) -> io::Result<Ended> {
    let done = base::program::output(Command::new(program).args(args), b"", limit)?;
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    Ok(Ended { status: done.status.code().unwrap_or(-1), output })
}

/// Runs `mount`. The error has upstream's shape.
pub(super) fn mount(args: &[String], limit: Duration) -> Result<(), MountError> {
    let (why, output) = match run("mount", args, limit) {
        Ok(ended) if ended.status == 0 => return Ok(()),
        Ok(ended) => (format!("exit status {}", ended.status), ended.output),
        Err(err) => (err.to_string(), String::new()),
    };
    Err(MountError { why, arguments: args.join(" "), output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_told_with_its_status_and_its_words() {
        let shell = |script: &str| run("sh", &["-c".to_owned(), script.to_owned()], Duration::from_secs(30)).unwrap();
        assert_eq!(shell("echo yes").well().unwrap(), "yes\n");
        assert_eq!(shell("echo out; echo no >&2; exit 3").well().unwrap_err().to_string(), "exit status 3: out\nno\n");
        assert_eq!(shell("kill -9 $$").status, -1, "a signal ended it");
        assert!(run("/no/such/program", &[], Duration::from_secs(30)).is_err());
    }

    #[test]
    fn a_mount_that_fails_has_upstreams_shape() {
        let err = MountError {
            why: "exit status 32".to_owned(),
            arguments: "-t nfs -- nas:/x /t".to_owned(),
            output: "mount.nfs: Connection refused".to_owned(),
        };
        let text = "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -- nas:/x /t\n\
            Output: mount.nfs: Connection refused";
        assert_eq!(err.to_string(), text);
    }
}
