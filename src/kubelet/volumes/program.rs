//! The machine's own programs that mount, make and look through filesystems, by [`base::program`]: one that is late is
//! killed with what it has started, as `mount` and `fsck` leave the work to others. All of it blocks its thread.

use std::process::Command;
use std::time::Duration;

/// How a program ended: its exit status, `-1` if a signal ended it, and what it said.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: i32,
    pub(super) output: String,
}

/// Runs a program of the machine to its end.
///
/// Errors: why it did not start or did not end in time.
pub(super) fn run(program: &str, args: &[String], limit: Duration) -> Result<Ended, String> {
    let done = base::program::output(Command::new(program).args(args), b"", limit).map_err(|err| err.to_string())?;
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    Ok(Ended { status: done.status.code().unwrap_or(-1), output })
}

/// Runs `mount`. The error has upstream's shape.
pub(super) fn mount(args: &[String], limit: Duration) -> Result<(), String> {
    let (why, output) = match run("mount", args, limit) {
        Ok(ended) if ended.status == 0 => return Ok(()),
        Ok(ended) => (format!("exit status {}", ended.status), ended.output),
        Err(why) => (why, String::new()),
    };
    Err(format!(
        "mount failed: {why}\nMounting command: mount\nMounting arguments: {}\nOutput: {output}",
        args.join(" ")
    ))
}
