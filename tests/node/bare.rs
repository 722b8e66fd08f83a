//! A machine of a kernel and busybox: a bundle makes it a node, without tar, zstd, curl or a network.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::run_with;
use crate::namespaces::what_is_missing;

const OUTSIDE: &str = include_str!("bare.sh");
const INSIDE: &str = include_str!("bare-inside.sh");

/// The folder of static programs that scripts/programs.sh prints.
fn programs() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("KEDGE_PROGRAMS")?);
    dir.join("containerd").exists().then_some(dir)
}

#[test]
fn a_bundle_makes_a_node_of_a_kernel_and_busybox() {
    if let Some(missing) = what_is_missing() {
        return base::skips::say(&missing);
    }
    let Some(programs) = programs() else {
        return base::skips::say(
            "KEDGE_PROGRAMS names no static containerd and runc (scripts/programs.sh builds them)",
        );
    };
    let dir = tempfile::tempdir().unwrap();
    let (root, image, bundle) = (Path::new(env!("CARGO_MANIFEST_DIR")), dir.path().join("i.tar"), dir.path().join("b"));
    let made = run_with(Command::new("sh").arg(root.join("scripts/busybox-image.sh")).arg(&image), "");
    assert_eq!(made.code, 0, "{made:?}");
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let mut build = Command::new(std::env::var_os("KEDGE_BIN").unwrap());
    build.args(["bundle", "build", "--arch", arch, "--output"]).arg(&bundle).arg("--image").arg(&image);
    build.arg("--containerd").arg(&programs);
    for name in ["runc", "kubectl"] {
        build.arg(format!("--{name}")).arg(programs.join(name));
    }
    let made = run_with(&mut build, "");
    assert!(made.code == 0 && !made.out.contains("not static"), "{made:?}");
    let folder = dir.path().join("machine");
    std::fs::create_dir(&folder).unwrap();
    let namespaces = ["--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child", "--uts", "--ipc"];
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", OUTSIDE])
        .envs([("FOLDER", &folder), ("BUNDLE", &bundle), ("INSTALLER", &root.join("install.sh"))])
        .env("INSIDE", INSIDE)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.ends_with("DONE\n"), "{said}\n{err}");
}
