//! The files of configMap, secret, projected and downwardAPI volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, PodSpec, Secret, ServiceAccount, ServiceAccountTokenProjection, Volume,
};
use kube::Api;
use model::reference::NamespacedName;

use super::payload::{File, Files};
use crate::api_error::ApiError;
use crate::container::error::ConfigError;
use crate::container::fields::{self, Surroundings};
use crate::known::Known;
use crate::node::Node;
use crate::tokens::{Token, TokenError};

/// Default life of a projected token, as upstream's default.
const TOKEN_SECS: i64 = 3600;
/// A token older than this is renewed even when it lives longer.
const TOKEN_AGE_MAX_SECS: i64 = 24 * 3600;
const MODE_DEFAULT: i32 = 0o644;

/// Objects that cannot be shown as files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("{kind} \"{name}\" references non-existent {kind} key: {key}")]
    NoKey { kind: &'static str, name: String, key: String },
    #[error("projected sources of this type (clusterTrustBundle, podCertificate) are not supported on this node")]
    Unsupported,
    #[error(transparent)]
    Field(#[from] ConfigError),
    #[error(transparent)]
    Token(#[from] TokenError),
}

pub(super) struct Content {
    pub(super) files: Files,
    pub(super) refresh_at: Option<Timestamp>,
}

/// The values of a ConfigMap or a Secret by their keys.
type Values = BTreeMap<String, Vec<u8>>;

/// The object that a volume shows.
#[derive(Clone, Copy)]
struct Origin<'a> {
    /// `configmap` or `secret`.
    kind: &'static str,
    name: &'a str,
    /// Nothing is wrong if it is not there, or lacks a key.
    is_optional: bool,
}

impl<'a> Origin<'a> {
    fn config_map(name: &'a str, optional: Option<bool>) -> Origin<'a> {
        Origin { kind: "configmap", name, is_optional: optional == Some(true) }
    }

    fn secret(name: &'a str, optional: Option<bool>) -> Origin<'a> {
        Origin { kind: "secret", name, is_optional: optional == Some(true) }
    }

    /// The values of an object that is not there.
    fn absent(self) -> Result<Values, ContentError> {
        match self.is_optional {
            true => Ok(Values::new()),
            false => Err(ContentError::NotFound { kind: self.kind, name: self.name.to_owned() }),
        }
    }

    /// All keys, or the chosen ones under their new paths.
    fn pick(self, mut have: Values, items: Option<&[KeyToPath]>, mode: i32) -> Result<Files, ContentError> {
        let file = |bytes, mode: i32| File { bytes, mode: bits(mode), uid: None };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return Ok(have.into_iter().map(|(key, bytes)| (key, file(bytes, mode))).collect());
        };
        let mut files = Files::new();
        for item in items {
            match have.remove(&item.key) {
                Some(bytes) => drop(files.insert(item.path.clone(), file(bytes, item.mode.unwrap_or(mode)))),
                None if self.is_optional => {}
                None => {
                    let (kind, name, key) = (self.kind, self.name.to_owned(), item.key.clone());
                    return Err(ContentError::NoKey { kind, name, key });
                }
            }
        }
        Ok(files)
    }
}

/// Permission bits as the API spells them. It judges them; what it let through otherwise gets the default.
fn bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(0o644)
}

/// Fetches what the volume shows. `path` is where an earlier rendering lies: a token that is still young is kept.
pub(super) async fn of(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    around: &Surroundings,
    path: &Path,
) -> Result<Content, ContentError> {
    let mut content = Content { files: Files::new(), refresh_at: None };
    let known = &node.known;
    if let Some(source) = &volume.config_map {
        let (origin, mode) = (Origin::config_map(&source.name, source.optional), source.default_mode);
        let have = config_map(known, pod, origin).await?;
        content.files = origin.pick(have, source.items.as_deref(), mode.unwrap_or(MODE_DEFAULT))?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let (origin, mode) = (Origin::secret(name, source.optional), source.default_mode);
        let have = secret_of(known, pod, origin).await?;
        content.files = origin.pick(have, source.items.as_deref(), mode.unwrap_or(MODE_DEFAULT))?;
    } else if let Some(source) = &volume.downward_api {
        let (items, mode) = (source.items.as_deref().unwrap_or_default(), source.default_mode);
        content.files = downward(pod, around, items, mode.unwrap_or(MODE_DEFAULT))?;
    } else if let Some(source) = &volume.projected {
        let mode = source.default_mode.unwrap_or(MODE_DEFAULT);
        for part in source.sources.iter().flatten() {
            if let Some(s) = &part.config_map {
                let origin = Origin::config_map(&s.name, s.optional);
                let have = config_map(known, pod, origin).await?;
                content.files.extend(origin.pick(have, s.items.as_deref(), mode)?);
            } else if let Some(s) = &part.secret {
                let origin = Origin::secret(&s.name, s.optional);
                let have = secret_of(known, pod, origin).await?;
                content.files.extend(origin.pick(have, s.items.as_deref(), mode)?);
            } else if let Some(s) = &part.downward_api {
                content.files.extend(downward(pod, around, s.items.as_deref().unwrap_or_default(), mode)?);
            } else if let Some(s) = &part.service_account_token {
                token(node, pod, s, mode, path, &mut content).await?;
            } else {
                return Err(ContentError::Unsupported);
            }
        }
    }
    Ok(content)
}

async fn config_map(known: &Known, pod: &Pod, origin: Origin<'_>) -> Result<Values, ContentError> {
    let Some(map) = known.config_map(pod, origin.name).await.map_err(ApiError)? else { return origin.absent() };
    let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
    Ok(text.chain(map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0))).collect())
}

