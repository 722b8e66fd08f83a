//! The faults, as a table. What would not stay on this machine's side is tried in `make test-vm`: a power cut, and a
//! clock that jumps (the kernel has no namespace for the time of day, and setting it would set everybody's).

use std::time::Duration;

use crate::world::{Machine, World};

/// One fault: how it begins and how it ends, on the machine that chance has chosen among its kind.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    of: fn(&mut World, usize) -> &mut Machine,
    begin: fn(&mut Machine),
    /// How long it lasts.
    lasts: Duration,
    /// The work that is seen to go on meanwhile.
    meanwhile: fn(&World, usize),
    end: fn(&mut Machine),
    /// The step that puts things back when it has ended.
    after: fn(&World, usize),
}

impl Fault {
    /// Begins it, lets it last, ends it. A role that has ended is started again, as its service manager would.
    pub(crate) fn run(&self, world: &mut World, victim: usize) {
        let machine = (self.of)(world, victim);
        (self.begin)(machine);
        std::thread::sleep(self.lasts);
        (self.meanwhile)(world, victim);
        (self.end)((self.of)(world, victim));
        world.start_what_was_killed(self.name);
    }

    /// Puts back what it took, where healing does not.
    pub(crate) fn put_back(&self, world: &World, victim: usize) {
        (self.after)(world, victim);
    }
}

fn server(world: &mut World, n: usize) -> &mut Machine {
    &mut world.servers[n]
}

fn agent(world: &mut World, n: usize) -> &mut Machine {
    &mut world.agents[n]
}

fn nothing(_machine: &mut Machine) {}

fn no_look(_world: &World, _n: usize) {}

const fn fault(
    name: &'static str,
    of: fn(&mut World, usize) -> &mut Machine,
    lasts_secs: u64,
    begin: fn(&mut Machine),
    end: fn(&mut Machine),
) -> Fault {
    Fault { name, of, begin, lasts: Duration::from_secs(lasts_secs), meanwhile: no_look, end, after: no_look }
}

/// All of them.
pub(crate) const FAULTS: &[Fault] = &[
    fault("a server is killed", server, 3, Machine::kill, nothing),
    fault("a server is paused", server, 8, Machine::pause, Machine::go_on),
    fault("a server is cut off", server, 8, Machine::cut, Machine::mend),
    fault("a server's disk is full", server, 6, Machine::fill_disk, Machine::free_disk),
    fault("an agent is killed", agent, 3, Machine::kill, nothing),
    fault("an agent is paused", agent, 8, Machine::pause, Machine::go_on),
    fault("an agent is cut off", agent, 8, Machine::cut, Machine::mend),
    fault("a node loses its address", agent, 6, Machine::lose_address, Machine::take_address),
    fault("a node's containerd is killed", agent, 1, Machine::kill_containerd, nothing),
    fault("a node's rules are flushed", agent, 1, Machine::flush_rules, nothing),
    Fault {
        meanwhile: World::goes_on_beside_what_hangs,
        after: World::read_again,
        ..fault("a network file system hangs", agent, 2, Machine::hang_afar, Machine::answer_afar)
    },
];
