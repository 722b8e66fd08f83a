#!/bin/sh
# Faults on three servers and three agents: chaos.sh SECS. KEDGE_SEED chooses their order, KEDGE_BIN another binary than
# the fast one.
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root
sh "$root/scripts/setup.sh" tests
if [ -z "${KEDGE_BIN:-}" ]; then
    sh "$root/scripts/build.sh" fast
    KEDGE_BIN=$(sh "$root/scripts/bin-path.sh" fast)
fi
export KEDGE_BIN
KEDGE_CHAOS_SECS=$1
export KEDGE_CHAOS_SECS
cd "$root"
exec cargo test --locked --test chaos -- --nocapture
