//! Processes that the bench starts, and what the kernel accounts for them. The bench runs in a PID namespace of its
//! own, so every process in /proc is one that it started (scripts/bench.sh).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command as AsyncCommand};

/// Ticks a second in /proc/PID/stat, on every Linux (USER_HZ).
const TICKS_PER_SEC: f64 = 100.0;
/// The environment of a program that is started here.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that runs until it is stopped; dropping it kills it.
pub(crate) struct Running {
    child: Child,
    /// Its process.
    pub(crate) pid: u32,
}

impl Running {
    /// Starts `program` with its output in the file `log`.
    pub(crate) fn start(program: &Path, args: &[String], log: &Path) -> Result<Running> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let mut command = AsyncCommand::new(program);
        command
            .args(args)
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        let pid = child.id().context("it ended at once")?;
        Ok(Running { child, pid })
    }

    /// An error if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("it ended by itself ({status})"),
            None => Ok(()),
        }
    }

    /// SIGTERM, and SIGKILL for one that does not listen within 10 s.
    pub(crate) async fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.pid)?), Signal::SIGTERM)?;
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

/// Runs a tool to its end and gives what it printed.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", PATH)
        .output()
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a tool is on the PATH.
pub(crate) fn installed(program: &str) -> Option<String> {
    PATH.split(':').map(|dir| format!("{dir}/{program}")).find(|path| Path::new(path).exists())
}

/// Every process of this namespace but its first (the script) and this one.
pub(crate) fn all() -> Result<Vec<u32>> {
    let names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    Ok(names.filter(|pid| *pid != 1 && *pid != std::process::id()).collect())
}

/// CPU time so far, its children's not counted; zero for one that is gone.
pub(crate) fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    Duration::from_secs_f64(ticks(&stat) / TICKS_PER_SEC)
}

/// utime and stime of a stat line. The name, in brackets, may hold blanks and brackets.
fn ticks(stat: &str) -> f64 {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum()
}

/// A number of a `/proc/PID` file by the word before it; zero if it is not there.
fn number(pid: u32, file: &str, word: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Resident bytes.
pub(crate) fn rss(pid: u32) -> u64 {
    number(pid, "status", "VmRSS:") * 1024
}

/// Resident bytes, shared pages divided among their users.
pub(crate) fn pss(pid: u32) -> u64 {
    number(pid, "smaps_rollup", "Pss:") * 1024
}

/// Bytes sent to the disk.
pub(crate) fn bytes_written(pid: u32) -> u64 {
    number(pid, "io", "write_bytes:")
}

/// CPU time that the whole machine has spent on work so far, and on all.
pub(crate) fn machine_cpu() -> (Duration, Duration) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|n| n.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal
    let all: f64 = fields.iter().sum();
    let idle: f64 = fields.iter().skip(3).take(2).sum();
    (Duration::from_secs_f64((all - idle) / TICKS_PER_SEC), Duration::from_secs_f64(all / TICKS_PER_SEC))
}

/// Load averages as the kernel tells them.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Looks every `pause` until `look` gives something, or `limit` has passed.
pub(crate) async fn wait_for<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let clock = Stopwatch::start();
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if clock.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_brackets() {
        assert_eq!(ticks("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14"), 23.0);
        assert_eq!(ticks(""), 0.0);
    }

    #[test]
    fn this_process_is_accounted() {
        assert!(rss(std::process::id()) > 100_000);
        assert_eq!(rss(u32::MAX), 0);
    }
}
