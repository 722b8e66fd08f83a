#!/bin/sh
# Builds the static binary: build.sh PROFILE [TRIPLE]. Prints nothing but cargo's progress; the file's path is scripts/bin-path.sh's.
set -eu
. "$(dirname -- "$0")/lib.sh"
profile=${1:-release}
triple=${2:-$(target_triple)}
cd "$root"
# Not position-independent: no relocations to apply, so the pages of a pause process stay shared with every other.
flags="-C relocation-model=static -C target-feature=+crt-static"
if [ "$triple" = aarch64-unknown-linux-musl ] && [ "$(uname -m)" != aarch64 ]; then
    export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
fi
RUSTFLAGS="$flags" cargo build --locked --profile "$profile" --target "$triple" --bin kedge
