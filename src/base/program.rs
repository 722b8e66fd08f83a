//! Programs of the machine that are called and waited for (`iptables`, `systemctl`, `modprobe`), with a deadline: one
//! that hangs is killed with all that it has started. No shell is between, so an argument is an argument.

use std::io::{self, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Runs a program to its end with `input` on its standard input, and returns what it said. Blocks its thread.
///
/// The program has ended when its process has, and nothing that it started holds its standard output or error any more.
/// Errors: it cannot be started, or it took longer than `limit` (`TimedOut`); it and what it started are killed then,
/// and this returns even if something that has left its process group lives on.
pub fn output(command: &mut Command, input: &[u8], limit: Duration) -> io::Result<Output> {
    let mut child =
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let said = said(&mut child, input, limit);
    if let Ok(Some((stdout, stderr))) = said {
        return Ok(Output { status: child.wait()?, stdout, stderr });
    }
    kill(&child);
    // An ended process that nobody waits for stays in the kernel's table. One that hangs in the kernel ends when that
    // lets it go: nobody waits here for that.
    std::thread::Builder::new().spawn(move || child.wait())?;
    said?;
    let text = format!("{} took longer than {} s", command.get_program().display(), limit.as_secs());
    Err(io::Error::new(io::ErrorKind::TimedOut, text))
}

/// The program's output until it ends; `None` if it is late. It is not reaped here, so that its number stays its own.
fn said(child: &mut Child, input: &[u8], limit: Duration) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let number = number(child).ok_or(io::ErrorKind::InvalidData)?;
    let (ended, ends) = mpsc::channel::<()>();
    let (stdin, input) = (child.stdin.take(), input.to_owned());
    // The threads are not joined when it is late: who has left the process group may hold a pipe for as long as it
    // likes.
    thread(&ended, move || {
        // A program that ends early leaves a broken pipe; its own words say why.
        stdin.map(|mut pipe| pipe.write_all(&input))
    })?;
    let stdout = read(&ended, child.stdout.take())?;
    let stderr = read(&ended, child.stderr.take())?;
    thread(&ended, move || waitid(WaitId::Pid(number), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT))?;
    drop(ended);
    // Nothing is ever sent: each thread holds a sender, and the last of them to end is heard as a closed channel.
    if ends.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        return Ok(None);
    }
    Ok(Some((joined(stdout)?, joined(stderr)?)))
}

fn number(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Kills the program and all that is still in its group. It is not reaped yet, so no other process has its number.
fn kill(child: &Child) {
    let _ended_just_now = number(child).map(|number| kill_process_group(number, Signal::KILL));
}

type Reader = JoinHandle<io::Result<Vec<u8>>>;

fn read(ended: &mpsc::Sender<()>, pipe: Option<impl Read + Send + 'static>) -> io::Result<Reader> {
    thread(ended, move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes)).transpose()?;
        Ok(bytes)
    })
}

fn joined(reader: Reader) -> io::Result<Vec<u8>> {
    reader.join().map_err(|_| io::Error::other("the reader of a program's words panicked"))?
}

fn thread<T: Send + 'static>(
    ended: &mpsc::Sender<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let ended = ended.clone();
    std::thread::Builder::new().spawn(move || {
        let done = work();
        drop(ended);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(script: &str, limit: Duration) -> io::Result<Output> {
        output(Command::new("sh").args(["-c", script]), b"", limit)
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_one_that_answers_is_heard() {
        let long = Duration::from_secs(600);
        assert_eq!(output(&mut Command::new("cat"), b"words", long).unwrap().stdout, b"words");
        // It reads nothing of more than a pipe holds.
        assert!(output(&mut Command::new("true"), &vec![0; 1 << 20], long).unwrap().status.success());
        let hangs = output(Command::new("sleep").arg("600"), b"", Duration::from_millis(20));
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            says("exec >&- 2>&-; sleep 600", Duration::from_millis(20)).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
    }

    #[test]
    fn what_a_program_started_is_killed_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 600 & echo $$ $! >{}; wait", pids.display());
        assert_eq!(says(&script, Duration::from_millis(500)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let pids = std::fs::read_to_string(pids).unwrap();
        let [program, started] = pids.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{pids}") };
        while std::path::Path::new(&format!("/proc/{program}")).exists() {
            std::thread::yield_now();
        }
        // An orphan's zombie waits for whoever adopted it; it runs no more.
        while std::fs::read_to_string(format!("/proc/{started}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_whose_child_has_left_its_group_is_not_waited_for() {
        let late = says("setsid sleep 5 & exit 0", Duration::from_millis(200));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_a_program_leaves_running_apart_is_let_be() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!(
            "(while [ ! -e {0}.go ]; do sleep 0.01; done; echo alive >{0}) >/dev/null 2>&1 </dev/null & exit 3",
            mark.display()
        );
        assert_eq!(says(&script, Duration::from_secs(600)).unwrap().status.code(), Some(3));
        std::fs::write(mark.with_extension("go"), "").unwrap();
        while !mark.exists() {
            std::thread::yield_now();
        }
    }
}
