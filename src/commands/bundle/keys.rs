//! Keys and signatures of bundles: Ed25519, in the forms of minisign, so that `minisign -V` can check them, too.
//!
//! A signing key is PKCS #8 in PEM, as `openssl genpkey -algorithm ed25519` writes it. A public key is minisign's, or
//! what `openssl pkey -pubout` writes. Signatures are minisign's without a hash before (`Ed`): a manifest is small.

use std::fmt;
use std::path::{Path, PathBuf};

use base::confined::Dir;
use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

/// Bytes of a file with a key.
const KEY_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a signature's text.
pub(super) const SIGNATURE_BYTES_MAX: u64 = 4096;
/// minisign's name of signatures over the content itself.
const PLAIN: &[u8; 2] = b"Ed";
/// minisign's name of signatures over a sum of the content.
const HASHED: &[u8; 2] = b"ED";
const UNTRUSTED: &str = "untrusted comment: ";
const TRUSTED: &str = "trusted comment: ";
/// Before the 32 bytes of a key in PKCS #8, version 1, and in a SubjectPublicKeyInfo (RFC 8410).
const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
/// Bytes of the parts of minisign's forms.
const ID: usize = 8;
const KEY: usize = 32;
const SIGNATURE: usize = 64;

/// A key or signature that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot read the key {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} is no Ed25519 signing key in PEM (PKCS #8): make one with 'kedge bundle keygen' or 'openssl genpkey \
         -algorithm ed25519'",
        path = path.display()
    )]
    NoSigningKey { path: PathBuf },
    #[error("{path} is readable for others than its owner: chmod 600 it", path = path.display())]
    Open { path: PathBuf },
    #[error(
        "{path} is no public key: give minisign's (RW…) or one in PEM, as 'kedge bundle keygen' and 'openssl pkey \
         -pubout' write them",
        path = path.display()
    )]
    NoPublicKey { path: PathBuf },
    #[error("cannot read {path}", path = path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("no random bytes")]
    Random,
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// A signature that does not vouch for a bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("it bears no signature, and --key asks for one")]
    Missing,
    #[error("its signature is not in minisign's form")]
    Form,
    #[error("its signature is over a sum of the manifest (ED), and kedge checks those over the manifest itself (Ed)")]
    Hashed,
    #[error("it is signed by the key {by}, and --key is {wanted}")]
    OtherKey { by: KeyId, wanted: KeyId },
    #[error("its signature by {0} does not fit its content: it is another bundle's, or was changed")]
    Wrong(KeyId),
}

/// minisign's name of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId([u8; ID]);

impl fmt::Display for KeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // minisign prints it as a little-endian number.
        self.0.iter().rev().try_for_each(|byte| write!(out, "{byte:02X}"))
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublicKey {
    id: KeyId,
    key: [u8; KEY],
}

impl PublicKey {
    fn of(key: [u8; KEY]) -> PublicKey {
        let sum = ring::digest::digest(&ring::digest::SHA256, &key);
        PublicKey { id: KeyId(head(sum.as_ref())), key }
    }

    /// Reads a file with a public key.
    pub(super) fn read(path: &Path) -> Result<PublicKey, KeyError> {
        let text = bytes_of(path)?;
        PublicKey::parse(&text).ok_or_else(|| KeyError::NoPublicKey { path: path.to_owned() })
    }

    fn parse(text: &[u8]) -> Option<PublicKey> {
        if let Ok(der) = SubjectPublicKeyInfoDer::from_pem_slice(text) {
            let key = der.as_ref().strip_prefix(&SPKI_HEAD)?;
            return Some(PublicKey::of(key.try_into().ok()?));
        }
        let text = std::str::from_utf8(text).ok()?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with(UNTRUSTED))?;
        let bytes = STANDARD.decode(line).ok()?;
        let rest = bytes.strip_prefix(PLAIN)?;
        let (id, key) = rest.split_at_checked(ID)?;
        Some(PublicKey { id: KeyId(head(id)), key: key.try_into().ok()? })
    }

    /// minisign's form.
    fn text(&self) -> String {
        let bytes = [&PLAIN[..], &self.id.0, &self.key].concat();
        format!("{UNTRUSTED}minisign public key {}\n{}\n", self.id, STANDARD.encode(bytes))
    }

    fn fits(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.key).verify(message, signature).is_ok()
    }
}

