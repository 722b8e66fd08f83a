//! Facts of `kedge status`: processes, files, the disk, and the API if it answers.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::chain::Chain;
use base::layout::{AgentFolder, Layout};
use base::time::{Clock, Stopwatch};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::{Value, json};
use store::folder::{DiskUse, disk_use};

use super::{Problem, Report};
use crate::commands::admin::Admin;
use crate::commands::certificate;
use crate::process::work_dir;

/// The API must answer within this.
const ANSWER: Duration = Duration::from_secs(10);
/// Writes with which the disk is measured.
const PROBES: usize = 25;
/// A disk that takes longer makes a slow cluster.
const FSYNC_SLOW: Duration = Duration::from_millis(100);
/// Less room than this is worth a word.
const DISK_FREE_PERCENT_MIN: u64 = 10;

/// Looks at everything.
pub(super) async fn report(layout: &Layout, kubeconfig: &Path) -> Report {
    let mut report = Report::default();
    let role = role(layout);
    let pid = find_process(role, layout);
    version(&mut report, role, pid);
    if role == "server" {
        cluster(&mut report, kubeconfig, pid).await;
        store(&mut report, &layout.server().db(), pid);
    } else if role == "agent" {
        membership(&mut report, &layout.agent());
    }
    ends(&mut report, layout);
    disk(&mut report, layout.data_dir());
    report
}

/// The process that runs here, whatever its role.
pub(super) fn running(layout: &Layout) -> Option<u32> {
    find_process(role(layout), layout)
}

fn role(layout: &Layout) -> &'static str {
    match () {
        () if layout.server().tls().exists() => "server",
        () if layout.agent().membership().exists() => "agent",
        () => "nothing",
    }
}

/// The running kedge of that role whose folder this is: several may run on a machine.
fn find_process(role: &str, layout: &Layout) -> Option<u32> {
    let all = fs::read_dir("/proc").ok()?.flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let args: Vec<String> =
            line.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let name = Path::new(&args[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("kedge")
            && args.get(1).is_some_and(|word| word == role)
            && work_dir::works_in(&args, *pid, layout)
    })
}

/// A number that the kernel keeps about a process.
enum Number {
    /// Memory, in KiB.
    Rss,
    /// Bytes written to disks.
    Written,
}

fn number(pid: u32, number: Number) -> Option<u64> {
    let (file, name) = match number {
        Number::Rss => ("status", "VmRSS"),
        Number::Written => ("io", "write_bytes"),
    };
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

fn version(report: &mut Report, role: &str, pid: Option<u32>) {
    let rss = pid.and_then(|pid| number(pid, Number::Rss)).map(|kib| kib * 1024);
    let mut lines = vec![format!("kedge {}", crate::process::version::VERSION)];
    match (role, pid) {
        ("nothing", _) => report.problems.push(Problem::new(
            "kedge has not run on this machine",
            "start it: 'kedge server', or 'kedge agent --server https://… --token …'",
        )),
        (role, Some(pid)) => lines.push(format!("{role} runs, pid {pid}, {} resident", mib(rss.unwrap_or(0)))),
        (role, None) => {
            let remedy = "start it: 'systemctl start kedge', and see why it ended: 'journalctl -u kedge -n 50'";
            report.problems.push(Problem::new(format!("kedge {role} does not run"), remedy));
        }
    }
    report.add(
        "version",
        lines,
        json!({ "version": crate::process::version::VERSION, "role": role, "pid": pid, "residentBytes": rss }),
    );
}

async fn cluster(report: &mut Report, kubeconfig: &Path, pid: Option<u32>) {
    let admin = match Admin::open(kubeconfig) {
        Ok(admin) => admin,
        Err(err) => {
            report.problems.push(Problem::new(
                format!("the kubeconfig cannot be used: {}", Chain(&err)),
                "run it as root, or name one with --kubeconfig",
            ));
            return;
        }
    };
    match tokio::time::timeout(ANSWER, ask(report, &admin.client)).await {
        Ok(Ok(())) => {}
        Ok(Err(err)) if pid.is_some() => {
            report.problems.push(Problem::new(
                format!("the API does not answer: {}", Chain(&err)),
                "see its log: 'journalctl -u kedge -n 50'",
            ));
        }
        Ok(Err(_)) => {}
        Err(_) => report.problems.push(Problem::new(
            format!("the API does not answer within {} s", ANSWER.as_secs()),
            "see its log: 'journalctl -u kedge -n 50'; with several servers most of them must run",
        )),
    }
}

async fn ask(report: &mut Report, client: &kube::Client) -> Result<(), kube::Error> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let mut lines = Vec::new();
    let mut values = Vec::new();
    for node in &nodes {
        let seen = seen(node);
        lines.push(seen.line);
        values.push(seen.value);
        report.problems.extend(seen.problems);
    }
    report.add("nodes", lines, Value::Array(values));
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default()).await?;
    let phase = |pod: &&Pod, wanted: &str| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(wanted);
    let count = |wanted: &str| pods.iter().filter(|pod| phase(pod, wanted)).count();
    let (running, pending, failed) = (count("Running"), count("Pending"), count("Failed"));
    report.add(
        "pods",
        vec![format!("{running} running, {pending} pending, {failed} failed")],
        json!({ "running": running, "pending": pending, "failed": failed }),
    );
    addons(report, client).await
}

