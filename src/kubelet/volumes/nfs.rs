//! NFS shares, mounted by the machine's own `mount.nfs`: the protocol's details are its business.

use std::path::Path;
use std::time::Duration;

use base::confined::Dir;
use base::task::Group;
use k8s_openapi::api::core::v1::NFSVolumeSource;

use super::faults::NfsError;
use super::program;
use crate::mount_points::is_mount_point;

/// A server that does not answer must not hold the pod's task for ever.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Mounts a share. The error has upstream's shape.
pub(super) async fn attach(source: &NFSVolumeSource, options: &[String], target: &Path) -> Result<(), NfsError> {
    if is_mount_point(target)? {
        return Ok(());
    }
    drop(Dir::open_or_make(target, 0o750)?);
    let args = arguments(source, options, target)?;
    Ok(Group::blocking(move || program::mount(&args, TIMEOUT)).await??)
}

/// The arguments of `mount`. Nothing that the pod's author wrote may stand where an option could: the server is a name
/// or an address, and options end before it.
fn arguments(source: &NFSVolumeSource, options: &[String], target: &Path) -> Result<Vec<String>, NfsError> {
    if !is_host(&source.server) || !source.path.starts_with('/') {
        return Err(NfsError::Share { server: source.server.clone(), path: source.path.clone() });
    }
    let host = if source.server.contains(':') { format!("[{}]", source.server) } else { source.server.clone() };
    let mut all = options.to_vec();
    if source.read_only == Some(true) {
        all.push("ro".to_owned());
    }
    let mut args = vec!["-t".to_owned(), "nfs".to_owned()];
    if !all.is_empty() {
        args.extend(["-o".to_owned(), all.join(",")]);
    }
    args.extend(["--".to_owned(), format!("{host}:{}", source.path), target.display().to_string()]);
    Ok(args)
}

/// A host name, or an address, IPv6 with its zone included.
fn is_host(text: &str) -> bool {
    let address = text.split('%').next().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
    let zone = text.split_once('%').is_none_or(|(_, zone)| {
        !zone.is_empty() && zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    });
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    address && zone || text.len() <= 253 && text.trim_end_matches('.').split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(server: &str, path: &str) -> NFSVolumeSource {
        NFSVolumeSource { server: server.to_owned(), path: path.to_owned(), read_only: None }
    }

    #[test]
    fn options_end_before_what_the_author_wrote() {
        let args = arguments(&share("fd00::1", "/x"), &["nolock".to_owned()], Path::new("/t")).unwrap();
        assert_eq!(args, ["-t", "nfs", "-o", "nolock", "--", "[fd00::1]:/x", "/t"]);
        for server in ["nas", "nas.lan", "10.0.0.1", "fe80::1%eth0", "my_nas", "nas."] {
            assert!(arguments(&share(server, "/x"), &[], Path::new("/t")).is_ok(), "{server}");
        }
    }

    // security.md C3: the server `--fstab=/var/lib/kubelet/pods/…/a` let mount(8) read a table that a pod wrote.
    #[test]
    fn a_server_that_is_no_host_is_refused() {
        for server in ["--fstab=/tmp/a", "-o", "", "a b", "a/b", "a,b", "-nas", "nas.-x", "fe80::1%", "fe80::1%a/b"] {
            assert!(arguments(&share(server, "/f"), &[], Path::new("/t")).is_err(), "{server}");
        }
        assert!(arguments(&share("nas", "f"), &[], Path::new("/t")).is_err());
    }
}
