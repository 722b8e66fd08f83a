#!/bin/sh
# Measures every budget against a peer or a limit in the same run and ends with a markdown table: bench.sh
# KEDGE_BIN names another binary than the release one, KEDGE_BENCH_DIR another folder (on the disk to be measured).
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root

# Inside namespaces of its own: no other cluster's links, rules or processes are met, and all of ours end with it.
if [ "${1:-}" = inside ]; then
    program=$2 kedge=$3 dir=$4
    mount --make-rshared /
    ip link set lo up
    ip link add eth0 type veth peer name eth0-peer
    ip address add 10.99.0.10/24 dev eth0
    ip link set eth0-peer up
    ip link set eth0 up
    ip route add default via 10.99.0.1
    code=0
    "$program" "$kedge" "$dir" || code=$?
    exit "$code"
fi

sh "$root/scripts/setup.sh" tests
# The load program is not what is measured, but it shares the cores.
profile=${KEDGE_BENCH_PROFILE:-fast}
if [ -z "${KEDGE_BIN:-}" ]; then
    # Cargo builds what is absent or older than its sources: figures belong to the tree they stand in.
    sh "$root/scripts/build.sh" release >&2
    KEDGE_BIN=$(sh "$root/scripts/bin-path.sh" release)
fi
[ -x "$KEDGE_BIN" ] || die "KEDGE_BIN: no program at $KEDGE_BIN"
say "building the load program" >&2
cd "$root"
cargo build --locked --profile "$profile" -p bench >&2
case $profile in dev) folder=debug ;; *) folder=$profile ;; esac

mkdir -p "${KEDGE_BENCH_DIR:-/var/tmp}"
dir=$(mktemp -d "${KEDGE_BENCH_DIR:-/var/tmp}/kedge-bench.XXXXXX")
chmod 0700 "$dir"
finish() {
    code=$?
    if [ "$code" = 0 ]; then rm -rf "$dir"; else say "logs and data stay in $dir" >&2; fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM
# Built before: there is no way out of the namespaces. Without Go's modules its row says so.
if [ -z "${COREDNS:-}" ] && sh "$root/tests/clients/coredns/build.sh" "$dir/genuine" >&2; then COREDNS=$dir/genuine; fi
export COREDNS="${COREDNS:-}"
unshare --mount --net --pid --fork --kill-child --mount-proc \
    sh "$root/scripts/bench.sh" inside "$CARGO_TARGET_DIR/$folder/bench" "$KEDGE_BIN" "$dir"
