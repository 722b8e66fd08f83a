//! `make bench`: every budget of the design that one machine can judge, each beside a peer or a physical limit measured in
//! the same run. Bounded in time; runs in namespaces of its own (scripts/bench.sh), so it meets no other cluster.
//!
//! Usage: `bench KEDGE DIR`.

mod agent;
mod api;
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
const ELSEWHERE: [(&str, &str); 2] =
    [("90 pods at once", "takes minutes; not part of this run"), ("5,000 simulated nodes", "wants a machine of its own")];

/// What all parts share.
pub(crate) struct Bench {
    /// The static binary under test.
    pub(crate) kedge: PathBuf,
    /// Everything that is written lies below it, on the disk under test.
    pub(crate) dir: PathBuf,
    pub(crate) group: Group,
    pub(crate) report: Report,
}

impl Bench {
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
        let outcome = tokio::time::timeout(PART_LIMIT, idle::measure(self, node)).await;
        self.part("the idle node", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT * 2, agent::measure(self, node)).await;
        self.part("the agent", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, pods::measure(self, node)).await;
        self.part("pod create → Running", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, objects::create_one(self, node)).await;
        self.part("ConfigMap create, one client", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, objects::pods(self, node)).await;
        self.part("LIST and memory of 10,000 pods", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, objects::create_many(self, node)).await;
        self.part("creates, 16 clients", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, fanout::measure(self, node)).await;
        self.part("watch fan-out", outcome);
        let outcome = tokio::time::timeout(PART_LIMIT, policies::measure(self, node)).await;
        self.part("policy with 1,000 pods", outcome);
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
        match node::measure(self).await {
            Ok(mut node) => {
                self.on_node(&mut node).await;
                self.with_services(node).await;
            }
            Err(err) => self.report.add(Row::missing("everything that needs a node", &format!("{err:#}"))),
        }
        let outcome = tokio::time::timeout(PART_LIMIT, puts::measure(self)).await;
        self.part("durable puts beside etcd", outcome);
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
            let sum = (0..2_000_000_u64).fold(round, |sum, n| std::hint::black_box(sum ^ n).rotate_left(7).wrapping_mul(0x9e37_79b9));
            std::hint::black_box(sum);
            times.push(clock.elapsed());
        }
        let (half, most) = (p50(&times), percentile(&times, 95));
        let spread = most.as_secs_f64() / half.as_secs_f64();
        let noise = format!("{cores} cores, load {}; fixed work p50 {}, p95 {} ({spread:.1} ×)", process::load(), ms(half), ms(most));
        self.report.add(Row::of("machine: quiet is below 1.2 ×", noise));
        Ok(())
    }
}

async fn start(args: &[String]) -> Result<()> {
    let (group, _reports) = Group::root("bench");
    match args {
        [kedge, dir] => {
            let clock = Stopwatch::start();
            let kedge = PathBuf::from(kedge).canonicalize().with_context(|| format!("no kedge binary at {kedge}"))?;
            let mut bench = Bench { kedge, dir: dir.into(), group: group.clone(), report: Report::default() };
            bench.run().await?;
            group.shutdown().await;
            let (met, judged) = bench.report.n_met();
            println!("\n{}", bench.report.table());
            println!("{met} of {judged} judged budgets met; {} s, load at the end {}", clock.elapsed().as_secs(), process::load());
            Ok(())
        }
        _ => bail!("usage: bench KEDGE DIR"),
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(start(&args))
}
