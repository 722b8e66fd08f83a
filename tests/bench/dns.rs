//! Questions of DNS: Kedge's server beside genuine CoreDNS, the same Corefile, the same questions, one after the other.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;

use crate::Bench;
use crate::process::{Running, pss, wait_for};
use crate::report::{Row, mib, percentile};

/// Names that are asked for, in turn.
const NAMES: usize = 1000;
/// Questions that are on their way at one time.
const IN_FLIGHT: usize = 64;
const WARM_FOR: Duration = Duration::from_secs(1);
const ASK_FOR: Duration = Duration::from_secs(5);
const START_LIMIT: Duration = Duration::from_secs(20);
/// A question that is lost is asked again after this.
const LOST: Duration = Duration::from_millis(500);
const PORT: u16 = 16053;

/// Figures of one server.
struct Figures {
    per_sec: f64,
    p99: Duration,
    memory: u64,
}

/// Measures both, if there is a CoreDNS (`COREDNS`, which scripts/bench.sh builds).
pub(crate) async fn measure(bench: &mut Bench) -> Result<()> {
    let dir = bench.dir.join("dns");
    fs::create_dir_all(&dir)?;
    let ours = dir.join("coredns");
    // The role is chosen by the program's name.
    std::os::unix::fs::symlink(&bench.kedge, &ours)?;
    let ours = figures(&ours, &dir).await.context("ours")?;
    #[allow(clippy::disallowed_methods, reason = "the one setting of this part, and the bench has no other reader")]
    let genuine = std::env::var_os("COREDNS").map(PathBuf::from).filter(|path| path.is_file());
    let text = |figures: &Figures| format!("{:.0}/s, p99 {:.2} ms", figures.per_sec, ms(figures.p99));
    let (questions, memory) = ("DNS: questions a second from the cache", "DNS: memory under that load");
    let Some(genuine) = genuine else {
        let why = "no genuine CoreDNS beside it: its Go module could not be had";
        bench.report.add(Row::of(questions, format!("{} ({why})", text(&ours))).aim("≥ 3 ×"));
        bench.report.add(Row::of(memory, mib(ours.memory)).aim("≤ 1/3"));
        return Ok(());
    };
    let theirs = figures(&genuine, &dir).await.context("genuine CoreDNS")?;
    let faster = ours.per_sec / theirs.per_sec;
    bench.report.add(
        Row::of(questions, text(&ours))
            .beside(format!("CoreDNS: {}", text(&theirs)), faster)
            .budget("≥ 3 ×", faster >= 3.0),
    );
    #[allow(clippy::cast_precision_loss, reason = "megabytes")]
    let smaller = ours.memory as f64 / theirs.memory as f64;
    bench.report.add(
        Row::of(memory, mib(ours.memory))
            .beside(format!("CoreDNS: {}", mib(theirs.memory)), smaller)
            .budget("≤ 0.33", smaller <= 1.0 / 3.0),
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The Corefile of both: what a cluster's has, without a cluster.
fn corefile() -> String {
    let hosts: String =
        (0..NAMES).map(|n| format!("        10.1.{}.{} name-{n}.bench.test\n", n / 250, n % 250 + 1)).collect();
    format!(
        ".:{PORT} {{\n    errors\n    health 127.0.0.1:16080\n    ready 127.0.0.1:16081\n    hosts /dev/null {{\n\
         {hosts}        ttl 60\n        fallthrough\n    }}\n    prometheus 127.0.0.1:16082\n    cache 30\n    \
         loadbalance\n    forward . 127.0.0.9:9\n}}\n"
    )
}

async fn figures(program: &Path, dir: &Path) -> Result<Figures> {
    let path = dir.join("Corefile");
    fs::write(&path, corefile().replace("/dev/null", &dir.join("hosts").display().to_string()))?;
    fs::write(dir.join("hosts"), "")?;
    let args = ["-conf".to_owned(), path.display().to_string()];
    let mut server = Running::start(program, &args, &dir.join("log"))?;
    wait_for("an answer", START_LIMIT, Duration::from_millis(20), async || is_there().then_some(())).await?;
    server.check()?;
    ask(WARM_FOR)?;
    let (times, took) = ask(ASK_FOR)?;
    let memory = pss(server.pid);
    server.stop().await?;
    #[allow(clippy::cast_precision_loss, reason = "some millions of questions")]
    let per_sec = times.len() as f64 / took.as_secs_f64();
    Ok(Figures { per_sec, p99: percentile(&times, 99), memory })
}

fn is_there() -> bool {
    let Ok(socket) = connected() else { return false };
    let mut buffer = [0; 512];
    socket.send(&question(0, 0)).is_ok() && socket.recv(&mut buffer).is_ok()
}

fn connected() -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(LOST))?;
    socket.connect(("127.0.0.1", PORT))?;
    Ok(socket)
}

/// Asks for so long, with some questions always on their way; the times of all answers, sorted, and how long it took.
fn ask(lasts: Duration) -> Result<(Vec<Duration>, Duration)> {
    let (socket, clock) = (connected()?, Stopwatch::start());
    let mut sent = vec![Duration::ZERO; usize::from(u16::MAX) + 1];
    let (mut next, mut times, mut buffer) = (0_u16, Vec::with_capacity(1 << 20), [0; 512]);
    let send = |id: u16, sent: &mut Vec<Duration>| -> Result<()> {
        sent[usize::from(id)] = clock.elapsed();
        socket.send(&question(id, usize::from(id) % NAMES))?;
        Ok(())
    };
    for _ in 0..IN_FLIGHT {
        send(next, &mut sent)?;
        next = next.wrapping_add(1);
    }
    while clock.elapsed() < lasts {
        match socket.recv(&mut buffer) {
            Ok(len) if len > 12 => {
                if buffer[3] & 15 != 0 || buffer[7] == 0 {
                    bail!("an answer without an address: {:?}", &buffer[..12]);
                }
                let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
                times.push(clock.elapsed().saturating_sub(sent[id]));
            }
            Ok(_) => bail!("half an answer"),
            // All that are on their way are lost: as many again.
            Err(_) => times.push(LOST),
        }
        send(next, &mut sent)?;
        next = next.wrapping_add(1);
    }
    let took = clock.elapsed();
    times.sort_unstable();
    Ok((times, took))
}

/// A question for an address, with EDNS as resolvers of today send it.
fn question(id: u16, name: usize) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in [format!("name-{name}").as_str(), "bench", "test"] {
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}
