//! The faults, as a table. What this machine cannot do (a clock that jumps, a hung NFS server, a power cut) is tried in `make test-vm`.

use std::time::Duration;

use crate::world::{Machine, World};

/// One fault: how it begins and how it ends, on the machine that chance has chosen among its kind.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    of: fn(&mut World, usize) -> &mut Machine,
    begin: fn(&mut Machine),
    /// How long it lasts.
    lasts: Duration,
    end: fn(&mut Machine),
}

impl Fault {
    /// Begins it, lets it last, ends it. A role that has ended is started again, as its service manager would.
    pub(crate) fn run(&self, world: &mut World, victim: usize) {
        let machine = (self.of)(world, victim);
        (self.begin)(machine);
        std::thread::sleep(self.lasts);
        (self.end)(machine);
        world.restart_what_ended();
    }
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn server(world: &mut World, n: usize) -> &mut Machine {
    &mut world.servers[n]
}

fn agent(world: &mut World, n: usize) -> &mut Machine {
    &mut world.agents[n]
}

fn nothing(_machine: &mut Machine) {}

/// All of them.
pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "a server is killed", of: server, begin: Machine::kill, lasts: secs(3), end: nothing },
    Fault { name: "a server is paused", of: server, begin: Machine::pause, lasts: secs(8), end: Machine::go_on },
    Fault { name: "a server is cut off", of: server, begin: Machine::cut, lasts: secs(8), end: Machine::mend },
    Fault { name: "a server's disk is full", of: server, begin: Machine::fill_disk, lasts: secs(6), end: Machine::free_disk },
    Fault { name: "an agent is killed", of: agent, begin: Machine::kill, lasts: secs(3), end: nothing },
    Fault { name: "an agent is paused", of: agent, begin: Machine::pause, lasts: secs(8), end: Machine::go_on },
    Fault { name: "an agent is cut off", of: agent, begin: Machine::cut, lasts: secs(8), end: Machine::mend },
    Fault { name: "a node loses its address", of: agent, begin: Machine::lose_address, lasts: secs(6), end: Machine::take_address },
    Fault { name: "a node's containerd is killed", of: agent, begin: Machine::kill_containerd, lasts: secs(1), end: nothing },
    Fault { name: "a node's rules are flushed", of: agent, begin: Machine::flush_rules, lasts: secs(1), end: nothing },
];
