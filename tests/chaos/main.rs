//! Faults, one after the other, on three servers and three agents that work meanwhile: `make chaos`, and three minutes
//! of it in `make test`.
//!
//! What must hold: no acknowledged write is lost, all operations are one order, every Service answers within 30 s of a
//! fault's end, no role ends or panics that was not killed, and nothing is left behind: links, mounts, cgroups,
//! descriptors. Where it lasts a quarter of an hour, memory grows no more after the second third. KEDGE_CHAOS_SECS says
//! how long, KEDGE_SEED in which order.
//!
//! Needs root, containerd and the static program that KEDGE_BIN names; without them it says so and does nothing.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail; it measures real time and reads its environment"
)]

#[allow(dead_code, reason = "shared with tests/cluster, which uses all of it")]
#[path = "../cluster/history.rs"]
mod history;
#[allow(dead_code, reason = "shared with tests/cluster, which uses all of it")]
#[path = "../cluster/hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "shared with tests/node, which uses all of it")]
#[path = "../node/namespaces.rs"]
mod namespaces;

mod faults;
mod hung;
mod soak;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use faults::{FAULTS, Fault};
use history::Clients;
use soak::Soak;
use world::World;

/// How long faults go on, where KEDGE_CHAOS_SECS does not say.
const SECS: u64 = 180;
/// Every Service answers this long after a fault's end.
const HEAL_LIMIT: Duration = Duration::from_secs(30);

/// A number of the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: want a number")))
}

/// xorshift64*: the order of the faults is a function of the seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % n
    }

    /// All faults, in an order of chance.
    fn shuffled(&mut self) -> Vec<&'static Fault> {
        let mut all: Vec<&Fault> = FAULTS.iter().collect();
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
        all
    }
}

#[test]
fn faults_end_and_the_cluster_goes_on() {
    if std::env::var_os(namespaces::INSIDE).is_none() {
        match namespaces::what_is_missing() {
            Some(missing) => base::skips::say(&missing),
            None => namespaces::enter("faults_end_and_the_cluster_goes_on"),
        }
        return;
    }
    let place = tempfile::Builder::new().prefix("kedge-chaos-").tempdir().unwrap();
    let program = PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap());
    let (length, seed) = (Duration::from_secs(setting("KEDGE_CHAOS_SECS", SECS)), setting("KEDGE_SEED", 36));
    println!("seed {seed}, {length:?} of faults");
    let mut world = World::build(place.path(), &program);
    world.heals("before any fault", Duration::from_secs(180));
    let before = world.footprint();
    let clients = Clients::start(&world.kubeconfig(), &world.urls());
    let soak = Soak::begin(&program);
    let (began, mut dice, mut n_faults, mut slowest) = (Instant::now(), Dice(seed.max(1)), 0, Duration::ZERO);
    // Each fault once at least, whatever the time says.
    let mut round = dice.shuffled();
    while n_faults < FAULTS.len() || began.elapsed() < length {
        let fault = round.pop().unwrap_or_else(|| {
            round = dice.shuffled();
            round.pop().unwrap()
        });
        let victim = dice.below(3);
        println!("{:>5.0?} {} on number {}", began.elapsed().as_secs_f32(), fault.name, victim + 1);
        fault.run(&mut world, victim);
        let took = world.heals(fault.name, HEAL_LIMIT);
        world.works(&clients, fault.name);
        fault.put_back(&world, victim);
        world.scale(n_faults % 3 + 3);
        slowest = slowest.max(took);
        n_faults += 1;
    }
    world.works(&clients, "the last fault");
    let n = clients.judge(&world.kubeconfig(), &world.urls()[0]);
    println!(
        "{n_faults} faults; Services answered {slowest:.1?} after a fault's end at most; {n} operations are one order"
    );
    world.never_panicked();
    soak.judge();
    world.settle();
    world.leaves_nothing(&before);
}
