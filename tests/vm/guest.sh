#!/bin/sh
# Runs in the guest at boot (kedge-test.service): does what the kernel command line's kedge.step= says and reports on the second
# serial line: "OK step", "FAIL step why", "ACK name." for a write that was acknowledged, "HAVE name" for one that is there.
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
# kubectl keeps a cache there; systemd names no home.
export HOME=/root
# How long anything may take: an emulator on a busy machine is slow.
limit=900
wait_for() { # wait_for SECONDS WHAT COMMAND...
    end=$(($(cut -d. -f1 /proc/uptime) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] || fail "$what: not in time"
        sleep 1
    done
    say "NOTE $what after $(cut -d. -f1 /proc/uptime) s"
}
node_ready() { kubectl get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}' | grep -q True; }
pod_ready() { kubectl get pod web -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' | grep -q True; }
answers() { curl -fs -m 5 "http://$(kubectl get pod web -o jsonpath='{.status.podIP}')/" | grep -q 'hello from the guest'; }
containers() { kubectl get pod web -o jsonpath='{.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}'; }
oom_killed() { kubectl get pod hungry -o jsonpath='{.status.containerStatuses[0].state.terminated}' | grep -q '"exitCode":137.*"reason":"OOMKilled"'; }
new_runs() { [ "$(readlink "/proc/$(systemctl show -p MainPID --value kedge)/exe")" = "$(readlink -f "$(command -v kedge)")" ]; }

# Another program under running pods: the same one, with a byte more.
upgrade() {
    before=$(containers)
    cp /test/kedge /root/kedge.new && printf x >>/root/kedge.new
    INSTALL_KEDGE_BINARY=/root/kedge.new sh /test/install.sh >$report 2>&1 || fail "install.sh failed to upgrade"
    rm /root/kedge.new
    wait_for $limit "the new program runs" new_runs
    wait_for $limit "the node is Ready after the upgrade" node_ready
    wait_for $limit "the page after the upgrade" answers
    [ "$(containers)" = "$before" ] || fail "the upgrade touched a pod: $before, now $(containers)"
}

# The kernel kills what takes more than it may, and the pod says so.
oom() {
    kubectl run hungry --image=kedge.local/busybox:1 --restart=Never --overrides='{"spec":{"containers":[{"name":"hungry",
        "image":"kedge.local/busybox:1","command":["tail","/dev/zero"],"resources":{"limits":{"memory":"16Mi"}}}]}}' >/dev/null || fail "cannot run a pod"
    wait_for $limit "a pod is told to have been OOM-killed" oom_killed
    kubectl delete pod hungry --now >/dev/null
}

# A board without a battery: it begins in 1970 and learns the time later.
clock() {
    now=$(date +%s)
    systemctl stop kedge
    date -s @86400 >/dev/null
    systemctl start kedge || fail "kedge does not start in 1970"
    wait_for $limit "the node is Ready in 1970" node_ready
    date -s "@$((now + 60))" >/dev/null
    wait_for $limit "the API after the jump" kubectl get --raw /readyz
    kubectl delete pod web --now >/dev/null || fail "cannot delete after the jump"
    kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply after the jump"
    wait_for $limit "the pod is Ready after the jump" pod_ready
    wait_for $limit "the page after the jump" answers
}

# Objects until the power goes. Only what the API has answered "201 Created" to is said to be there.
write() { # write WRITER
    boot=$(cut -c1-8 /proc/sys/kernel/random/boot_id) n=0
    while :; do
        n=$((n + 1)) name=cut-$boot-$1-$n
        curl -fs -m 60 -o /dev/null -H 'Content-Type: application/json' http://127.0.0.1:8001/api/v1/namespaces/default/configmaps \
            -d '{"metadata":{"name":"'"$name"'"},"data":{"n":"'$n'"}}' && say "ACK $name."
    done
}

# Everything that an uninstall must bring back. Caches and logs of the distribution's own programs are not ours.
picture() {
    {
        find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path '/var/log/journal' -o -path /var/lib/systemd -o -path /var/lib/apt \
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
    wait_for $limit "the node is Ready" node_ready
    ctr --address /run/kedge/containerd/containerd.sock -n k8s.io images import /test/busybox.tar >/dev/null || fail "cannot import the image"
    kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply"
    wait_for $limit "the pod is Ready" pod_ready
    wait_for $limit "the page" answers
    INSTALL_KEDGE_BINARY=/test/kedge sh /test/install.sh | grep -q 'nothing changed' || fail "a second run is not quiet"
    ;;
reboot)
    wait_for $limit "the node is Ready" node_ready
    wait_for $limit "the pod is Ready" pod_ready
    wait_for $limit "the page" answers
    upgrade
    oom
    clock
    ;;
write)
    wait_for $limit "the API" kubectl get --raw /readyz
    kubectl proxy --port=8001 >/dev/null 2>&1 &
    wait_for $limit "a door for curl" curl -fs -o /dev/null http://127.0.0.1:8001/readyz
    say "WRITING"
    for writer in 1 2 3 4; do
        write $writer &
    done
    wait
    ;;
verify)
    wait_for $limit "the API" kubectl get --raw /readyz
    kubectl get configmaps -o name | sed -n 's|configmap/\(cut-.*\)|HAVE \1|p' >$report
    wait_for $limit "the node is Ready" node_ready
    wait_for $limit "the pod is Ready" pod_ready
    ;;
uninstall)
    wait_for $limit "the node is Ready" node_ready
    kedge-uninstall.sh --delete-volumes --delete-config >$report 2>&1 || fail "uninstall failed"
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