/// A node in the report.
struct SeenNode {
    line: String,
    value: Value,
    problems: Vec<Problem>,
}

/// The kubelet's word about where its runtime comes from.
const RUNTIME_FROM: &str = "kedge.io/runtime-from";

fn seen(node: &Node) -> SeenNode {
    let (name, info) = (node.name_any(), node.status.as_ref().and_then(|s| s.node_info.clone()).unwrap_or_default());
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let bad: Vec<_> = conditions
        .filter(|c| (c.type_ == "Ready" || c.type_ == "OverlayHealthy") != (c.status == "True"))
        .cloned()
        .collect();
    let ready = !bad.iter().any(|c| c.type_ == "Ready");
    let (version, runtime) = (info.kubelet_version, info.container_runtime_version);
    let state = if ready { "Ready" } else { "NotReady" };
    let from = node.annotations().get(RUNTIME_FROM).cloned();
    let told = from.as_ref().map(|from| format!("  from {from}")).unwrap_or_default();
    let line = format!("{name}  {state}  {version}  {runtime}  {}{told}", info.kernel_version);
    let value = json!({ "name": name, "ready": ready, "version": version, "runtime": runtime, "runtimeFrom": from });
    let problem = |condition: NodeCondition| {
        let remedy = match condition.type_.as_str() {
            "DiskPressure" => "make room on its disk; images that no pod uses are deleted by themselves",
            "MemoryPressure" => "give its pods memory limits, or move some away: 'kubectl top pods -A'",
            _ => "look there: 'kedge status' and 'journalctl -u kedge' on that machine",
        };
        let why = condition.message.unwrap_or_default();
        Problem::new(format!("node {name}: {} is {}: {why}", condition.type_, condition.status), remedy)
    };
    SeenNode { line, value, problems: bad.into_iter().map(problem).collect() }
}

async fn addons(report: &mut Report, client: &kube::Client) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &cluster::addons::record::resource());
    let listed = match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        listed => listed?,
    };
    let all: Vec<_> = listed.iter().map(cluster::addons::record::AddOn::of).collect();
    let names: Vec<&str> = all.iter().map(|addon| addon.name.as_str()).collect();
    let values = all
        .iter()
        .map(|a| json!({ "name": a.name, "source": a.source, "objects": a.objects.len(), "error": a.error }))
        .collect();
    report.add("add-ons", vec![names.join(", ")], Value::Array(values));
    for addon in all.iter().filter(|addon| !addon.error.is_empty()) {
        let remedy = format!("mend {}: it is applied again as soon as it is saved", addon.source);
        report.problems.push(Problem::new(format!("add-on {}: {}", addon.name, addon.error), remedy));
    }
    Ok(())
}

