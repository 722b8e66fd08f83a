//! Identities: certificate authorities, certificates, TLS set-ups, tokens, and service-account signatures.
//!
//! In: a directory, a clock, names and addresses. Out: certificates that renew and swap while connections run,
//! rustls configurations, signed and verified tokens. It never knows kinds, storage or HTTP.

pub mod anchors;
pub mod authority;
pub mod bundle;
pub mod certstore;
pub mod csr;
pub mod error;
pub mod folder;
pub mod identity;
pub mod jwk;
pub mod jwt;
pub mod kubeconfig;
pub mod leaf;
pub mod node_key;
pub mod pem;
pub mod replace;
mod resign;
pub mod seal;
pub mod server;
mod service_key;
pub mod tls;
pub mod token;
mod verifiers;

#[cfg(test)]
mod fuzz_tests;
