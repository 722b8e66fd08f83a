//! Objects of an informer grouped by a key that is read off them, e.g. slices by their Service: whoever needs a few of
//! many must not look at all of them. Ten thousand Services that each look through ten thousand slices are a node that
//! stands still.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;

use crate::informer::Key;

/// Reads the group off an object; `None` for one that is in none.
pub type GroupOf<K> = fn(&K) -> Option<Key>;

/// The objects of one kind by group. The informer keeps it beside its objects.
pub(crate) struct Grouping<K> {
    of: GroupOf<K>,
    /// By namespace and name. Most groups are small, and a map in each would be most of the memory.
    groups: BTreeMap<Key, Vec<Arc<K>>>,
}

impl<K: Resource> Grouping<K> {
    pub(crate) fn new(of: GroupOf<K>) -> Grouping<K> {
        Grouping { of, groups: BTreeMap::new() }
    }

    pub(crate) fn is(&self, of: GroupOf<K>) -> bool {
        std::ptr::fn_addr_eq(self.of, of)
    }

    pub(crate) fn insert(&mut self, object: &Arc<K>) {
        let Some(group) = (self.of)(object) else { return };
        let members = self.groups.entry(group).or_default();
        match members.binary_search_by(|member| name(&**member).cmp(&name(&**object))) {
            Ok(at) => members[at] = Arc::clone(object),
            Err(at) => members.insert(at, Arc::clone(object)),
        }
    }

    pub(crate) fn remove(&mut self, object: &K) {
        let Some(group) = (self.of)(object) else { return };
        let Some(members) = self.groups.get_mut(&group) else { return };
        if let Ok(at) = members.binary_search_by(|member| name(&**member).cmp(&name(object))) {
            members.remove(at);
        }
        if members.is_empty() {
            self.groups.remove(&group);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }

    pub(crate) fn members(&self, group: &Key) -> Vec<Arc<K>> {
        self.groups.get(group).cloned().unwrap_or_default()
    }
}

fn name<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}
