//! The installer, run as it is in an /etc of its own: what it writes down, who may read that, and what it believes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::harness::{Said, run_with};

/// A machine whose systemd is a script: it notes what it is told, and "joins" when the agent is started.
const MACHINE: &str = r#"
set -e
mkdir -p "$ROOT/etc" && cp -a /etc/. "$ROOT/etc" && rm -rf "$ROOT/etc/kedge"
mount --bind "$ROOT/etc" /etc && mount -t tmpfs none /run && mkdir -p /run/systemd/system
export PATH="$ROOT/bin:$PATH"
"#;

const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>"$ROOT/told"
case $1 in
is-active) [ -f "$ROOT/active" ] ;;
restart)
    : >"$ROOT/active"; sleep 1.1
    [ -n "${NEVER_JOINS:-}" ] || { mkdir -p "$ROOT/data/agent" && echo '{}' >"$ROOT/data/agent/membership.json"; } ;;
esac
"#;

const PROGRAM: &str = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'kedge 9'\n";

/// A kedge that knows bundles: it notes what it is asked, and vouches for what is called good.
const KNOWS: &str = r#"#!/bin/sh
case $1 in
--version) echo 'kedge 9' ;;
bundle)
    [ "$2" = --help ] && exit 0
    echo "${0##*/} $*" >>"$ROOT/asked"
    for file in "$@"; do :; done
    case $(head -c 64 "$file") in *GOOD*) exit 0 ;; *) echo "kedge: $file is refused" >&2; exit 1 ;; esac ;;
esac
"#;

/// A bundle as its form says: the program at its head, and the length of that in its last line.
fn bundle(program: &str) -> Vec<u8> {
    let line = format!("KEDGE-BUNDLE-1 {:016} {:08} {:05} {:016} {}\n", program.len(), 3, 0, 9, "ab".repeat(32));
    [program.as_bytes(), b"{}\n", &[0, 1, 2, 0xff, b'\n', 0, 5, 6, 7], line.as_bytes()].concat()
}

struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Option<Machine> {
        let tried = Command::new("unshare")
            .args(["--mount", "--propagation=private", "mount", "-t", "tmpfs", "none", "/mnt"])
            .status();
        if !tried.is_ok_and(|status| status.success()) {
            base::skips::say("no mount namespace can be made here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("bin/systemctl", SYSTEMCTL), ("src/kedge", PROGRAM)] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(Machine(dir))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Runs lines of shell on the machine; `install` in them is the installer.
    fn run(&self, script: &str) -> Said {
        let installer = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        let text = format!("{MACHINE}\ninstall() {{ sh '{}' \"$@\"; }}\n{script}\n", installer.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", &text]).env("ROOT", self.0.path());
        command.env("INSTALLER", &installer);
        command.env("INSTALL_KEDGE_BINARY", self.path("src/kedge")).env("INSTALL_KEDGE_BIN_DIR", self.path("bin"));
        command.env("INSTALL_KEDGE_SYSTEMD_DIR", self.path("units")).env("INSTALL_KEDGE_SYMLINK", "skip");
        command.env("KEDGE_DATA_DIR", self.path("data")).env("INSTALL_KEDGE_JOIN_SECS", "3");
        fs::create_dir_all(self.path("units")).unwrap();
        run_with(&mut command, "")
    }
}

#[test]
fn a_run_with_another_token_starts_the_service_anew() {
    let Some(machine) = Machine::new() else { return };
    let said = machine.run(
        "export NEVER_JOINS=1 KEDGE_URL=https://s:6443
         KEDGE_TOKEN=one install; KEDGE_TOKEN=one install; KEDGE_TOKEN=two install; cat /etc/kedge/kedge-agent.env",
    );
    let told = fs::read_to_string(machine.path("told")).unwrap();
    assert!(said.out.contains("nothing changed") && said.out.contains("KEDGE_TOKEN=\"two\""), "{said:?}");
    assert_eq!(told.matches("restart kedge-agent").count(), 2, "{told}{said:?}");
}

#[test]
fn an_installer_that_dies_leaves_what_was_there() {
    let Some(machine) = Machine::new() else { return };
    let said = machine.run(
        "set +e
         KEDGE_NODE_NAME=a install server; KEDGE_NODE_NAME=\"b
c\" install server; echo \"ended with $?\"; cat /etc/kedge/kedge.env; ls /etc/kedge",
    );
    assert!(said.out.contains("ended with 1") && said.out.contains("KEDGE_NODE_NAME=\"a\""), "{said:?}");
    assert!(!said.out.contains(".new"), "{said:?}");
}

#[test]
fn no_token_lies_where_others_read_it_and_an_agents_is_forgotten() {
    let Some(machine) = Machine::new() else { return };
    let said = machine.run(
        "export KEDGE_URL=https://s:6443
         install agent --token 'K10abc::server:hun ter2' --node-label 'a=b c'
         stat -c '%a' /etc/kedge/kedge-agent.env; cat /etc/kedge/kedge-agent.env; cat /etc/kedge/kedge-agent.args",
    );
    let unit = fs::read_to_string(machine.path("units/kedge-agent.service")).unwrap();
    assert!(!unit.contains("hun") && unit.contains("'a=b c'"), "{unit}{said:?}");
    assert!(
        said.out.contains("600\n") && said.out.contains("the token is forgotten") && said.out.contains("makes servers"),
        "{said:?}"
    );
    assert!(!said.out.contains("hun ter2"), "{said:?}");
    // One that has not joined needs it still, and nobody but root reads it.
    let Some(machine) = Machine::new() else { return };
    let said = machine
        .run("NEVER_JOINS=1 KEDGE_URL=https://s:6443 install agent --token=hunter2; cat /etc/kedge/kedge-agent.env");
    assert!(said.out.contains("KEDGE_TOKEN=\"hunter2\"") && said.out.contains("has not joined yet"), "{said:?}");
    assert!(!fs::read_to_string(machine.path("units/kedge-agent.service")).unwrap().contains("hunter2"));
}

#[test]
fn a_program_that_anybody_on_the_way_may_have_chosen_is_not_installed() {
    let Some(machine) = Machine::new() else { return };
    let said = machine.run(
        "INSTALL_KEDGE_BINARY= INSTALL_KEDGE_ARTIFACT_URL=http://127.0.0.1:9/k INSTALL_KEDGE_VERSION=v9 install server",
    );
    assert!(
        said.code != 0 && said.err.contains("INSTALL_KEDGE_SHA256") && !machine.path("bin/kedge").exists(),
        "{said:?}"
    );
    let said = machine.run(&format!("INSTALL_KEDGE_SHA256={} install server", "0".repeat(64)));
    assert!(said.code != 0 && said.err.contains("its sum is") && !machine.path("bin/kedge").exists(), "{said:?}");
    // Where programs may not be run from the folder of temporary files.
    let said = machine.run("mount -t tmpfs -o noexec none /var/tmp; TMPDIR=/var/tmp install server");
    assert!(said.code == 0 && !said.err.contains("does not run on this machine"), "{said:?}");
}

#[test]
fn a_bundle_is_installed_by_its_own_head_under_every_shell() {
    let knows = KNOWS.replacen("#!/bin/sh\n", "#!/bin/sh\n# GOOD\n", 1);
    for shell in ["sh", "busybox sh", "bash"] {
        let Some(machine) = Machine::new() else { return };
        fs::write(machine.path("b.bundle"), bundle(&knows)).unwrap();
        // There are no clients of the network, no tar and no zstd: each that is asked leaves a note.
        let said = machine.run(&format!(
            "for client in curl wget tar zstd; do
                 printf '#!/bin/sh\\necho the network was asked >>$ROOT/asked; exit 9\\n' >$ROOT/bin/$client
                 chmod 755 $ROOT/bin/$client
             done
             install() {{ {shell} \"$INSTALLER\" \"$@\"; }}
             INSTALL_KEDGE_BINARY= INSTALL_KEDGE_BUNDLE=$ROOT/b.bundle KEDGE_DATA_DIR= install server -d \"$ROOT/d\""
        ));
        assert_eq!(said.code, 0, "{shell}: {said:?}");
        assert_eq!(fs::read_to_string(machine.path("bin/kedge")).unwrap(), knows, "{shell}");
        let asked = fs::read_to_string(machine.path("asked")).unwrap();
        let root = machine.path("").display().to_string();
        assert_eq!(asked, format!("kedge bundle apply --data-dir {root}d {root}b.bundle\n"), "{shell}");
    }
}

#[test]
fn a_bundle_that_is_refused_leaves_the_machine_as_it_was() {
    let Some(machine) = Machine::new() else { return };
    let whole = bundle(KNOWS);
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("refused", whole.clone(), "is not installed"),
        ("cut", whole[..whole.len() - 1].to_vec(), "its end is missing"),
        ("empty", Vec::new(), "its end is missing"),
        ("no bundle", vec![b'*'; 4096], "its end is missing"),
        ("short", [b"x", &whole[whole.len() - 129..]].concat(), "was cut"),
    ];
    for (what, bytes, why) in cases {
        fs::write(machine.path("b.bundle"), bytes).unwrap();
        let said = machine.run("INSTALL_KEDGE_BUNDLE=$ROOT/b.bundle install server");
        assert!(said.code != 0 && said.err.contains(why), "{what}: {said:?}");
        assert!(!machine.path("bin/kedge").exists() && !machine.path("told").exists(), "{what}");
    }
    let said = machine.run("INSTALL_KEDGE_BUNDLE=/no/such install server");
    assert!(said.code != 0 && said.err.contains("INSTALL_KEDGE_BUNDLE: there is no file /no/such"), "{said:?}");
}

#[test]
fn a_bundle_does_not_vouch_for_itself() {
    let Some(machine) = Machine::new() else { return };
    let knows = KNOWS.replacen("#!/bin/sh\n", "#!/bin/sh\n# GOOD\n", 1);
    fs::write(machine.path("b.bundle"), bundle(&knows)).unwrap();
    let with = "INSTALL_KEDGE_BUNDLE=$ROOT/b.bundle INSTALL_KEDGE_BUNDLE_KEY=/k";
    // Neither a kedge of before nor a sum.
    let said = machine.run(&format!("INSTALL_KEDGE_BINARY= {with} install server"));
    assert!(said.code != 0 && said.err.contains("cannot vouch for itself"), "{said:?}");
    assert!(!machine.path("asked").exists() && !machine.path("bin/kedge").exists());
    // A sum of the operator's stands for all of it.
    let said =
        machine.run(&format!("INSTALL_KEDGE_SHA256={} INSTALL_KEDGE_BINARY= {with} install server", "0".repeat(64)));
    assert!(said.code != 0 && said.err.contains("its sum is"), "{said:?}");
    let sum = "$(sha256sum $ROOT/b.bundle | cut -c 1-64)";
    let said = machine.run(&format!("INSTALL_KEDGE_SHA256={sum} INSTALL_KEDGE_BINARY= {with} install server"));
    assert_eq!(said.code, 0, "{said:?}");
    // From then on the installed one checks those that come.
    fs::remove_file(machine.path("asked")).unwrap();
    fs::write(machine.path("b.bundle"), bundle(KNOWS)).unwrap();
    let said = machine.run(&format!("INSTALL_KEDGE_BINARY= {with} install server"));
    let asked = fs::read_to_string(machine.path("asked")).unwrap();
    assert!(said.code != 0 && asked.lines().count() == 1 && asked.contains("verify --key /k"), "{said:?} {asked}");
    assert_eq!(fs::read_to_string(machine.path("bin/kedge")).unwrap(), knows);
}

#[test]
fn channels_and_builds_that_are_not_there_are_refused_by_name() {
    let Some(machine) = Machine::new() else { return };
    for (set, why) in [
        ("INSTALL_KEDGE_CHANNEL=stable", "INSTALL_KEDGE_ARTIFACT_URL"),
        ("INSTALL_KEDGE_COMMIT=abc", "INSTALL_KEDGE_COMMIT"),
        ("INSTALL_KEDGE_PR=1", "INSTALL_KEDGE_PR"),
        ("INSTALL_KEDGE_ARTIFACT_URL=https://a INSTALL_KEDGE_CHANNEL_URL=http://b", "INSTALL_KEDGE_SHA256"),
    ] {
        let said = machine.run(&format!("INSTALL_KEDGE_BINARY= {set} install server"));
        assert!(said.code != 0 && said.err.contains(why) && !machine.path("bin/kedge").exists(), "{set}: {said:?}");
    }
    let said = machine.run("INSTALL_K3S_VERSION=v1.30.0+k3s1 install server");
    assert!(said.code == 0 && said.out.contains("INSTALL_K3S_VERSION speaks of k3s's releases"), "{said:?}");
}
