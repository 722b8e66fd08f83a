//! What the files of configMap, secret, projected and downwardAPI volumes hold.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccount, ServiceAccountTokenProjection, Volume,
};
use kube::Api;

use super::payload::{File, Files};
use crate::container::fields::{self, Surroundings};
use crate::known::Known;
use crate::node::Node;
use crate::tokens::Token;

/// Default life of a projected token, as upstream's default.
const TOKEN_SECS: i64 = 3600;
/// A token older than this is renewed even when it lives longer.
const TOKEN_AGE_MAX_SECS: i64 = 24 * 3600;
const MODE_DEFAULT: i32 = 0o644;

/// How a kind of volume is laid out.
pub(super) struct Plugin {
    pub(super) dir: &'static str,
    pub(super) in_memory: bool,
}

pub(super) struct Content {
    pub(super) files: Files,
    pub(super) refresh_at: Option<Timestamp>,
}

pub(super) fn plugin(volume: &Volume) -> Option<Plugin> {
    let plugin = |dir, in_memory| Some(Plugin { dir, in_memory });
    if volume.config_map.is_some() {
        plugin("kubernetes.io~configmap", false)
    } else if volume.secret.is_some() {
        plugin("kubernetes.io~secret", true)
    } else if volume.projected.is_some() {
        plugin("kubernetes.io~projected", true)
    } else if volume.downward_api.is_some() {
        plugin("kubernetes.io~downward-api", true)
    } else {
        None
    }
}

/// Fetches what the volume shows. `path` is where an earlier rendering lies: a token that is still young is kept.
pub(super) async fn of(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    around: &Surroundings,
    path: &Path,
) -> Result<Content, String> {
    let mut content = Content { files: Files::new(), refresh_at: None };
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
        let have = config_map(&node.known, pod, &source.name, source.optional).await?;
        content.files =
            pick(have, source.items.as_deref(), mode, source.optional, &format!("configmap \"{}\"", source.name))?;
    } else if let Some(source) = &volume.secret {
        let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
        let name = source.secret_name.clone().unwrap_or_default();
        let have = secret_of(&node.known, pod, &name, source.optional).await?;
        content.files = pick(have, source.items.as_deref(), mode, source.optional, &format!("secret \"{name}\""))?;
    } else if let Some(source) = &volume.downward_api {
        content.files = downward(
            pod,
            around,
            source.items.as_deref().unwrap_or_default(),
            source.default_mode.unwrap_or(MODE_DEFAULT),
        )?;
    } else if let Some(source) = &volume.projected {
        let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
        for part in source.sources.iter().flatten() {
            if let Some(s) = &part.config_map {
                let have = config_map(&node.known, pod, &s.name, s.optional).await?;
                content.files.extend(pick(
                    have,
                    s.items.as_deref(),
                    mode,
                    s.optional,
                    &format!("configmap \"{}\"", s.name),
                )?);
            } else if let Some(s) = &part.secret {
                let have = secret_of(&node.known, pod, &s.name, s.optional).await?;
                content.files.extend(pick(
                    have,
                    s.items.as_deref(),
                    mode,
                    s.optional,
                    &format!("secret \"{}\"", s.name),
                )?);
            } else if let Some(s) = &part.downward_api {
                content.files.extend(downward(pod, around, s.items.as_deref().unwrap_or_default(), mode)?);
            } else if let Some(s) = &part.service_account_token {
                token(node, pod, s, mode, path, &mut content).await?;
            } else {
                return Err("projected sources of this type (clusterTrustBundle, podCertificate) are not supported on this node".to_owned());
            }
        }
    }
    Ok(content)
}

async fn config_map(
    known: &Known,
    pod: &Pod,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let Some(map) = known.config_map(pod, name).await.map_err(|err| err.to_string())? else {
        return absent(optional, format!("configmap \"{name}\" not found"));
    };
    let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
    Ok(text.chain(map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0))).collect())
}

async fn secret_of(
    known: &Known,
    pod: &Pod,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    values(known.secret(pod, name).await, name, optional)
}

/// A Secret's values.
pub(crate) async fn secret(
    client: &kube::Client,
    ns: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let api: Api<Secret> = Api::namespaced(client.clone(), ns);
    values(api.get_opt(name).await, name, optional)
}

fn values(
    found: Result<Option<Secret>, kube::Error>,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    match found.map_err(|err| err.to_string())? {
        Some(secret) => Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect()),
        None => absent(optional, format!("secret \"{name}\" not found")),
    }
}

fn absent(optional: Option<bool>, text: String) -> Result<BTreeMap<String, Vec<u8>>, String> {
    if optional == Some(true) { Ok(BTreeMap::new()) } else { Err(text) }
}

