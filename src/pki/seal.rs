//! Sealing values at rest, in upstream's formats: `k8s:enc:<provider>:v1:<key>:` and the ciphertext.
//!
//! What one of these wrote, kube-apiserver reads with the same keys, and the other way round.

use std::num::NonZeroU32;

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut as _, BlockEncryptMut as _, KeyIvInit as _};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use base::rng::Rng;
use base::secret::Secret;
use crypto_secretbox::XSalsa20Poly1305;
use sha2::{Digest as _, Sha256};

/// Bytes of a block of AES, and of the vector in front of a CBC text.
const BLOCK: usize = 16;
/// Bytes of GCM's nonce.
const GCM_NONCE: usize = 12;
/// Bytes that make one key of a seed another than the next.
const DERIVATION: usize = 32;
/// Bytes of secretbox's nonce.
const BOX_NONCE: usize = 24;

/// How values are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-CBC with PKCS #7 padding.
    AesCbc,
    /// AES-GCM with a random nonce.
    AesGcm,
    /// XSalsa20 and Poly1305.
    Secretbox,
}

/// A named key.
#[derive(Clone)]
pub struct Key {
    /// As the configuration names it; stands in the prefix.
    pub name: String,
    /// 16, 24 or 32 bytes; 32 for secretbox.
    pub secret: Secret<Vec<u8>>,
}

impl Cipher {
    /// As the configuration and the prefix name it.
    pub fn name(self) -> &'static str {
        match self {
            Cipher::AesCbc => "aescbc",
            Cipher::AesGcm => "aesgcm",
            Cipher::Secretbox => "secretbox",
        }
    }

    /// Whether a key may be this long.
    pub fn takes_key_of(self, bytes: usize) -> bool {
        bytes == 32 || (self != Cipher::Secretbox && matches!(bytes, 16 | 24))
    }

    /// Prefix of a value that is sealed with this key.
    pub fn prefix(self, key: &str) -> String {
        format!("k8s:enc:{}:v1:{key}:", self.name())
    }

    /// The sealed value, prefix included. `context` is the key in the store: a value moved elsewhere does not open
    /// (AES-GCM).
    pub fn seal(self, key: &Key, context: &[u8], plain: &[u8], rng: &Rng) -> Option<Vec<u8>> {
        let secret = key.secret.expose();
        let mut out = self.prefix(&key.name).into_bytes();
        match self {
            Cipher::AesCbc => {
                let mut iv = [0; BLOCK];
                rng.fill(&mut iv);
                let text = match secret.len() {
                    16 => cbc::Encryptor::<Aes128>::new_from_slices(secret, &iv)
                        .ok()?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                    24 => cbc::Encryptor::<Aes192>::new_from_slices(secret, &iv)
                        .ok()?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                    _ => cbc::Encryptor::<Aes256>::new_from_slices(secret, &iv)
                        .ok()?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                };
                out.extend_from_slice(&iv);
                out.extend(text);
            }
            Cipher::AesGcm => {
                let mut nonce = [0; GCM_NONCE];
                rng.fill(&mut nonce);
                let payload = Payload { msg: plain, aad: context };
                let at = &nonce.into();
                let text = match secret.len() {
                    16 => AesGcm::<Aes128, U12>::new_from_slice(secret).ok()?.encrypt(at, payload),
                    24 => AesGcm::<Aes192, U12>::new_from_slice(secret).ok()?.encrypt(at, payload),
                    _ => AesGcm::<Aes256, U12>::new_from_slice(secret).ok()?.encrypt(at, payload),
                };
                out.extend_from_slice(&nonce);
                out.extend(text.ok()?);
            }
            Cipher::Secretbox => {
                let mut nonce = [0; BOX_NONCE];
                rng.fill(&mut nonce);
                let text = XSalsa20Poly1305::new_from_slice(secret).ok()?.encrypt(&nonce.into(), plain);
                out.extend_from_slice(&nonce);
                out.extend(text.ok()?);
            }
        }
        Some(out)
    }

    /// Opens a sealed text; `text` begins behind the prefix. `None`: another key, another place, or not whole.
    pub fn open(self, key: &Key, context: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let secret = key.secret.expose();
        match self {
            Cipher::AesCbc => {
                let (iv, text) = text.split_at_checked(BLOCK)?;
                match secret.len() {
                    16 => cbc::Decryptor::<Aes128>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(text)
                        .ok(),
                    24 => cbc::Decryptor::<Aes192>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(text)
                        .ok(),
                    _ => cbc::Decryptor::<Aes256>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(text)
                        .ok(),
                }
            }
            Cipher::AesGcm => {
                let (nonce, text) = text.split_at_checked(GCM_NONCE)?;
                let payload = Payload { msg: text, aad: context };
                let at = &<[u8; GCM_NONCE]>::try_from(nonce).ok()?.into();
                match secret.len() {
                    16 => AesGcm::<Aes128, U12>::new_from_slice(secret).ok()?.decrypt(at, payload).ok(),
                    24 => AesGcm::<Aes192, U12>::new_from_slice(secret).ok()?.decrypt(at, payload).ok(),
                    _ => AesGcm::<Aes256, U12>::new_from_slice(secret).ok()?.decrypt(at, payload).ok(),
                }
            }
            Cipher::Secretbox => {
                let (nonce, text) = text.split_at_checked(BOX_NONCE)?;
                XSalsa20Poly1305::new_from_slice(secret)
                    .ok()?
                    .decrypt(&<[u8; BOX_NONCE]>::try_from(nonce).ok()?.into(), text)
                    .ok()
            }
        }
    }
}

