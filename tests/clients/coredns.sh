#!/bin/sh
# coredns.sh KEDGE: builds genuine CoreDNS from its Go module and asks it and Kedge's DNS the same questions
# (tests/clients/coredns/compare.py): with the Corefile of manifests/coredns.yaml and the rights of its ServiceAccount
# against the server of KUBECONFIG, and with Corefiles of one plugin each. COREDNS names a CoreDNS that is built
# already. The two run with mounts of their own.
set -eu
kedge=$1
here=$(cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "${COREDNS:-}" ]; then
    COREDNS=$scratch/genuine
    if ! why=$(sh "$here/coredns/build.sh" "$COREDNS"); then
        echo "skipped: $why"
        exit 0
    fi
fi
manifest=$here/../../manifests/coredns.yaml
PYTHONDONTWRITEBYTECODE=1 python3 "$here/coredns/compare.py" "$COREDNS" "$kedge" "$manifest" "$scratch"
