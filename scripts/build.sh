#!/bin/sh
# Builds the static binary: build.sh PROFILE [TRIPLE]. Prints nothing but cargo's progress; the file's path is
# scripts/bin-path.sh's.
set -eu
. "$(dirname -- "$0")/lib.sh"
profile=${1:-release}
triple=${2:-$(target_triple)}
cd "$root"
# Not position-independent: no relocations to apply, so the pages of a pause process stay shared with every other.
flags="-C relocation-model=static -C target-feature=+crt-static"
# mimalloc touches its memory as it needs it: with its default, huge pages hold 10 MB more than the program uses.
export CFLAGS="${CFLAGS:-} -DMI_DEFAULT_ARENA_EAGER_COMMIT=0"
if [ "$triple" = aarch64-unknown-linux-musl ] && [ "$(uname -m)" != aarch64 ]; then
    export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
    # Debian's cross compiler brings glibc's headers, which turn large-file calls into names that musl does not have. On
    # 64 bits all files are large without them.
    export CFLAGS="$CFLAGS -DSQLITE_DISABLE_LFS"
fi
RUSTFLAGS="$flags" cargo build --locked --profile "$profile" --target "$triple" --bin kedge
