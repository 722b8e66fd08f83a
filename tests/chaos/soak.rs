//! The memory of every role over the whole run: a sample every ten seconds, a slope for the report, a limit for what
//! grows for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);
/// A process that was just started says nothing about growth.
const YOUNG: Duration = Duration::from_secs(60);
/// Shorter runs only report: caches fill, and a third is a minute.
const JUDGED_FROM: Duration = Duration::from_secs(15 * 60);
/// The median of the last third may be so much above that of the second.
const GROWTH_KIB_MAX: f64 = 24.0 * 1024.0;

/// One look at one process: seconds since the beginning, KiB.
type Sample = (f64, f64);

/// Looks until it is told to end.
pub(crate) struct Soak {
    end: Sender<()>,
    looking: JoinHandle<BTreeMap<String, Vec<Sample>>>,
    began: Instant,
}

impl Soak {
    /// Begins to look at every process of `program` that has a folder of data: the machines' roles.
    pub(crate) fn begin(program: &Path) -> Soak {
        let (end, ended) = channel();
        let (program, began) = (program.canonicalize().unwrap(), Instant::now());
        let looking = std::thread::spawn(move || {
            let (mut samples, mut seen) = (BTreeMap::<String, Vec<Sample>>::new(), BTreeMap::new());
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                for (pid, role, kib) in roles(&program) {
                    let first = *seen.entry(pid).or_insert_with(Instant::now);
                    if first.elapsed() >= YOUNG {
                        samples.entry(role).or_default().push((began.elapsed().as_secs_f64(), kib));
                    }
                }
            }
            samples
        });
        Soak { end, looking, began }
    }

    /// Ends, reports, and fails if the last third holds much more than the second.
    pub(crate) fn judge(self) {
        let length = self.began.elapsed();
        drop(self.end);
        let samples = self.looking.join().unwrap();
        let third = length.as_secs_f64() / 3.0;
        let mut grown = Vec::new();
        for (role, samples) in &samples {
            let of = |from: f64, until: f64| -> Vec<Sample> {
                samples.iter().filter(|s| s.0 >= from && s.0 < until).copied().collect()
            };
            let (second, last, both) = (of(third, 2.0 * third), of(2.0 * third, f64::MAX), of(third, f64::MAX));
            if second.is_empty() || last.is_empty() {
                continue;
            }
            let (before, after) = (median(&second), median(&last));
            println!(
                "memory of {role}: median {:.0} MiB, then {:.0} MiB; {:+.1} MiB an hour ({} samples)",
                before / 1024.0,
                after / 1024.0,
                slope(&both) * 3600.0 / 1024.0,
                both.len()
            );
            if after > before + GROWTH_KIB_MAX {
                grown.push(role);
            }
        }
        assert!(length < JUDGED_FROM || grown.is_empty(), "memory grows: {grown:?}");
    }
}

/// Process, name and memory of every role.
fn roles(program: &Path) -> Vec<(u32, String, f64)> {
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let of = PathBuf::from(format!("/proc/{pid}"));
        let runs = std::fs::read_link(of.join("exe")).ok()? == program;
        let line = std::fs::read_to_string(of.join("cmdline")).ok()?;
        // `--data-dir=…/s1/data`
        let dir = line.split('\0').find_map(|arg| arg.strip_prefix("--data-dir="))?.to_owned();
        let name = Path::new(&dir).parent()?.file_name()?.to_str()?.to_owned();
        let status = std::fs::read_to_string(of.join("status")).ok()?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))?
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .ok()?;
        runs.then_some((pid, name, kib))
    })
    .collect()
}

fn median(samples: &[Sample]) -> f64 {
    let mut all: Vec<f64> = samples.iter().map(|s| s.1).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Least squares: KiB a second.
fn slope(samples: &[Sample]) -> f64 {
    let n = samples.len() as f64;
    let (x, y) = (samples.iter().map(|s| s.0).sum::<f64>() / n, samples.iter().map(|s| s.1).sum::<f64>() / n);
    let up: f64 = samples.iter().map(|s| (s.0 - x) * (s.1 - y)).sum();
    let down: f64 = samples.iter().map(|s| (s.0 - x).powi(2)).sum();
    if down == 0.0 { 0.0 } else { up / down }
}

#[test]
fn a_slope_is_what_grows_in_a_second() {
    let samples: Vec<Sample> = (0..10).map(|n| (f64::from(n) * 10.0, 1000.0 + f64::from(n) * 5.0)).collect();
    assert!((slope(&samples) - 0.5).abs() < 1e-9 && (median(&samples) - 1025.0).abs() < 1e-9);
    assert!(slope(&samples[..1]).abs() < 1e-9);
}
