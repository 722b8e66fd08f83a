#!/bin/sh
# build.sh PROGRAM: genuine CoreDNS from its Go module, as main.go puts it together. Fails where the module cannot be
# had.
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
version=v1.15.0
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
cp "$here/main.go" "$source"
cd "$source"
printf 'module kedge.test/coredns\n\ngo 1.26\n' >go.mod
{ go get "github.com/coredns/coredns@$version" && go mod tidy && go build -o "$1" .; } >log 2>&1 || {
    echo "genuine CoreDNS $version cannot be built: $(tail -1 log)"
    exit 1
}
