#!/bin/sh
# Builds containerd, runc and kubectl from source, once, and prints the folder in which they are: what bundles are made
# of, and what the test of a machine that has nothing needs. Needs Go, libseccomp's static library and the network once.
set -eu
. "$(dirname -- "$0")/lib.sh"
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kedge/programs
kedge=${KEDGE_BIN:-$(sh "$root/scripts/bin-path.sh" fast)}
[ -x "$kedge" ] || die "no static kedge: sh scripts/build.sh fast, or KEDGE_BIN"
# Other versions are built anew.
wanted=$("$kedge" bundle build --help | sed -n 's/.*\[default: \(v[0-9.]*\)\]/\1/p' | tr '\n' '-')
data=$cache/$wanted$(oci_arch)
if [ ! -e "$data/bundle/current" ]; then
    command -v go >/dev/null 2>&1 || die "no Go to build containerd, runc and kubectl with"
    mkdir -p "$data"
    "$kedge" bundle build --arch "$(oci_arch)" --from-source -o "$data/programs.bundle" >&2
    "$kedge" bundle apply --data-dir "$data" "$data/programs.bundle" >&2
    rm -f "$data/programs.bundle"
fi
echo "$data/bundle/current/bin"
