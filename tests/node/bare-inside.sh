# shellcheck shell=sh
# The first hours of a machine that has nothing: the bundle is installed, a pod runs, all of it goes again.
set -e
umount -l /old
rmdir /old
mount --make-rshared /
kubectl=/data/bundle/current/bin/kubectl
fail() {
    echo "FAILED: $*"
    "$kubectl" get events -A 2>&1 | tail -n 30
    "$kubectl" describe nodes 2>&1 | sed -n '/^Conditions/,/^Addresses/p'
    tail -n 30 /data/agent/containerd/containerd.log 2>/dev/null
    tail -n 30 /var/log/kedge.log 2>/dev/null
    exit 1
}
# What is on this machine, but for busybox's names.
programs() { find / -xdev -type f -perm -100 ! -path '/proc/*' ! -path '/sys/*' ! -path '/media/*' | sort; }
programs >/tmp/before
INSTALL_KEDGE_BUNDLE=/media/kedge.bundle \
    INSTALL_KEDGE_SHA256=$(sha256sum /media/kedge.bundle | cut -d ' ' -f 1) INSTALL_KEDGE_SKIP_ENABLE=true \
    sh /media/install.sh server -d /data || fail "install.sh"
# kedge server does not look there by itself yet (issue 14).
export PATH="$PATH:/usr/local/bin:/data/bundle/current/bin"
/etc/init.d/kedge start
export KUBECONFIG=/etc/kedge/kedge.yaml
wait_for() { # wait_for WHAT COMMAND...
    what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 120 ] || fail "$what: not in time"
        sleep 0.5
    done
    echo "$what after $(cut -d . -f 1 /proc/uptime) s"
}
[ -x "$kubectl" ] || fail "no kubectl in the bundle"
wait_for "the API answers" "$kubectl" get --raw /readyz
says='echo hello from a bare machine; sleep 3600'
"$kubectl" run web --image=kedge.local/busybox:1 --restart=Never --command -- sh -c "$says" ||
    fail "no pod can be made"
wait_for "the pod is Ready" "$kubectl" wait --for=condition=Ready pod/web --timeout=1s
wait_for "its log" sh -c "$kubectl logs web | grep -q 'hello from a bare machine'"
"$kubectl" exec web -- true || fail "exec"
find /proc -maxdepth 2 -name exe -exec readlink {} \; 2>/dev/null |
    grep -q '^/data/bundle/[0-9a-f]*/bin/containerd$' || fail "containerd is not the bundle's"
kedge bundle list --data-dir /data | grep current >/dev/null || fail "bundle list"
# The same again is nothing.
kedge bundle apply --data-dir /data /media/kedge.bundle | grep 'in force already' >/dev/null || fail "a second apply"
kedge uninstall --data-dir /data >/tmp/said 2>&1 || fail "uninstall: $(tail -n 5 /tmp/said)"
programs >/tmp/after
cmp /tmp/before /tmp/after || fail "programs are left: $(diff /tmp/before /tmp/after)"
[ ! -e /data ] || fail "left in /data: $(find /data | head -n 20)"
echo "DONE"
