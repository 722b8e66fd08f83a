//! Secrets that must be equal on all servers: the authorities with their keys, the service-account key, the join
//! tokens, the keys of encryption at rest. It travels once, in the answer to a server that joins, and lies in files
//! after that: it depends on no token.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base::files::{self, FileError};
use base::layout::ServerFolder;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::folder;
use pki::leaf::Ca;

/// Files by their path below `<data-dir>/server`, each in base64.
pub type Secrets = BTreeMap<String, String>;

/// The files in the order in which they are written: keys before their certificates, so that a certificate is never
/// without one.
fn names() -> Vec<PathBuf> {
    let inner = ServerFolder::relative();
    let tls = inner.tls();
    let authorities = Ca::ALL.iter().map(|ca| ca.stem());
    let authorities = authorities.flat_map(|stem| [folder::key(&tls, stem), folder::certificate(&tls, stem)]);
    let others = [
        folder::service_key(&tls),
        inner.token(),
        inner.agent_token(),
        inner.tokens_set_at(),
        inner.encryption_config(),
    ];
    authorities.chain(others).collect()
}

/// Reads the files of a server; those that are not there are left out, and so are links.
pub fn collect(server: &ServerFolder) -> Result<Secrets, FileError> {
    let mut secrets = Secrets::new();
    for name in names() {
        let path = server.path().join(&name);
        if path.is_symlink() {
            continue;
        }
        if let Some(bytes) = files::read_if_exists(&path)? {
            secrets.insert(name.to_string_lossy().into_owned(), STANDARD.encode(bytes));
        }
    }
    Ok(secrets)
}

/// Writes the files of a server, readable for the owner alone. What is no secret of a cluster is not written.
pub fn write(server: &ServerFolder, secrets: &Secrets) -> Result<(), FileError> {
    for name in names() {
        let text = secrets.get(name.to_string_lossy().as_ref());
        let Some(bytes) = text.and_then(|text| STANDARD.decode(text).ok()) else { continue };
        let path = server.path().join(&name);
        if let Some(dir) = path.parent() {
            files::create_private_dir(dir)?;
        }
        files::write_atomic(&path, &bytes, 0o600)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_arrive_as_they_left_and_nothing_else_is_written() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, text) in [
            ("tls/server-ca.key", "k"),
            ("tls/etcd/peer-ca.crt", "c"),
            ("cred/encryption-config.json", "{}"),
            ("other", "x"),
        ] {
            let path = from.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("token", from.path().join("agent-token")).unwrap();
        let (source, target) = (ServerFolder::new(from.path()), ServerFolder::new(to.path()));
        let mut secrets = collect(&source).unwrap();
        assert_eq!(secrets.len(), 3);
        secrets.insert("../outside".to_owned(), STANDARD.encode("x"));
        write(&target, &secrets).unwrap();
        assert_eq!(collect(&target).unwrap(), collect(&source).unwrap());
        assert!(!to.path().parent().unwrap().join("outside").exists());
    }
}
