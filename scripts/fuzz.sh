#!/bin/sh
# Every fuzzer of the tree for so long: fuzz.sh SECS, one after the other, each with at most 4 GB of addresses.
# KEDGE_SEED (default: by chance) gives other bytes; KEDGE_FUZZ_ONLY names a part of those that are wanted. Fuzzers
# stand in modules named fuzz_tests.
set -eu
. "$(dirname -- "$0")/lib.sh"
secs=$1
only=${KEDGE_FUZZ_ONLY:-}
KEDGE_SEED=${KEDGE_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export KEDGE_SEED
cd "$root"
say "seed $KEDGE_SEED, $secs s each"
rooms=
# Word splitting is meant here and below: names of rooms, programs and tests hold no blanks.
# shellcheck disable=SC2013
for room in $(grep -rl 'mod fuzz_tests' src --include='*.rs' | cut -d/ -f2 | sort -u); do
    rooms="$rooms -p $room"
done
# shellcheck disable=SC2086
programs=$(cargo test --locked --lib $rooms --no-run 2>&1 | tee /dev/stderr | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
[ -n "$programs" ] || die "the tests cannot be built"
failed=
for program in $programs; do
    for name in $("$program" --list 2>/dev/null | sed -n 's/^\(.*fuzz_tests::.*\): test$/\1/p' | grep -F -- "$only"); do
        # Beyond its time, and a round's, it hangs. The name of a room is what cargo calls its program, but for the
        # hash.
        room=$(basename "$program" | sed 's/-[0-9a-f]*$//')
        began=$(date +%s)
        if said=$(
            # dash and bash have it, which is what a Debian calls sh.
            # shellcheck disable=SC3045
            ulimit -v 4194304
            KEDGE_FUZZ_SECS=$secs timeout $((secs + secs / 2 + 60)) "$program" --exact "$name" --nocapture 2>&1
        ); then
            say "$room $name: $(printf '%s\n' "$said" | sed -n 's/^\([0-9]* rounds in .*\)/\1/p' | tail -n 1)"
        else
            printf '%s\n' "$said" | tail -n 40
            say "$room $name: FAILED after $(($(date +%s) - began)) s with KEDGE_SEED=$KEDGE_SEED"
            failed="$failed $room::$name"
        fi
    done
done
[ -z "$failed" ] || die "failed:$failed"