/// Work for each guess at a password that a key was made from.
const GUESS_ITERATIONS: NonZeroU32 = NonZeroU32::new(200_000).expect("it is not zero");

/// A key from a password that a person may have chosen; `salt` makes it another one for each use.
pub fn key_from_password(name: &str, password: &Secret<String>, salt: &[u8]) -> Key {
    let mut key = [0; 32];
    ring::pbkdf2::derive(
        ring::pbkdf2::PBKDF2_HMAC_SHA256,
        GUESS_ITERATIONS,
        salt,
        password.expose().as_bytes(),
        &mut key,
    );
    Key { name: name.to_owned(), secret: Secret::new(key.to_vec()) }
}

/// Seals messages among servers where others can read and write, with a text that all servers, and they alone, hold.
pub struct AmongServers {
    key: Key,
    context: &'static str,
}

/// Purpose of a seal among servers: a message that was sealed for one is not taken for another.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// Stands before what is sealed.
    pub name: &'static str,
    /// Part of the key and of the seal.
    pub context: &'static str,
}

impl AmongServers {
    /// `service_key` is the text of `tls/service.key`.
    pub fn new(purpose: Purpose, service_key: &str) -> AmongServers {
        let Purpose { name, context } = purpose;
        let secret = Sha256::new().chain_update(context).chain_update(service_key.trim()).finalize().to_vec();
        AmongServers { key: Key { name: name.to_owned(), secret: Secret::new(secret) }, context }
    }

    /// For a place that others read and write.
    pub fn seal(&self, plain: &[u8], rng: &Rng) -> Option<Vec<u8>> {
        Cipher::AesGcm.seal(&self.key, self.context.as_bytes(), plain, rng)
    }

    /// The reverse; `None` if no server of this cluster sealed it for this purpose.
    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let text = sealed.strip_prefix(Cipher::AesGcm.prefix(&self.key.name).as_bytes())?;
        Cipher::AesGcm.open(&self.key, self.context.as_bytes(), text)
    }
}

/// Seals with a key of its own, derived from `seed` (32 bytes): upstream's form for key management plugins, without a
/// prefix.
pub fn with_seed(seed: &[u8], context: &[u8], plain: &[u8], rng: &Rng) -> Option<Vec<u8>> {
    let (mut derivation, mut nonce) = ([0; DERIVATION], [0; GCM_NONCE]);
    rng.fill(&mut derivation);
    rng.fill(&mut nonce);
    let key = derived(seed, &derivation)?;
    let text = key.encrypt(&nonce.into(), Payload { msg: plain, aad: context }).ok()?;
    Some([derivation.as_slice(), &nonce, &text].concat())
}

