//! Flags of snapshots in S3, as k3s spells them.

use std::convert::Infallible;

use base::secret::Secret;
use clap::Args;
use cluster::s3::settings::parse_timeout;

use crate::flags::value::ValueError;

/// Flags of snapshots in S3; `kedge snapshot` knows them without `etcd-`, too.
#[derive(Clone, Debug, Args)]
pub(crate) struct S3Flags {
    /// Keep snapshots in a bucket of S3, too.
    #[arg(long, alias = "s3", global = true, help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3: bool,
    /// S3's host, with its port where that is not TLS's (default: s3.amazonaws.com).
    #[arg(long, alias = "s3-endpoint", global = true, value_name = "HOST", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_endpoint: Option<String>,
    /// Authorities of its certificate: a file, or PEM in base64 (default: this machine's).
    #[arg(long, alias = "s3-endpoint-ca", global = true, value_name = "FILE", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_endpoint_ca: Option<String>,
    /// Take any certificate.
    #[arg(long, alias = "s3-skip-ssl-verify", global = true, help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_skip_ssl_verify: bool,
    /// Speak HTTP without TLS.
    #[arg(long, alias = "s3-insecure", global = true, help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_insecure: bool,
    /// Access key; rather in the configuration file, or as AWS_ACCESS_KEY_ID.
    #[arg(
        long, alias = "s3-access-key", global = true, value_name = "KEY", value_parser = secret,
        help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_access_key: Option<Secret<String>>,
    /// Secret key; rather in the configuration file, or as AWS_SECRET_ACCESS_KEY: everybody sees a command line.
    #[arg(
        long, alias = "s3-secret-key", global = true, value_name = "KEY", value_parser = secret,
        help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_secret_key: Option<Secret<String>>,
    /// Token of keys that were lent; rather in the configuration file, or as AWS_SESSION_TOKEN.
    #[arg(
        long, alias = "s3-session-token", global = true, value_name = "TOKEN", value_parser = secret,
        help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_session_token: Option<Secret<String>>,
    /// Bucket.
    #[arg(long, alias = "s3-bucket", global = true, value_name = "NAME", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_bucket: Option<String>,
    /// How requests name it: as part of the host's name or in the path (default: auto, which is dns at AWS and else
    /// path).
    #[arg(
        long, alias = "s3-bucket-lookup-type", global = true, value_name = "KIND",
        value_parser = ["auto", "dns", "path"], help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_bucket_lookup_type: Option<String>,
    /// Region (default: us-east-1).
    #[arg(long, alias = "s3-region", global = true, value_name = "NAME", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_region: Option<String>,
    /// Folder in the bucket.
    #[arg(long, alias = "s3-folder", global = true, value_name = "PATH", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_folder: Option<String>,
    /// HTTP proxy to S3: http://[USER:PASSWORD@]HOST:PORT.
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text is shown by --help as it stands")]
    #[arg(
        long, alias = "s3-proxy", global = true, value_name = "URL", value_parser = secret,
        help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_proxy: Option<Secret<String>>,
    /// How long one request may take; a snapshot goes in parts of 64 MiB (default: 5m0s).
    #[arg(
        long, alias = "s3-timeout", global = true, value_name = "DURATION", value_parser = timeout,
        help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_timeout: Option<String>,
    /// Snapshots of one name and node to keep in the bucket.
    #[arg(
        long, alias = "s3-retention", global = true, value_name = "N", default_value_t = 5,
        value_parser = parse_retention, help_heading = "Snapshots in S3"
    )]
    pub(crate) etcd_s3_retention: usize,
    /// Secret in kube-system with the credentials that no flag says: etcd-s3-access-key, etcd-s3-secret-key,
    /// etcd-s3-session-token. Where snapshots go the flags alone say.
    #[arg(long, alias = "s3-config-secret", global = true, value_name = "NAME", help_heading = "Snapshots in S3")]
    pub(crate) etcd_s3_config_secret: Option<String>,
}

fn secret(text: &str) -> Result<Secret<String>, Infallible> {
    Ok(Secret::new(text.to_owned()))
}

fn timeout(text: &str) -> Result<String, ValueError> {
    parse_timeout(text).map(|_| text.to_owned()).map_err(|err| ValueError::Duration(err.into()))
}

pub(super) fn parse_retention(text: &str) -> Result<usize, ValueError> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| ValueError::Count(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_one_snapshot_is_kept() {
        assert_eq!(parse_retention("3").unwrap(), 3);
        for text in ["0", "-1", "all", ""] {
            assert_eq!(parse_retention(text).unwrap_err().to_string(), format!("'{text}' is not a number from 1 on"));
        }
    }

    #[test]
    fn a_timeout_is_a_duration_longer_than_nothing_and_stays_as_it_was_written() {
        assert_eq!(timeout("1m30s").unwrap(), "1m30s");
        for text in ["0s", "5", "soon", ""] {
            let said = timeout(text).unwrap_err().to_string();
            assert_eq!(said, format!("'{text}' is not a duration such as 5m0s"));
        }
    }
}
