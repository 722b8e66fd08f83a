//! Claims about the graph and what follows from it.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::graph::{Family, Fate, Finalizer, Graph, Node, ObjectKey, Type, Verdict};

fn node(ns: &str, name: &str, owners: &[(&str, bool)]) -> Node {
    let owner = |(uid, blocks): &(&str, bool)| OwnerReference {
        uid: (*uid).to_owned(),
        name: (*uid).to_owned(),
        kind: "K".to_owned(),
        block_owner_deletion: Some(*blocks),
        ..OwnerReference::default()
    };
    let of = Arc::new(Type { api_version: "v1".to_owned(), kind: "K".to_owned() });
    let key = ObjectKey { of, ns: ns.into(), name: name.into() };
    Node {
        key,
        owners: owners.iter().map(owner).collect(),
        finalizers: Box::default(),
        deleting: false,
        resource_version: None,
    }
}

fn going(mut node: Node, finalizer: Finalizer) -> Node {
    node.deleting = true;
    node.finalizers = [finalizer.as_str().to_owned()].into();
    node
}

#[test]
fn a_vanished_owner_makes_its_dependents_be_looked_at() {
    let mut graph = Graph::default();
    graph.put("owner", node("a", "owner", &[]));
    graph.put("child", node("a", "child", &[("owner", true)]));
    assert_eq!(
        graph.judge("child"),
        Verdict::JudgeOwners { alive: vec!["owner".into()], waiting: vec![], unknown: vec![] }
    );
    assert_eq!(graph.remove("owner"), ["child"]);
    assert!(matches!(graph.judge("child"), Verdict::JudgeOwners { unknown, .. } if unknown.len() == 1));
}

#[test]
fn an_owner_in_another_namespace_is_nobody() {
    let mut graph = Graph::default();
    graph.put("owner", node("b", "owner", &[]));
    graph.put("child", node("a", "child", &[("owner", true)]));
    let Verdict::JudgeOwners { alive, unknown, .. } = graph.judge("child") else { panic!() };
    assert_eq!((alive.len(), unknown.len()), (0, 1));
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents_only() {
    let mut graph = Graph::default();
    graph.put("child", node("a", "child", &[("owner", true)]));
    graph.put("owner", going(node("a", "owner", &[]), Finalizer::Foreground));
    assert_eq!(graph.judge("owner"), Verdict::AwaitDependents(vec!["child".into()]));
    assert_eq!(graph.put("child", node("a", "child", &[("owner", false)])), ["child", "owner"]);
    assert_eq!(graph.judge("owner"), Verdict::RemoveFinalizer(Finalizer::Foreground));
}

/// Spec: upstream v1.36 `attemptToDeleteItem`, "to prevent potential cycle".
#[test]
fn the_last_of_a_circle_does_not_block_the_first() {
    let mut graph = Graph::default();
    graph.put("a", going(node("ns", "a", &[("c", true)]), Finalizer::Foreground));
    graph.put("b", node("ns", "b", &[("a", true)]));
    graph.put("c", node("ns", "c", &[("b", true)]));
    assert!(!graph.may_close_a_circle("b"));
    graph.put("b", going(node("ns", "b", &[("a", true)]), Finalizer::Foreground));
    assert!(graph.may_close_a_circle("c"));
    graph.put("c", node("ns", "c", &[("b", false)]));
    assert!(!graph.may_close_a_circle("c"));
    assert_eq!(graph.judge("b"), Verdict::RemoveFinalizer(Finalizer::Foreground));
}

#[test]
fn orphaning_frees_the_dependents_first() {
    let mut graph = Graph::default();
    graph.put("child", node("a", "child", &[("owner", true)]));
    graph.put("owner", going(node("a", "owner", &[]), Finalizer::Orphan));
    assert_eq!(graph.judge("owner"), Verdict::OrphanDependents(vec!["child".into()]));
}

// Upstream's table: `attemptToDeleteItem` in garbagecollector.go (1.36.2).
#[test]
fn an_object_dies_only_when_no_owner_lives() {
    let uids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let drop_owners = |names: &[&str]| Fate::DropOwners(uids(names));
    for (alive, waiting, dangling, has_dependents, fate) in [
        (&["a"][..], &[][..], &[][..], false, Fate::Keep),
        (&["a"], &[], &["b"], false, drop_owners(&["b"])),
        (&["a"], &["w"], &[], true, drop_owners(&["w"])),
        (&["a"], &["w"], &["b"], true, drop_owners(&["w", "b"])),
        (&[], &[], &["b"], true, Fate::Delete),
        (&[], &["w"], &[], true, Fate::DeleteForeground),
        (&[], &["w"], &["b"], true, Fate::DeleteForeground),
        (&[], &["w"], &[], false, Fate::Delete),
        (&[], &[], &[], true, Fate::Keep),
    ] {
        let family = Family { alive: uids(alive), waiting: uids(waiting), dangling: uids(dangling), has_dependents };
        assert_eq!(family.fate(), fate, "{family:?}");
    }
}

#[test]
fn an_owner_that_waits_for_its_dependents_is_told_apart_from_one_that_lives() {
    let mut graph = Graph::default();
    graph.put("waits", going(node("a", "waits", &[]), Finalizer::Foreground));
    graph.put("lives", node("a", "lives", &[]));
    graph.put("child", node("a", "child", &[("waits", true), ("lives", true), ("gone", true)]));
    let Verdict::JudgeOwners { alive, waiting, unknown } = graph.judge("child") else { panic!() };
    assert_eq!((alive, waiting), (vec!["lives".to_owned()], vec!["waits".to_owned()]));
    assert_eq!(unknown.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(), ["gone"]);
}

#[test]
fn an_owner_with_the_uid_and_another_name_or_kind_is_not_the_one_that_is_meant() {
    let mut graph = Graph::default();
    graph.put("owner", node("a", "renamed", &[]));
    graph.put("child", node("a", "child", &[("owner", true)]));
    assert!(matches!(graph.judge("child"), Verdict::JudgeOwners { unknown, .. } if unknown.len() == 1));
    let mut other = node("a", "owner", &[]);
    other.key.of = Arc::new(Type { api_version: "v1".to_owned(), kind: "Other".to_owned() });
    graph.put("owner", other);
    assert!(matches!(graph.judge("child"), Verdict::JudgeOwners { unknown, .. } if unknown.len() == 1));
    graph.put("owner", node("", "owner", &[]));
    let Verdict::JudgeOwners { alive, .. } = graph.judge("child") else { panic!() };
    assert_eq!(alive, ["owner"], "one of no namespace may own it");
}

#[test]
fn a_reference_that_is_taken_away_makes_the_owner_be_looked_at() {
    let mut graph = Graph::default();
    graph.put("owner", going(node("a", "owner", &[]), Finalizer::Foreground));
    graph.put("child", node("a", "child", &[("owner", true)]));
    assert!(graph.has_dependents("owner"));
    assert_eq!(graph.put("child", node("a", "child", &[])), ["owner"]);
    assert!(!graph.has_dependents("owner"));
    assert_eq!(graph.judge("owner"), Verdict::RemoveFinalizer(Finalizer::Foreground));
    assert_eq!(graph.judge("child"), Verdict::Keep, "it has no owner");
}

#[test]
fn an_object_that_is_going_already_is_not_judged_by_its_owners() {
    let mut graph = Graph::default();
    let mut child = node("a", "child", &[("gone", true)]);
    child.deleting = true;
    graph.put("child", child);
    assert_eq!(graph.judge("child"), Verdict::Keep);
    assert_eq!(graph.judge("nobody"), Verdict::Keep);
}
