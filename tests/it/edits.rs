//! Changes that a person makes in files while a server runs, and what becomes of them.

use std::fs;
use std::process::Command;

use crate::harness::{Place, SETTLE_LIMIT, Said, Server, run_with, wait_for};

fn kedge(place: &Place, args: &[&str]) -> Said {
    let data = format!("--data-dir={}", place.data_dir().display());
    Command::new(env!("CARGO_BIN_EXE_kedge")).args(args).arg(data).output().unwrap().into()
}

#[test]
fn a_manifest_is_applied_followed_and_taken_back() {
    let mut server = Server::start();
    let dir = server.place.data_dir().join("server/manifests");
    let config_map =
        |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n");
    fs::create_dir(dir.join("team")).unwrap();
    fs::write(dir.join("team/web.yaml"), config_map("one") + "---\n" + &config_map("two")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out.contains("one") && out.contains("two"));
    server.until(&["get", "addons", "-n", "kube-system", "-o", "name"], SETTLE_LIMIT, |out| out.contains("team-web"));
    fs::write(dir.join("team/web.yaml"), config_map("two")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("one") && out.contains("two"));
    server.announce("cannot apply a manifest");
    fs::write(dir.join("broken.yaml"), "apiVersion: v1\nkind: ConfigMap\n").unwrap();
    let error = ["get", "addon", "broken", "-n", "kube-system", "-o", "jsonpath={.status.error}"];
    server.until(&error, SETTLE_LIMIT, |out| out.contains("metadata.name is missing"));
    fs::remove_file(dir.join("broken.yaml")).unwrap();
    fs::write(dir.join("kept.yaml"), config_map("kept")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out.contains("kept"));
    fs::remove_dir_all(dir.join("team")).unwrap();
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("two"));
    // What goes while the server does not run is taken back at its next start.
    let place = server.stop();
    fs::remove_file(dir.join("kept.yaml")).unwrap();
    let server = Server::start_in(place);
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| !out.contains("kept"));
}

