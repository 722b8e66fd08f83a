#!/bin/sh
# Stops the cluster that up.sh started and cleans mounts, links and nft tables. Data stays in /var/lib/kedge.
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root
pidfile=/run/kedge-supervise.pid
if [ -d /run/systemd/system ] && systemctl is-active --quiet kedge; then
    systemctl stop kedge
fi
if [ -s "$pidfile" ]; then
    kill "$(cat "$pidfile")" 2>/dev/null || true
    rm -f "$pidfile"
fi
if [ -x /usr/local/bin/kedge ]; then
    /usr/local/bin/kedge killall
fi
say "down; the data is still in /var/lib/kedge"