/// A key that signs.
pub(super) struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads a file with a private key, which its owner alone may read.
    pub(super) fn read(path: &Path) -> Result<SigningKey, KeyError> {
        use std::os::unix::fs::PermissionsExt as _;
        let meta = std::fs::metadata(path).map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned() });
        }
        let text = Secret::new(bytes_of(path)?);
        let none = || KeyError::NoSigningKey { path: path.to_owned() };
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.expose()).map_err(|_| none())?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(SigningKey).map_err(|_| none())
    }

    fn public(&self) -> PublicKey {
        let mut key = [0; KEY];
        key.copy_from_slice(self.0.public_key().as_ref());
        PublicKey::of(key)
    }

    /// The text of a signature of `manifest`; `comment` is signed with it.
    pub(super) fn sign(&self, manifest: &[u8], comment: &str) -> String {
        let signature = self.0.sign(manifest);
        let whole = self.0.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        let id = self.public().id;
        let bytes = [&PLAIN[..], &id.0, signature.as_ref()].concat();
        format!(
            "{UNTRUSTED}signature by the minisign key {id}\n{}\n{TRUSTED}{comment}\n{}\n",
            STANDARD.encode(bytes),
            STANDARD.encode(whole.as_ref())
        )
    }
}

/// A signature as it stands in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) by: KeyId,
    signature: [u8; SIGNATURE],
    pub(super) comment: String,
    whole: [u8; SIGNATURE],
}

impl Signature {
    /// Reads minisign's form, and nothing that differs from it by a byte.
    pub(super) fn parse(text: &[u8]) -> Result<Signature, SignatureError> {
        let parse = || {
            let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
            let lines: Vec<&str> = text.split('\n').collect();
            let [untrusted, first, trusted, second] = lines[..] else { return None };
            untrusted.strip_prefix(UNTRUSTED)?;
            let comment = trusted.strip_prefix(TRUSTED)?.to_owned();
            Some((STANDARD.decode(first).ok()?, comment, STANDARD.decode(second).ok()?))
        };
        let (bytes, comment, whole) = parse().ok_or(SignatureError::Form)?;
        let rest = match bytes.strip_prefix(PLAIN) {
            Some(rest) => rest,
            None if bytes.starts_with(HASHED) => return Err(SignatureError::Hashed),
            None => return Err(SignatureError::Form),
        };
        let (id, signature) = rest.split_at_checked(ID).ok_or(SignatureError::Form)?;
        Ok(Signature {
            by: KeyId(head(id)),
            signature: signature.try_into().map_err(|_| SignatureError::Form)?,
            comment,
            whole: whole.try_into().map_err(|_| SignatureError::Form)?,
        })
    }

    /// Errors: `key` does not vouch for `manifest` by this signature.
    pub(super) fn check(&self, manifest: &[u8], key: &PublicKey) -> Result<(), SignatureError> {
        if self.by != key.id {
            return Err(SignatureError::OtherKey { by: self.by, wanted: key.id });
        }
        let whole = [&self.signature[..], self.comment.as_bytes()].concat();
        if !key.fits(manifest, &self.signature) || !key.fits(&whole, &self.whole) {
            return Err(SignatureError::Wrong(self.by));
        }
        Ok(())
    }
}

/// Makes a pair of keys: the private one in `path`, which must not be there yet, the public one in `path.pub`.
pub(super) fn generate(path: &Path) -> Result<(KeyId, PathBuf), KeyError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| KeyError::Write { path, source }
    };
    let mut seed = [0; KEY];
    SystemRandom::new().fill(&mut seed).map_err(|_| KeyError::Random)?;
    let der = [&PKCS8_HEAD[..], &seed].concat();
    let none = |_| KeyError::NoSigningKey { path: path.to_owned() };
    let key = SigningKey(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(none)?).public();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der));
    let mut public = path.as_os_str().to_owned();
    public.push(".pub");
    let public = PathBuf::from(public);
    for (path, text, mode) in [(path, pem, 0o600), (&public, key.text(), 0o644)] {
        use std::io::Write as _;
        let whole = std::path::absolute(path).map_err(failed(path))?;
        let (dir, name) = Dir::of_file(&whole).map_err(failed(path))?;
        let mut file = dir.create_new(&name, mode).map_err(failed(path))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed(path))?;
    }
    Ok((key.id, public))
}

