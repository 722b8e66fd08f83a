#!/bin/sh
# Makes the table of kinds anew from facts: upstream's published data (KEDGE_UPSTREAM_DATA) and the .proto files of the
# same version (KEDGE_PROTO_FILES: a folder with those of kubernetes/api, apimachinery, apiextensions-apiserver and
# kube-aggregator).
set -eu
. "$(dirname -- "$0")/lib.sh"
data=${KEDGE_UPSTREAM_DATA:-$root/../shared/upstream-v1.36}
[ -d "$data/openapi" ] || die "no upstream data in $data: set KEDGE_UPSTREAM_DATA"
[ -d "${KEDGE_PROTO_FILES:-}" ] || die "no .proto files: set KEDGE_PROTO_FILES to a folder that holds them"
cd "$root"
table=$(mktemp)
trap 'rm -f "$table"' EXIT
cargo run --locked -p schema --example gen -- "$data" "$KEDGE_PROTO_FILES" >"$table"
# Written only when whole: the table is part of the program that makes it.
cp "$table" src/schema/generated/table.tsv
git diff --stat -- src/schema/generated
