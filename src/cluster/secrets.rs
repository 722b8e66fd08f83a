//! What must be equal on all servers: the authorities with their keys, the service-account key, the join tokens, the
//! keys of encryption at rest. It travels once, in the answer to a server that joins, and lies in files after that: it
//! depends on no token.

use std::collections::BTreeMap;
use std::path::Path;

use base::files::{self, FileError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::leaf::Ca;

/// Files by their path below `<data-dir>/server`, each in base64.
pub type Secrets = BTreeMap<String, String>;

/// The files in the order in which they are written: keys before their certificates, so that a certificate is never
/// without one.
fn names() -> Vec<String> {
    let authorities = Ca::ALL.iter().flat_map(|ca| ["key", "crt"].map(|ending| format!("tls/{}.{ending}", ca.stem())));
    let others = ["tls/service.key", "token", "agent-token", "cred/join-tokens", "cred/encryption-config.json"]
        .map(str::to_owned);
    authorities.chain(others).collect()
}

/// Reads the files below `server_dir`; those that are not there are left out, and so are links.
pub fn collect(server_dir: &Path) -> Result<Secrets, FileError> {
    let mut secrets = Secrets::new();
    for name in names() {
        let path = server_dir.join(&name);
        if path.is_symlink() {
            continue;
        }
        if let Some(bytes) = files::read_if_exists(&path)? {
            secrets.insert(name, STANDARD.encode(bytes));
        }
    }
    Ok(secrets)
}

/// Writes the files below `server_dir`, readable for the owner alone. What is no secret of a cluster is not written.
pub fn write(server_dir: &Path, secrets: &Secrets) -> Result<(), FileError> {
    for name in names() {
        let Some(bytes) = secrets.get(&name).and_then(|text| STANDARD.decode(text).ok()) else { continue };
        let path = server_dir.join(&name);
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
        let mut secrets = collect(from.path()).unwrap();
        assert_eq!(secrets.len(), 3);
        secrets.insert("../outside".to_owned(), STANDARD.encode("x"));
        write(to.path(), &secrets).unwrap();
        assert_eq!(collect(to.path()).unwrap(), collect(from.path()).unwrap());
        assert!(!to.path().parent().unwrap().join("outside").exists());
    }
}
