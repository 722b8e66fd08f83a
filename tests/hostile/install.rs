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