async fn secret_of(known: &Known, pod: &Pod, origin: Origin<'_>) -> Result<Values, ContentError> {
    values(known.secret(pod, origin.name).await, origin)
}

/// A Secret's values.
///
/// Errors: it is not there, or cannot be asked for.
pub(crate) async fn secret(client: &kube::Client, secret: NamespacedName<'_>) -> Result<Values, ContentError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), secret.namespace);
    values(api.get_opt(secret.name).await, Origin::secret(secret.name, None))
}

fn values(found: Result<Option<Secret>, kube::Error>, origin: Origin<'_>) -> Result<Values, ContentError> {
    match found.map_err(ApiError)? {
        Some(secret) => Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect()),
        None => origin.absent(),
    }
}

fn downward(
    pod: &Pod,
    around: &Surroundings,
    items: &[DownwardAPIVolumeFile],
    mode: i32,
) -> Result<Files, ContentError> {
    let mut files = Files::new();
    for item in items {
        let text = if let Some(r) = &item.field_ref {
            fields::field(pod, around, &r.field_path)?
        } else if let Some(r) = &item.resource_field_ref {
            fields::resource(pod, around, "", r)?
        } else {
            continue;
        };
        let mode = bits(item.mode.unwrap_or(mode));
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
) -> Result<(), TokenError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let key = format!("{}/{}", volume.display(), source.path);
    let now = node.clock.now();
    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let wish = TokenWish {
        account,
        audience: source.audience.as_deref(),
        life_secs: source.expiration_seconds.unwrap_or(TOKEN_SECS),
    };
    let fresh = async {
        let (text, expires) = request(&node.client, pod, wish).await?;
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
    let (mode, uid) = token_owner(&spec, mode);
    content.files.insert(source.path.clone(), File { bytes: text.into_bytes(), mode, uid });
    Ok(())
}

/// Mode and owner of a token's file. As upstream: if all containers run as one user, the token belongs to it; with
/// such a user or an fsGroup others need not read it.
fn token_owner(spec: &PodSpec, mode: i32) -> (u32, Option<u32>) {
    let context = spec.security_context.as_ref();
    let of_pod = context.and_then(|context| context.run_as_user);
    let of = |own: Option<i64>| own.or(of_pod);
    let users: BTreeSet<Option<i64>> = spec
        .containers
        .iter()
        .map(|container| of(container.security_context.as_ref().and_then(|context| context.run_as_user)))
        .collect();
    let single = match users.into_iter().collect::<Vec<_>>().as_slice() {
        [Some(user)] => u32::try_from(*user).ok(),
        _ => None,
    };
    let is_private = single.is_some() || context.is_some_and(|context| context.fs_group.is_some());
    (if is_private { 0o600 } else { bits(mode) }, single)
}

/// A token that is asked for.
#[derive(Clone, Copy)]
pub(crate) struct TokenWish<'a> {
    /// The pod's service account.
    pub(crate) account: &'a str,
    /// The API server's own, if there is none or it is empty.
    pub(crate) audience: Option<&'a str>,
    pub(crate) life_secs: i64,
}

