//! How long a pod's task rests between two rounds, after failures and while the runtime is behind its own words.

use std::time::Duration;

/// After an error of the runtime or the API: the first pause, and the longest of those that follow one another.
pub(super) const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(15);
/// containerd tells of an end a moment before its CRI knows it.
const ENDED_POLL: Duration = Duration::from_millis(30);
const ENDED_POLLS_MAX: u32 = 60;
/// On a slow disk it takes longer: then it is looked for as often as upstream's kubelet looks at everything, for so
/// many times.
const ENDED_LATE_POLL: Duration = Duration::from_secs(1);
const ENDED_LATE_POLLS_MAX: u32 = 600;

/// The pause after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    RETRY.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(RETRY_MAX)
}

/// Looks for containers of which the runtime said that they ended, and which it still shows running.
#[derive(Default)]
pub(super) struct Polls {
    behind: Vec<String>,
    done: u32,
}

impl Polls {
    /// When to look again; nothing once that has gone on for long, or if nothing is behind. Another container begins
    /// anew.
    pub(super) fn next(&mut self, behind: &[&String]) -> Option<Duration> {
        if behind.iter().any(|id| !self.behind.contains(id)) || behind.is_empty() {
            self.done = 0;
        }
        self.behind = behind.iter().map(|id| (*id).clone()).collect();
        if behind.is_empty() || self.done >= ENDED_POLLS_MAX + ENDED_LATE_POLLS_MAX {
            return None;
        }
        self.done += 1;
        Some(if self.done <= ENDED_POLLS_MAX { ENDED_POLL } else { ENDED_LATE_POLL })
    }
}

#[cfg(test)]
mod tests {
    use crate::pods::desired::{Desired, ENDED_MAX};
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    // review node.md M1
    #[test]
    fn an_end_that_the_runtime_shows_late_is_looked_for_until_it_shows() {
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let mut polls = Polls::default();
        assert_eq!(polls.next(&[]), None);
        for _ in 0..ENDED_POLLS_MAX {
            assert_eq!(polls.next(&[&a]), Some(ENDED_POLL));
        }
        assert_eq!(polls.next(&[&a]), Some(ENDED_LATE_POLL), "a slow disk");
        assert_eq!(polls.next(&[&a, &b]), Some(ENDED_POLL), "one behind does not hide another");
        let pod: Pod = Pod::default();
        let mut desired = Desired::new(Arc::new(pod));
        (0..2 * ENDED_MAX).for_each(|n| desired.has_ended(n.to_string()));
        assert_eq!((desired.ended.len(), desired.ended.back()), (ENDED_MAX, Some(&(2 * ENDED_MAX - 1).to_string())));
    }

    // review node.md E1
    #[test]
    fn a_pod_that_cannot_start_is_tried_less_and_less_often() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, u32::MAX].map(|failures| pause(failures).as_secs()).into();
        assert_eq!(pauses, [2, 2, 4, 8, 15, 15]);
    }
}
