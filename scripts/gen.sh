#!/bin/sh
# Makes the table of kinds anew: facts from upstream's published data and from the k8s-pb dependency.
set -eu
. "$(dirname -- "$0")/lib.sh"
data=${KEDGE_UPSTREAM_DATA:-$root/../shared/upstream-v1.36}
[ -d "$data/openapi" ] || die "no upstream data in $data: set KEDGE_UPSTREAM_DATA"
cd "$root"
source=$(cargo metadata --format-version 1 --locked | jq -r '.packages[] | select(.name == "k8s-pb") | .manifest_path' | head -n 1)
[ -n "$source" ] || die "k8s-pb is not among the dependencies"
table=$(mktemp)
cargo run --locked -p schema --example gen -- "$data" "$(dirname -- "$source")" >"$table"
mv "$table" src/schema/generated/table.tsv
git diff --stat -- src/schema/generated
