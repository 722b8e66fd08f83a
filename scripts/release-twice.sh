#!/bin/sh
# Builds the release of this machine's architecture in two folders of the compiler, and compares them: a release that
# nobody can make again cannot be checked by anybody.
set -eu
. "$(dirname -- "$0")/lib.sh"
cd "$root"
sh scripts/build.sh release
first=$(sh scripts/bin-path.sh release)
second=$(mktemp -d "${TMPDIR:-/tmp}/kedge-twice-XXXXXX")
trap 'rm -rf "$second"' EXIT
CARGO_TARGET_DIR=$second sh scripts/build.sh release
sum_of() { sha256sum "$1" | cut -d ' ' -f 1; }
one=$(sum_of "$first") other=$(sum_of "$(CARGO_TARGET_DIR=$second sh scripts/bin-path.sh release)")
[ "$one" = "$other" ] || die "the same commit gave $one and $other"
say "twice the same: $one"
