#!/bin/sh
# Installs what the build needs from the distribution's packages: setup.sh [tests | TRIPLE], with what the tests or a
# build for TRIPLE need besides. What is there already is left alone.
set -eu
. "$(dirname -- "$0")/lib.sh"

triple=$(target_triple)
case ${1:-} in
'' | tests) ;;
*-unknown-linux-*) triple=$1 ;;
*) die "setup.sh: no such set of packages: $1 (want 'tests' or a target triple)" ;;
esac

missing=
want() { # want COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
want gcc gcc
want musl-gcc musl-tools
want protoc protobuf-compiler
want containerd containerd
want runc runc
want nft nftables
want ip iproute2
want conntrack conntrack
want jq jq
want curl curl
[ -x /bin/busybox ] || command -v busybox >/dev/null 2>&1 || missing="$missing busybox-static"
if [ "${1:-}" = tests ]; then
    want etcd etcd-server
    want etcdctl etcd-client
    want sqlite3 sqlite3
    want shellcheck shellcheck
    want openssl openssl
    want strace strace
    want pkill procps
    # Clients for other languages (scripts/clients.sh) come from their own registries.
    want npm npm
    want python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
fi
case $triple in
"$(target_triple)") ;;
*)
    cross=$(cross_prefix "$triple")
    want "$cross-gcc" "gcc-$cross"
    # Its headers are only recommended by the compiler's package.
    case $triple in aarch64-*) libc=arm64 ;; armv7-*) libc=armhf ;; *) libc=${cross%%-*} ;; esac
    [ -e "/usr/$cross/include/stdio.h" ] || missing="$missing libc6-dev-$libc-cross"
    ;;
esac
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || die "missing packages:$missing. Run as root, or: sudo apt-get install$missing"
    command -v apt-get >/dev/null 2>&1 || die "missing tools; install these Debian packages' equivalents:$missing"
    say "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
command -v cargo >/dev/null 2>&1 ||
    die "no Rust toolchain: install rustup (Debian: apt-get install rustup) and run 'rustup default stable'"
if [ "${1:-}" = tests ] && ! cargo fmt --version >/dev/null 2>&1; then
    say "adding rustfmt"
    rustup component add rustfmt
fi
if [ "${1:-}" = tests ] && ! cargo clippy --version >/dev/null 2>&1; then
    say "adding clippy"
    rustup component add clippy
fi
if ! rustup target list --installed 2>/dev/null | grep -qx "$triple"; then
    say "adding the Rust target $triple"
    rustup target add "$triple"
fi
if ! command -v kubectl >/dev/null 2>&1; then
    apt-get install -y -qq kubernetes-client >/dev/null 2>&1 ||
        die "no kubectl found and none among the distribution's packages: put one on PATH"
fi
