//! Key management plugins of Kubernetes, version 2: `k8s.io/kms/apis/v2`, and what is stored of a value that one of
//! them guards.

use std::collections::HashMap;

/// Path of the call that asks how the plugin is.
pub const STATUS: &str = "/v2.KeyManagementService/Status";
/// Path of the call that encrypts.
pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
/// Path of the call that decrypts.
pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// Asks how the plugin is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

/// How the plugin is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// `v2` or `v2beta1`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// `ok`, or what is wrong.
    #[prost(string, tag = "2")]
    pub healthz: String,
    /// The key that encrypts now.
    #[prost(string, tag = "3")]
    pub key_id: String,
}

/// Asks to decrypt.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptRequest {
    /// As an encryption gave it.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// For logs.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// As the encryption gave it.
    #[prost(string, tag = "3")]
    pub key_id: String,
    /// As the encryption gave them.
    #[prost(map = "string, bytes", tag = "4")]
    pub annotations: HashMap<String, Vec<u8>>,
}

/// The plain text.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptResponse {
    /// The plain bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

/// Asks to encrypt.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptRequest {
    /// The plain bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    /// For logs.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// The encrypted bytes, and what is needed to decrypt them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptResponse {
    /// Encrypted.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// With which key.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// Annotations that the plugin wants to see again.
    #[prost(map = "string, bytes", tag = "3")]
    pub annotations: HashMap<String, Vec<u8>>,
}

/// A stored value, behind its prefix.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptedObject {
    /// The value, encrypted with what `encrypted_dek_source` holds.
    #[prost(bytes = "vec", tag = "1")]
    pub encrypted_data: Vec<u8>,
    /// The plugin's key.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// The key of the value or its seed, encrypted by the plugin.
    #[prost(bytes = "vec", tag = "3")]
    pub encrypted_dek_source: Vec<u8>,
    /// For the plugin.
    #[prost(map = "string, bytes", tag = "4")]
    pub annotations: HashMap<String, Vec<u8>>,
    /// 0: a key of AES-GCM; 1: a seed of such keys.
    #[prost(int32, tag = "5")]
    pub encrypted_dek_source_type: i32,
}
