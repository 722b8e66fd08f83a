#!/bin/sh
# coredns.sh KEDGE: builds genuine CoreDNS from its Go module and asks it and Kedge's DNS the same questions
# (tests/clients/coredns/compare.py): with the Corefile of manifests/coredns.yaml and the rights of its ServiceAccount
# against the server of KUBECONFIG, and with Corefiles of one plugin each. COREDNS names a CoreDNS that is built already.
# As root: the two run with mounts of their own.
set -eu
kedge=$1
here=$(cd -- "$(dirname -- "$0")" && pwd)
version=v1.15.0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "${COREDNS:-}" ]; then
    mkdir "$scratch/src"
    cp "$here/coredns/main.go" "$scratch/src"
    cd "$scratch/src"
    printf 'module kedge.test/coredns\n\ngo 1.26\n' >go.mod
    if ! go get "github.com/coredns/coredns@$version" >get.log 2>&1; then
        echo "skipped: genuine CoreDNS (the Go module cannot be had: $(tail -1 get.log))"
        exit 0
    fi
    go mod tidy >tidy.log 2>&1
    COREDNS=$scratch/coredns
    go build -o "$COREDNS" .
fi
python3 "$here/coredns/compare.py" "$COREDNS" "$kedge" "$here/../../manifests/coredns.yaml" "$scratch"
