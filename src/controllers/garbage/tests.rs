//! Claims about the graph and what follows from it.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::graph::{FOREGROUND, Fate, Graph, Node, ORPHAN, Place, Type, Verdict, fate};

fn node(ns: &str, name: &str, owners: &[(&str, bool)]) -> Node {
    let owner = |(uid, blocks): &(&str, bool)| OwnerReference {
        uid: (*uid).to_owned(),
        name: (*uid).to_owned(),
        kind: "K".to_owned(),
        block_owner_deletion: Some(*blocks),
        ..OwnerReference::default()
    };
    let of = Arc::new(Type { api_version: "v1".to_owned(), kind: "K".to_owned() });
    let place = Place { of, ns: ns.into(), name: name.into() };
    Node {
        place,
        owners: owners.iter().map(owner).collect(),
        finalizers: Box::default(),
        deleting: false,
        resource_version: None,
    }
}

fn going(mut node: Node, finalizer: &str) -> Node {
    node.deleting = true;
    node.finalizers = [finalizer.to_owned()].into();
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
    assert!(
        matches!(graph.judge("child"), Verdict::JudgeOwners { alive, unknown, .. } if alive.is_empty() && unknown.len() == 1)
    );
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents_only() {
    let mut graph = Graph::default();
    graph.put("child", node("a", "child", &[("owner", true)]));
    graph.put("owner", going(node("a", "owner", &[]), FOREGROUND));
    assert_eq!(graph.judge("owner"), Verdict::AwaitDependents(vec!["child".into()]));
    assert_eq!(graph.put("child", node("a", "child", &[("owner", false)])), ["child", "owner"]);
    assert_eq!(graph.judge("owner"), Verdict::RemoveFinalizer(FOREGROUND));
}

/// Spec: upstream v1.36 `attemptToDeleteItem`, "to prevent potential cycle".
#[test]
fn the_last_of_a_circle_does_not_block_the_first() {
    let mut graph = Graph::default();
    graph.put("a", going(node("ns", "a", &[("c", true)]), FOREGROUND));
    graph.put("b", node("ns", "b", &[("a", true)]));
    graph.put("c", node("ns", "c", &[("b", true)]));
    assert!(!graph.may_close_a_circle("b"));
    graph.put("b", going(node("ns", "b", &[("a", true)]), FOREGROUND));
    assert!(graph.may_close_a_circle("c"));
    graph.put("c", node("ns", "c", &[("b", false)]));
    assert!(!graph.may_close_a_circle("c"));
    assert_eq!(graph.judge("b"), Verdict::RemoveFinalizer(FOREGROUND));
}

#[test]
fn orphaning_frees_the_dependents_first() {
    let mut graph = Graph::default();
    graph.put("child", node("a", "child", &[("owner", true)]));
    graph.put("owner", going(node("a", "owner", &[]), ORPHAN));
    assert_eq!(graph.judge("owner"), Verdict::OrphanDependents(vec!["child".into()]));
}

#[test]
fn an_object_dies_only_when_no_owner_lives() {
    let uid = |uids: &[&str]| uids.iter().map(|u| (*u).to_owned()).collect::<Vec<_>>();
    assert_eq!(fate(&uid(&["a"]), &[], &[], false), Fate::Keep);
    assert_eq!(fate(&uid(&["a"]), &[], &uid(&["b"]), false), Fate::DropOwners(uid(&["b"])));
    assert_eq!(fate(&[], &[], &uid(&["b"]), true), Fate::Delete);
    assert_eq!(fate(&[], &uid(&["w"]), &[], true), Fate::DeleteForeground);
    assert_eq!(fate(&[], &uid(&["w"]), &[], false), Fate::Delete);
}
