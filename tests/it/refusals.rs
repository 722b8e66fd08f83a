//! Bad input to `kedge server`: exit code 1, a text that names the flag, key or file, and nothing half-written.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::harness::{Place, Server, run_with};

fn refused(place: &Place, words: &[&str]) {
    let said = place.refused();
    for word in words {
        assert!(said.err.contains(word), "no '{word}' in: {}", said.err);
    }
    assert!(!place.kubeconfig().exists(), "a refused server left a kubeconfig");
}

#[test]
fn an_unknown_flag_is_named() {
    refused(&Place::new(&["--nod-name=x"]), &["--nod-name", "--node-name"]);
}

#[test]
fn a_flag_of_k3s_that_has_no_place_here_is_refused_with_the_reason() {
    refused(&Place::new(&["--rootless"]), &["--rootless is refused", "as root"]);
    refused(&Place::new(&["--etcd-s3"]), &["--etcd-s3-bucket", "no bucket"]);
    refused(&Place::new(&["--etcd-s3", "--etcd-s3-bucket=b"]), &["--etcd-s3-access-key", "AWS_ACCESS_KEY_ID"]);
    refused(&Place::new(&["--write-kubeconfig-group=no-such-group"]), &["--write-kubeconfig-group", "no-such-group"]);
}

#[test]
fn a_flag_that_claims_what_another_one_undoes_is_refused() {
    let etcd = "--datastore-endpoint=http://127.0.0.1:2";
    for (flags, words) in [
        (["--cluster-init", etcd], ["--cluster-init", "--datastore-endpoint names another"]),
        (["--cluster-init", "--server=https://127.0.0.1:3"], ["--cluster-init", "--server joins one"]),
        (["--etcd-snapshot-compress", etcd], ["--etcd-snapshot-compress", "takes no snapshots"]),
        (["--etcd-snapshot-compress", "--etcd-disable-snapshots"], ["--etcd-snapshot-compress", "takes no snapshots"]),
    ] {
        refused(&Place::new(&flags), &words);
    }
    let mut place = Place::new(&["--secrets-encryption"]);
    let plain = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n\
        - {resources: [secrets], providers: [{identity: {}}]}\n";
    fs::write(place.path("plain.yaml"), plain).unwrap();
    place.flags.push(format!("--kube-apiserver-arg=encryption-provider-config={}", place.path("plain.yaml").display()));
    refused(&place, &["--secrets-encryption", "plain.yaml", "written as they are"]);
}

#[test]
fn a_bad_value_names_its_flag() {
    for (flag, words) in [
        ("--https-listen-port=70000", &["--https-listen-port", "70000"][..]),
        ("--service-cidr=10.0.0.0", &["--service-cidr", "10.0.0.0"]),
        ("--cluster-cidr=10.42.0.0/16,fd00::/56", &["--service-cidr", "--cluster-cidr is IPv4 and IPv6"]),
        ("--service-cidr=fd00::/112", &["--service-cidr", "is IPv6 while --cluster-cidr is IPv4"]),
        ("--cluster-dns=192.0.2.1", &["--cluster-dns", "--service-cidr"]),
        ("--cluster-cidr=10.43.0.0/17", &["--service-cidr", "--cluster-cidr"]),
        ("--disable=../x", &["--disable", "coredns"]),
        ("--node-name=Not_A_Name", &["Not_A_Name", "--node-name"]),
        ("--write-kubeconfig-mode=8", &["--write-kubeconfig-mode", "octal"]),
    ] {
        let mut place = Place::new(&[]);
        place.flags.retain(|other| other.split('=').next() != flag.split('=').next());
        place.flags.push(flag.to_owned());
        refused(&place, words);
    }
}

#[test]
fn an_unknown_key_is_named_with_its_file() {
    let place = Place::new(&[]);
    fs::write(place.path("config.yaml"), "node-nam: a\n").unwrap();
    refused(&place, &["node-nam", "config.yaml", "kedge server --help"]);
}

#[test]
fn a_drop_in_is_judged_like_the_file() {
    let place = Place::new(&[]);
    fs::create_dir(place.path("config.yaml.d")).unwrap();
    fs::write(place.path("config.yaml.d/10-ports.yaml"), "https-listen-prt: 1\n").unwrap();
    refused(&place, &["https-listen-prt", "10-ports.yaml"]);
}

