//! NodeRestriction: writes of a node to its own Node, pods and claims.

use super::*;

#[tokio::test]
async fn a_node_touches_only_itself_and_its_pods() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let node = |taints: Value, labels: Value| {
        json!({"metadata": {"name": "n1", "labels": labels},
        "spec": {"taints": taints}})
    };
    let plain = || node(json!([]), json!({"kubernetes.io/hostname": "n1", "own.example/x": "y"}));
    let change = |new: Value| case(Operation::Update, "nodes", "n1", new).by("n1").over(plain());
    change(plain()).run(&plugin).await.unwrap();
    assert_eq!(
        change(node(json!([{"key": "k"}]), json!({}))).run(&plugin).await.unwrap_err(),
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify taints"
    );
    let labelled = node(json!([]), json!({"node-restriction.kubernetes.io/pci": "1"}));
    let text = "nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/pci";
    assert_eq!(change(labelled).run(&plugin).await.unwrap_err(), text);
    let text = "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set its pod ranges";
    let ranged = |ranges: Value| json!({"metadata": {"name": "n1"}, "spec": {"podCIDRs": ranges, "taints": []}});
    assert_eq!(change(ranged(json!(["2000::/3"]))).run(&plugin).await.unwrap_err(), text);
    assert_eq!(
        case(Operation::Create, "nodes", "n1", ranged(json!(["0.0.0.0/1"]))).by("n1").run(&plugin).await.unwrap_err(),
        text
    );
    let text = "nodes \"n1\" is forbidden: node \"n2\" is not allowed to modify node \"n1\"";
    assert_eq!(
        case(Operation::Update, "nodes", "n1", plain()).by("n2").over(plain()).run(&plugin).await.unwrap_err(),
        text
    );

    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"nodeName": "n1"}});
    let delete = |node: &str| {
        case(Operation::Delete, "pods", "p", Value::Null).by(node).over(pod.clone()).with("", "pods", pod.clone())
    };
    delete("n1").run(&plugin).await.unwrap();
    let text = "pods \"p\" is forbidden: node \"n2\" can only delete pods with spec.nodeName set to itself";
    assert_eq!(delete("n2").run(&plugin).await.unwrap_err(), text);
    // security.md L6: nor is a pod that the lookup does not have yet.
    let unknown = case(Operation::Delete, "pods", "p", Value::Null).by("n2").over(pod.clone());
    assert_eq!(unknown.run(&plugin).await.unwrap_err(), text);
    // A pod that nobody knows is no pod of the node.
    let mut evict = case(Operation::Create, "pods", "p", json!({})).by("n1");
    evict.attributes.subresource = "eviction".into();
    assert_eq!(evict.run(&plugin).await.unwrap_err(), "pods \"p\" not found");
    assert!(
        case(Operation::Create, "pods", "p", pod.clone())
            .by("n1")
            .run(&plugin)
            .await
            .unwrap_err()
            .contains("mirror pods")
    );

    let request = json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}}});
    let mut token = case(Operation::Create, "serviceaccounts", "sa", request).by("n2").with("", "pods", pod.clone());
    token.attributes.subresource = "token".into();
    assert!(token.run(&plugin).await.unwrap_err().contains("scheduled on a different node"));
}

#[tokio::test]
async fn a_node_owns_neither_its_owners_nor_its_ranges() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.42.0.0/24", "podCIDRs": ["10.42.0.0/24"]}});
    let change = |new: Value| case(Operation::Update, "nodes", "n1", new).by("n1").over(node.clone());
    change(node.clone()).run(&plugin).await.unwrap();
    let mut owned = node.clone();
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]);
    assert!(change(owned).run(&plugin).await.unwrap_err().ends_with("is not allowed to modify ownerReferences"));
    let mut routed = node.clone();
    routed["spec"]["podCIDRs"] = json!(["10.42.0.0/24", "2000::/3"]);
    assert!(change(routed).run(&plugin).await.unwrap_err().ends_with("is not allowed to set its pod ranges"));
    let mut other = case(Operation::Create, "nodes", "n1", node).by("n1");
    other.attributes.namespace.clear();
    assert!(other.run(&plugin).await.unwrap_err().ends_with("is not allowed to set its pod ranges"));
}

