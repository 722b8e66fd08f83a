#!/bin/sh
# Starts the program of an architecture up to an API that answers, under qemu-user where it is another one's:
# start-one.sh ARCH PROGRAM. As root, in a network of its own.
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# = 2 ] || die "usage: start-one.sh ARCH PROGRAM"
need_root
arch=$1 program=$2 emulator=
if [ "$arch" != "$(oci_arch)" ]; then
    case $arch in amd64) emulator=x86_64 ;; arm64) emulator=aarch64 ;; *) emulator=$arch ;; esac
    emulator=qemu-$emulator-static
    command -v "$emulator" >/dev/null 2>&1 || die "$arch was not started: no $emulator (Debian: qemu-user-static)"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kedge-start-XXXXXX")
trap 'rm -rf "$work"' EXIT
export arch program emulator work
# shellcheck disable=SC2016 # the inner shell expands them
unshare --net --mount --pid --fork --kill-child --mount-proc sh -eu -c '
    ip link set lo up
    ip link add uplink type veth peer name uplink-peer
    ip link set uplink up
    ip link set uplink-peer up
    ip address add 10.200.0.2/24 dev uplink
    mount -t tmpfs tmpfs /run
    $emulator "$program" server --disable-agent --node-ip 10.200.0.2 --data-dir "$work/data" \
        --write-kubeconfig "$work/kubeconfig" \
        >"$work/log" 2>&1 &
    server=$!
    began=$(cut -d. -f1 /proc/uptime)
    until curl -fsk -m 20 https://127.0.0.1:6443/readyz >/dev/null 2>&1 ||
        kubectl --kubeconfig "$work/kubeconfig" get --raw /readyz >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { tail -n 5 "$work/log"; echo "kedge: $arch ended"; exit 1; }
        [ $(($(cut -d. -f1 /proc/uptime) - began)) -lt 300 ] ||
            { tail -n 5 "$work/log"; echo "kedge: $arch does not answer after 300 s"; exit 1; }
        sleep 1
    done
    kubectl --kubeconfig "$work/kubeconfig" create namespace started >/dev/null
    echo "the API answers after $(($(cut -d. -f1 /proc/uptime) - began)) s ($($emulator "$program" --version))"
    kill "$server"
    wait "$server" || true'
