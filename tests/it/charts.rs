//! HelmCharts with a helm of the test's own: how it is called, what it is given, and what a user is told.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, SETTLE_LIMIT, Server};

/// Notes its arguments, its environment and its files' modes; installed is what the file `installed` says.
const HELM: &str = r#"#!/bin/sh
notes=NOTES
echo "$@" >>$notes/calls
case "$1" in
history)
    [ -e $notes/installed ] || { echo 'Error: release: not found' >&2; exit 1; }
    echo '[{"revision":3,"status":"deployed"}]' ;;
upgrade)
    env >$notes/environment
    id -u >$notes/user; id -G >$notes/groups
    cat DATA/server/token >$notes/token 2>/dev/null
    for file in *; do echo "$file $(stat -c %a "$file")" >>$notes/modes; done
    cat chart-content.yaml set-0 >$notes/values
    [ -e $notes/broken ] && { echo 'Error: INSTALLATION FAILED: no room' >&2; exit 1; }
    cp "$KUBECONFIG" $notes/kubeconfig
    touch $notes/installed ;;
uninstall) rm $notes/installed ;;
esac
"#;

const CHART: &str = "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: web, namespace: kube-system}\n\
    spec:\n  \
    chartContent: aGVsbG8=\n  targetNamespace: shop\n  createNamespace: true\n  valuesContent: 'a: 1'\n  \
    set: {password: hunter2}\n";

