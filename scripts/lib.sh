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

# Where cargo puts what it builds: beside the clone unless the caller says otherwise, so that clones share it.
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kedge/target}"
export CARGO_TARGET_DIR
PATH=$PATH:${HOME:-/root}/.cargo/bin
