//! The cost of a node that nobody asks for anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::Bench;
use crate::node::Node;
use crate::process::{all, bytes_written, cpu, installed, machine_cpu, output, pss, rss};
use crate::report::{Row, mib};

/// After the start, before looking.
const SETTLE: Duration = Duration::from_secs(10);
/// How long is looked; a second such window counts fsyncs, because being traced costs CPU.
const WINDOW: Duration = Duration::from_secs(60);

/// The use of a set of processes so far.
fn used(pids: &[u32], what: impl Fn(u32) -> f64) -> BTreeMap<u32, f64> {
    pids.iter().map(|pid| (*pid, what(*pid))).collect()
}

/// The growth of those that were there at both ends.
fn grown(before: &BTreeMap<u32, f64>, what: impl Fn(u32) -> f64) -> f64 {
    before.iter().map(|(pid, then)| (what(*pid) - then).max(0.0)).sum()
}

/// Memory, CPU, bytes and fsyncs of an idle node.
pub(crate) async fn measure(bench: &mut Bench, node: &mut Node) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    let (pids, kedge) = (all()?, node.pid());
    let seconds = |pid| cpu(pid).as_secs_f64();
    let written = |pid| bytes_written(pid) as f64;
    let (cpu_before, io_before) = (used(&pids, seconds), used(&pids, written));
    let (kedge_cpu, kedge_io) = (seconds(kedge), written(kedge));
    let (busy, total) = machine_cpu();
    tokio::time::sleep(WINDOW).await;
    node.check()?;
    let per_cent = |spent: f64| spent / WINDOW.as_secs_f64() * 100.0;
    let node_cpu = grown(&cpu_before, seconds);
    let (busy_after, total_after) = machine_cpu();
    let others = (busy_after - busy).as_secs_f64() - node_cpu;
    bench.report.add(Row::of(
        "machine: CPU taken by others in that minute",
        format!("{:.0} % of all cores", (others / (total_after - total).as_secs_f64() * 100.0).max(0.0)),
    ));

    let (resident, share) = (rss(kedge), pss(kedge));
    // An API server whose node never came up is not the node that the budgets speak of.
    let ready = node.ready;
    let judge = |row: Row, text: &str, met: bool| {
        if ready { row.budget(text, met) } else { row.aim(format!("{text}, but no node is up")) }
    };
    let name = "kedge process, idle";
    bench.report.add(judge(
        Row::of(name, format!("{} RSS, {} PSS", mib(resident), mib(share))),
        "≤ 40 MB RSS",
        resident <= 40_000_000,
    ));
    let whole: u64 = pids.iter().map(|pid| pss(*pid)).sum();
    let name = format!("whole node, idle, PSS ({} processes with containerd, shims, DNS)", pids.len());
    bench.report.add(judge(
        Row::of(name, mib(whole)).beside(format!("kedge alone: {}", mib(share)), whole as f64 / share as f64),
        "≤ 95 MiB",
        whole <= 95 << 20,
    ));
    let name = "idle CPU, all of it";
    let kedge_alone = per_cent(seconds(kedge) - kedge_cpu);
    let row = Row::of(name, format!("{:.2} % of a core", per_cent(node_cpu)));
    let row = row.beside(format!("kedge alone: {kedge_alone:.2} %"), per_cent(node_cpu) / kedge_alone);
    bench.report.add(judge(row, "≤ 0.5 %", per_cent(node_cpu) <= 0.5));
    let (node_kb, kedge_kb) = (grown(&io_before, written) / 1e3, (written(kedge) - kedge_io) / 1e3);
    let row = Row::of("idle disk, bytes a minute", format!("{node_kb:.0} KB"))
        .beside(format!("kedge alone: {kedge_kb:.0} KB"), node_kb / kedge_kb);
    bench.report.add(judge(row, "≤ 100 KB", node_kb <= 100.0));
    let name = "idle disk, fsyncs a minute";
    bench.report.add(match fsyncs(&pids, kedge, &bench.dir).await {
        Ok((of_all, of_kedge)) => {
            let row = Row::of(name, of_all.to_string())
                .beside(format!("kedge alone: {of_kedge}"), of_all as f64 / of_kedge as f64);
            judge(row, "≤ 10", of_all <= 10)
        }
        Err(err) => Row::missing(name, &format!("{err:#}")),
    });
    Ok(())
}

/// Calls that wait for the disk in one window: of all, of kedge. They are fsync, fdatasync and their like, and writes
/// to the store's log, whose files are opened for writes that are on the disk when they return.
async fn fsyncs(pids: &[u32], kedge: u32, dir: &Path) -> Result<(u64, u64)> {
    installed("strace").context("strace is not installed")?;
    let mut tracers = Vec::new();
    for pid in pids {
        let (pid, file) = (*pid, dir.join(format!("strace.{pid}")));
        let out = file.display().to_string();
        let seconds = WINDOW.as_secs().to_string();
        let trace = move || {
            let attach = pid.to_string();
            output(
                "timeout",
                &[
                    "--preserve-status",
                    "-s",
                    "INT",
                    &seconds,
                    "strace",
                    "-f",
                    "-y",
                    "-s",
                    "0",
                    "-e",
                    "trace=fsync,fdatasync,sync,syncfs,sync_file_range,msync,pwrite64",
                    "-p",
                    &attach,
                    "-o",
                    &out,
                ],
            )
        };
        tracers.push((pid, file, tokio::task::spawn_blocking(trace)));
    }
    let (mut of_all, mut of_kedge) = (0, 0);
    for (pid, file, tracer) in tracers {
        // strace tells the signal that ended it; what counts is its file.
        let ended = tracer.await?;
        let said = ended.as_ref().err().map_or_else(String::new, |err| format!("{err:#}"));
        if !said.contains("attached") {
            bail!("strace could not attach to process {pid}: {said}");
        }
        let calls = calls(&std::fs::read_to_string(&file).with_context(|| format!("strace of {pid}"))?);
        of_all += calls;
        of_kedge += if pid == kedge { calls } else { 0 };
    }
    Ok((of_all, of_kedge))
}

/// The calls in what strace wrote, a line each; the second half of one that was interrupted is no other call.
fn calls(lines: &str) -> u64 {
    let waits = |line: &&str| {
        let call = line.split_once('(').map_or("", |(call, _)| call.split_whitespace().last().unwrap_or_default());
        call.contains("sync") || (call == "pwrite64" && line.contains("/db/log/"))
    };
    lines.lines().filter(|line| !line.contains(" resumed>")).filter(waits).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_are_counted_once_each() {
        let lines = "417 fdatasync(9</d/db/state.db-wal>) = 0\n\
                     417 pwrite64(7</d/db/log/0001.log>, \"\"..., 512, 1024) = 512\n\
                     417 pwrite64(9</d/db/state.db-wal>, \"\"..., 1048, 0) = 1048\n\
                     418 fsync(3</d/x> <unfinished ...>\n\
                     418 <... fsync resumed>) = 0\n\
                     418 +++ exited with 0 +++\n";
        assert_eq!(calls(lines), 3);
        assert_eq!(calls(""), 0);
    }
}
