//! A cluster as kubectl on one of its machines sees it, and pods that show a page: what the tests of address families
//! share.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::hosts::{Host, Said, kubectl, make_lan, run, wait_for};

/// For whatever takes long only on a machine that is busy with other tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// The folder of a test that needs IPv6, with the bridge of its machines; `None` where the kernel has none.
pub(crate) fn place(prefix: &str) -> Option<tempfile::TempDir> {
    if !Path::new("/proc/net/if_inet6").exists() {
        base::skips::say("this kernel has no IPv6");
        return None;
    }
    make_lan();
    Some(tempfile::Builder::new().prefix(prefix).tempdir().unwrap())
}

/// A pod that shows a page with its name.
pub(crate) fn pod(name: &str) -> Value {
    let page = "mkdir /www; echo I am $(hostname) >/www/index.html; exec httpd -f -p 80 -h /www";
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web", "who": name } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "kedge.local/busybox:1",
            "imagePullPolicy": "Never", "command": ["sh", "-c", page],
            "readinessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1 } }] } })
}

/// The command with which a pod's shell asks a page of [`pod`]; its last word shows that it was asked, whatever came
/// back.
pub(crate) fn asking(ip: &str, port: u16) -> String {
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {ip} {port}; echo asked")
}

/// Waits until the page comes, or until it did not come several times in a row though it was asked for: a question that
/// fails for another reason shows nothing.
pub(crate) fn answers(what: &str, wanted: bool, mut ask: impl FnMut() -> String) {
    let n_wanted = if wanted { 1 } else { 3 };
    let mut n_in_a_row = 0;
    wait_for(what, LIMIT, || {
        let said = ask();
        let is_right = said.contains("asked") && said.contains("I am ") == wanted;
        n_in_a_row = if is_right { n_in_a_row + 1 } else { 0 };
        if n_in_a_row == n_wanted { Ok(()) } else { Err(said) }
    });
}

/// The answer of a server's machine, asked with its own kubeconfig.
impl Host {
    pub(crate) fn kubectl(&self, args: &[&str]) -> Said {
        let mut command = self.command("timeout");
        run(command.arg("60").arg(kubectl()).arg("--kubeconfig").arg(self.dir.join("kubeconfig")).args(args))
    }

    pub(crate) fn apply(&self, object: &Value) {
        let file = self.dir.join("apply.json");
        std::fs::write(&file, object.to_string()).unwrap();
        // The account of a namespace may still be on its way.
        wait_for("an object to be taken", LIMIT, || {
            let said = self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
            if said.ok { Ok(()) } else { Err(said.text) }
        });
    }

    /// Waits until a field is right; the field.
    pub(crate) fn field_is(&self, what: &[&str], path: &str, right: &dyn Fn(&str) -> bool) -> String {
        wait_for(&format!("{path} of {what:?}"), LIMIT, || {
            let said = self.kubectl(&[&["get"], what, &["-o", &format!("jsonpath={path}")]].concat());
            if said.ok && right(&said.text) {
                Ok(said.text)
            } else {
                Err(format!("{}\n{}{}", said.text, self.log("log"), self.log("second")))
            }
        })
    }

    /// Gives the machine's runtime the image of [`pod`].
    pub(crate) fn import_busybox(&self) {
        let tar = self.dir.join("busybox.tar");
        let made =
            run(Command::new("sh").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh")).arg(&tar));
        assert!(made.ok, "{}", made.text);
        let import = "for socket in /run/kedge*/containerd/containerd.sock; do ctr --address $socket -n k8s.io images \
            import \"$0\"; done";
        self.must("sh", &["-c", import, tar.to_str().unwrap()]);
    }
}
