//! The ranges that services get addresses from: the cluster's own, and those that ServiceCIDR objects add (KEP-1880).

use ipnet::IpNet;
use model::reference::GroupResource;
use schema::read;
use serde_json::Value;

use super::addresses::cidr_family;
use super::allocator::Allocator;

/// The ranges of one family, the cluster's own first, then by the objects' names.
pub(super) fn of_family(allocator: &Allocator, family: &str) -> Vec<IpNet> {
    let objects = allocator
        .objects
        .cache
        .kind(GroupResource { group: "networking.k8s.io", resource: "servicecidrs" })
        .snapshot(None)
        .items;
    let values: Vec<Value> = objects.iter().map(|entry| entry.value()).collect();
    usable(&allocator.service_cidrs, &values, family)
}

/// Nothing new comes from a range that is on its way out.
fn usable(own: &[IpNet], objects: &[Value], family: &str) -> Vec<IpNet> {
    let stays = |object: &&Value| read::text(object, "metadata.deletionTimestamp").is_empty();
    let added = objects.iter().filter(stays).flat_map(|object| read::texts(object, "spec.cidrs"));
    let mut ranges: Vec<IpNet> = Vec::new();
    for range in own
        .iter()
        .copied()
        .chain(added.filter_map(|text| text.parse().ok()))
        .filter(|range| cidr_family(range) == family)
    {
        if !ranges.contains(&range) {
            ranges.push(range);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_add_ranges_behind_the_clusters_own_until_they_go() {
        let own: Vec<IpNet> = vec!["10.43.0.0/16".parse().unwrap()];
        let objects = [
            json!({"spec": {"cidrs": ["10.43.0.0/16"]}}),
            json!({"spec": {"cidrs": ["10.99.0.0/24", "fd99::/112"]}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"cidrs": ["10.98.0.0/24"]}}),
        ];
        let said = |family: &str| usable(&own, &objects, family).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said("IPv4"), ["10.43.0.0/16", "10.99.0.0/24"]);
        assert_eq!(said("IPv6"), ["fd99::/112"]);
    }
}
