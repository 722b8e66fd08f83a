//! Rights: accounts, tokens, roles, and doing it in somebody else's name.

use crate::harness::{SETTLE_LIMIT, Server};

#[test]
fn an_account_may_do_what_its_role_says() {
    let server = Server::start();
    server.ok(&["create", "serviceaccount", "robot"]);
    let token = server.ok(&["create", "token", "robot"]);
    let token = token.trim();
    let url = format!("https://127.0.0.1:{}", server.place.port);
    // An empty kubeconfig: the admin's certificate would win over the token.
    let base = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, "--token", token];
    let as_robot = |args: &[&str]| server.said(&[&base[..], args].concat());
    let refused = as_robot(&["get", "configmaps"]);
    let text = "Error from server (Forbidden): configmaps is forbidden: User \"system:serviceaccount:default:robot\" \
        cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"\n";
    assert_eq!(refused.err, text);
    server.ok(&["create", "role", "reader", "--verb=get,list", "--resource=configmaps"]);
    server.ok(&["create", "rolebinding", "robot-reads", "--role=reader", "--serviceaccount=default:robot"]);
    server.until(
        &["auth", "can-i", "list", "configmaps", "--as=system:serviceaccount:default:robot"],
        SETTLE_LIMIT,
        |out| out == "yes\n",
    );
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out == "configmap/kube-root-ca.crt\n");
    assert_eq!(as_robot(&["get", "configmaps", "-o", "name"]).out, "configmap/kube-root-ca.crt\n");
    assert!(
        as_robot(&["delete", "configmap", "kube-root-ca.crt"]).err.contains("cannot delete resource \"configmaps\"")
    );
    assert!(as_robot(&["auth", "whoami"]).out.contains("system:serviceaccount:default:robot"));
    // Nobody hands out more than he has.
    let role = as_robot(&["create", "clusterrole", "all", "--verb=*", "--resource=*"]);
    assert!(role.err.contains("(Forbidden)"), "{role:?}");
    server.ok(&["delete", "serviceaccount", "robot"]);
    let gone = as_robot(&["get", "configmaps"]);
    assert!(gone.err.contains("must be logged in") || gone.err.contains("Unauthorized"), "{gone:?}");
    server.stop();
}

#[test]
fn an_old_tokens_use_is_written_down_and_one_that_is_marked_opens_nothing() {
    let server = Server::start();
    let since = [
        "-n",
        "kube-system",
        "get",
        "cm",
        "kube-apiserver-legacy-service-account-token-tracking",
        "-o",
        "jsonpath={.data.since}",
    ];
    assert_eq!(server.ok(&since).len(), "2026-11-20".len());
    server.ok(&["create", "serviceaccount", "old"]);
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: old, annotations: \
        {kubernetes.io/service-account.name: old}}\n\
        type: kubernetes.io/service-account-token\n";
    server.ok_with(&["create", "-f", "-"], secret);
    let token = server.until(
        &["get", "secret", "old", "-o", "go-template={{.data.token | base64decode}}"],
        SETTLE_LIMIT,
        |out| out.len() > 100,
    );
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let who = [
        "--kubeconfig=/dev/null",
        "--insecure-skip-tls-verify",
        "--server",
        &url,
        "--token",
        token.trim(),
        "auth",
        "whoami",
    ];
    assert!(server.ok(&who).contains("system:serviceaccount:default:old"));
    let used = r"jsonpath={.metadata.labels.kubernetes\.io/legacy-token-last-used}";
    let day = server.until(&["get", "secret", "old", "-o", used], SETTLE_LIMIT, |out| !out.is_empty());
    assert_eq!(day, server.ok(&since), "both are today");
    // As the cleaner marks it.
    server.ok(&[
        "label",
        "secret",
        "old",
        "kubernetes.io/legacy-token-invalid-since=2026-11-20",
        "kubernetes.io/legacy-token-last-used-",
    ]);
    let said = server.said(&who);
    assert!(said.code != 0 && (said.err.contains("Unauthorized") || said.err.contains("logged in")), "{said:?}");
    // A try is a use.
    server.until(&["get", "secret", "old", "-o", used], SETTLE_LIMIT, |out| out == day);
    server.stop();
}

#[test]
fn cluster_info_is_signed_with_the_bootstrap_tokens_that_may_sign() {
    let server = Server::start();
    server.until(&["get", "namespace", "kube-public", "-o", "name"], SETTLE_LIMIT, |_| true);
    let token = |id: &str, signs: bool| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: bootstrap-token-{id}, namespace: kube-system}}\n\
             type: bootstrap.kubernetes.io/token\n\
             stringData: {{token-id: {id}, token-secret: 0123456789abcdef, usage-bootstrap-signing: \"{signs}\"}}\n"
        )
    };
    server.ok_with(&["create", "-f", "-"], &token("abcdef", true));
    server.ok_with(&["create", "-f", "-"], &token("ghijkl", false));
    server.ok(&["-n", "kube-public", "create", "configmap", "cluster-info", "--from-literal=kubeconfig=whom to trust"]);
    let data = ["-n", "kube-public", "get", "configmap", "cluster-info", "-o", "jsonpath={.data}"];
    let signed = server.until(&data, SETTLE_LIMIT, |out| out.contains("jws-kubeconfig-abcdef"));
    let signature = pki::jwt::detached("whom to trust", "abcdef", "0123456789abcdef");
    assert!(signed.contains(&signature) && !signed.contains("ghijkl"), "{signed}");
    // Another content is signed anew; a token that goes takes its signature along.
    server.ok(&[
        "-n",
        "kube-public",
        "patch",
        "configmap",
        "cluster-info",
        "--type=merge",
        "-p",
        r#"{"data":{"kubeconfig":"others"}}"#,
    ]);
    let anew = pki::jwt::detached("others", "abcdef", "0123456789abcdef");
    server.until(&data, SETTLE_LIMIT, |out| out.contains(&anew));
    server.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    server.until(&data, SETTLE_LIMIT, |out| !out.contains("jws-kubeconfig"));
    server.stop();
}

