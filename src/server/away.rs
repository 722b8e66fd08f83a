//! Snapshots away from this machine, in S3: the flags as k3s spells them, and the bucket that they or a Secret name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::files::{FileError, create_private_dir};
use base::layout::Layout;
use base::secret::Secret;
use base::task::Group;
use cluster::s3::bucket::{Bucket, S3Error};
use cluster::s3::settings::{Bad, Settings, settings};
use cluster::s3::xml::Entry;
use cluster::snapshot::{self, Listed, Series, SnapshotError};
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::api::Api;

use crate::flags::s3::S3Flags;

/// Keys that a Secret may have. All else is a matter of the machine's own flags and files.
const FROM_SECRET: [&str; 3] = ["access-key", "secret-key", "session-token"];
/// Where the Secret of --etcd-s3-config-secret is.
const NAMESPACE: &str = "kube-system";

/// Why snapshots cannot be kept away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AwayError {
    #[error("--{0}")]
    Bad(Bad),
    #[error("--etcd-s3-config-secret: cannot read {kind} {NAMESPACE}/{name}")]
    Unread { kind: &'static str, name: String, source: Box<kube::Error> },
    #[error("--etcd-s3-config-secret {name}")]
    InSecret { name: String, source: Bad },
    #[error(
        "--etcd-s3-config-secret {name}: {key} is taken from --{key} alone, for whoever may write that Secret must \
         not choose where the cluster goes: give the flag, and remove the key"
    )]
    NotFromSecret { name: String, key: String },
    #[error(
        "--etcd-s3-config-secret: the Secret cannot be read while the server does not run; give the flags themselves"
    )]
    NoServer,
    #[error(transparent)]
    S3(#[from] S3Error),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl S3Flags {
    /// Values of flags, by the part of their names after `etcd-s3-`.
    fn given(&self) -> BTreeMap<String, Secret<String>> {
        let plain = |text: &Option<String>| text.clone().map(Secret::new);
        let switch = |on: bool| on.then(|| Secret::new("true".to_owned()));
        let all = [
            ("endpoint", plain(&self.etcd_s3_endpoint)),
            ("endpoint-ca", plain(&self.etcd_s3_endpoint_ca)),
            ("skip-ssl-verify", switch(self.etcd_s3_skip_ssl_verify)),
            ("insecure", switch(self.etcd_s3_insecure)),
            ("access-key", self.etcd_s3_access_key.clone()),
            ("secret-key", self.etcd_s3_secret_key.clone()),
            ("session-token", self.etcd_s3_session_token.clone()),
            ("bucket", plain(&self.etcd_s3_bucket)),
            ("bucket-lookup-type", plain(&self.etcd_s3_bucket_lookup_type)),
            ("region", plain(&self.etcd_s3_region)),
            ("folder", plain(&self.etcd_s3_folder)),
            ("proxy", self.etcd_s3_proxy.clone()),
            ("timeout", plain(&self.etcd_s3_timeout)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Values of the flags alone.
    ///
    /// Errors: a flag that is wrong, or one that is missing and that no Secret can say.
    pub(crate) fn check(&self) -> Result<(), AwayError> {
        if self.etcd_s3 && self.etcd_s3_config_secret.is_none() { self.settings(None).map(drop) } else { Ok(()) }
    }

    fn settings(&self, more: Option<(&str, BTreeMap<String, Secret<String>>)>) -> Result<Settings, AwayError> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(FileError::at("cannot read", path));
        match more {
            None => settings(&self.given(), &read).map_err(AwayError::Bad),
            Some((name, mut values)) => {
                if let Some(key) =
                    values.iter().find(|(key, text)| !FROM_SECRET.contains(&key.as_str()) && !text.expose().is_empty())
                {
                    return Err(AwayError::NotFromSecret { name: name.to_owned(), key: format!("etcd-s3-{}", key.0) });
                }
                values.extend(self.given());
                settings(&values, &read).map_err(|source| AwayError::InSecret { name: name.to_owned(), source })
            }
        }
    }

    /// The bucket; a Secret that fills in the flags is read by `client`, each time anew.
    pub(crate) async fn bucket(&self, client: Option<&kube::Client>, group: &Group) -> Result<Bucket, AwayError> {
        let more = match (self.etcd_s3_config_secret.as_deref(), client) {
            (None, _) => None,
            (Some(_), None) => return Err(AwayError::NoServer),
            (Some(name), Some(client)) => Some((name, read_secret(client, name).await?)),
        };
        Ok(Bucket::new(self.settings(more)?, group.clock().clone(), group.rng().clone(), group)?)
    }
}

/// The values of the Secret.
async fn read_secret(client: &kube::Client, name: &str) -> Result<BTreeMap<String, Secret<String>>, AwayError> {
    let api: Api<SecretObject> = Api::namespaced(client.clone(), NAMESPACE);
    let found = api.get(name).await.map_err(|err| AwayError::Unread {
        kind: "Secret",
        name: name.to_owned(),
        source: Box::new(err),
    })?;
    let mut values = BTreeMap::new();
    for (key, value) in found.data.unwrap_or_default() {
        if let (Some(key), Ok(text)) = (key.strip_prefix("etcd-s3-"), String::from_utf8(value.0)) {
            values.insert(key.to_owned(), Secret::new(text));
        }
    }
    Ok(values)
}

/// Puts a snapshot into the bucket and deletes the older ones of its series there; says how many.
pub(crate) async fn take(bucket: &Bucket, saved: &Listed, series: &Series, keep: usize) -> Result<usize, S3Error> {
    bucket.put(&saved.name, &saved.location).await?;
    Ok(prune(bucket, series, keep).await?.len())
}

/// Deletes all but the newest snapshots of a series; says which.
pub(crate) async fn prune(bucket: &Bucket, series: &Series, keep: usize) -> Result<Vec<String>, S3Error> {
    let all = list(bucket).await?;
    let old = series.surplus(all.iter().map(|entry| entry.key.as_str()), keep);
    let old: Vec<String> = old.into_iter().map(str::to_owned).collect();
    for name in &old {
        bucket.delete(name).await?;
    }
    Ok(old)
}

/// The snapshots in the bucket, oldest first.
pub(crate) async fn list(bucket: &Bucket) -> Result<Vec<Entry>, S3Error> {
    let mut all: Vec<Entry> =
        bucket.list().await?.into_iter().filter(|entry| snapshot::made_at(&entry.key).is_some()).collect();
    all.sort_by_key(|entry| (snapshot::made_at(&entry.key), entry.key.clone()));
    Ok(all)
}

/// A snapshot that was got from the bucket; the file goes with this.
pub(crate) struct Got(PathBuf);

impl Got {
    /// Gets a snapshot into a private file of the data folder.
    pub(crate) async fn new(bucket: &Bucket, name: &str, layout: &Layout) -> Result<Got, AwayError> {
        let name = snapshot::file_of(name)?;
        create_private_dir(layout.data_dir())?;
        let got = Got(layout.fetched(&name));
        bucket.get(&name, &got.0).await?;
        Ok(got)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Got {
    fn drop(&mut self) {
        // It may never have been made.
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        s3: S3Flags,
    }

    fn flags(args: &[&str]) -> S3Flags {
        <Flags as clap::Parser>::try_parse_from(["x"].iter().chain(args)).unwrap().s3
    }

    #[test]
    fn flags_are_checked_before_a_server_starts_and_show_no_secret() {
        let keys = ["--s3", "--s3-access-key=A", "--etcd-s3-secret-key=hidden", "--s3-proxy=http://u:hidden@p"];
        let none = flags(&keys).check().unwrap_err();
        assert_eq!(Chain(&none).to_string(), "--etcd-s3-bucket: no bucket is named", "once, with all causes");
        assert!(flags(&[&keys[..], &["--s3-config-secret=s"]].concat()).check().is_ok());
        let all = flags(&[&keys[..], &["--s3-bucket=b"]].concat());
        all.check().unwrap();
        assert!(!format!("{all:?}").contains("hidden"));
        assert!(flags(&["--s3-bucket=b"]).check().is_ok(), "not asked for");
    }

    // Both were printed twice: once by the error that names the flag, once as its cause.
    #[test]
    fn the_fault_of_a_flag_or_a_secret_is_printed_once() {
        let missing = flags(&["--s3"]).check().unwrap_err();
        let Err(in_secret) = flags(&["--s3", "--s3-bucket=b"]).settings(Some(("name", BTreeMap::new()))) else {
            panic!()
        };
        for (err, name) in [(missing, "etcd-s3-bucket"), (in_secret, "etcd-s3-access-key")] {
            let text = Chain(&err).to_string();
            assert_eq!(text.matches(name).count(), 1, "{text}");
        }
    }

    #[test]
    fn a_secret_says_who_one_is_and_not_where_snapshots_go() {
        let more = |values: &[(&str, &str)]| {
            values.iter().map(|(k, v)| ((*k).to_owned(), Secret::new((*v).to_owned()))).collect()
        };
        let given = flags(&["--s3", "--s3-bucket=mine"]);
        let both = given.settings(Some(("name", more(&[("access-key", "A"), ("secret-key", "S")])))).unwrap();
        assert_eq!(both.bucket.as_str(), "mine");
        for key in ["endpoint", "endpoint-ca", "endpoint-ca-name", "skip-ssl-verify", "bucket", "folder", "proxy"] {
            let Err(err) =
                given.settings(Some(("name", more(&[("access-key", "A"), ("secret-key", "S"), (key, "theirs")]))))
            else {
                panic!("{key} is taken")
            };
            assert!(err.to_string().contains(&format!("etcd-s3-{key} is taken from --etcd-s3-{key} alone")), "{err}");
        }
        let Err(err) = given.settings(Some(("name", BTreeMap::new()))) else { panic!() };
        let text = Chain(&err).to_string();
        assert!(text.starts_with("--etcd-s3-config-secret name: etcd-s3-access-key: "), "{text}");
    }
}
