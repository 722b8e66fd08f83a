#!/bin/sh
# go.sh: builds tests/clients/go and runs it against KUBECONFIG. By hand: the first build takes minutes, too long for
# CI. WEBHOOK_HOST is an address of this machine that the server reaches (default: the one towards it).
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
server=$(sed -n 's#.*server: https://\([^:/]*\).*#\1#p' "$KUBECONFIG" | head -1)
export WEBHOOK_HOST="${WEBHOOK_HOST:-$(ip -4 route get "$server" | sed -n 's/.* src \([0-9.]*\).*/\1/p')}"
binary=${CARGO_TARGET_DIR:-$here/../../target}/clients/go-clients
mkdir -p "$(dirname -- "$binary")"
(cd "$here/go" && go build -o "$binary" .)
exec "$binary"