/// A fresh token that is bound to the pod, and when it ends.
pub(crate) async fn request(
    client: &kube::Client,
    pod: &Pod,
    wish: TokenWish<'_>,
) -> Result<(String, Timestamp), TokenError> {
    let api: Api<ServiceAccount> =
        Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    let ask = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(wish.audience.into_iter().filter(|a| !a.is_empty()).map(str::to_owned).collect()),
            expiration_seconds: Some(wish.life_secs),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        ..Default::default()
    };
    let answer = api.create_token_request(wish.account, &kube::api::PostParams::default(), &ask).await;
    let status = answer.map_err(|err| TokenError::Refused(ApiError(err)))?.status;
    status.and_then(|s| Some((s.token?, s.expiration_timestamp?.0))).ok_or(TokenError::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_keys_move_and_a_missing_one_is_refused_unless_optional() {
        let have = || Values::from([("a".to_owned(), b"1".to_vec()), ("z".to_owned(), b"2".to_vec())]);
        let item = |key: &str, mode| [KeyToPath { key: key.to_owned(), path: "x/y".to_owned(), mode }];
        let (must, may) = (Origin::config_map("m", None), Origin::secret("s", Some(true)));
        let files = must.pick(have(), Some(&item("a", Some(0o400))), MODE_DEFAULT).unwrap();
        assert_eq!((files.len(), files["x/y"].mode), (1, 0o400));
        assert_eq!(
            must.pick(have(), Some(&item("b", None)), MODE_DEFAULT).unwrap_err().to_string(),
            "configmap \"m\" references non-existent configmap key: b"
        );
        assert!(may.pick(have(), Some(&item("b", None)), MODE_DEFAULT).unwrap().is_empty());
        let all = must.pick(have(), Some(&[]), 0o600).unwrap();
        assert_eq!(
            all.into_iter().map(|(path, file)| (path, file.mode)).collect::<Vec<_>>(),
            [("a".to_owned(), 0o600), ("z".to_owned(), 0o600)]
        );
    }

    #[test]
    fn an_object_that_is_not_there_is_refused_unless_optional() {
        let missing = |origin: Origin<'_>| values(Ok(None), origin);
        let why = missing(Origin::secret("s", Some(false))).unwrap_err().to_string();
        assert_eq!(why, "secret \"s\" not found");
        assert!(missing(Origin::secret("s", Some(true))).unwrap().is_empty());
    }

    #[test]
    fn fields_become_files_with_their_own_mode_or_the_volumes() {
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}})).unwrap();
        let items: Vec<DownwardAPIVolumeFile> = serde_json::from_value(serde_json::json!([
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "own", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
        ]))
        .unwrap();
        let files = downward(&pod, &Surroundings::default(), &items, 0o640).unwrap();
        assert_eq!((files["name"].mode, files["own"].mode, files["own"].bytes.as_slice()), (0o640, 0o400, &b"p"[..]));
        let bad = serde_json::from_value(serde_json::json!({"path": "x", "fieldRef": {"fieldPath": "spec.x"}}));
        let why = downward(&pod, &Surroundings::default(), &[bad.unwrap()], 0o640).unwrap_err().to_string();
        assert_eq!(why, "unsupported fieldPath: spec.x");
    }

    #[test]
    fn a_token_belongs_to_the_one_user_of_all_containers() {
        let user = |user: Option<i64>| serde_json::json!({"name": "c", "securityContext": {"runAsUser": user}});
        let owner = |context: serde_json::Value, containers: &[serde_json::Value]| {
            let spec = serde_json::json!({"securityContext": context, "containers": containers});
            token_owner(&serde_json::from_value(spec).unwrap(), 0o644)
        };
        let none = serde_json::json!({});
        assert_eq!(owner(none.clone(), &[user(None)]), (0o644, None));
        assert_eq!(owner(none.clone(), &[user(Some(7)), user(Some(7))]), (0o600, Some(7)));
        assert_eq!(owner(none.clone(), &[user(Some(7)), user(Some(8))]), (0o644, None));
        assert_eq!(owner(none, &[user(Some(7)), user(None)]), (0o644, None), "the image's user may be another one");
        assert_eq!(owner(serde_json::json!({"runAsUser": 9}), &[user(None)]), (0o600, Some(9)));
        assert_eq!(owner(serde_json::json!({"fsGroup": 5}), &[user(None)]), (0o600, None));
    }
}
