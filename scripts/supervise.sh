#!/bin/sh
# Keeps a program running where no systemd does: supervise.sh LOGFILE PROGRAM ARGS...
# Ends with the program's good exit, or when it is told to (SIGTERM goes on to the program).
set -u
log=$1
shift
child=
stop() {
    trap '' TERM INT
    [ -z "$child" ] || kill "$child" 2>/dev/null
    wait "$child" 2>/dev/null
    exit 0
}
trap stop TERM INT
while :; do
    "$@" >>"$log" 2>&1 &
    child=$!
    wait "$child"
    code=$?
    [ "$code" != 0 ] || exit 0
    printf 'supervise: %s ended with code %s, starting it again\n' "$1" "$code" >>"$log"
    sleep 1
done
