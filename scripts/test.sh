#!/bin/sh
# All tests: unit tests of every room, the tree's own rules, black-box tests of the API server, and whole nodes with
# real containers.
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root
sh "$root/scripts/setup.sh" tests
cd "$root"
say "shell scripts, format"
shellcheck -x -P scripts scripts/*.sh install.sh tests/machine.sh tests/vm/*.sh tests/clients/*.sh
cargo fmt --all --check
say "the tree's lints"
# Lints of Cargo.toml and clippy.toml; what another version of clippy finds beside them is told, and fails nothing.
cargo clippy --locked --workspace --all-targets -- -D clippy::too_many_lines
say "building the static binary that node tests drive"
sh scripts/build.sh fast
KEDGE_BIN=$(sh scripts/bin-path.sh fast)
export KEDGE_BIN
say "static programs for a bundle"
# Without Go or the network the test that needs them is skipped, and says so.
KEDGE_PROGRAMS=$(sh scripts/programs.sh) || KEDGE_PROGRAMS=
export KEDGE_PROGRAMS
say "clients for other languages"
KEDGE_CLIENTS=$(sh scripts/clients.sh)
export KEDGE_CLIENTS
say "tests"
# What was skipped is silent in a test that passes: it is said at the end, also when something has failed.
KEDGE_SKIPS=$(mktemp)
export KEDGE_SKIPS
outcome=0
cargo test --locked --workspace --no-fail-fast || outcome=$?
if [ -s "$KEDGE_SKIPS" ]; then
    say "skipped, for want of what this machine has not"
    sort -u "$KEDGE_SKIPS"
fi
rm -f "$KEDGE_SKIPS"
exit "$outcome"
