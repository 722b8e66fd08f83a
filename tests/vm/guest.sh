#!/bin/sh
# Runs in the guest at boot (kedge-test.service): does what the kernel command line's kedge.step= says and reports on the second
# serial line: "OK step", "FAIL step why", "ACK name" for a write that was acknowledged, "HAVE name" for one that is there.
# The host ends the machine, so that a power cut is one.
report=/dev/ttyS1
say() { echo "$*" >$report; }
step=$(sed -n 's/.*kedge\.step=\([a-z]*\).*/\1/p' /proc/cmdline)
fail() {
    say "FAIL $step $*"
    journalctl -u kedge --no-pager -n 40 -o cat >$report 2>&1
    sync
    poweroff -f
}
export KUBECONFIG=/etc/kedge/kedge.yaml
wait_for() { # wait_for SECONDS WHAT COMMAND...
    limit=$(($(cut -d. -f1 /proc/uptime) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$limit" ] || fail "$what: not in time"
        sleep 1
    done
    say "NOTE $what after $(cut -d. -f1 /proc/uptime) s"
}
node_ready() { kubectl get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}' | grep -q True; }
pod_ready() { kubectl get pod web -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' | grep -q True; }
answers() { curl -fs -m 5 "http://$(kubectl get pod web -o jsonpath='{.status.podIP}')/" | grep -q 'hello from the guest'; }

# Everything that an uninstall must bring back. Caches and logs of the distribution's own programs are not ours.
picture() {
    {
        find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path '/var/log/journal' -o -path /var/lib/systemd \
            -o -path /var/cache -o -path /var/lib/dbus -o -path /root -o -path /var/tmp \) -prune -o -print | sort
        find /run -maxdepth 1 | sort | sed 's/^/run /'
        cut -d' ' -f5 /proc/self/mountinfo | sort | sed 's/^/mount /'
        ip -o link | cut -d: -f2 | sort | sed 's/^/link /'
        ip route | sed 's/^/route /'
        nft list tables | sed 's/^/nft /'
        find /sys/fs/cgroup -type d -name 'kubepods*' | sed 's/^/cgroup /'
    } >"$1"
}

case $step in
install)
    picture /root/before
    INSTALL_KEDGE_BINARY=/test/kedge sh /test/install.sh --node-name=vm >$report 2>&1 || fail "install.sh failed"
    [ -f /sys/fs/cgroup/cgroup.controllers ] || fail "this is not cgroup v2"
    wait_for 300 "the node is Ready" node_ready
    ctr --address /run/kedge/containerd/containerd.sock -n k8s.io images import /test/busybox.tar >/dev/null || fail "cannot import the image"
    kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply"
    wait_for 300 "the pod is Ready" pod_ready
    wait_for 60 "the page" answers
    INSTALL_KEDGE_BINARY=/test/kedge sh /test/install.sh | grep -q 'nothing changed' || fail "a second run is not quiet"
    ;;
reboot)
    wait_for 300 "the node is Ready" node_ready
    wait_for 300 "the pod is Ready" pod_ready
    wait_for 60 "the page" answers
    ;;
write)
    wait_for 300 "the API" kubectl get --raw /readyz
    boot=$(cut -c1-8 /proc/sys/kernel/random/boot_id) n=0
    say "WRITING"
    while :; do
        n=$((n + 1))
        kubectl create configmap "cut-$boot-$n" --from-literal=n=$n >/dev/null 2>&1 && say "ACK cut-$boot-$n"
    done
    ;;
verify)
    wait_for 300 "the API" kubectl get --raw /readyz
    kubectl get configmaps -o name | sed -n 's|configmap/\(cut-.*\)|HAVE \1|p' >$report
    wait_for 300 "the node is Ready" node_ready
    wait_for 300 "the pod is Ready" pod_ready
    ;;
uninstall)
    wait_for 300 "the node is Ready" node_ready
    kedge-uninstall.sh --delete-volumes >$report 2>&1 || fail "uninstall failed"
    systemctl stop containerd 2>/dev/null
    picture /root/after
    diff /root/before /root/after | grep '^[<>]' >/root/diff
    if [ -s /root/diff ]; then
        head -n 40 /root/diff >$report
        fail "something is left or missing"
    fi
    ;;
*) exit 0 ;;
esac
say "OK $step"
sync
poweroff -f
