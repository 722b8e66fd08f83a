//! `process_*`, from /proc; what cannot be read is left out.

use std::fs;

use base::exposition::{Kind, Metric, Page};

const VIRTUAL: Metric = Metric { name: "process_virtual_memory_bytes", help: "Virtual memory." };
const RESIDENT: Metric = Metric { name: "process_resident_memory_bytes", help: "Resident memory." };
const CPU: Metric = Metric { name: "process_cpu_seconds_total", help: "CPU time." };
const START: Metric = Metric { name: "process_start_time_seconds", help: "When it started." };
const FDS: Metric = Metric { name: "process_open_fds", help: "Open files." };
const FDS_MAX: Metric = Metric { name: "process_max_fds", help: "Files that may be open." };

const PAGE_BYTES: u64 = 4096;
/// The kernel counts times of a process in hundredths of a second.
const TICKS: f64 = 100.0;

/// Writes the figures of this process.
pub(crate) fn render(page: &mut Page) {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    if let Some((size, resident)) = memory_bytes(&text("/proc/self/statm")) {
        page.single(Kind::Gauge, VIRTUAL, size);
        page.single(Kind::Gauge, RESIDENT, resident);
    }
    let times = Times::of(&text("/proc/self/stat"));
    if let Some(ticks) = times.cpu {
        page.single(Kind::Counter, CPU, ticks / TICKS);
    }
    if let (Some(boot), Some(after)) = (boot_secs(&text("/proc/stat")), times.started) {
        page.single(Kind::Gauge, START, boot + after / TICKS);
    }
    if let Ok(fds) = fs::read_dir("/proc/self/fd") {
        page.single(Kind::Gauge, FDS, fds.count());
    }
    if let Some(most) = fds_max(&text("/proc/self/limits")) {
        page.single(Kind::Gauge, FDS_MAX, most);
    }
}

/// Virtual and resident memory in `statm`.
fn memory_bytes(statm: &str) -> Option<(u64, u64)> {
    let pages: Vec<u64> = statm.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match pages.as_slice() {
        [size, resident, ..] => Some((size * PAGE_BYTES, resident * PAGE_BYTES)),
        _ => None,
    }
}

/// Times in `stat`, in ticks.
#[derive(Debug, Default, PartialEq)]
struct Times {
    /// User's and system's together.
    cpu: Option<f64>,
    /// After the machine did.
    started: Option<f64>,
}

impl Times {
    fn of(stat: &str) -> Times {
        // The name in parentheses may hold blanks and parentheses. Of the fields behind it user time is the 12th,
        // system time the 13th, and the start the 20th.
        let behind = stat.rsplit_once(')').map(|(_, behind)| behind).unwrap_or_default();
        let fields: Vec<f64> = behind.split_whitespace().map(|n| n.parse().unwrap_or(0.0)).collect();
        Times {
            cpu: fields.get(11).zip(fields.get(12)).map(|(user, system)| user + system),
            started: fields.get(19).copied(),
        }
    }
}

/// When the machine started, in `/proc/stat`.
fn boot_secs(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The soft limit of open files in `limits`; it may be `unlimited`.
fn fds_max(limits: &str) -> Option<&str> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_in_bytes() {
        for (statm, expected) in [("3 2 1 0 0 0 0\n", Some((12_288, 8_192))), ("3", None), ("", None)] {
            assert_eq!(memory_bytes(statm), expected, "{statm:?}");
        }
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_moves_no_field() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 12345 1000 10";
        assert_eq!(Times::of(stat), Times { cpu: Some(300.0), started: Some(12345.0) });
        assert_eq!(Times::of("7 (a) S 1"), Times::default());
        assert_eq!(Times::of(""), Times::default());
    }

    #[test]
    fn the_start_of_the_machine_and_the_limit_of_files_are_lines_of_their_own() {
        assert_eq!(boot_secs("cpu 1 2\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_000.0));
        assert_eq!(boot_secs("cpu 1 2\n"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  524288  files\n";
        assert_eq!(fds_max(limits), Some("1024"));
        assert_eq!(fds_max("Max open files  unlimited  unlimited  files"), Some("unlimited"));
        assert_eq!(fds_max(""), None);
    }
}
