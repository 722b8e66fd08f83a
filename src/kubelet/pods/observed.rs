//! The sandboxes and containers of one pod, as the runtime has them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, ContainerUser, PodStatus};

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) ready: bool,
    pub(crate) attempt: u32,
    pub(crate) created_at: i64,
    pub(crate) ips: Vec<String>,
}

/// Where a container stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

/// A container that was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) sandbox_id: String,
    pub(crate) attempt: u32,
    pub(crate) state: State,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) finished_at: Timestamp,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) hash: String,
    pub(crate) log_path: String,
    pub(crate) pre_stop: Option<String>,
    /// The user of its first process, where the runtime tells.
    pub(crate) user: Option<ContainerUser>,
}

/// A pod's sandboxes and containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Newest first.
    pub(crate) sandboxes: Vec<Sandbox>,
    /// Newest first.
    pub(crate) containers: Vec<Seen>,
}

impl Observed {
    /// In order by their numbers: the clock may have gone back between two of them.
    pub(crate) fn newest_first(mut sandboxes: Vec<Sandbox>, mut containers: Vec<Seen>) -> Observed {
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
        Observed { sandboxes, containers }
    }

    /// The newest container of a name.
    pub(crate) fn latest(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The one before it.
    pub(crate) fn previous(&self, name: &str) -> Option<&Seen> {
        self.containers.iter().filter(|c| c.name == name).nth(1)
    }

    /// The sandbox that containers run in now.
    pub(crate) fn sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// Whether anything of the pod may still run: only when this is false are its address, ports and devices free.
    pub(crate) fn may_run(&self) -> bool {
        let lives = |c: &Seen| matches!(c.state, State::Running | State::Unknown);
        self.containers.iter().any(lives) || self.sandboxes.iter().any(|s| s.ready)
    }

    /// Whether a container or sandbox is there and not ended.
    pub(crate) fn shows_alive(&self, id: &str) -> bool {
        self.running().any(|c| c.id == id) || self.sandboxes.iter().any(|s| s.ready && s.id == id)
    }

    /// The ids of all containers and sandboxes.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.containers.iter().map(|c| &c.id).chain(self.sandboxes.iter().map(|s| &s.id))
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Seen> {
        self.containers.iter().filter(|c| c.state == State::Running)
    }
}

/// The exit code of a container that vanished, as upstream.
pub(crate) const EXIT_UNKNOWN: i32 = 137;

pub(crate) fn lost(told: &ContainerStatus) -> Option<Seen> {
    let id = told.container_id.as_deref().and_then(|id| id.split_once("://"))?.1.to_owned();
    let state = told.state.clone().unwrap_or_default();
    let last = told.last_state.as_ref().and_then(|s| s.terminated.clone());
    let unknown = || ContainerStateTerminated {
        exit_code: EXIT_UNKNOWN,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        started_at: state.running.as_ref().and_then(|r| r.started_at.clone()),
        ..Default::default()
    };
    let ended = match (&state.terminated, &state.running) {
        (Some(ended), _) => ended.clone(),
        (None, Some(_)) => unknown(),
        (None, None) => last?,
    };
    let at = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)
    };
    Some(Seen {
        id,
        name: told.name.clone(),
        sandbox_id: String::new(),
        attempt: u32::try_from(told.restart_count).unwrap_or(0),
        state: State::Exited,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: at(&ended.started_at),
        finished_at: at(&ended.finished_at),
        exit_code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: ended.message.unwrap_or_default(),
        image: told.image.clone(),
        image_id: told.image_id.clone(),
        hash: String::new(),
        log_path: String::new(),
        pre_stop: None,
        user: told.user.clone(),
    })
}

impl Observed {
    /// Puts addresses of the node's first family first, as upstream: runtimes prefer IPv4.
    pub(crate) fn order_ips(&mut self, node_ip: Option<&std::net::IpAddr>) {
        let Some(first) = node_ip else { return };
        for sandbox in &mut self.sandboxes {
            sandbox.ips.sort_by_key(|ip| ip.contains(':') != first.is_ipv6());
        }
    }

    /// Adds what a status told of containers that the runtime has lost (its data deleted, the pod killed behind our
    /// back): a pod that ended stays ended, and a restart counts on.
    pub(crate) fn recall(&mut self, status: &PodStatus) {
        let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        for told in lists.into_iter().flat_map(|list| list.iter().flatten()) {
            if self.latest(&told.name).is_none()
                && let Some(seen) = lost(told)
            {
                self.containers.push(seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: &str, state: State) -> Seen {
        Seen { id: id.to_owned(), name: "c".to_owned(), state, ..Seen::default() }
    }

    fn sandbox(id: &str, ready: bool, ips: &[&str]) -> Sandbox {
        let ips = ips.iter().map(|ip| (*ip).to_owned()).collect();
        Sandbox { id: id.to_owned(), ready, attempt: 0, created_at: 0, ips }
    }

    #[test]
    fn a_pod_may_run_until_the_last_of_it_has_ended() {
        for (states, is_ready, expected) in [
            (&[][..], false, false),
            (&[], true, true),
            (&[State::Exited], false, false),
            (&[State::Exited, State::Running], false, true),
            (&[State::Unknown], false, true),
            (&[State::Created], false, false),
        ] {
            let containers = states.iter().map(|state| seen("c", *state)).collect();
            let observed = Observed { sandboxes: vec![sandbox("s", is_ready, &[])], containers };
            assert_eq!(observed.may_run(), expected, "{states:?}, sandbox {is_ready}");
        }
    }

    #[test]
    fn the_newest_of_a_name_comes_first_and_the_one_before_it_second() {
        let containers = vec![seen("new", State::Running), seen("old", State::Exited), seen("oldest", State::Exited)];
        let observed = Observed { sandboxes: vec![sandbox("s", true, &[])], containers };
        let id = |seen: Option<&Seen>| seen.map(|seen| seen.id.clone());
        assert_eq!(id(observed.latest("c")).as_deref(), Some("new"));
        assert_eq!(id(observed.previous("c")).as_deref(), Some("old"));
        assert_eq!((id(observed.latest("d")), id(observed.previous("d"))), (None, None));
        assert_eq!(observed.ids().collect::<Vec<_>>(), ["new", "old", "oldest", "s"]);
    }

    #[test]
    fn addresses_of_the_nodes_family_come_first() {
        let both = ["10.42.0.5", "fd00::5"];
        for (node_ip, expected) in
            [(Some("192.0.2.1"), both), (Some("2001:db8::1"), ["fd00::5", "10.42.0.5"]), (None, both)]
        {
            let mut observed = Observed { sandboxes: vec![sandbox("s", true, &both)], containers: Vec::new() };
            observed.order_ips(node_ip.map(|ip| ip.parse().unwrap()).as_ref());
            assert_eq!(observed.sandboxes[0].ips, expected, "{node_ip:?}");
        }
    }
}
