#!/bin/sh
# Makes a docker archive from a folder, without a registry or a daemon:
#   make-image.sh REFERENCE ROOTFS-DIR OUTPUT.tar [ENTRYPOINT-WORD...]
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# -ge 3 ] || die "usage: make-image.sh REFERENCE ROOTFS-DIR OUTPUT.tar [ENTRYPOINT-WORD...]"
reference=$1 rootfs=$2 output=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$rootfs" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
diff_id=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=amd64 ;; esac
jq -nc --arg arch "$arch" --arg diff "sha256:$diff_id" \
    '{architecture: $arch, os: "linux",
      config: {Entrypoint: $ARGS.positional, Env: ["PATH=/usr/bin:/bin"], WorkingDir: "/"},
      rootfs: {type: "layers", diff_ids: [$diff]}}' --args "$@" >"$work/config"
config=$(sha256sum "$work/config" | cut -d' ' -f1).json
mv "$work/config" "$work/$config"
jq -nc --arg config "$config" --arg ref "$reference" '[{Config: $config, RepoTags: [$ref], Layers: ["layer.tar"]}]' \
    >"$work/manifest.json"
tar -C "$work" -cf "$output" manifest.json "$config" layer.tar
