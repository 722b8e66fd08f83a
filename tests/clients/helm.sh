#!/bin/sh
# helm.sh HELM: install, upgrade, test, rollback and uninstall of tests/clients/chart, looked at with kubectl.
# KUBECONFIG, IMAGE, KUBECTL.
set -eu
helm=$1
here=$(dirname -- "$0")
kubectl=${KUBECTL:-kubectl}
name=chart-$("$helm" version --template '{{.Version}}' | tr -dc 0-9)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HELM_CACHE_HOME="$scratch" HELM_CONFIG_HOME="$scratch" HELM_DATA_HOME="$scratch"
say() { printf 'helm %s: %s\n' "$("$helm" version --short)" "$1"; }
text() { "$kubectl" get "gadgets.charts.kedge.test/$name" -o 'jsonpath={.spec.text}'; }
want() { [ "$2" = "$3" ] || { echo "helm: $1: want $3, got $2"; exit 1; }; }

"$helm" install "$name" "$here/chart" --set "image=$IMAGE" --wait --timeout 300s >/dev/null
want "text after the installation" "$(text)" one
want "the hook's job" "$("$kubectl" get "job/$name-pre-install" -o 'jsonpath={.status.succeeded}')" 1
want "ready pods" "$("$kubectl" get "deployment/$name" -o 'jsonpath={.status.readyReplicas}')" 1
"$helm" upgrade "$name" "$here/chart" --set "image=$IMAGE" --set text=two --wait --timeout 300s >/dev/null
want "text after the upgrade" "$(text)" two
want "the upgrade's hook" "$("$kubectl" get "job/$name-post-upgrade" -o 'jsonpath={.status.succeeded}')" 1
"$helm" test "$name" --timeout 300s >/dev/null
"$helm" rollback "$name" 1 --wait --timeout 300s >/dev/null
want "text after the rollback" "$(text)" one
want "revisions" "$("$helm" history "$name" -o json | tr '{' '\n' | grep -c '"revision"')" 3
"$helm" uninstall "$name" --wait --timeout 300s >/dev/null
want "what is left" \
    "$("$kubectl" get "deployment,configmap,gadgets.charts.kedge.test" -o name | grep -c "/$name" || true)" 0
# Hooks and definitions are not a release's: their files say so.
"$kubectl" delete --ignore-not-found --wait=false "job/$name-pre-install" "job/$name-post-upgrade" "pod/$name-test" \
    >/dev/null
"$kubectl" delete --timeout=120s crd/gadgets.charts.kedge.test >/dev/null
say "install with a definition and hooks, upgrade, test, rollback, uninstall"
