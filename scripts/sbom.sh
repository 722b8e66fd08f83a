#!/bin/sh
# Prints the list of parts of a program as CycloneDX 1.5: every crate that is built into it for a target, with its
# version, licence and sum. sbom.sh TRIPLE PROGRAM
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# = 2 ] || die "usage: sbom.sh TRIPLE PROGRAM"
triple=$1 program=$2
sum=$(sha256sum "$program" | cut -d ' ' -f 1)
cd "$root"
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
sums=$(mktemp)
trap 'rm -f "$sums"' EXIT
# What Cargo.lock says of each crate's archive.
awk '/^name = / { gsub(/"/, "", $3); name = $3 } /^version = / { gsub(/"/, "", $3); version = $3 }
    /^checksum = / { gsub(/"/, "", $3); print name "@" version " " $3 }' Cargo.lock >"$sums"
cargo metadata --locked --format-version 1 --filter-platform "$triple" |
    jq -S --arg sum "$sum" --arg commit "$commit" --arg triple "$triple" --rawfile sums "$sums" '
    ($sums | split("\n") | map(select(. != "") | split(" ") | {(.[0]): .[1]}) | add) as $sums |
    (.packages | map({(.id): .}) | add) as $packages |
    # Macros run in the compiler, and what only they use is not in the program.
    def is_built: $packages[.].targets | any(.[]; any(.kind[]; . == "proc-macro")) | not;
    (.resolve.nodes | map({(.id): [.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg | select(is_built)]}) |
        add) as $deps |
    ([.packages[] | select(.name == "kedge")][0]) as $kedge |
    def reach: . as $seen | ([$seen[] | $deps[.][]?] + $seen | unique) as $next |
        if ($next | length) == ($seen | length) then $seen else ($next | reach) end;
    ([$kedge.id] | reach - [$kedge.id]) as $ids |
    def ref: $packages[.] | "pkg:cargo/\(.name)@\(.version)";
    {bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
     metadata: {component: {type: "application", name: "kedge", version: $kedge.version, "bom-ref": ($kedge.id | ref),
         licenses: [{expression: $kedge.license}], hashes: [{alg: "SHA-256", content: $sum}],
         properties: [{name: "kedge:commit", value: $commit}, {name: "kedge:target", value: $triple}]}},
     components: [$ids[] | $packages[.] | . as $package | {type: "library", name, version, "bom-ref": (.id | ref)}
         + (if .license then {licenses: [{expression: (.license | gsub("/"; " OR "))}]} else {} end)
         + (if .source then {purl: (.id | ref)} else {} end)
         + (($sums["\($package.name)@\($package.version)"]) as $of |
             if $of then {hashes: [{alg: "SHA-256", content: $of}]} else {} end)] | sort_by(.["bom-ref"]),
     dependencies: [([$kedge.id] + $ids)[] | {ref: ref, dependsOn: ([$deps[.][] | ref] | unique)}] | sort_by(.ref)}
    | .components |= sort_by(.["bom-ref"])'