#[test]
fn a_stranger_learns_nothing_but_health() {
    let server = Server::start();
    // kubectl without credentials asks a person for them; the admin may speak as nobody instead.
    let stranger =
        |args: &[&str]| server.said(&[&["--as=system:anonymous", "--as-group=system:unauthenticated"], args].concat());
    assert_eq!(stranger(&["get", "--raw", "/healthz"]).out, "ok");
    let refused = stranger(&["get", "--raw", "/api/v1/secrets"]);
    assert!(
        refused.err.contains(
            "User \"system:anonymous\" cannot list resource \"secrets\" in API group \"\" at the cluster scope"
        ),
        "{refused:?}"
    );
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let bad = server.said(&[
        "--kubeconfig=/dev/null",
        "--insecure-skip-tls-verify",
        "--server",
        &url,
        "--token=nonsense",
        "get",
        "--raw",
        "/api/v1/secrets",
    ]);
    assert!(bad.err.contains("must be logged in") || bad.err.contains("Unauthorized"), "{bad:?}");
    server.stop();
}

#[test]
fn the_admin_is_who_the_kubeconfig_says() {
    let server = Server::start();
    assert_eq!(server.ok(&["auth", "can-i", "*", "*"]), "yes\n");
    let who = server.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"]);
    assert!(who.contains("system:masters"), "{who}");
    let node =
        server.said(&["auth", "can-i", "get", "secrets", "--as=system:node:elsewhere", "--as-group=system:nodes"]);
    assert!(node.code == 1 && node.out.starts_with("no"), "{node:?}");
    server.stop();
}

#[test]
fn objects_of_the_cluster_are_there_from_the_start() {
    let server = Server::start();
    let namespaces = server.ok(&["get", "namespaces", "-o", "name"]);
    assert_eq!(
        namespaces,
        "namespace/default\nnamespace/kube-node-lease\nnamespace/kube-public\nnamespace/kube-system\n"
    );
    let roles = server.ok(&["get", "clusterroles", "-o", "name"]);
    for role in [
        "cluster-admin",
        "edit",
        "view",
        "system:node",
        "system:kube-scheduler",
        "system:controller:deployment-controller",
    ] {
        assert!(roles.lines().any(|line| line.ends_with(&format!("/{role}"))), "{role}");
    }
    let classes = server.ok(&["get", "priorityclasses", "-o", "name"]);
    assert!(classes.contains("system-node-critical") && classes.contains("system-cluster-critical"), "{classes}");
    server.stop();
}

#[test]
fn a_user_whom_another_authority_vouches_for_is_let_in_where_a_flag_names_it() {
    use std::fs;

    use pki::authority::Authority;
    use pki::leaf::{LeafSpec, Usage};

    let now = base::time::Clock::system().now();
    let (authority, _key) = Authority::create("elsewhere", now).unwrap();
    let spec = LeafSpec {
        common_name: "eve".to_owned(),
        organizations: vec!["guests".to_owned()],
        sans: Default::default(),
        usage: Usage::Client,
    };
    let issued = authority.issue(&spec, now).unwrap();
    let mut place = crate::harness::Place::new(&["--disable=coredns"]);
    for (name, text) in [("ca.pem", authority.bundle()), ("eve.pem", &issued.cert_pem), ("eve.key", &issued.key_pem)] {
        fs::write(place.path(name), text).unwrap();
    }
    place.flags.push(format!("--kube-apiserver-arg=client-ca-file={}", place.path("ca.pem").display()));
    let server = Server::start_in(place);
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let (cert, key) = (server.place.path("eve.pem"), server.place.path("eve.key"));
    let pair = [format!("--client-certificate={}", cert.display()), format!("--client-key={}", key.display())];
    let base = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, &pair[0], &pair[1]];
    let who = server.ok(&[
        &base[..],
        &["auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}"],
    ]
    .concat());
    assert_eq!(who, "eve [\"guests\",\"system:authenticated\"]");
    let trusted = server.ok(&[
        "-n",
        "kube-system",
        "get",
        "configmap",
        "extension-apiserver-authentication",
        "-o",
        "jsonpath={.data}",
    ]);
    assert_eq!(
        trusted.matches("BEGIN CERTIFICATE").count(),
        3,
        "our own, the other one, and the front proxy's: {trusted}"
    );
    // The admin's own certificate is as good as before.
    server.ok(&["get", "namespaces"]);
    server.stop();
}
