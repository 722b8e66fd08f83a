# shellcheck shell=sh disable=SC2034
# Sourced by the other scripts: messages, and what must be installed. POSIX sh.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
say() { printf '==> %s\n' "$*"; }
die() {
    printf 'kedge: %s\n' "$*" >&2
    exit 1
}
need_root() { [ "$(id -u)" = 0 ] || die "this needs root (containers, network): run it with sudo"; }

target_triple() {
    case $(uname -m) in
    x86_64) echo x86_64-unknown-linux-musl ;;
    aarch64) echo aarch64-unknown-linux-musl ;;
    *) die "no build for the architecture $(uname -m): want x86_64 or aarch64" ;;
    esac
}

# This machine's architecture as OCI names it.
oci_arch() {
    case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    armv7l | armv8l) echo arm ;;
    *) uname -m ;;
    esac
}

# The targets for an architecture as OCI names it, the best first. Rust offers musl's library not for all of them to
# every toolchain; glibc, linked statically, is the second choice.
triples_of() {
    case $1 in
    amd64) echo x86_64-unknown-linux-musl ;;
    arm64) echo aarch64-unknown-linux-musl ;;
    arm) echo armv7-unknown-linux-musleabihf armv7-unknown-linux-gnueabihf ;;
    riscv64) echo riscv64gc-unknown-linux-musl riscv64gc-unknown-linux-gnu ;;
    *) die "no build for the architecture $1: want amd64, arm64, arm or riscv64" ;;
    esac
}

# How Debian's cross compiler for a target is called.
cross_prefix() {
    case $1 in
    x86_64-*) echo x86_64-linux-gnu ;;
    aarch64-*) echo aarch64-linux-gnu ;;
    armv7-*) echo arm-linux-gnueabihf ;;
    riscv64gc-*) echo riscv64-linux-gnu ;;
    *) die "no cross compiler is known for $1" ;;
    esac
}

# Where cargo puts what it builds: beside the clone unless the caller says otherwise, so that clones share it.
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kedge/target}"
export CARGO_TARGET_DIR
PATH=$PATH:${HOME:-/root}/.cargo/bin