fn place(notes: &Path) -> Place {
    let helm = notes.join("helm");
    let mut place = Place::new(&["--disable=coredns"]);
    let words = [("NOTES", notes.display().to_string()), ("DATA", place.data_dir().display().to_string())];
    fs::write(&helm, words.iter().fold(HELM.to_owned(), |text, (word, path)| text.replace(word, path))).unwrap();
    // helm is another user where the server is root: it must find the program, and write its notes.
    for (path, mode) in [(helm.as_path(), 0o755), (notes, 0o777), (place.dir.path(), 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    place.flags.push(format!("--helm-binary={}", helm.display()));
    place
}

fn condition(server: &Server, kind: &str) -> String {
    let path = format!(
        "jsonpath={{.status.conditions[?(@.type==\"{kind}\")].status}} \
         {{.status.conditions[?(@.type==\"{kind}\")].message}}"
    );
    server
        .until(&["get", "helmchart", "web", "-n", "kube-system", "-o", &path], SETTLE_LIMIT * 2, |said| said.len() > 1)
}

#[test]
fn a_helm_chart_is_installed_upgraded_and_uninstalled_by_the_machines_helm() {
    let notes = tempfile::tempdir().unwrap();
    let note = |name: &str| fs::read_to_string(notes.path().join(name)).unwrap_or_default();
    let mut server = Server::start_in(place(notes.path()));
    server.announce("helm chart not in force");
    server.until(&["get", "helmcharts", "-A"], SETTLE_LIMIT * 2, |_| true);
    server.ok_with(&["apply", "-f", "-"], CHART);
    server.ok(&["wait", "helmchart/web", "-n", "kube-system", "--for=condition=Ready", "--timeout=90s"]);
    let calls = note("calls");
    assert!(calls.contains("upgrade --namespace=shop --install --timeout=300s --create-namespace"), "{calls}");
    assert!(calls.contains("-- web ./chart.tgz") && !calls.contains("hunter2"), "{calls}");
    assert_eq!(note("values"), "a: 1hunter2");
    let given = format!("--kubeconfig={}", notes.path().join("kubeconfig").display());
    assert_eq!(
        server.ok(&[&given, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]),
        "system:kedge-helm"
    );
    assert_eq!(server.ok(&[&given, "auth", "can-i", "*", "*", "-A"]).trim(), "yes");
    assert!(note("modes").lines().all(|line| line.ends_with(" 600") || line.ends_with(" 700")), "{}", note("modes"));
    // Of whoever started the server helm sees nothing.
    let environment = note("environment");
    assert!(!environment.contains("CARGO") && !environment.contains("KEDGE_CONFIG_FILE"), "{environment}");
    // Nor does it own anything: not root, no groups, and the server's files are closed to it.
    if nix::unistd::geteuid().is_root() {
        assert_eq!((note("user").trim(), note("groups").trim(), note("token").trim()), ("65521", "65521", ""));
    }
    let home = environment.lines().find_map(|line| line.strip_prefix("HOME=")).unwrap().to_owned();

    // The configuration beside it makes another revision; the same again makes none.
    let config = "apiVersion: helm.cattle.io/v1\nkind: HelmChartConfig\n\
        metadata: {name: web, namespace: kube-system}\nspec: {valuesContent: 'b: 2'}\n";
    server.ok_with(&["apply", "-f", "-"], config);
    crate::harness::wait_for("an upgrade with the configuration", SETTLE_LIMIT * 2, || {
        let calls = note("calls");
        if calls.contains("--values=config-content.yaml") { Ok(()) } else { Err(calls) }
    });
    server.ok(&["delete", "helmchart", "web", "-n", "kube-system", "--timeout=90s"]);
    assert!(note("calls").contains("uninstall --namespace=shop --wait") && !notes.path().join("installed").exists());
    let folders = Path::new(&home).parent().unwrap();
    let left = fs::read_dir(folders).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a folder with a credential stays");
    server.stop();
    fs::remove_dir(folders).unwrap();
}

#[test]
fn a_chart_that_fails_says_why_and_a_field_without_effect_is_told() {
    let notes = tempfile::tempdir().unwrap();
    fs::write(notes.path().join("broken"), "").unwrap();
    let mut server = Server::start_in(place(notes.path()));
    server.announce("helm chart not in force");
    server.until(&["get", "helmcharts", "-A"], SETTLE_LIMIT * 2, |_| true);
    server.ok_with(&["apply", "-f", "-"], &format!("{CHART}  jobImage: x\n"));
    assert_eq!(condition(&server, "Failed"), "True helm upgrade failed: Error: INSTALLATION FAILED: no room");
    let events = |reason: &str| {
        server
            .until(&["get", "events", "-n", "kube-system", "-o", "json"], SETTLE_LIMIT * 2, |out| out.contains(reason))
    };
    assert!(events("FieldWithoutEffect").contains("spec.jobImage has no effect"));
    events("HelmFailed");
    // What was broken is mended; a change of the chart is looked at at once.
    fs::remove_file(notes.path().join("broken")).unwrap();
    server.ok(&[
        "patch",
        "helmchart",
        "web",
        "-n",
        "kube-system",
        "--type=merge",
        "-p",
        r#"{"spec":{"valuesContent":"a: 2"}}"#,
    ]);
    server.ok(&["wait", "helmchart/web", "-n", "kube-system", "--for=condition=Ready", "--timeout=90s"]);
    server.ok_with(&["apply", "-f", "-"], &CHART.replace("aGVsbG8=", "'%'"));
    server.until(&["get", "helmchart", "web", "-n", "kube-system", "-o", "json"], SETTLE_LIMIT * 2, |out| {
        out.contains("chartContent: no base64")
    });
    server.stop();
    let environment = fs::read_to_string(notes.path().join("environment")).unwrap();
    let home = environment.lines().find_map(|line| line.strip_prefix("HOME=")).unwrap();
    fs::remove_dir(Path::new(home).parent().unwrap()).unwrap();
}

#[test]
fn a_machine_without_helm_says_so_and_one_without_the_controller_has_no_such_kind() {
    let mut place = Place::new(&["--disable=coredns"]);
    place.flags.push(format!("--helm-binary={}", place.path("none").display()));
    let mut server = Server::start_in(place);
    server.announce("helm chart not in force");
    server.until(&["get", "helmcharts", "-A"], SETTLE_LIMIT * 2, |_| true);
    server.ok_with(&["apply", "-f", "-"], CHART);
    assert!(condition(&server, "Ready").starts_with("False there is no program"));
    let chart: Value =
        serde_json::from_str(&server.ok(&["get", "helmchart", "web", "-n", "kube-system", "-o", "json"])).unwrap();
    assert_eq!(
        (&chart["status"]["conditions"][0]["reason"], &chart["metadata"]["finalizers"]),
        (&Value::from("NoHelm"), &Value::Null)
    );
    // Nothing was installed: nothing keeps it.
    server.ok(&["delete", "helmchart", "web", "-n", "kube-system", "--timeout=60s"]);
    server.stop();

    let server = Server::start_in(Place::new(&["--disable=coredns", "--disable-helm-controller"]));
    server.until(&["get", "crd", "addons.kedge.io"], SETTLE_LIMIT * 2, |_| true);
    assert!(server.refused(&["get", "helmcharts"]).contains("helmcharts"));
    server.stop();
}
