//! Writing kubeconfig files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A kubeconfig with one cluster, user and context, all named `default`.
#[derive(Clone, Copy)]
pub struct Kubeconfig<'a> {
    /// Where the API is.
    pub server_url: &'a str,
    /// Authorities of the API's certificate, PEM.
    pub ca_pem: &'a str,
    /// The user's certificate, PEM.
    pub cert_pem: &'a str,
    /// Its key, PEM.
    pub key_pem: &'a str,
}

impl Kubeconfig<'_> {
    /// The file's text; the three PEM texts are embedded.
    pub fn text(&self) -> String {
        // JSON's quoting of a string is also YAML's.
        let server = serde_json::Value::from(self.server_url);
        let [ca, cert, key] = [self.ca_pem, self.cert_pem, self.key_pem].map(|pem| STANDARD.encode(pem));
        format!(
            "apiVersion: v1\nkind: Config\n\
             clusters:\n- name: default\n  cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n\
             contexts:\n- name: default\n  context:\n    cluster: default\n    user: default\n\
             current-context: default\npreferences: {{}}\n\
             users:\n- name: default\n  user:\n\
             \x20   client-certificate-data: {cert}\n    client-key-data: {key}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_yaml_with_everything_in_it() {
        let given = Kubeconfig { server_url: "https://[fd00::1]:6443", ca_pem: "ca", cert_pem: "cert", key_pem: "key" };
        let want = "apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    certificate-authority-data: Y2E=
    server: \"https://[fd00::1]:6443\"
contexts:
- name: default
  context:
    cluster: default
    user: default
current-context: default
preferences: {}
users:
- name: default
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
";
        assert_eq!(given.text(), want);
    }
}