#[test]
fn certificates_are_rotated_under_a_running_server() {
    let server = Server::start();
    let before = fs::read(server.place.kubeconfig()).unwrap();
    let said = kedge(&server.place, &["certificate", "rotate"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.ends_with("The running kedge has made them anew.\n"), "{said:?}");
    // A command that needs one of them finds it.
    let status = kedge(
        &server.place,
        &["secrets-encrypt", "status", &format!("--server=https://127.0.0.1:{}", server.place.port)],
    );
    assert_eq!(status.code, 0, "{status:?}");
    wait_for("a new kubeconfig", SETTLE_LIMIT, || match fs::read(server.place.kubeconfig()) {
        Ok(now) if now != before => Ok(()),
        _ => Err("the old one".to_owned()),
    });
    server.ok(&["get", "--raw", "/readyz"]);
    let said = kedge(&server.place, &["certificate", "check", "--output=json"]);
    let list: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(said.code == 0 && list.as_array().unwrap().iter().all(|one| one["status"] == "OK"), "{said:?}");
    assert!(
        server
            .ok(&["get", "--raw", "/metrics"])
            .contains("kedge_certificate_expiration_seconds{name=\"client-admin\"}")
    );
}

#[test]
fn certificates_that_cannot_be_renewed_are_told_of_in_an_event() {
    let mut server = Server::start();
    server.announce("cannot renew certificates");
    let tls = server.place.data_dir().join("server/tls");
    let (cert, key) = (tls.join("client-scheduler.crt"), tls.join("client-scheduler.key"));
    wait_for("a folder in the place of a key", SETTLE_LIMIT * 4, || {
        // The server may be quicker, and have made the key anew.
        let _gone_already = fs::remove_file(&key);
        fs::create_dir(&key).map_err(|err| err.to_string())
    });
    let events = [
        "get",
        "events",
        "--all-namespaces",
        "--field-selector=reason=CertificateRenewalFailed",
        "-o",
        "jsonpath={.items[*].message}",
    ];
    wait_for("an event", SETTLE_LIMIT * 4, || {
        // A renewal that was under way may write it once more.
        let _gone_already = fs::remove_file(&cert);
        let said = server.said(&events).out;
        if said.contains("client-scheduler.key: Is a directory") { Ok(()) } else { Err(said) }
    });
    fs::remove_dir(&key).unwrap();
    wait_for("the certificate", SETTLE_LIMIT * 4, || {
        if cert.exists() && key.is_file() { Ok(()) } else { Err("none".to_owned()) }
    });
    server.ok(&["get", "--raw", "/readyz"]);
    server.stop();
}

#[test]
fn authorities_are_replaced_and_the_old_ones_trusted_until_they_are_dropped() {
    let mut server = Server::start();
    server.announce("new authorities are here");
    let old = server.place.path("old-kubeconfig");
    fs::copy(server.place.kubeconfig(), &old).unwrap();
    let old = format!("--kubeconfig={}", old.display());
    let rotate = |server: &Server, more: &[&str]| {
        let kubeconfig = format!("--kubeconfig={}", server.place.kubeconfig().display());
        kedge(&server.place, &[&["certificate", "rotate-ca", &kubeconfig], more].concat())
    };
    let wrong = rotate(&server, &[&format!("--path={}", server.place.path("none").display())]);
    assert!(wrong.code != 0 && wrong.err.contains("none: there is no such folder"), "{wrong:?}");
    let authority =
        |server: &Server| fs::read_to_string(server.place.data_dir().join("server/tls/server-ca.crt")).unwrap();
    for (more, old_is_good, authorities) in [(&[][..], true, 3), (&["--drop-old"][..], false, 1)] {
        let said = rotate(&server, more);
        assert!(said.code == 0 && said.out.contains("Restart kedge"), "{said:?}");
        let next = server.place.data_dir().join("server/cred/authorities-next.json");
        wait_for("the new set beside the one in use", SETTLE_LIMIT, || {
            if next.exists() { Ok(()) } else { Err("none".to_owned()) }
        });
        server.ok(&["get", "--raw", "/readyz"]);
        server = Server::start_in(server.stop());
        // The log is that of all starts.
        server.announce("new authorities are here");
        assert!(!next.exists());
        assert_eq!(authority(&server).matches("BEGIN CERTIFICATE").count(), authorities);
        server.ok(&["get", "namespaces"]);
        let said = server.said(&["get", "namespaces", &old]);
        assert_eq!(said.code == 0, old_is_good, "{said:?}");
    }
    let said = rotate(&server, &["--drop-old"]);
    assert!(said.code != 0 && said.err.contains("nothing would change"), "{said:?}");
    server.stop();
}

/// Authorities as a person brings them, in the folder $1; $2 is server/tls. Servers' is below a root of their own;
/// clients' is made as k3s's users do it: signed by itself, the same signed by the one in use, and that one;
/// requestheader's ends in a month.
const OWN_AUTHORITIES: &str = r#"
set -e
mkdir "$1"; cd "$1"
printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,digitalSignature,keyCertSign,cRLSign\n'\
'subjectKeyIdentifier=hash\n' >ext
ask() { openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" \
    -subj "/CN=own-$1"; }
own() { openssl x509 -req -in "$1.csr" -signkey "$1.key" -days "$2" -extfile ext -out "$3"; }
by() { openssl x509 -req -in "$1.csr" -CA "$2" -CAkey "$3" -CAcreateserial -days 3000 -extfile ext -out "$4"; }
ask root; own root 3650 root.pem
ask server-ca; by server-ca root.pem root.key server.pem
cat server.pem root.pem >server-ca.crt
openssl x509 -in "$2/client-ca.crt" -out old.pem
ask client-ca; own client-ca 3000 client.pem; by client-ca old.pem "$2/client-ca.key" cross.pem
cat client.pem cross.pem old.pem >client-ca.crt
ask request-header-ca; own request-header-ca 30 request-header-ca.crt
"#;

#[test]
fn authorities_of_ones_own_are_taken_from_a_folder() {
    let mut server = Server::start();
    server.announce("new authorities are here");
    // One that ends in a month is told of at every start.
    server.announce("a certificate nears its end");
    let (tls, own, old) =
        (server.place.data_dir().join("server/tls"), server.place.path("own"), server.place.path("old-kubeconfig"));
    let made = Command::new("sh").args(["-c", OWN_AUTHORITIES, "sh"]).args([&own, &tls]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::copy(server.place.kubeconfig(), &old).unwrap();
    let rotate = |server: &Server, more: &[&str]| {
        let flags = [("--kubeconfig", server.place.kubeconfig()), ("--path", own.clone())]
            .map(|(flag, path)| format!("{flag}={}", path.display()));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        kedge(&server.place, &[&["certificate", "rotate-ca"], &flags[..], more].concat())
    };
    let short = rotate(&server, &[]);
    assert!(
        short.code != 0
            && short.err.contains("request-header-ca: ")
            && short.err.contains("--force takes it nevertheless"),
        "{short:?}"
    );
    let said = rotate(&server, &["--force"]);
    assert!(said.code == 0 && said.out.contains("Restart kedge"), "{said:?}");
    let next = server.place.data_dir().join("server/cred/authorities-next.json");
    wait_for("the new set beside the one in use", SETTLE_LIMIT, || {
        if next.exists() { Ok(()) } else { Err("none".to_owned()) }
    });
    server = Server::start_in(server.stop());
    server.announce("new authorities are here");
    server.announce("a certificate nears its end");
    server.ok(&["get", "namespaces"]);
    server.ok(&["get", "namespaces", &format!("--kubeconfig={}", old.display())]);
    let leaf = fs::read_to_string(tls.join("serving-kube-apiserver.crt")).unwrap();
    let signer = run_with(Command::new("openssl").args(["x509", "-noout", "-issuer"]), &leaf);
    assert!(signer.out.contains("own-server-ca"), "{signer:?}");
    let again = rotate(&server, &["--force"]);
    assert!(again.code != 0 && again.err.contains("holds no authority that is not in use already"), "{again:?}");
    server.stop();
}

#[test]
fn the_server_answers_for_metrics_unless_it_is_told_not_to() {
    let server = Server::start();
    let service = ["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.status.conditions[0].reason}"];
    server.until(&service, SETTLE_LIMIT, |out| out == "Local");
    assert!(server.ok(&["api-resources", "--api-group=metrics.k8s.io", "-o", "name"]).contains("nodes.metrics.k8s.io"));
    assert!(server.refused(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/none"]).contains("not found"));
    let mut place = server.stop();
    place.flags.push("--disable=metrics-server".to_owned());
    let server = Server::start_in(place);
    wait_for("no APIService", SETTLE_LIMIT, || {
        match server.said(&["get", "apiservice", "v1beta1.metrics.k8s.io"]).code {
            0 => Err("it is there".to_owned()),
            _ => Ok(()),
        }
    });
}
