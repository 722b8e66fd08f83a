//! NFS shares, mounted by the machine's own `mount.nfs`: the protocol's details are its business.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use tokio::process::Command;

use super::is_mount_point;

/// A server that does not answer must not hold the pod's task for ever.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Mounts a share. The error has upstream's shape.
pub(super) async fn attach(source: &NFSVolumeSource, options: &[String], target: &Path) -> Result<(), String> {
    if is_mount_point(target).map_err(|err| err.to_string())? {
        return Ok(());
    }
    std::fs::create_dir_all(target).map_err(|err| err.to_string())?;
    let host = if source.server.contains(':') { format!("[{}]", source.server) } else { source.server.clone() };
    let from = format!("{host}:{}", source.path);
    let mut all = options.to_vec();
    if source.read_only == Some(true) {
        all.push("ro".to_owned());
    }
    let mut args = vec!["-t".to_owned(), "nfs".to_owned()];
    if !all.is_empty() {
        args.extend(["-o".to_owned(), all.join(",")]);
    }
    args.extend([from, target.display().to_string()]);
    let shown = args.join(" ");
    let run = Command::new("mount").args(&args).stdin(Stdio::null()).kill_on_drop(true).output();
    let failed =
        |why: String, output: &str| format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {shown}\nOutput: {output}");
    match tokio::time::timeout(TIMEOUT, run).await {
        Ok(Ok(done)) if done.status.success() => Ok(()),
        Ok(Ok(done)) => {
            let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            Err(failed(format!("exit status {}", done.status.code().unwrap_or(-1)), &output))
        }
        Ok(Err(err)) => Err(failed(err.to_string(), "")),
        Err(_) => Err(failed("timed out".to_owned(), "")),
    }
}