/// Signs a file of any kind. Answers with the signature's file, which lies beside it.
pub(super) fn sign_file(path: &Path, key: &Path) -> Result<PathBuf, KeyError> {
    let key = SigningKey::read(key)?;
    let content = std::fs::read(path).map_err(|source| KeyError::File { path: path.to_owned(), source })?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut signature = path.as_os_str().to_owned();
    signature.push(".minisig");
    let signature = PathBuf::from(signature);
    let text = key.sign(&content, &format!("file:{name}"));
    base::files::write_atomic(&signature, text.as_bytes(), 0o644)
        .map_err(|err| KeyError::Write { path: signature.clone(), source: err.source })?;
    Ok(signature)
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, KeyError> {
    let read = || {
        let (dir, name) = Dir::of_file(&std::fs::canonicalize(path)?)?;
        dir.read(&name, KEY_BYTES_MAX)
    };
    read().map_err(|source| KeyError::Read { path: path.to_owned(), source })
}

/// The first bytes of what is long enough.
fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn pair(dir: &Path, name: &str) -> (SigningKey, PublicKey) {
        let path = dir.join(name);
        let (id, public) = generate(&path).unwrap();
        let public = PublicKey::read(&public).unwrap();
        assert_eq!(public.id, id);
        (SigningKey::read(&path).unwrap(), public)
    }

    #[test]
    fn a_signature_vouches_for_its_manifest_by_its_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let ((one, public), (_, other)) = (pair(dir.path(), "one"), pair(dir.path(), "other"));
        let text = one.sign(b"manifest", "kedge 1");
        let signature = Signature::parse(text.as_bytes()).unwrap();
        signature.check(b"manifest", &public).unwrap();
        assert!(matches!(signature.check(b"manifest", &other), Err(SignatureError::OtherKey { .. })));
        assert!(matches!(signature.check(b"manifesto", &public), Err(SignatureError::Wrong(_))));
        // The same name of a key, and another key.
        let forged = PublicKey { id: public.id, key: other.key };
        assert!(matches!(signature.check(b"manifest", &forged), Err(SignatureError::Wrong(_))));
        let commented = Signature { comment: "kedge 2".to_owned(), ..signature };
        assert!(matches!(commented.check(b"manifest", &public), Err(SignatureError::Wrong(_))));
    }

    #[test]
    fn no_changed_byte_of_a_signature_passes() {
        let dir = tempfile::tempdir().unwrap();
        let (key, public) = pair(dir.path(), "k");
        let text = key.sign(b"manifest", "kedge 1").into_bytes();
        let untrusted = text.iter().position(|byte| *byte == b'\n').unwrap();
        for at in UNTRUSTED.len()..text.len() {
            let mut bytes = text.clone();
            bytes[at] ^= 1;
            let read = Signature::parse(&bytes);
            let passes = read.is_ok_and(|signature| signature.check(b"manifest", &public).is_ok());
            // The first comment is signed by nobody, as minisign says.
            assert_eq!(passes, at < untrusted && bytes[at] != b'\n' && bytes[at].is_ascii(), "byte {at}");
        }
        assert!(matches!(Signature::parse(b""), Err(SignatureError::Form)));
    }

    #[test]
    fn keys_are_read_in_the_forms_of_minisign_and_openssl() {
        let dir = tempfile::tempdir().unwrap();
        let (_, public) = pair(dir.path(), "k");
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            STANDARD.encode([&SPKI_HEAD[..], &public.key].concat())
        );
        assert_eq!(PublicKey::parse(pem.as_bytes()), Some(public.clone()));
        let text = public.text();
        assert_eq!(PublicKey::parse(text.lines().nth(1).unwrap().as_bytes()), Some(public));
        for bad in ["", "RW", "RWQ=", "untrusted comment: x\n", "\u{fc}", "-----BEGIN PUBLIC KEY-----\nAAAA\n"] {
            assert_eq!(PublicKey::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_signing_key_is_private_and_none_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        generate(&path).unwrap();
        assert!(matches!(generate(&path), Err(KeyError::Write { .. })));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SigningKey::read(&path), Err(KeyError::Open { .. })));
        assert!(matches!(SigningKey::read(&dir.path().join("none")), Err(KeyError::Read { .. })));
        let public = dir.path().join("k.pub");
        std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(SigningKey::read(&public), Err(KeyError::NoSigningKey { .. })));
    }
}
