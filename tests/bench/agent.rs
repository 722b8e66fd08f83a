//! A second machine that joins: how long that takes, and what `kedge agent` costs there.
//!
//! The machine is namespaces on this one: network, mounts, processes and host name of its own, with a link to the
//! server's.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Bench;
use crate::api::Api;
use crate::node::{API_PORT, Node, node_ready};
use crate::process::{Running, cpu, output, pss, rss, wait_for};
use crate::report::{Row, mib, p50};

/// Joins measured; the median is told.
const JOINS: usize = 3;
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// After the last join, before looking.
const SETTLE: Duration = Duration::from_secs(15);
const WINDOW: Duration = Duration::from_secs(20);
/// The server's end of the link, and the agent's.
pub(crate) const LINK: [&str; 2] = ["10.98.0.1", "10.98.0.2"];

/// The first process of the machine makes it, says so, waits for a word, and runs the agent. A shell stays first, which
/// reaps orphans.
const INIT: &str = concat!(
    "MACHINE_ID=43981\n",
    include_str!("../machine.sh"),
    r#"
hostname bench-agent
place=$1
shift
: >"$place/made"
read -r _ <"$place/go"
"$@"
"#
);

/// The machine with its agent.
struct Machine {
    first: Running,
    name: String,
    place: PathBuf,
    agent: u32,
}

impl Machine {
    /// Makes the machine, starts the agent, and waits until its node is Ready: the time from the one to the other.
    async fn join(bench: &Bench, node: &Node, name: String) -> Result<(Machine, Duration)> {
        let place = bench.dir.join("agent");
        fs::create_dir_all(&place)?;
        let go = place.join("go");
        output("mkfifo", &[&go.display().to_string()])?;
        let token = fs::read_to_string(node.data_dir().join("server/node-token")).context("the token")?;
        let token_file = place.join("token");
        fs::write(&token_file, token)?;
        let flags = [
            ("config", bench.dir.join("config.yaml").display().to_string()),
            ("data-dir", place.join("data").display().to_string()),
            ("server", format!("https://{}:{API_PORT}", LINK[0])),
            ("token-file", token_file.display().to_string()),
            ("node-name", name.clone()),
        ];
        let unshare = [
            "--mount",
            "--propagation=private",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            INIT,
            "init",
        ];
        let command = [place.display().to_string(), bench.kedge.display().to_string(), "agent".to_owned()];
        let flags = flags.map(|(flag, value)| format!("--{flag}={value}"));
        let args: Vec<String> = unshare.map(str::to_owned).into_iter().chain(command).chain(flags).collect();
        let mut first = Running::start(Path::new("/usr/bin/unshare"), &args, &bench.dir.join("agent.log"))?;
        wait_for("the agent's machine", JOIN_LIMIT, Duration::from_millis(20), async || {
            place.join("made").exists().then_some(())
        })
        .await?;
        let init = child(first.pid).context("the machine has no first process")?;
        link(init)?;
        let clock = Stopwatch::start();
        // Opened both ways it never waits for the reader.
        let mut go = fs::OpenOptions::new().read(true).write(true).open(&go)?;
        go.write_all(b"go\n")?;
        let Some(time) = node_ready(&node.api, &name, clock).await else {
            bail!("its node is not Ready within {} s; see agent.log", JOIN_LIMIT.as_secs());
        };
        first.check().context("the agent's machine")?;
        let agent = child(init).context("the agent has ended; see agent.log")?;
        Ok((Machine { first, name, place, agent }, time))
    }

    /// Ends everything on the machine and takes its node away.
    async fn remove(mut self, api: &Api) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.agent)?), Signal::SIGKILL)?;
        // The first process ends with the agent, and all others with the first.
        wait_for("the end of the agent's machine", JOIN_LIMIT, Duration::from_millis(20), async || {
            self.first.check().is_err().then_some(())
        })
        .await?;
        fs::remove_dir_all(&self.place).with_context(|| format!("remove {}", self.place.display()))?;
        api.connect().await?.delete(&format!("/api/v1/nodes/{}", self.name)).await.map(drop)
    }
}

/// A veth from here into the machine.
fn link(init: u32) -> Result<()> {
    let (init, inside) = (init.to_string(), format!("{}/30", LINK[1]));
    let ip = |args: &[&str]| output("ip", args).map(drop);
    // That of the machine before ends with its namespace, some time after the last process.
    let _mostly_gone = ip(&["link", "delete", "to-agent"]);
    ip(&["link", "add", "to-agent", "type", "veth", "peer", "name", "eth0", "netns", &init])?;
    ip(&["address", "add", &format!("{}/30", LINK[0]), "dev", "to-agent"])?;
    ip(&["link", "set", "to-agent", "up"])?;
    for args in [
        &["address", "add", &inside, "dev", "eth0"][..],
        &["link", "set", "eth0", "up"],
        &["route", "add", "default", "via", LINK[0]],
    ] {
        output("nsenter", &[&["-t", &init, "-n", "ip"][..], args].concat())?;
    }
    Ok(())
}

/// The only child of a process.
fn child(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

/// Joins a machine a few times, and looks at the agent of the last one.
pub(crate) async fn measure(bench: &mut Bench, node: &Node) -> Result<()> {
    let mut times = Vec::new();
    let machine = loop {
        // A machine with an empty disk cannot prove that it was the one before: it is another node.
        let (machine, time) = Machine::join(bench, node, format!("bench-agent-{}", times.len())).await?;
        times.push(time);
        if times.len() == JOINS {
            break machine;
        }
        machine.remove(&node.api).await?;
    };
    let (median, worst) = (p50(&times), times.iter().max().copied().unwrap_or_default());
    let text = format!("{:.2} s (worst of {}: {:.2} s)", median.as_secs_f64(), times.len(), worst.as_secs_f64());
    bench
        .report
        .add(Row::of("agent: start → joined and node Ready, empty disk", text).aim("as quick as a server's own node"));
    tokio::time::sleep(SETTLE).await;
    let before = cpu(machine.agent);
    tokio::time::sleep(WINDOW).await;
    let per_cent = (cpu(machine.agent).saturating_sub(before)).as_secs_f64() / WINDOW.as_secs_f64() * 100.0;
    let (resident, share) = (rss(machine.agent), pss(machine.agent));
    let text = format!("{} RSS, {} PSS, {per_cent:.2} % of a core", mib(resident), mib(share));
    bench.report.add(Row::of("agent alone, idle", text).budget("≤ 20 MB RSS", resident > 0 && resident <= 20_000_000));
    machine.remove(&node.api).await
}
