//! Flags of the store and its snapshots.

use std::path::PathBuf;

use clap::Args;
use store::etcd::client::Endpoint;

use crate::flags::s3::{S3Flags, parse_retention};
use crate::flags::value::ValueError;

/// Flags of the store, spelled as k3s spells them.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreFlags {
    /// Use this etcd instead of the embedded store: https://host:2379, several with commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = parse_endpoint, help_heading = "Store")]
    pub(crate) datastore_endpoint: Vec<Endpoint>,
    /// Authority of the external etcd's certificate.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub(crate) datastore_cafile: Option<PathBuf>,
    /// Certificate to show to the external etcd.
    #[arg(long, value_name = "FILE", requires = "datastore_keyfile", help_heading = "Store")]
    pub(crate) datastore_certfile: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "datastore_certfile", help_heading = "Store")]
    pub(crate) datastore_keyfile: Option<PathBuf>,
    /// Take no snapshots by schedule.
    #[arg(long, help_heading = "Store")]
    pub(crate) etcd_disable_snapshots: bool,
    /// First part of the names of scheduled snapshots.
    #[arg(long, value_name = "NAME", default_value = "etcd-snapshot", help_heading = "Store")]
    pub(crate) etcd_snapshot_name: String,
    /// When snapshots are taken, as cron writes it.
    #[arg(long, value_name = "CRON", default_value = "0 */12 * * *", help_heading = "Store")]
    pub(crate) etcd_snapshot_schedule_cron: String,
    /// Scheduled snapshots to keep.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_retention, help_heading = "Store")]
    pub(crate) etcd_snapshot_retention: usize,
    /// Folder of snapshots (default: server/db/snapshots in the data folder).
    #[arg(long, value_name = "DIR", help_heading = "Store")]
    pub(crate) etcd_snapshot_dir: Option<PathBuf>,
    /// Compress snapshots, as is done in any case; refused where this server takes none.
    #[arg(long, help_heading = "Store")]
    pub(crate) etcd_snapshot_compress: bool,
    /// Begin a cluster that other servers can join, as any server does that joins none; refused beside --server and
    /// --datastore-endpoint.
    #[arg(long, help_heading = "Store")]
    pub(crate) cluster_init: bool,
    /// Forget the other members, make this server a cluster of one, and end.
    #[arg(long, help_heading = "Store")]
    pub(crate) cluster_reset: bool,
    /// With --cluster-reset: restore this snapshot first, a file or one that is in the bucket of --etcd-s3.
    #[arg(long, value_name = "FILE", requires = "cluster_reset", help_heading = "Store")]
    pub(crate) cluster_reset_restore_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) s3: S3Flags,
}

fn parse_endpoint(text: &str) -> Result<Endpoint, ValueError> {
    Endpoint::parse(text.trim()).ok_or_else(|| ValueError::Endpoint(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_etcd_server_and_other_stores_of_k3s_are_refused() {
        for (text, read) in [
            ("https://10.0.0.5:2379", "https://10.0.0.5:2379"),
            (" https://etcd.example.com ", "https://etcd.example.com:2379"),
            ("http://[fd00::1]:2380/", "http://[fd00::1]:2380"),
        ] {
            assert_eq!(parse_endpoint(text).unwrap().to_string(), read);
        }
        for text in
            ["postgres://u:p@db:5432/k3s", "mysql://u@tcp(db)/k3s", "nats://n:4222", "10.0.0.5:2379", "https://", ""]
        {
            let said = parse_endpoint(text).unwrap_err().to_string();
            assert!(said.starts_with(&format!("'{text}' is not an etcd server such as")), "{said}");
            assert!(said.ends_with("SQL databases and NATS are not supported"), "{said}");
        }
    }
}