/// All keys, or the chosen ones under their new paths.
fn pick(
    mut have: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: Option<bool>,
    what: &str,
) -> Result<Files, String> {
    let file = |bytes, mode: i32| File { bytes, mode: u32::try_from(mode).unwrap_or(0o644), uid: None };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(have.into_iter().map(|(key, bytes)| (key, file(bytes, mode))).collect());
    };
    let mut files = Files::new();
    for item in items {
        match have.remove(&item.key) {
            Some(bytes) => drop(files.insert(item.path.clone(), file(bytes, item.mode.unwrap_or(mode)))),
            None if optional == Some(true) => {}
            None => {
                return Err(format!(
                    "{what} references non-existent {} key: {}",
                    what.split(' ').next().unwrap_or_default(),
                    item.key
                ));
            }
        }
    }
    Ok(files)
}

fn downward(pod: &Pod, around: &Surroundings, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Files, String> {
    let mut files = Files::new();
    for item in items {
        let text = if let Some(r) = &item.field_ref {
            fields::field(pod, around, &r.field_path).map_err(|err| err.to_string())?
        } else if let Some(r) = &item.resource_field_ref {
            fields::resource(pod, around, "", r).map_err(|err| err.to_string())?
        } else {
            continue;
        };
        let mode = u32::try_from(item.mode.unwrap_or(mode)).unwrap_or(0o644);
        files.insert(item.path.clone(), File { bytes: text.into_bytes(), mode, uid: None });
    }
    Ok(files)
}

/// A token bound to the pod, kept until four fifths of its life are over.
async fn token(
    node: &Node,
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    mode: i32,
    volume: &Path,
    content: &mut Content,
) -> Result<(), String> {
    let spec = pod.spec.clone().unwrap_or_default();
    let life = source.expiration_seconds.unwrap_or(TOKEN_SECS);
    let key = format!("{}/{}", volume.display(), source.path);
    let now = node.clock.now();
    let account = spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned());
    let fresh = async {
        let (text, expires) = request(&node.client, pod, &account, source.audience.as_deref(), life).await?;
        let whole = expires.duration_since(now).as_secs().max(0);
        let wait = (whole * 4 / 5).min(TOKEN_AGE_MAX_SECS);
        Ok(Token {
            text,
            asked_at: now,
            refresh_at: now.checked_add(SignedDuration::from_secs(wait)).unwrap_or(now),
            expires,
        })
    };
    let Token { text, refresh_at, .. } = node.tokens.get(key, now, fresh).await?;
    content.refresh_at = Some(content.refresh_at.map_or(refresh_at, |at| at.min(refresh_at)));
    // As upstream: if all containers run as one user, the token belongs to it; with such a user or an fsGroup others
    // need not read it.
    let context = spec.security_context.unwrap_or_default();
    let own =
        spec.containers.iter().map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(context.run_as_user));
    let users: std::collections::BTreeSet<Option<i64>> = own.collect();
    let single = match users.into_iter().collect::<Vec<_>>().as_slice() {
        [Some(user)] => u32::try_from(*user).ok(),
        _ => None,
    };
    let mode =
        if context.fs_group.is_some() || single.is_some() { 0o600 } else { u32::try_from(mode).unwrap_or(0o644) };
    content.files.insert(source.path.clone(), File { bytes: text.into_bytes(), mode, uid: single });
    Ok(())
}

/// A fresh token of the pod's account that lives for `life` seconds, and when it ends.
pub(crate) async fn request(
    client: &kube::Client,
    pod: &Pod,
    account: &str,
    audience: Option<&str>,
    life: i64,
) -> Result<(String, Timestamp), String> {
    let api: Api<ServiceAccount> =
        Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    let ask = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audience.into_iter().filter(|a| !a.is_empty()).map(str::to_owned).collect()),
            expiration_seconds: Some(life),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        ..Default::default()
    };
    let answer = api.create_token_request(account, &kube::api::PostParams::default(), &ask).await;
    let status = answer.map_err(|err| format!("failed to fetch token: {err}"))?.status;
    status
        .and_then(|s| Some((s.token?, s.expiration_timestamp?.0)))
        .ok_or_else(|| "failed to fetch token: the answer holds none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_keys_move_and_a_missing_one_is_refused_unless_optional() {
        let have = || BTreeMap::from([("a".to_owned(), b"1".to_vec())]);
        let items = [KeyToPath { key: "a".to_owned(), path: "x/y".to_owned(), mode: Some(0o400) }];
        let files = pick(have(), Some(&items), MODE_DEFAULT, None, "configmap \"m\"").unwrap();
        assert_eq!(files["x/y"].mode, 0o400);
        let items = [KeyToPath { key: "b".to_owned(), path: "x".to_owned(), mode: None }];
        assert_eq!(
            pick(have(), Some(&items), MODE_DEFAULT, None, "configmap \"m\"").unwrap_err(),
            "configmap \"m\" references non-existent configmap key: b"
        );
        assert!(pick(have(), Some(&items), MODE_DEFAULT, Some(true), "configmap \"m\"").unwrap().is_empty());
    }
}
