//! Writing kubeconfig files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A kubeconfig with one cluster, user and context, all named `default`; the three PEM texts are embedded.
pub fn kubeconfig(server_url: &str, ca_pem: &str, cert_pem: &str, key_pem: &str) -> String {
    let (ca, cert, key) = (STANDARD.encode(ca_pem), STANDARD.encode(cert_pem), STANDARD.encode(key_pem));
    let user = format!("    client-certificate-data: {cert}\n    client-key-data: {key}\n");
    document(server_url, &ca, &user)
}

/// The same for a user with a bearer token.
pub fn token_kubeconfig(server_url: &str, ca_pem: &str, token: &str) -> String {
    // JSON's quoting of a string is also YAML's.
    let user = format!("    token: {}\n", serde_json::Value::from(token));
    document(server_url, &STANDARD.encode(ca_pem), &user)
}

fn document(server_url: &str, ca: &str, user: &str) -> String {
    let server = serde_json::Value::from(server_url);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n\
         contexts:\n- name: default\n  context:\n    cluster: default\n    user: default\ncurrent-context: default\npreferences: {{}}\n\
         users:\n- name: default\n  user:\n{user}"
    )
}
