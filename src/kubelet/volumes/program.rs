//! The machine's own programs that mount, make and look through filesystems: each under a deadline, with arguments and no shell.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// How a program ended: its exit status, `-1` if a signal ended it, and what it said.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: i32,
    pub(super) output: String,
}

/// Runs a program of the machine to its end; it is killed when `limit` is over.
///
/// Errors: why it did not start or did not end in time.
pub(super) async fn run(program: &str, args: &[String], limit: Duration) -> Result<Ended, String> {
    let run = Command::new(program).args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(limit, run).await {
        Ok(Ok(done)) => Ok(Ended {
            status: done.status.code().unwrap_or(-1),
            output: String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(),
        }),
        Ok(Err(err)) => Err(err.to_string()),
        Err(_) => Err("timed out".to_owned()),
    }
}

/// Runs `mount`. The error has upstream's shape.
pub(super) async fn mount(args: &[String], limit: Duration) -> Result<(), String> {
    let (why, output) = match run("mount", args, limit).await {
        Ok(ended) if ended.status == 0 => return Ok(()),
        Ok(ended) => (format!("exit status {}", ended.status), ended.output),
        Err(why) => (why, String::new()),
    };
    Err(format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {}\nOutput: {output}", args.join(" ")))
}
