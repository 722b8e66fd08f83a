//! Kubeconfigs for people: made, listed, revoked, and what an enemy tries.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Place, Running, SETTLE_LIMIT, STOP_LIMIT, Said, Server, run_with, wait_for};

fn kedge(server: &Server, args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    run_with(command.arg("kubeconfig").args(args).arg("--kubeconfig").arg(server.place.kubeconfig()), "")
}

fn as_person(file: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.env("KUBECONFIG", file).env("HOME", file.parent().unwrap()).args(args);
    command
}

/// A kubeconfig of a user at the server's own address.
fn create(server: &Server, user: &str, more: &[&str]) -> PathBuf {
    // A colon would make two paths of it in KUBECONFIG.
    let file = server.place.path(&format!("{}-{}.yaml", user.replace(['/', ':'], "_"), more.len()));
    let url = format!("--server=https://127.0.0.1:{}", server.place.port);
    let mut args = vec!["create", "--user", user, "--output", file.to_str().unwrap(), &url];
    args.extend(more);
    let said = kedge(server, &args);
    assert_eq!(said.code, 0, "{said:?}");
    file
}

#[test]
fn a_person_gets_a_kubeconfig_which_is_refused_at_once_when_it_is_revoked() {
    let audit = "audit.log";
    let mut place = Place::new(&["--disable=coredns,metrics-server"]);
    fs::write(place.path("policy"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n").unwrap();
    let path = |name: &str| place.path(name).display().to_string();
    let flags = [format!("audit-policy-file={}", path("policy")), format!("audit-log-path={}", path(audit))];
    place.flags.extend(flags.map(|flag| format!("--kube-apiserver-arg={flag}")));
    let server = Server::start_in(place);
    server.ok(&["create", "rolebinding", "dev", "--clusterrole=admin", "--group=dev", "-n", "default"]);

    let file = create(&server, "ann", &["--group=dev", "--ttl=1h", "--namespace=default"]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let who = run_with(&mut as_person(&file, &["auth", "whoami", "-o", "json"]), "");
    assert!(
        who.out.contains("\"ann\"") && who.out.contains("\"dev\"") && who.out.contains("kedge:registered"),
        "{who:?}"
    );
    let may = run_with(&mut as_person(&file, &["create", "configmap", "hers"]), "");
    assert_eq!(may.code, 0, "{may:?}");
    let namespaces = run_with(&mut as_person(&file, &["get", "secrets", "-n", "kube-system"]), "");
    assert!(namespaces.err.contains("forbidden"), "she may not touch records: {namespaces:?}");

    let list = kedge(&server, &["list"]);
    assert!(list.out.contains("ann") && list.out.contains("good"), "{list:?}");

    // Open connections end, too: a watch is all the same to an enemy as a terminal.
    let mut watch = as_person(&file, &["get", "configmaps", "--watch", "-o", "name"]);
    let mut watch = Running(watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("configmap/"));

    let said = kedge(&server, &["revoke", "ann", "--reason=lost laptop"]);
    assert!(said.code == 0 && said.out.contains("is revoked"), "{said:?}");
    watch.ended("the watch of a revoked certificate", STOP_LIMIT);
    let refused = run_with(&mut as_person(&file, &["get", "configmaps"]), "");
    assert!(refused.code != 0 && refused.err.contains("You must be logged in"), "{refused:?}");
    let list = kedge(&server, &["list", "-o", "json"]);
    assert!(list.out.contains("\"reason\": \"lost laptop\""), "{list:?}");
    let again = kedge(&server, &["revoke", "ann"]);
    assert!(again.code == 0 && again.out.contains("was revoked at"), "the first one counts: {again:?}");
    wait_for("the reason in the audit log", SETTLE_LIMIT, || {
        let log = fs::read_to_string(server.place.path(audit)).unwrap();
        if log.contains("lost laptop") { Ok(()) } else { Err(format!("{} bytes", log.len())) }
    });

    // A record that is deleted gives nothing back.
    let second = create(&server, "ann", &["--group=dev"]);
    assert_eq!(run_with(&mut as_person(&second, &["get", "configmaps"]), "").code, 0, "a new one is another one");
    server.ok(&["delete", "secrets", "-n", "kube-system", "--field-selector=type=kedge.io/client-certificate"]);
    let refused = run_with(&mut as_person(&second, &["get", "configmaps"]), "");
    assert!(refused.err.contains("You must be logged in"), "{refused:?}");
    server.stop();
}

#[test]
fn bad_names_lives_and_files_are_refused_and_leave_nothing() {
    let server = Server::start_in(Place::new(&["--disable=coredns,metrics-server"]));
    let file = server.place.path("new.yaml");
    let output = format!("--output={}", file.display());
    let long = "x".repeat(10_000);
    for (args, part) in [
        (&["--user=system:masters"][..], "begins with system:"),
        (&["--user=ann", "--group=system:masters"], "begins with system:"),
        (&["--user=ann", "--group=SYSTEM:masters"], "begins with system:"),
        (&["--user=a\nb"], "must not have control characters"),
        (&[&format!("--user={long}")], "must not have more than 253 bytes"),
        (&["--user="], "must not be empty"),
        (&["--user=ann", "--ttl=0"], "at least 10m"),
        (&["--user=ann", "--ttl=1000000000y"], "is not a duration"),
        (&["--user=ann", "--ttl=365000000000d"], "at most 365d"),
        (&["--user=ann", "--server=http://plain:6443"], "is no address such as https://"),
        (&["--user=ann", "--namespace=a/b"], "is no name of a namespace"),
    ] {
        let said = kedge(&server, &[&["create", &output], args].concat());
        assert!(said.code != 0 && said.err.contains(part), "{args:?}: {said:?}");
    }
    fs::write(&file, "mine").unwrap();
    let said = kedge(&server, &["create", "--user=ann", &output]);
    assert!(said.err.contains("is there already"), "{said:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert!(kedge(&server, &["create", "--user=ann"]).err.contains("--output"), "no key goes to a terminal unasked");
    assert_eq!(kedge(&server, &["list"]).out.lines().count(), 1, "nothing was recorded");
    assert_eq!(server.ok(&["get", "csr", "-o", "name"]), "");
    let said = kedge(&server, &["revoke", "nobody"]);
    assert!(said.code != 0 && said.err.contains("no certificate of nobody was given"), "{said:?}");
    server.stop();
}

// A comma in a name is a letter of the name, in every program that reads the certificate.
#[test]
fn a_group_that_is_smuggled_in_by_a_comma_is_no_group() {
    let server = Server::start_in(Place::new(&["--disable=coredns,metrics-server"]));
    let file = create(&server, "eve,O=system:masters", &["--group=dev,O=system:masters"]);
    let who = run_with(&mut as_person(&file, &["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"]), "");
    assert_eq!(who.out, r#"["dev,O=system:masters","kedge:registered","system:authenticated"]"#, "{who:?}");
    assert!(run_with(&mut as_person(&file, &["get", "nodes"]), "").err.contains("forbidden"));
    server.stop();
}

#[test]
fn revocations_at_once_from_many_sides_agree() {
    let server = Server::start_in(Place::new(&["--disable=coredns,metrics-server"]));
    let files: Vec<PathBuf> = (0..3).map(|n| create(&server, &format!("bob/{n}"), &[])).collect();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3)
            .flat_map(|n| [n, n])
            .map(|n| {
                let server = &server;
                scope.spawn(move || (kedge(server, &["revoke", &format!("bob/{n}")]), kedge(server, &["list"])))
            })
            .collect();
        for run in runs {
            let (revoked, listed) = run.join().unwrap();
            assert!(revoked.code == 0 && listed.code == 0, "{revoked:?} {listed:?}");
        }
    });
    for file in files {
        assert!(run_with(&mut as_person(&file, &["get", "ns"]), "").err.contains("You must be logged in"));
    }
    assert!(!kedge(&server, &["list"]).out.contains("good"));
    server.stop();
}