fn store(report: &mut Report, db: &Path, pid: Option<u32>) {
    let DiskUse { database: file, log } = disk_use(db);
    let written = pid.and_then(|pid| number(pid, Number::Written));
    let mut lines = vec![format!("{} and {} of log in {}", mib(file), mib(log), db.display())];
    let slowest = slowest_write(db);
    match &slowest {
        Ok(slowest) => {
            lines.push(format!(
                "{:.1} ms for the slowest of {PROBES} durable writes of this command's own",
                slowest.as_secs_f64() * 1e3
            ));
            if *slowest > FSYNC_SLOW {
                let what = format!("the disk is slow: a small durable write took {:.1} s", slowest.as_secs_f64());
                report.problems.push(Problem::new(
                    what,
                    "every write waits for it: put DATA/server/db on a better disk, or find who else writes there",
                ));
            }
        }
        Err(err) => report
            .problems
            .push(Problem::new(format!("cannot write into {}: {err}", db.display()), "check the disk and its mount")),
    }
    if let Some(written) = written {
        lines.push(format!("{} written by this kedge since its start", mib(written)));
    }
    let slowest = slowest.ok().map(|slowest| slowest.as_secs_f64());
    report.add(
        "store",
        lines,
        json!({ "bytes": file, "logBytes": log, "slowestWriteSeconds": slowest, "writtenBytes": written }),
    );
}

/// The slowest of some small durable writes beside the store.
fn slowest_write(dir: &Path) -> std::io::Result<Duration> {
    let path = dir.join(format!(".fsync-probe.{}", std::process::id()));
    let probe = || {
        let mut file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let mut slowest = Duration::ZERO;
        for _ in 0..PROBES {
            file.write_all(&[0; 4096])?;
            let watch = Stopwatch::start();
            file.sync_data()?;
            slowest = slowest.max(watch.elapsed());
        }
        Ok(slowest)
    };
    let measured = probe();
    let _best_effort = fs::remove_file(&path);
    measured
}

