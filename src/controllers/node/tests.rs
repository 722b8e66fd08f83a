//! Claims about ranges, taints and eviction.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use model::pod::Pod;
use serde_json::json;

use super::plan::{self, Range};
use super::zones::Verdict;
use crate::settings::masks::NodeMasks;

fn node(conditions: serde_json::Value, taints: serde_json::Value) -> Node {
    serde_json::from_value(
        json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}),
    )
    .unwrap()
}

#[test]
fn a_range_gives_its_lowest_free_piece() {
    let range = |cidr: &str| Range::new(&cidr.parse().unwrap(), NodeMasks::default());
    assert_eq!(range("10.42.0.0/16").first_free(|_| false).unwrap(), "10.42.0.0/24");
    assert_eq!(range("10.42.0.0/16").first_free(|c| c == "10.42.0.0/24").unwrap(), "10.42.1.0/24");
    assert_eq!(range("fd00:42::/56").first_free(|c| c == "fd00:42::/64").unwrap(), "fd00:42:0:1::/64");
    assert_eq!(range("10.0.0.0/24").first_free(|c| c == "10.0.0.0/24"), None);
    assert_eq!(range("10.0.0.0/25").first_free(|_| false).unwrap(), "10.0.0.0/25");
}

#[test]
fn a_node_keeps_its_range_and_gets_what_it_lacks() {
    let ranges: Vec<Range> =
        ["10.42.0.0/16", "fd42::/56"].map(|cidr| Range::new(&cidr.parse().unwrap(), NodeMasks::default())).into();
    let of = |have: &[&str], ranges: &[Range]| {
        let have: Vec<String> = have.iter().map(|cidr| (*cidr).to_owned()).collect();
        plan::ranges_of_node(&have, ranges, |cidr| cidr == "fd42::/64")
    };
    assert_eq!(of(&[], &ranges).unwrap().unwrap(), ["10.42.0.0/24", "fd42:0:0:1::/64"]);
    assert_eq!(of(&["10.42.7.0/24"], &ranges).unwrap().unwrap(), ["10.42.7.0/24", "fd42:0:0:1::/64"]);
    assert_eq!(of(&["10.42.7.0/24"], &ranges[..1]), None);
    assert_eq!(of(&["10.42.7.0/24", "fd42::/64"], &ranges), None);
    assert_eq!(of(&[], &[Range::new(&"fd42::/64".parse().unwrap(), NodeMasks::default())]).unwrap(), Err(()));
}

#[test]
fn a_ready_node_loses_our_taints_and_keeps_the_users() {
    let taints = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, {"key": "mine",
        "effect": "NoSchedule"}]);
    let node = node(json!([{"type": "Ready", "status": "True"}]), taints);
    let left = plan::taints(&node, Verdict::Evict, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(left.iter().map(|t| t.key.as_str()).collect::<Vec<_>>(), ["mine"]);
}

#[test]
fn a_silent_node_is_unreachable_for_scheduling_and_for_running() {
    let node = node(json!([{"type": "Ready", "status": "Unknown"}]), json!([]));
    let taints = plan::taints(&node, Verdict::Evict, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(taints.iter().map(|t| t.effect.as_str()).collect::<Vec<_>>(), ["NoSchedule", "NoExecute"]);
    assert!(taints.iter().all(|t| t.key == plan::UNREACHABLE));
}

#[test]
fn a_node_that_waits_its_turn_gets_no_new_taint_that_drives_away_and_one_of_a_dead_cluster_loses_it() {
    let execute = |taints: serde_json::Value, verdict: Verdict| {
        let node = node(json!([{"type": "Ready", "status": "Unknown"}]), taints);
        let after = plan::taints(&node, verdict, Timestamp::UNIX_EPOCH)
            .unwrap_or(node.spec.unwrap().taints.unwrap_or_default());
        after.into_iter().filter(|t| t.effect == "NoExecute").map(|t| t.key).collect::<Vec<_>>()
    };
    let hold = Verdict::Hold(std::time::Duration::from_secs(1));
    let not_ready = json!([{"key": plan::NOT_READY, "effect": "NoExecute"}]);
    assert_eq!(execute(json!([]), hold), Vec::<String>::new());
    assert_eq!(execute(not_ready.clone(), hold), [plan::UNREACHABLE]);
    assert_eq!(execute(not_ready, Verdict::TakeBack), Vec::<String>::new());
}

#[test]
fn a_pod_leaves_when_its_shortest_toleration_ends() {
    let now = Timestamp::UNIX_EPOCH;
    let node = node(json!([{"type": "Ready", "status": "Unknown"}]), json!([]));
    let taints = plan::taints(&node, Verdict::Evict, now).unwrap();
    let pod = |tolerations| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).unwrap()
    };
    let for_300 = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
        "tolerationSeconds": 300}]);
    assert_eq!(plan::leave_at(&pod(for_300), &taints, now).unwrap().as_second(), 300);
    assert_eq!(plan::leave_at(&pod(json!([{"operator": "Exists"}])), &taints, now), None);
    assert_eq!(plan::leave_at(&pod(json!([])), &taints, now), Some(now));
}

#[test]
fn only_pieces_of_the_clusters_ranges_are_a_nodes() {
    let ranges: Vec<Range> = ["10.42.0.0/16", "fd42::/48"]
        .iter()
        .map(|cidr| Range::new(&cidr.parse().unwrap(), NodeMasks::default()))
        .collect();
    let older = BTreeSet::from(["10.42.0.0/24".to_owned()]);
    let trouble = |cidr: &str| plan::trouble(&[cidr.to_owned()], &ranges, &older);
    for fine in ["10.42.1.0/24", "10.42.255.0/24", "fd42:0:0:ffff::/64"] {
        assert_eq!(trouble(fine), None, "{fine}");
    }
    for odd in [
        "0.0.0.0/1",
        "10.42.0.0/16",
        "10.42.1.0/25",
        "10.43.0.0/24",
        "10.42.1.1/24",
        "2000::/3",
        "fd42:0:1::/64",
        "odd",
        "::/24",
    ] {
        assert!(trouble(odd).is_some_and(|text| text.contains("no piece")), "{odd}");
    }
    assert!(trouble("10.42.0.0/24").is_some_and(|text| text.contains("older node's")));
}

#[test]
fn a_range_of_another_size_keeps_the_pieces_that_it_touches_unless_it_is_too_large() {
    let range = Range::new(&"10.42.0.0/16".parse().unwrap(), NodeMasks { v4: 26, v6: 64 });
    for (claim, pieces) in [
        ("10.42.0.64/26", &["10.42.0.64/26"][..]),
        ("10.42.1.0/24", &["10.42.1.0/26", "10.42.1.64/26", "10.42.1.128/26", "10.42.1.192/26"]),
        ("10.42.1.70/32", &["10.42.1.64/26"]),
        ("10.42.0.0/16", &[]),
        ("0.0.0.0/0", &[]),
        ("10.43.0.0/24", &[]),
        ("10.41.255.0/24", &[]),
        ("fd42::/64", &[]),
        ("x", &[]),
    ] {
        assert_eq!(range.pieces_of(claim), pieces, "{claim}");
    }
    assert_eq!(range.first_free(|cidr| cidr == "10.42.0.0/26").as_deref(), Some("10.42.0.64/26"));
}
