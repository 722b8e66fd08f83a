#!/bin/sh
# Prints the path of the static binary: bin-path.sh PROFILE [TRIPLE]
set -eu
. "$(dirname -- "$0")/lib.sh"
echo "$CARGO_TARGET_DIR/${2:-$(target_triple)}/${1:-release}/kedge"
