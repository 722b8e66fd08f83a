//! The credentials that a pod brings for an image: of all its pull secrets, all that fit.

use base64::Engine as _;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;

use crate::known::Known;
use crate::providers::config::{Pattern, repository};
use crate::registries;

/// Credentials that are tried for one image.
const TRIES_MAX: usize = 32;

/// The pod's credentials for an image, the most exact first. Secrets that are missing or are none are passed over, as
/// upstream.
pub(super) async fn of_pod(known: &Known, pod: &Pod, image: &str) -> Vec<cri::AuthConfig> {
    let mut found = Vec::new();
    for name in pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()).map(|r| r.name.clone()) {
        let Ok(Some(secret)) = known.secret(pod, &name).await else { continue };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(".dockerconfigjson").or_else(|| data.get(".dockercfg")) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&bytes.0) else { continue };
        found.extend(fitting(json.get("auths").unwrap_or(&json), image));
    }
    sorted(found)
}

/// A longer path is more exact: r.io/team before r.io.
fn sorted(mut found: Vec<(String, cri::AuthConfig)>) -> Vec<cri::AuthConfig> {
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    found.into_iter().map(|(_, auth)| auth).take(TRIES_MAX).collect()
}

/// The entries of a Docker configuration that are for an image, with the places they are for. Hosts may hold `*` and
/// `?`.
fn fitting(auths: &serde_json::Value, image: &str) -> Vec<(String, cri::AuthConfig)> {
    let wanted = repository(image);
    let entries = auths.as_object().into_iter().flatten().map(|(server, entry)| (place(server), entry));
    entries
        .filter(|(place, _)| Pattern(place).matches(&wanted))
        .map(|(place, entry)| (place, auth(entry, image)))
        .collect()
}

fn place(server: &str) -> String {
    let bare = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    bare.replace("index.docker.io", "docker.io")
}

fn auth(entry: &serde_json::Value, image: &str) -> cri::AuthConfig {
    let text = |key: &str| entry.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let (mut username, mut password) = (text("username"), text("password"));
    if let Ok(plain) = base64::engine::general_purpose::STANDARD.decode(text("auth"))
        && let Some((user, pass)) = String::from_utf8_lossy(&plain).split_once(':')
    {
        (username, password) = (user.to_owned(), pass.to_owned());
    }
    // containerd shows them to the registry itself and to no mirror.
    cri::AuthConfig {
        username,
        password,
        identity_token: text("identitytoken"),
        server_address: registries::server_of(image),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md M6
    #[test]
    fn all_credentials_that_fit_are_tried_the_most_exact_first() {
        let auths = serde_json::json!({
            "https://r.io/v1/": {"auth": "dTpw"},
            "r.io/team": {"username": "t", "password": "q"},
            "*.azurecr.io": {"username": "az"},
            "other.io": {"username": "x"},
            "https://index.docker.io/v1/": {"username": "hub"},
        });
        let users = |image: &str| sorted(fitting(&auths, image)).into_iter().map(|a| a.username).collect::<Vec<_>>();
        assert_eq!(users("r.io/team/b:1"), ["t", "u"]);
        assert_eq!(users("r.io/a/b:1"), ["u"]);
        assert_eq!(users("mine.azurecr.io/a"), ["az"]);
        assert_eq!(users("busybox"), ["hub"]);
        assert!(users("azurecr.io/a").is_empty());
    }

    // review security-2.md F23
    #[test]
    fn credentials_are_for_the_registry_alone() {
        let server = |image: &str| auth(&serde_json::json!({"username": "u"}), image).server_address;
        assert_eq!(server("r.io:5000/a/b:1"), "https://r.io:5000");
        assert_eq!(server("busybox"), "https://registry-1.docker.io");
    }
}
