//! A machine's own key: made once, kept outside of the data dir, and the proof that a node's name is still the same
//! machine's.

use std::path::Path;

use base::files::{create_private_dir, read_if_exists, write_atomic};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::error::PkiError;

/// A P-256 key pair that belongs to one machine.
pub struct NodeKey(KeyPair);

/// Contents of the file.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// The machine on which the key was made: a copied disk shows itself by another one.
    machine_id: String,
    /// PKCS #8, PEM.
    key: String,
}

impl NodeKey {
    /// Opens the key in `path`, or makes one. A key that was made under another machine id came with a copied disk: it
    /// is replaced, so that two machines never claim to be one. (`machine_id` may be empty where a machine has none.)
    pub fn load_or_create(path: &Path, machine_id: &str) -> Result<NodeKey, PkiError> {
        if let Some(bytes) = read_if_exists(path)? {
            let stored: Stored =
                serde_json::from_slice(&bytes).map_err(|err| PkiError::malformed("node key", err).in_file(path))?;
            if stored.machine_id == machine_id {
                return KeyPair::from_pem(&stored.key)
                    .map(NodeKey)
                    .map_err(|err| PkiError::malformed("node key", err).in_file(path));
            }
        }
        let refused = |source| PkiError::Issue { subject: "node key".to_owned(), source };
        let key = KeyPair::generate().map_err(refused)?;
        let stored = Stored { machine_id: machine_id.to_owned(), key: key.serialize_pem() };
        if let Some(dir) = path.parent() {
            create_private_dir(dir)?;
        }
        let text = serde_json::to_vec(&stored).map_err(|err| PkiError::malformed("node key", err))?;
        write_atomic(path, &text, 0o600)?;
        Ok(NodeKey(key))
    }

    /// The public half, base64.
    pub fn public(&self) -> String {
        STANDARD.encode(self.0.der_bytes())
    }

    /// Signs `message`; base64.
    pub fn sign(&self, message: &[u8]) -> Result<String, PkiError> {
        self.0.sign(message).map(|signature| STANDARD.encode(signature)).map_err(|_| PkiError::Sign)
    }
}

/// Whether `signature` over `message` was made with the key whose public half is `public`.
pub fn verify(public: &str, message: &[u8], signature: &str) -> bool {
    let (Ok(public), Ok(signature)) = (STANDARD.decode(public), STANDARD.decode(signature)) else { return false };
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, public).verify(message, &signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_a_restart_and_proves_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node/key");
        let first = NodeKey::load_or_create(&path, "m1").unwrap();
        let again = NodeKey::load_or_create(&path, "m1").unwrap();
        assert_eq!(first.public(), again.public());
        let signature = again.sign(b"hello").unwrap();
        assert!(verify(&first.public(), b"hello", &signature));
        assert!(!verify(&first.public(), b"hallo", &signature));
        assert!(!verify("junk", b"hello", "junk"));
    }

    #[test]
    fn a_copied_disk_gets_a_key_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let original = NodeKey::load_or_create(&path, "m1").unwrap().public();
        assert_ne!(NodeKey::load_or_create(&path, "m2").unwrap().public(), original);
    }
}
