//! Flags of k3s that ask for what a server of kedge does in any case. Each holds, or is refused where something else in
//! the same command line undoes it: none is taken and has no effect.

use crate::flags::roles::ServerArgs;

/// Whether what such flags claim is so.
///
/// Errors: the flag, and why it is not.
pub(crate) fn check(args: &ServerArgs) -> Result<(), (&'static str, String)> {
    let foreign = !args.store.datastore_endpoint.is_empty();
    let claims = [
        // Any server's own store takes other servers in.
        (
            "cluster-init",
            args.store.cluster_init && foreign,
            "it asks for the servers' own store, and --datastore-endpoint names another: give one of them",
        ),
        (
            "cluster-init",
            args.store.cluster_init && args.server.is_some(),
            "it begins a cluster, and --server joins one that is there: give one of them",
        ),
        // Every archive is compressed.
        (
            "etcd-snapshot-compress",
            args.store.etcd_snapshot_compress && (foreign || args.store.etcd_disable_snapshots),
            "this server takes no snapshots: --datastore-endpoint or --etcd-disable-snapshots is given",
        ),
    ];
    match claims.into_iter().find(|(_, is_broken, _)| *is_broken) {
        Some((flag, _, why)) => Err((flag, why.to_owned())),
        None => Ok(()),
    }
}
