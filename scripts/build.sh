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
if [ "$triple" != "$(target_triple)" ]; then
    cross=$(cross_prefix "$triple")
    name=$(printf '%s' "$triple" | tr - _)
    export "CC_$name=$cross-gcc"
    case $triple in
    *-musl)
        linker=rust-lld
        # Debian's cross compiler brings glibc's headers, which turn large-file calls into names that musl does not
        # have. On 64 bits all files are large without them.
        export CFLAGS="$CFLAGS -DSQLITE_DISABLE_LFS"
        ;;
    # glibc, linked statically: only its own compiler knows where its parts are.
    *) linker=$cross-gcc ;;
    esac
    export "CARGO_TARGET_$(printf '%s' "$name" | tr "[:lower:]" "[:upper:]")_LINKER=$linker"
fi
if [ "$profile" = release ]; then
    # Where it was built is no part of a release: the same commit gives the same bytes in any folder.
    cargo_home=${CARGO_HOME:-${HOME:-/}/.cargo}
    flags="$flags --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$root=/kedge"
    export CFLAGS="$CFLAGS -ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$CARGO_TARGET_DIR=/target"
fi
RUSTFLAGS="$flags" cargo build --locked --profile "$profile" --target "$triple" --bin kedge