#[test]
fn an_unreadable_configuration_is_named() {
    let place = Place::new(&[]);
    fs::create_dir(place.path("config.yaml")).unwrap();
    refused(&place, &["config.yaml"]);
    let mut absent = Place::new(&[]);
    absent.flags.push("--config=/no/such/kedge.yaml".to_owned());
    refused(&absent, &["/no/such/kedge.yaml"]);
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let place = Place::new(&["--disable=coredns"]);
    let _taken = TcpListener::bind(("127.0.0.1", place.port)).unwrap();
    refused(&place, &[&place.port.to_string(), "--https-listen-port"]);
}

#[test]
fn a_second_server_on_one_data_dir_is_refused_and_the_first_lives() {
    let first = Server::start();
    let mut second = Place::new(&["--disable=coredns"]);
    // The last one wins, as with every flag that is given twice.
    second.flags.push(format!("--data-dir={}", first.place.data_dir().display()));
    refused(&second, &[&first.place.data_dir().display().to_string(), &first.pid().to_string()]);
    assert_eq!(first.ok(&["get", "--raw", "/healthz"]), "ok");
}

#[test]
fn a_data_dir_of_a_newer_kedge_is_refused() {
    let place = Server::start().stop();
    let db = place.data_dir().join("server/db/state.db");
    let said = run_with(Command::new("sqlite3").arg(&db).arg("PRAGMA user_version = 99"), "");
    assert_eq!(said.code, 0, "{said:?}");
    fs::remove_file(place.kubeconfig()).unwrap();
    refused(&place, &["99", &db.display().to_string()]);
}

#[test]
fn secrets_are_for_their_owner_alone() {
    let server = Server::start();
    let data = server.place.data_dir();
    for path in [server.place.kubeconfig(), data.join("server/token")] {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    let mut dirs = vec![data.join("server")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o077;
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_none_or(|ext| ext != "crt") {
                assert_eq!(mode, 0, "others may read {}", path.display());
            }
        }
    }
}

#[test]
fn help_and_version_end_well() {
    for (args, word) in [
        (&["--version"][..], "Kubernetes v1.36"),
        (&["server", "--help"], "--https-listen-port"),
        (&["completion", "bash"], "complete"),
    ] {
        let said = run_with(Command::new(env!("CARGO_BIN_EXE_kedge")).args(args), "");
        assert_eq!((said.code, said.out.contains(word)), (0, true), "{said:?}");
    }
}

#[test]
fn every_command_names_what_it_does_not_know() {
    let said = |args: &[&str]| {
        run_with(Command::new(env!("CARGO_BIN_EXE_kedge")).args(args).env("KEDGE_CONFIG_FILE", "/dev/null"), "")
    };
    let commands = "server|agent|token|token create|token list|token delete|snapshot save|snapshot ls|snapshot \
        restore|snapshot prune|\
        secrets-encrypt|certificate check|certificate \
        rotate|status|why|check-config|images|ps|logs|killall|uninstall|completion";
    for command in commands.split('|') {
        let args: Vec<&str> = command.split(' ').chain(["--no-such-flag"]).collect();
        let said = said(&args);
        assert!(said.code == 1 && said.err.contains("--no-such-flag"), "{command}: {said:?}");
    }
    for (args, word) in [
        (&["no-such-command"][..], "no-such-command"),
        (&["token", "create", "--ttl=x"], "--ttl"),
        (&["token", "create", "--kubeconfig=/no/such/file"], "/no/such/file"),
        (&["certificate", "rotate", "--service=none"], "--service"),
        (&["certificate", "check", "--data-dir=/no/such"], "/no/such"),
        (&["completion", "tcsh"], "tcsh"),
        (&["status", "--output=xml"], "--output"),
        (&["snapshot", "save", "--data-dir=/no/such"], "/no/such"),
        (&["images", "--data-dir=/no/such"], "kedge status"),
        (&["logs"], "<CONTAINER>"),
    ] {
        let said = said(args);
        assert!(said.code == 1 && said.err.contains(word), "{args:?}: {said:?}");
    }
    assert!(!Path::new("/no/such").exists(), "a command that is refused leaves nothing behind");
}

#[test]
fn every_shell_gets_its_completion() {
    for (shell, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef kedge"),
        ("fish", "complete -c kedge"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let said = run_with(Command::new(env!("CARGO_BIN_EXE_kedge")).args(["completion", shell]), "");
        assert!(said.code == 0 && said.out.contains(word) && said.out.contains("certificate"), "{shell}: {}", said.err);
    }
}
