//! `make bench`: every budget of the design that one machine can judge, each beside a peer or a physical limit measured
//! in the same run. Bounded in time; runs in namespaces of its own (scripts/bench.sh), so it meets no other cluster.
//!
//! Usage: `bench KEDGE DIR`. KEDGE_BENCH_PARTS names the parts to run, with commas between; without it all do.

mod agent;
mod api;
mod dns;
mod fanout;
mod idle;
mod limits;
mod node;
mod objects;
mod pods;
mod policies;
mod process;
mod puts;
mod report;
mod services;

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::task::Group;
use base::time::Stopwatch;

use crate::node::Node;
use crate::report::{Report, Row, ms, p50, percentile};

/// The load shares the cores with what is measured, so it is to cost little.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// No part may hold up the others for longer.
const PART_LIMIT: Duration = Duration::from_secs(180);
/// Budgets of the design that are not measured here, and why.
const ELSEWHERE: [(&str, &str); 1] = [("5,000 simulated nodes", "wants a machine of its own")];
/// The parts that need a node, in their order.
const PARTS: [&str; 10] =
    ["idle", "agent", "pods", "burst", "create", "list", "creates", "fanout", "policies", "services"];
const PUTS: &str = "puts";
const DNS: &str = "dns";

/// Shared by all parts.
pub(crate) struct Bench {
    /// The static binary under test.
    pub(crate) kedge: PathBuf,
    /// Everything that is written lies below it, on the disk under test.
    pub(crate) dir: PathBuf,
    pub(crate) group: Group,
    pub(crate) report: Report,
    /// The parts to run.
    parts: Vec<String>,
}

impl Bench {
    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Keeps the others going when a part fails: its name and reason stand in the table.
    fn part(&mut self, name: &str, outcome: Result<Result<()>, tokio::time::error::Elapsed>) {
        let why = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(err)) => format!("{err:#}"),
            Err(_) => format!("took longer than {} s", PART_LIMIT.as_secs()),
        };
        self.report.add(Row::missing(name, &why));
    }

    /// Memory is judged before the parts that fill and empty the caches.
    async fn on_node(&mut self, node: &mut Node) {
        for part in PARTS.into_iter().filter(|part| *part != "services") {
            if !self.wants(part) {
                continue;
            }
            let measured: Pin<Box<dyn Future<Output = Result<()>> + '_>> = match part {
                "idle" => Box::pin(idle::measure(self, node)),
                "agent" => Box::pin(agent::measure(self, node)),
                "pods" => Box::pin(pods::measure(self, node)),
                "burst" => Box::pin(pods::burst(self, node)),
                "create" => Box::pin(objects::create_one(self, node)),
                "list" => Box::pin(objects::pods(self, node)),
                "creates" => Box::pin(objects::create_many(self, node)),
                "fanout" => Box::pin(fanout::measure(self, node)),
                _ => Box::pin(policies::measure(self, node)),
            };
            let outcome = tokio::time::timeout(PART_LIMIT, measured).await;
            self.part(part, outcome);
        }
    }

    /// Last on the node: nothing takes the Services away again.
    async fn with_services(&mut self, node: Node) {
        let measured = tokio::time::timeout(PART_LIMIT * 2, services::measure(self, node)).await;
        let outcome = match measured {
            Ok(Ok(node)) => Ok(node.stop().await),
            Ok(Err(err)) => Ok(Err(err)),
            Err(late) => Err(late),
        };
        self.part("10,000 Services", outcome);
    }

    async fn run(&mut self) -> Result<()> {
        println!("what | kedge | beside it | ratio | budget | met");
        self.machine()?;
        match node::binary(&self.kedge) {
            Ok(row) => self.report.add(row),
            Err(err) => self.report.add(Row::missing("binary", &format!("{err:#}"))),
        }
        if PARTS.into_iter().any(|part| self.wants(part)) {
            match node::measure(self).await {
                Ok(mut node) => {
                    self.on_node(&mut node).await;
                    if self.wants("services") {
                        self.with_services(node).await;
                    } else if let Err(err) = node.stop().await {
                        self.report.add(Row::missing("the node's end", &format!("{err:#}")));
                    }
                }
                Err(err) => self.report.add(Row::missing("everything that needs a node", &format!("{err:#}"))),
            }
        }
        if self.wants(PUTS) {
            let outcome = tokio::time::timeout(PART_LIMIT, puts::measure(self)).await;
            self.part("durable puts beside etcd", outcome);
        }
        if self.wants(DNS) {
            let outcome = tokio::time::timeout(PART_LIMIT, dns::measure(self)).await;
            self.part("DNS beside CoreDNS", outcome);
        }
        for (name, why) in ELSEWHERE {
            self.report.add(Row::missing(name, why));
        }
        Ok(())
    }

    /// How quiet the machine is: a fixed piece of work takes the same time again and again on a quiet one.
    fn machine(&mut self) -> Result<()> {
        let cores = std::thread::available_parallelism()?;
        let mut times = Vec::new();
        for round in 0..200_u64 {
            let clock = Stopwatch::start();
            let sum = (0..2_000_000_u64)
                .fold(round, |sum, n| std::hint::black_box(sum ^ n).rotate_left(7).wrapping_mul(0x9e37_79b9));
            std::hint::black_box(sum);
            times.push(clock.elapsed());
        }
        let (half, most) = (p50(&times), percentile(&times, 95));
        let spread = most.as_secs_f64() / half.as_secs_f64();
        let noise = format!(
            "{cores} cores, load {}; fixed work p50 {}, p95 {} ({spread:.1} ×)",
            process::load(),
            ms(half),
            ms(most)
        );
        self.report.add(Row::of("machine: quiet is below 1.2 ×", noise));
        Ok(())
    }
}

/// The parts that the environment names.
#[allow(clippy::disallowed_methods, reason = "a program of tests reads its own environment")]
fn parts() -> Result<Vec<String>> {
    let named = std::env::var("KEDGE_BENCH_PARTS").unwrap_or_default();
    let named: Vec<String> = named.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if let Some(unknown) = named.iter().find(|part| !PARTS.contains(&part.as_str()) && *part != PUTS) {
        bail!("KEDGE_BENCH_PARTS: no part is called {unknown}; there are {}, {PUTS}", PARTS.join(", "));
    }
    Ok(named)
}

async fn start(args: &[String]) -> Result<()> {
    let (group, _reports) = Group::root("bench");
    match args {
        [kedge, dir] => {
            let clock = Stopwatch::start();
            let kedge = PathBuf::from(kedge).canonicalize().with_context(|| format!("no kedge binary at {kedge}"))?;
            let parts = parts()?;
            let mut bench = Bench { kedge, dir: dir.into(), group: group.clone(), report: Report::default(), parts };
            bench.run().await?;
            group.shutdown().await;
            let (met, judged) = bench.report.n_met();
            println!("\n{}", bench.report.table());
            println!(
                "{met} of {judged} judged budgets met; {} s, load at the end {}",
                clock.elapsed().as_secs(),
                process::load()
            );
            Ok(())
        }
        _ => bail!("usage: bench KEDGE DIR"),
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(start(&args))
}