/// Opens a text that [`with_seed`] sealed. `None`: another seed, another place, or not whole.
pub fn open_with_seed(seed: &[u8], context: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let (derivation, text) = text.split_at_checked(DERIVATION)?;
    let (nonce, text) = text.split_at_checked(GCM_NONCE)?;
    let nonce = <[u8; GCM_NONCE]>::try_from(nonce).ok()?;
    derived(seed, derivation)?.decrypt(&nonce.into(), Payload { msg: text, aad: context }).ok()
}

/// HKDF's second half, with SHA-256: the seed is as random as a key already.
fn derived(seed: &[u8], derivation: &[u8]) -> Option<AesGcm<Aes256, U12>> {
    let seed = ring::hkdf::Prk::new_less_safe(ring::hkdf::HKDF_SHA256, seed);
    let mut key = [0; 32];
    seed.expand(&[derivation], ring::hkdf::HKDF_SHA256).ok()?.fill(&mut key).ok()?;
    AesGcm::<Aes256, U12>::new_from_slice(&key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: usize) -> Key {
        Key { name: "k".into(), secret: Secret::new(vec![7; bytes]) }
    }

    #[test]
    fn what_was_sealed_opens_with_its_key_and_no_other() {
        let rng = Rng::from_seed(1);
        for cipher in [Cipher::AesCbc, Cipher::AesGcm, Cipher::Secretbox] {
            for bytes in [16, 24, 32] {
                if !cipher.takes_key_of(bytes) {
                    continue;
                }
                let sealed = cipher.seal(&key(bytes), b"/registry/x", b"value", &rng).unwrap();
                let text = sealed.strip_prefix(cipher.prefix("k").as_bytes()).unwrap();
                assert_eq!(cipher.open(&key(bytes), b"/registry/x", text).unwrap(), b"value");
                let other = Key { secret: Secret::new(vec![8; bytes]), ..key(bytes) };
                assert_ne!(cipher.open(&other, b"/registry/x", text).as_deref(), Some(&b"value"[..]));
            }
        }
    }

    #[test]
    fn only_servers_seal_what_servers_open() {
        let one = Purpose { name: "tokens", context: "one purpose" };
        let another = Purpose { name: "tokens", context: "another" };
        let (ours, rng) = (AmongServers::new(one, "key\n"), Rng::from_seed(1));
        let sealed = ours.seal(b"value", &rng).unwrap();
        assert_eq!(AmongServers::new(one, "key").open(&sealed).unwrap(), b"value");
        assert!(AmongServers::new(another, "key").open(&sealed).is_none());
        assert!(AmongServers::new(one, "other").open(&sealed).is_none());
        assert!(ours.open(b"value").is_none() && ours.open(&sealed[..sealed.len() - 1]).is_none());
    }

    #[test]
    fn every_value_under_a_seed_has_a_key_of_its_own() {
        let (seed, rng) = ([9; 32], Rng::from_seed(1));
        let seal = || with_seed(&seed, b"/a", b"value", &rng).unwrap();
        let (one, two) = (seal(), seal());
        assert_ne!(one[..DERIVATION], two[..DERIVATION]);
        assert_eq!(open_with_seed(&seed, b"/a", &one).unwrap(), b"value");
        assert!(open_with_seed(&[8; 32], b"/a", &one).is_none() && open_with_seed(&seed, b"/b", &one).is_none());
        assert!(open_with_seed(&seed, b"/a", &one[..40]).is_none());
    }

    #[test]
    fn a_gcm_value_does_not_open_elsewhere_and_short_texts_do_not_panic() {
        let sealed = Cipher::AesGcm.seal(&key(32), b"/a", b"value", &Rng::from_seed(1)).unwrap();
        assert!(Cipher::AesGcm.open(&key(32), b"/b", &sealed["k8s:enc:aesgcm:v1:k:".len()..]).is_none());
        for cipher in [Cipher::AesCbc, Cipher::AesGcm, Cipher::Secretbox] {
            assert!(cipher.open(&key(32), b"/a", b"x").is_none());
        }
    }
}
