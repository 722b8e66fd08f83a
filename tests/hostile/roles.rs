//! Roles, definitions and policies by which somebody would come to more rights than were given.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{SETTLE_LIMIT, Server};
use crate::rights::{BOB, refused, sends, with};

// The old prefixes of paths: what was authorized is what is executed.
pub(crate) fn prefixes(server: &Server) {
    server.ok(&[
        "-n",
        "a",
        "create",
        "role",
        "old",
        "--verb=watch,proxy",
        "--resource=services/proxy,pods/log,pods/exec",
    ]);
    server.ok(&["-n", "a", "create", "rolebinding", "old", "--role=old", "--user=eve"]);
    for path in [
        "watch/namespaces/a/services/s/proxy/x",
        "proxy/namespaces/a/services/s/proxy/x",
        "watch/namespaces/a/pods/p/log",
    ] {
        refused(
            &server.said(&["--as=eve", "get", "--raw", &format!("/api/v1/{path}")]),
            "the server does not allow this method",
        );
    }
}

// security.md M13.
pub(crate) fn roles(server: &Server) {
    server.ok(&["-n", "a", "create", "rolebinding", "chief", "--clusterrole=admin", "--user=chief"]);
    server.until(&["--as=chief", "auth", "can-i", "create", "roles", "-n", "a"], SETTLE_LIMIT, |out| out == "yes\n");
    let many = |what: &str| (0..600).map(|n| format!("{what}{n}")).collect::<Vec<_>>();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "huge", "namespace": "a"},
        "rules": [{"verbs": many("v"), "apiGroups": many("g"), "resources": many("r"), "resourceNames": many("n")}]});
    let began = Instant::now();
    refused(
        &sends(server, &["--as=chief"], &["create"], &role),
        "is attempting to grant RBAC permissions not currently held",
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // A right for the object named `*` is none for every object.
    let widget = |role: &str, name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": role, "namespace": "a"},
            "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"],
                "resourceNames": [name]}]})
    };
    assert_eq!(sends(server, &[], &["create"], &widget("star", "*")).code, 0);
    server.ok(&["-n", "a", "create", "rolebinding", "star", "--role=star", "--user=chief"]);
    refused(&sends(server, &["--as=chief"], &["create"], &widget("one", "x")), "not currently held");
    assert_eq!(sends(server, &["--as=chief"], &["create"], &widget("one", "*")).code, 0);
}

// issue 12: labels decide which roles gather a role's rules, and who might patch a role could set any.
pub(crate) fn gathered(server: &Server) {
    server.ok(&[
        "create",
        "clusterrole",
        "patches",
        "--verb=get,list,patch,update",
        "--resource=clusterroles,clusterrolebindings",
    ]);
    server.ok(&["create", "clusterrolebinding", "patches", "--clusterrole=patches", "--user=dan"]);
    server.ok(&["create", "clusterrolebinding", "views", "--clusterrole=view", "--user=dan"]);
    let dan = ["--as=dan"];
    server.until(&with(&dan, &["auth", "can-i", "patch", "clusterroles"]), SETTLE_LIMIT, |out| out == "yes\n");
    let labelled = ["label", "clusterrole", "cluster-admin", "rbac.authorization.k8s.io/aggregate-to-view=true"];
    refused(&server.said(&with(&dan, &labelled)), "is attempting to grant RBAC permissions not currently held");
    let gathers = ["label", "clusterrole", "view", "rbac.authorization.k8s.io/aggregate-to-edit-"];
    refused(&server.said(&with(&dan, &gathers)), "is forbidden");
    refused(&server.said(&with(&dan, &["label", "clusterrolebinding", "cluster-admin", "a=b"])), "not currently held");
    server.ok(&with(&dan, &["label", "clusterrole", "patches", "a=b"]));
    // Of a role that has no more than he has he says who gathers it.
    let own = "rbac.authorization.k8s.io/aggregate-to-view";
    server.ok(&with(&dan, &["label", "clusterrole", "patches", &format!("{own}=true")]));
    server.ok(&["label", "clusterrole", "patches", &format!("{own}-")]);
    let held =
        ["patch", "clusterrole", "cluster-admin", "--type=merge", "-p", r#"{"metadata":{"finalizers":["a.b/c"]}}"#];
    server.ok(&with(&dan, &held));
    server.ok(&["patch", "clusterrole", "cluster-admin", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    assert_eq!(server.said(&with(&dan, &["auth", "can-i", "delete", "nodes"])).out.trim(), "no");
}

// security-2.md F9.
pub(crate) fn definitions(server: &Server) {
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "stays", "namespace": "a"}, "spec": {"podSelector": {}}});
    assert_eq!(sends(server, &[], &["create"], &policy).code, 0);
    let name = "networkpolicies.networking.k8s.io";
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let shadow = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {"group": "networking.k8s.io", "scope": "Namespaced",
            "names": {"plural": "networkpolicies", "singular": "networkpolicy", "kind": "NetworkPolicy",
                "listKind": "NetworkPolicyList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    assert_eq!(sends(server, &[], &["create"], &shadow).code, 0);
    let condition = r#"jsonpath={.status.conditions[?(@.type=="NamesAccepted")].status}"#;
    server.until(&["get", "crd", name, "-o", condition], SETTLE_LIMIT, |out| out == "False");
    server.ok(&["delete", "crd", name]);
    assert_eq!(
        server.ok(&["-n", "a", "get", "networkpolicy", "-o", "name"]),
        "networkpolicy.networking.k8s.io/stays\n"
    );
}

// security-2.md F11.
pub(crate) fn parameters(server: &Server) {
    server.ok(&["create", "clusterrole", "policies", "--verb=create",
        "--resource=validatingadmissionpolicies.admissionregistration.k8s.io,validatingadmissionpolicybindings.admissionregistration.k8s.io"]);
    server.ok(&["create", "clusterrolebinding", "policies", "--clusterrole=policies", "--user=bob"]);
    server.until(&with(&BOB, &["auth", "can-i", "create", "validatingadmissionpolicies"]), SETTLE_LIMIT, |out| {
        out == "yes\n"
    });
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "reads"},
        "spec": {"paramKind": {"apiVersion": "v1", "kind": "Secret"}, "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "false", "messageExpression": "string(params.data.token)"}]}});
    refused(
        &sends(server, &BOB, &["create"], &policy),
        "must have \"get\" permission on all objects of the referenced paramKind",
    );
    assert_eq!(sends(server, &[], &["create"], &policy).code, 0);
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "reads"},
        "spec": {"policyName": "reads", "validationActions": ["Deny"],
            "paramRef": {"name": "x", "namespace": "kube-system", "parameterNotFoundAction": "Deny"}}});
    refused(
        &sends(server, &BOB, &["create"], &binding),
        "does not have \"get\" permission on the object referenced by paramRef",
    );
    server.ok(&["delete", "validatingadmissionpolicy", "reads"]);
}
