//! Flags of k3s that ask for what a server of kedge does in any case. Each holds, or is refused where something else in
//! the same command line undoes it: none is taken and has no effect.

use crate::flags::roles::ServerArgs;

/// A flag whose claim is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {why}")]
pub(crate) struct BrokenClaim {
    flag: &'static str,
    why: &'static str,
}

/// Whether what such flags claim is so.
pub(crate) fn check(args: &ServerArgs) -> Result<(), BrokenClaim> {
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
        Some((flag, _, why)) => Err(BrokenClaim { flag, why }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Server {
        #[command(flatten)]
        args: ServerArgs,
    }

    #[test]
    fn a_flag_that_another_undoes_is_refused_and_alone_it_is_taken() {
        let said = |args: &[&str]| {
            let server = Server::try_parse_from(["kedge"].iter().chain(args)).unwrap();
            check(&server.args).map_err(|err| err.to_string())
        };
        let etcd = "--datastore-endpoint=https://10.0.0.5:2379";
        for alone in ["--cluster-init", "--etcd-snapshot-compress", "--etcd-disable-snapshots", etcd] {
            assert_eq!(said(&[alone]), Ok(()), "{alone}");
        }
        for (args, flag, part) in [
            (["--cluster-init", etcd], "--cluster-init", "--datastore-endpoint names another"),
            (["--cluster-init", "--server=https://a:6443"], "--cluster-init", "--server joins one that is there"),
            (["--etcd-snapshot-compress", etcd], "--etcd-snapshot-compress", "takes no snapshots"),
            (
                ["--etcd-snapshot-compress", "--etcd-disable-snapshots"],
                "--etcd-snapshot-compress",
                "takes no snapshots",
            ),
        ] {
            let said = said(&args).unwrap_err();
            assert!(said.starts_with(&format!("{flag}: ")) && said.contains(part), "{said}");
        }
    }
}
