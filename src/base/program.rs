//! Programs of the machine that are called and waited for (`nft`, `ip`, `systemctl`, `conntrack`), with a deadline: one that hangs is
//! killed. No shell is between, so an argument is an argument.

use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Runs a program to its end with `input` on its standard input, and returns what it said. Blocks its thread.
///
/// Errors: it cannot be started, or it took longer than `limit` (`TimedOut`) and was killed.
pub fn output(command: &mut Command, input: &[u8], limit: Duration) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    // By descriptor: the number may be another process's by then.
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let (ended, ends) = mpsc::channel::<()>();
    let (stdin, input) = (child.stdin.take(), input.to_owned());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program that ends early leaves a broken pipe; its own words say why.
            stdin.map(|mut pipe| pipe.write_all(&input))
        });
        let watch = scope.spawn(move || {
            let is_late = ends.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                let _ended_just_now = pidfd_send_signal(&process, Signal::KILL);
            }
            is_late
        });
        let output = child.wait_with_output();
        drop(ended);
        if watch.join().unwrap_or(false) {
            let text = format!("{} took longer than {} s", command.get_program().display(), limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        output
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_and_one_that_answers_is_heard() {
        let long = Duration::from_secs(600);
        assert_eq!(output(&mut Command::new("cat"), b"words", long).unwrap().stdout, b"words");
        // It reads nothing of more than a pipe holds.
        assert!(output(&mut Command::new("true"), &vec![0; 1 << 20], long).unwrap().status.success());
        let hangs = output(Command::new("sleep").arg("600"), b"", Duration::from_millis(20));
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
