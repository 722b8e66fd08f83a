//! Which devices a container gets. Pure.

use std::collections::BTreeSet;

/// Devices to choose from.
pub(super) struct Choice<'a> {
    /// Devices that are well.
    pub(super) healthy: &'a BTreeSet<String>,
    /// Devices that somebody has.
    pub(super) taken: &'a BTreeSet<String>,
    /// Devices of this pod's earlier containers, which have ended by then.
    pub(super) reuse: &'a BTreeSet<String>,
}

impl Choice<'_> {
    /// Devices that nobody has.
    pub(super) fn free(&self) -> BTreeSet<String> {
        self.healthy.iter().filter(|id| !self.taken.contains(*id) && !self.reuse.contains(*id)).cloned().collect()
    }

    /// Those that must be taken before others.
    pub(super) fn first(&self, n: usize) -> BTreeSet<String> {
        self.reuse.iter().filter(|id| self.healthy.contains(*id)).take(n).cloned().collect()
    }

    /// Takes `n`, those that the plugin prefers before others. The error is how many there are.
    pub(super) fn take(&self, n: usize, preferred: &[String]) -> Result<BTreeSet<String>, usize> {
        let mut chosen = self.first(n);
        let free = self.free();
        if chosen.len() + free.len() < n {
            return Err(free.len());
        }
        let liked = preferred.iter().filter(|id| free.contains(*id));
        for id in liked.chain(free.iter()) {
            if chosen.len() == n {
                break;
            }
            chosen.insert(id.clone());
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn devices_of_ended_init_containers_come_first_then_what_the_plugin_likes() {
        let (healthy, taken, reuse) = (set(&["a", "b", "c", "d"]), set(&["a"]), set(&["d"]));
        let choice = Choice { healthy: &healthy, taken: &taken, reuse: &reuse };
        assert_eq!(choice.take(1, &[]), Ok(set(&["d"])));
        assert_eq!(choice.take(2, &["c".to_owned()]), Ok(set(&["c", "d"])));
        assert_eq!(choice.take(2, &["a".to_owned()]), Ok(set(&["b", "d"])), "what is taken is not given twice");
        assert_eq!(choice.take(4, &[]), Err(2));
    }
}
