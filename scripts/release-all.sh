#!/bin/sh
# A release for every architecture that this machine can build for: OUT/VERSION/kedge-ARCH with its sums, its list of
# parts (CycloneDX) and, where KEY names a key of 'kedge bundle keygen', the signature of the sums. One that cannot be
# built is told by name with the reason, and the others go on; the exit code is then 3.
set -eu
. "$(dirname -- "$0")/lib.sh"
cd "$root"
out=${OUT:-$CARGO_TARGET_DIR/release-all}
version=v$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
mkdir -p "$out/$version"
left=
for arch in ${ARCHS:-amd64 arm64 arm riscv64}; do
    built='' why=''
    for triple in $(triples_of "$arch"); do
        say "$arch: $triple"
        if ! sh scripts/setup.sh "$triple" >"$here/log" 2>&1; then
            why="$triple: $(grep -v '^ ' "$here/log" | grep -i 'error' | head -n 1)"
        elif ! sh scripts/build.sh release "$triple" 2>"$here/log"; then
            why="$triple: $(grep -E '^(error|  cargo:warning=.*(error|fatal))' "$here/log" | head -n 1)"
        else
            built=$triple
            break
        fi
        say "$arch: $why"
    done
    if [ -z "$built" ]; then
        left="$left
  $arch: $why"
        continue
    fi
    (
        cd "$out/$version"
        cp "$(sh "$root/scripts/bin-path.sh" release "$built")" "kedge-$arch"
        sh "$root/scripts/sbom.sh" "$built" "kedge-$arch" >"kedge-$arch.cdx.json"
        sha256sum "kedge-$arch" "kedge-$arch.cdx.json" >"sha256sum-$arch.txt"
    )
    say "$arch: $(sh scripts/start-one.sh "$arch" "$out/$version/kedge-$arch" 2>&1 | tail -n 1)"
done
if [ -n "${KEY:-}" ]; then
    for sums in "$out/$version"/sha256sum-*.txt; do
        "$out/$version/kedge-$(oci_arch)" bundle sign --sign "$KEY" "$sums"
    done
fi
printf '%s\n' "$version" >"$out/stable"
say "in $out:"
(cd "$out" && find . -type f | sort)
[ -z "$left" ] || {
    say "not built:$left"
    exit 3
}