#[tokio::test]
async fn a_nodes_addresses_are_addresses() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let node = |kind: &str, texts: &[&str]| {
        let all: Vec<Value> = texts.iter().map(|text| json!({"type": kind, "address": text})).collect();
        json!({"metadata": {"name": "n1"}, "status": {"addresses": all}})
    };
    let change = |old: Value, new: Value| {
        let mut change = case(Operation::Update, "nodes", "n1", new).by("n1").over(old);
        change.attributes.subresource = "status".into();
        change
    };
    let none = || node("InternalIP", &[]);
    for (kind, good) in [
        ("InternalIP", "10.0.0.1"),
        ("ExternalIP", "2001:db8::1"),
        ("Hostname", "host.example.com"),
        ("Hostname", "A_b"),
    ] {
        change(none(), node(kind, &[good])).run(&plugin).await.unwrap();
    }
    let long = "a".repeat(254);
    for (kind, bad) in [
        ("InternalIP", "10.0.0.1 vault.prod.svc.cluster.local"),
        ("InternalIP", "10.0.0.1\n10.0.0.2 github.com"),
        ("InternalIP", "host.example.com"),
        ("ExternalIP", ""),
        ("Hostname", "a b"),
        ("Hostname", &long),
    ] {
        let refused = change(none(), node(kind, &[bad])).run(&plugin).await.unwrap_err();
        assert!(refused.contains("which is none"), "{bad}: {refused}");
        change(node(kind, &[bad]), node(kind, &[bad])).run(&plugin).await.unwrap();
        let made = case(Operation::Create, "nodes", "n1", node(kind, &[bad])).by("n1");
        assert!(made.run(&plugin).await.is_err(), "{bad}");
    }
    let many: Vec<String> = (1..=33).map(|n| format!("10.0.0.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    change(none(), node("InternalIP", &many[..32])).run(&plugin).await.unwrap();
    assert!(
        change(none(), node("InternalIP", &many)).run(&plugin).await.unwrap_err().contains("more than 32 addresses")
    );
}

#[tokio::test]
async fn a_nodes_mirror_pod_names_no_object_and_belongs_to_the_node() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let pod = |volume: Value, owners: Value| {
        let metadata =
            json!({"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": owners});
        let pod = json!({"metadata": metadata, "spec": {"nodeName": "n1", "volumes": [volume]}});
        case(Operation::Create, "pods", "p", pod).by("n1").with(
            "",
            "nodes",
            json!({"metadata": {"name": "n1", "uid": "u"}}),
        )
    };
    let plain = || json!({"name": "v", "emptyDir": {}});
    let owner = || json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true}]);
    pod(plain(), owner()).run(&plugin).await.unwrap();
    assert!(pod(plain(), json!([])).run(&plugin).await.unwrap_err().contains("with an owner reference set to itself"));
    let mut blocking = owner();
    blocking[0]["blockOwnerDeletion"] = json!(true);
    assert!(pod(plain(), blocking).run(&plugin).await.unwrap_err().contains("must not set blockOwnerDeletion"));
    for source in [
        json!({"name": "v", "csi": {"driver": "d.x", "nodePublishSecretRef": {"name": "target"}}}),
        json!({"name": "v", "azureFile": {"secretName": "target"}}),
        json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}),
    ] {
        let refused = pod(source.clone(), owner()).run(&plugin).await.unwrap_err();
        assert!(refused.contains("can not create pods that reference"), "{source}: {refused}");
        let accounts = service_account::ServiceAccount { rng: Rng::from_seed(1) };
        assert!(pod(source, owner()).run(&accounts).await.unwrap_err().contains("a mirror pod may not reference"));
    }
}

#[tokio::test]
async fn a_node_asks_for_tokens_of_the_audiences_that_its_pods_name() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": "n1", "volumes": [
        {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}},
        {"name": "c", "csi": {"driver": "d.x"}}]}});
    let driver = json!({"metadata": {"name": "d.x"}, "spec": {"tokenRequests": [{"audience": "drive"}]}});
    let token = |audiences: Value| {
        let request = json!({"spec": {"audiences": audiences,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}}});
        let mut token =
            case(Operation::Create, "serviceaccounts", "sa", request).by("n1").with("", "pods", pod.clone());
        token.attributes.subresource = "token".into();
        token.with("storage.k8s.io", "csidrivers", driver.clone())
    };
    token(json!(["vault"])).run(&plugin).await.unwrap();
    token(json!(["drive"])).run(&plugin).await.unwrap();
    assert!(
        token(json!(["sts.amazonaws.com"])).run(&plugin).await.unwrap_err().contains("not found in pod spec volume")
    );
    assert!(token(json!([])).run(&plugin).await.unwrap_err().contains("not found in pod spec volume"));
    assert!(
        token(json!(["vault", "drive"]))
            .run(&plugin)
            .await
            .unwrap_err()
            .ends_with("node may only request 0 or 1 audiences")
    );
}

#[tokio::test]
async fn of_a_claim_a_node_writes_what_it_measured() {
    let plugin = node_restriction::NodeRestriction(Arc::new(authz::union::Masters));
    let claim =
        json!({"metadata": {"name": "c"}, "spec": {}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    let change = |new: Value| {
        let mut change = case(Operation::Update, "persistentvolumeclaims", "c", new).by("n1").over(claim.clone());
        change.attributes.subresource = "status".into();
        change
    };
    let mut grown = claim.clone();
    grown["status"]["capacity"]["storage"] = json!("2Gi");
    change(grown).run(&plugin).await.unwrap();
    for (pointer, value) in [("/metadata/finalizers", json!(["x"])), ("/status/phase", json!("Lost"))] {
        let mut other = claim.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        other.pointer_mut(parent).unwrap()[field] = value;
        assert!(change(other).run(&plugin).await.unwrap_err().contains("is not allowed to update fields other than"));
    }
}