fn membership(report: &mut Report, agent: &AgentFolder) {
    let servers: Value =
        fs::read(agent.servers()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let member: Value =
        fs::read(agent.membership()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let name = member["nodeName"].as_str().unwrap_or_default();
    let list: Vec<&str> = servers["servers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut lines = vec![format!("node {name}")];
    for server in &list {
        let reached = std::net::ToSocketAddrs::to_socket_addrs(server).ok().and_then(|mut all| all.next());
        let open =
            reached.is_some_and(|addr| std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(3)).is_ok());
        lines.push(format!("server {server}  {}", if open { "answers" } else { "does not answer" }));
        if !open {
            let remedy = "check that the machine is up and that no firewall blocks the port from here";
            report.problems.push(Problem::new(format!("server {server} cannot be reached"), remedy));
        }
    }
    report.add("membership", lines, json!({ "node": name, "servers": list }));
}

fn ends(report: &mut Report, layout: &Layout) {
    let Ok(found) = certificate::look(layout) else { return };
    let now = Clock::system().now();
    let Some(first) = found.iter().min_by_key(|seen| seen.ends) else { return };
    let days = (first.ends.as_second() - now.as_second()) / 86_400;
    let line = format!("{} certificates, the first ends in {days} days ({})", found.len(), first.file);
    report.add(
        "certificates",
        vec![line],
        json!({ "n": found.len(), "firstEnds": first.ends.to_string(), "firstFile": first.file }),
    );
    for seen in found.iter().filter(|seen| seen.status(now) != "OK") {
        let remedy = match seen.file.ends_with("-ca.crt") {
            true => "replace the authorities: 'kedge certificate rotate-ca'",
            false => "a running kedge renews certificates by itself: start it, and see its log if that does not help",
        };
        report.problems.push(Problem::new(
            format!("certificate {} is {}: it ends at {}", seen.file, seen.status(now), seen.ends),
            remedy,
        ));
    }
}

fn disk(report: &mut Report, data_dir: &Path) {
    let place: PathBuf = data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/")).to_owned();
    let Ok(stat) = rustix::fs::statvfs(&place) else { return };
    let (all, free) = (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize);
    let percent = (free * 100).checked_div(all).unwrap_or(100);
    report.add(
        "disk",
        vec![format!("{} of {} free ({percent} %) at {}", mib(free), mib(all), place.display())],
        json!({ "path": place, "bytes": all, "freeBytes": free }),
    );
    if percent < DISK_FREE_PERCENT_MIN {
        let what = format!("the disk of {} has {percent} % left", place.display());
        report.problems.push(Problem::new(what, "make room: 'kedge images', 'kedge snapshot ls', logs in /var/log"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(conditions: &[(&str, &str)]) -> SeenNode {
        let all: Vec<Value> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status, "message": "why"})).collect();
        let info = json!({"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2",
            "kernelVersion": "6.1",
            "architecture": "", "bootID": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": ""});
        let node = json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info, "conditions": all}});
        seen(&serde_json::from_value(node).unwrap())
    }

    fn problems(report: &Report) -> Vec<(&str, &str)> {
        report.problems.iter().map(|problem| (problem.what.as_str(), problem.remedy.as_str())).collect()
    }

    #[test]
    fn a_node_that_is_well_has_no_problem() {
        let well = node(&[("Ready", "True"), ("DiskPressure", "False"), ("OverlayHealthy", "True")]);
        assert_eq!(well.line, "n  Ready  v1.36.2  containerd://2  6.1");
        assert!(well.problems.is_empty());
        assert_eq!(well.value["ready"], true);
    }

    #[test]
    fn each_condition_of_a_node_that_is_ill_has_its_remedy() {
        for (kind, status, state, remedy) in [
            ("Ready", "Unknown", "NotReady", "look there: 'kedge status'"),
            ("OverlayHealthy", "False", "Ready", "look there: 'kedge status'"),
            ("DiskPressure", "True", "Ready", "make room on its disk"),
            ("MemoryPressure", "True", "Ready", "give its pods memory limits"),
            ("PIDPressure", "True", "Ready", "look there: 'kedge status'"),
        ] {
            let ill = node(&[(kind, status)]);
            assert!(ill.line.starts_with(&format!("n  {state}  ")), "{}", ill.line);
            let [problem] = ill.problems.as_slice() else { panic!("{kind}") };
            assert_eq!(problem.what, format!("node n: {kind} is {status}: why"));
            assert!(problem.remedy.starts_with(remedy), "{}", problem.remedy);
        }
    }

    #[test]
    fn a_machine_on_which_nothing_runs_is_told_what_to_start() {
        for (role, what, remedy) in [
            ("nothing", "kedge has not run on this machine", "start it: 'kedge server', or 'kedge agent"),
            ("server", "kedge server does not run", "start it: 'systemctl start kedge'"),
            ("agent", "kedge agent does not run", "start it: 'systemctl start kedge'"),
        ] {
            let mut report = Report::default();
            version(&mut report, role, None);
            let [(said, do_this)] = problems(&report)[..] else { panic!("{role}") };
            assert!(said == what && do_this.starts_with(remedy), "{said} {do_this}");
        }
        let mut running = Report::default();
        version(&mut running, "server", Some(std::process::id()));
        assert!(problems(&running).is_empty());
        assert!(running.to_text().contains(&format!("server runs, pid {}, ", std::process::id())));
    }

    #[test]
    fn the_role_of_a_machine_is_read_off_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(role(&layout), "nothing");
        let membership = layout.agent().membership();
        fs::create_dir_all(membership.parent().unwrap()).unwrap();
        fs::write(membership, "{}").unwrap();
        assert_eq!(role(&layout), "agent");
        fs::create_dir_all(layout.server().tls()).unwrap();
        assert_eq!(role(&layout), "server");
    }

    #[test]
    fn a_store_that_cannot_be_written_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::default();
        store(&mut report, &dir.path().join("none"), None);
        let all = problems(&report);
        assert!(all[0].0.starts_with("cannot write into ") && all[0].1 == "check the disk and its mount", "{all:?}");
        store(&mut report, dir.path(), None);
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "the probe is gone");
    }

    #[test]
    fn amounts_of_bytes_are_told_in_mib_with_one_digit() {
        for (bytes, text) in
            [(0, "0.0 MiB"), (1 << 20, "1.0 MiB"), ((1 << 20) + (1 << 19), "1.5 MiB"), (1023, "0.0 MiB")]
        {
            assert_eq!(mib(bytes), text);
        }
    }
}
