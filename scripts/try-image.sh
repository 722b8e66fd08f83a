#!/bin/sh
# Runs the image of scripts/image.sh in a privileged container of a containerd of its own, until its node is Ready and
# its DNS runs: try-image.sh IMAGE.tar. As root; network, mounts and processes are namespaces of their own.
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# = 1 ] || die "usage: try-image.sh IMAGE.tar"
need_root
image=$(readlink -f "$1")
programs=$(sh "$root/scripts/programs.sh")
work=$(mktemp -d "${TMPDIR:-/tmp}/kedge-image-XXXXXX")
trap 'rmdir "$work"' EXIT
export image programs work
# shellcheck disable=SC2016 # the inner shell expands them
unshare --mount --propagation=private --net --pid --fork --kill-child --mount-proc sh -eu -c '
    ip link set lo up
    ip link add uplink type veth peer name uplink-peer
    ip link set uplink up
    ip link set uplink-peer up
    ip address add 10.200.0.2/24 dev uplink
    ip route add default via 10.200.0.1
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/data"
    PATH=$programs:$PATH
    printf "version = 3\nroot = \"%s/root\"\nstate = \"/run/outer\"\n[grpc]\naddress = \"/run/outer.sock\"\n" "$work" \
        >"$work/config.toml"
    containerd -c "$work/config.toml" >"$work/outer.log" 2>&1 &
    outer() { ctr --address /run/outer.sock "$@" 2>>"$work/ctr.log"; }
    until outer version >/dev/null; do sleep 0.2; done
    outer images import "$image" >/dev/null
    # What docker gives a privileged container: the control groups, and a volume for what lies on overlayfs.
    outer run --privileged --net-host --mount "type=bind,src=$work/data,dst=/var/lib/kedge,options=rbind:rw" \
        --mount type=bind,src=/sys/fs/cgroup,dst=/sys/fs/cgroup,options=rbind:rw \
        --mount type=tmpfs,src=tmpfs,dst=/run,options=rw \
        "$(outer images ls -q | head -n 1)" cluster /bin/entrypoint server >"$work/cluster.log" 2>&1 &
    turn=0
    ask() {
        outer tasks exec --exec-id "ask-$turn" cluster kubectl --kubeconfig /etc/kedge/kedge.yaml "$@"
    }
    wait_for() { # wait_for WORDS QUESTION...
        words=$1
        shift
        until ask "$@" | grep -E "$words"; do
            turn=$((turn + 1))
            [ "$turn" -lt 120 ] || { tail -n 20 "$work/cluster.log"; echo "kedge: not in time: $words"; exit 1; }
            sleep 1
        done
    }
    wait_for " Ready " get nodes
    wait_for "coredns.* 1/1 +Running" -n kube-system get pods'
say "the image is a cluster"
