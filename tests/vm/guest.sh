#!/bin/sh
# Runs in the guest at boot (kedge-test.service): does what the kernel command line's kedge.step=ONE,TWO says and
# reports on the second serial line: "OK step", "FAIL step why", "ACK name." for a write that was acknowledged, "HAVE
# name" for one that is there. The host ends the machine, so that a power cut is one.
report=/dev/ttyS1
say() { echo "$*" >$report; }
steps=$(sed -n 's/.*kedge\.step=\([a-z,]*\).*/\1/p' /proc/cmdline | tr , ' ')
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
# curl asks the API: kubectl wants more memory than a small machine has left, and minutes of an emulator.
pem() { sed -n "s/.*$1: *//p" $KUBECONFIG | head -n 1 | base64 -d; }
api() { # api METHOD PATH [OBJECT]
    [ -s /root/key ] || (umask 077 && pem certificate-authority-data >/root/ca &&
        pem client-certificate-data >/root/cert && pem client-key-data >/root/key)
    [ -z "${3:-}" ] || set -- "$1" "$2" -d "$3"
    method=$1 path=$2
    shift 2
    curl -fsS -m 60 --cacert /root/ca --cert /root/cert --key /root/key -X "$method" \
        -H 'Content-Type: application/json' "$@" "https://127.0.0.1:6443$path"
}
pods=/api/v1/namespaces/default/pods
pod_is() { api GET "$pods/$1" | tr -d ' \n' | grep -qE "$2"; }
ended() { pod_is "$1" '"phase":"Failed"'; }
gone() { ! api GET "$pods/$1" >/dev/null 2>&1; }
node_has() { api GET /api/v1/nodes/vm | tr -d ' \n' |
    grep -qE "\"type\":\"$1\",\"status\":\"True\"|\"status\":\"True\",\"type\":\"$1\""; }
no_longer() { ! node_has "$1"; }
api_ready() { api GET /readyz >/dev/null; }
node_ready() { node_has Ready; }
pod_ready() { pod_is web \
    '"type":"Ready",("observedGeneration":[0-9]+,)?"status":"True"|"status":"True","type":"Ready"'; }
address() { api GET $pods/web | sed -n 's/.*"podIP": *"\([0-9.]*\)".*/\1/p' | head -n 1; }
page() { curl -fs -m 5 "http://$address/" | grep -q 'hello from the guest'; }
answers() { address=$(address) && page; }
containers() { api GET $pods/web | tr -d ' "' | sed 's|[,{}]|\n|g' | grep -E '^(containerID|restartCount):' |
    tr '\n' ' '; }
oom_killed() { pod_is hungry '"exitCode":137' && pod_is hungry '"reason":"OOMKilled"'; }
new_runs() { [ "$(readlink "/proc/$(systemctl show -p MainPID --value kedge)/exe")" = \
    "$(readlink -f "$(command -v kedge)")" ]; }

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
    kubectl run hungry --image=kedge.local/busybox:1 --restart=Never \
        --overrides='{"spec":{"containers":[{"name":"hungry",
        "image":"kedge.local/busybox:1","command":["tail","/dev/zero"],"resources":{"limits":{"memory":"16Mi"}}}]}}' \
            >/dev/null || fail "cannot run a pod"
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
    wait_for $limit "the API after the jump" api_ready
    kubectl delete pod web --now >/dev/null || fail "cannot delete after the jump"
    kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply after the jump"
    wait_for $limit "the pod is Ready after the jump" pod_ready
    wait_for $limit "the page after the jump" answers
}

# --- what pods and the machine do to a node ---

# run NAME COMMAND [FIELDS]: a pod of one container, on this node whatever the scheduler thinks of it. FIELDS go into
# its spec, with a comma.
run() {
    api POST $pods \
        '{"metadata":{"name":"'"$1"'"},"spec":{'"${3:-}"'"nodeName":"vm","restartPolicy":"Never","terminationGracePeriodSeconds":1,
        "containers":[{"name":"c","image":"kedge.local/busybox:1","command":["sh","-c","'"$2"'"]'"${4:-}"'}]}}' \
            >/dev/null || fail "cannot make the pod $1"
}
remove() { api DELETE "$pods/$1" >/dev/null && wait_for $limit "$1 is gone" gone "$1"; }
writes() { api POST /api/v1/namespaces/default/configmaps '{"metadata":{"generateName":"w-"}}' >/dev/null; }
# The processes that no pod may end.
pids() { echo "$(systemctl show -p MainPID --value kedge) $(cat /run/kedge/containerd/containerd.pid)"; }
# They and the honest pod are as they were when the step began.
unharmed() {
    [ "$(pids)" = "$began_with" ] || fail "$1: kedge and containerd were $began_with, are $(pids)"
    wait_for 60 "the honest pod is what it was ($honest)" untouched
    wait_for $limit "the page after $1" page
}
untouched() { [ "$(containers)" = "$honest" ]; }
# A node whose pressures pass quickly and whose pods have few processes. Nothing is set aside in so many words.
hostile() {
    [ -s /etc/kedge/config.yaml ] || {
        printf 'kubelet-arg:\n- eviction-pressure-transition-period=5s\n- pod-max-pids=64\n' >/etc/kedge/config.yaml
        systemctl restart kedge || fail "kedge does not start again"
    }
    wait_for $limit "the node is Ready" node_has Ready
    wait_for $limit "the honest pod is Ready" pod_ready
    wait_for $limit "the page" answers
    began_with=$(pids) honest=$(containers)
}

# 512 MB, and pods that take all of it: alone, by forking, ten at once.
small() {
    own=/sys/fs/cgroup$(cut -d: -f3 "/proc/$(systemctl show -p MainPID --value kedge)/cgroup")
    for group in "$own" "$(dirname "$own")"; do
        [ "$(cat "$group/memory.min")" -gt 0 ] || fail "nothing is kept in $group"
    done
    grep -qx "$(cat /run/kedge/containerd/containerd.pid)" "$own/cgroup.procs" || fail "containerd is not in $own"
    free -m >$report
    run eater 'tail /dev/zero'
    wait_for $limit "a pod that eats has ended" ended eater
    unharmed "a pod that eats"
    remove eater
    run forker 'while :; do tail /dev/zero & tail /dev/zero & tail /dev/zero & wait; done'
    wait_for $limit "a pod that forks and eats has ended" ended forker
    unharmed "a pod that forks and eats"
    remove forker
    wait_for $limit "the lack of memory is over" no_longer MemoryPressure
    for n in 0 1 2 3 4 5 6 7 8 9; do run "eater-$n" 'sleep 20; tail /dev/zero'; done
    for n in 0 1 2 3 4 5 6 7 8 9; do wait_for $limit "eater $n of ten has ended" ended "eater-$n"; done
    unharmed "ten pods that eat"
    for n in 0 1 2 3 4 5 6 7 8 9; do
        say "NOTE eater $n: $(api GET "$pods/eater-$n" | tr -d ' \n' | grep -oE '"reason":"(Evicted|OOMKilled)"' |
        sort -u | tr '\n' ' ')"; done
    for n in 0 1 2 3 4 5 6 7 8 9; do remove "eater-$n"; done
    wait_for $limit "the lack of memory is over" no_longer MemoryPressure
    for file in "$own/memory.current" "$own/memory.min" "$own/memory.events"; do
        say "NOTE $file: $(tr '\n' ' ' <"$file")"; done
}

has_room() { [ "$(df --output=avail / | tail -n 1)" -gt 300000 ]; }
import_image() {
    ctr --address /run/kedge/containerd/containerd.sock -n k8s.io images import /test/busybox.tar >/dev/null ||
        fail "cannot import the image"
}

# A pod that fills the disk has to go, and nothing else; a disk that somebody else fills stops writes and ends nothing.
disk() {
    run volume 'cat /dev/zero >/fill/f; sleep 3600' '"volumes":[{"name":"fill","emptyDir":{}}],' \
        ',"volumeMounts":[{"name":"fill","mountPath":"/fill"}]'
    wait_for $limit "a pod whose volume fills the disk is evicted" pod_is volume '"reason":"Evicted"'
    wait_for $limit "there is room again" has_room
    unharmed "a full volume"
    remove volume
    wait_for $limit "the lack of disk is over" no_longer DiskPressure
    run layer 'cat /dev/zero >/f; sleep 3600'
    wait_for $limit "a pod whose files fill the disk is evicted" pod_is layer '"reason":"Evicted"'
    wait_for $limit "there is room again" has_room
    unharmed "a full layer"
    remove layer
    wait_for $limit "the lack of disk is over" no_longer DiskPressure
    dd if=/dev/zero of=/fill bs=1M 2>/dev/null
    dd if=/dev/zero of=/fill.rest bs=4k 2>/dev/null
    say "NOTE left: $(df --output=avail / | tail -n 1) KiB"
    # Long enough for writes, status and leases to meet it.
    for n in 1 2 3 4 5 6 7 8 9 10; do writes 2>/dev/null || refused=yes; sleep 5; done
    say "NOTE writes were refused: ${refused:-no}"
    [ "$(pids)" = "$began_with" ] || fail "the full disk ended kedge or containerd: $began_with, now $(pids)"
    api GET /api/v1/namespaces/default/configmaps >/dev/null || fail "a full disk keeps reads from being answered"
    rm -f /fill /fill.rest
    wait_for $limit "writes are taken again" writes
    [ "$(pids)" = "$began_with" ] || fail "kedge or containerd ended after the full disk: $began_with, now $(pids)"
    wait_for $limit "the lack of disk is over" no_longer DiskPressure
    wait_for $limit "the node is Ready" node_has Ready
    # The machine's own file was no pod's fault, and still pods had to go for it, as with upstream.
    api DELETE $pods/web >/dev/null 2>&1
    wait_for $limit "the pod is gone" gone web
    # The image that no pod used any more made room, too.
    import_image
    kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply after the full disk"
    wait_for $limit "the pod is Ready after the full disk" pod_ready
    wait_for $limit "the page after the full disk" answers
}

# A share whose server falls silent holds up nothing but its own pod, and that not for ever.
nfs() {
    mkdir -p /srv/share && chmod 777 /srv/share
    echo '/srv/share *(rw,no_root_squash,fsid=0,insecure,no_subtree_check)' >/etc/exports
    systemctl start nfs-server || fail "the NFS server does not start"
    run shared 'while :; do date >>/share/log; sync; sleep 1; done' \
        '"volumes":[{"name":"share","nfs":{"server":"10.0.2.15","path":"/"}}],' \
        ',"volumeMounts":[{"name":"share","mountPath":"/share"}]'
    wait_for $limit "a pod writes to a share" test -s /srv/share/log
    nft add table inet silent
    nft add chain inet silent in '{ type filter hook input priority -10; }'
    nft add rule inet silent in tcp dport 2049 drop
    say "NOTE the share's server is silent"
    run beside 'sleep 3600'
    wait_for $limit "another pod starts" pod_is beside '"phase":"Running"'
    remove beside
    api DELETE $pods/shared >/dev/null || fail "cannot delete the pod of the share"
    run after 'sleep 3600'
    wait_for $limit "another pod starts while the first one ends" pod_is after '"phase":"Running"'
    remove after
    wait_for $limit "the pod of the silent share is gone" gone shared
    wait_for $limit "its mount is gone" unmounted
    node_has Ready || fail "the node is not Ready beside a silent share"
    unharmed "a silent share"
    nft delete table inet silent
    systemctl stop nfs-server
    rm -rf /srv/share
    : >/etc/exports
}
unmounted() { ! grep -q ' nfs4\{0,1\} ' /proc/self/mounts; }

# Processes without end: the pod has its own number of them, and the machine the rest.
forks() {
    run bomb 'b() { b | b & }; b; sleep 3600'
    wait_for $limit "the bomb has gone off" at_its_limit
    run beside 'sleep 3600'
    wait_for $limit "another pod starts" pod_is beside '"phase":"Running"'
    remove beside
    unharmed "a fork bomb"
    remove bomb
    unharmed "the end of a fork bomb"
}
at_its_limit() {
    full=$(find /sys/fs/cgroup/kubepods.slice -name pids.events -exec grep -l '^max [1-9]' {} + | head -n 1)
    [ -n "$full" ] && [ "$(cat "${full%events}current")" -le 64 ]
}

# Under systemd the cgroup of a pod is a unit: it is stopped with its pod, and its limits are there after systemd has
# read its units again.
slices() {
    run kept 'sleep 3600' '' ',"resources":{"limits":{"memory":"64Mi","cpu":"500m"}}'
    wait_for $limit "a pod with limits runs" pod_is kept '"phase":"Running"'
    uid=$(api GET $pods/kept | tr ',' '\n' | sed -n 's/.*"uid": *"\([0-9a-f-]*\)".*/\1/p' | head -n 1 | tr - _)
    slice=$(find /sys/fs/cgroup/kubepods.slice -type d -name "kubepods*-pod${uid:?}.slice" | head -n 1)
    [ -n "$slice" ] || fail "the pod with limits ($uid) has no slice"
    wait_for $limit "all pods together are held to what is not reserved" held_together
    limits=$(limits_of "$slice")
    case $limits in '64 67108864 50000 100000 '*) ;; *) fail "the pod's limits are $limits" ;; esac
    systemctl daemon-reload || fail "systemd does not read its units again"
    [ "$(limits_of "$slice")" = "$limits" ] ||
        fail "systemd forgot limits: they were $limits, are $(limits_of "$slice")"
    say "NOTE limits: $limits"
    remove kept
    left=$(n_slices)
    for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do run "brief-$n" 'sleep 5'; done
    # While they are there: an emulator is so slow that the first have gone when the last has ended.
    wait_for $limit "brief pods have slices" more_slices
    for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        wait_for $limit "brief pod $n of twenty has ended" pod_is "brief-$n" '"phase":"Succeeded"'
    done
    for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do remove "brief-$n"; done
    wait_for $limit "no slice of twenty pods is left" few_slices
    [ "$(n_told)" -le "$left" ] || fail "systemd keeps notes of pods that are gone: $(n_told) of them"
    unharmed "twenty brief pods"
}
# Those of a pod, and those of all together.
held_together() { [ "$(cat /sys/fs/cgroup/kubepods.slice/memory.max)" != max ]; }
limits_of() { cat "$1/pids.max" "$1/memory.max" "$1/cpu.max" "$1/cpu.weight" /sys/fs/cgroup/kubepods.slice/memory.max \
    /sys/fs/cgroup/kubepods.slice/pids.max | tr '\n' ' '; }
n_slices() { systemctl list-units --all --plain --no-legend --no-pager 'kubepods*-pod*.slice' | wc -l; }
n_told() { find /run/systemd/system.control -maxdepth 1 -name 'kubepods*-pod*.slice.d' 2>/dev/null | wc -l; }
more_slices() { [ "$(n_slices)" -gt "$left" ]; }
few_slices() { [ "$(n_slices)" -le "$left" ]; }

# Objects until the power goes. Only what the API has answered "201 Created" to is said to be there.
write() { # write WRITER
    boot=$(cut -c1-8 /proc/sys/kernel/random/boot_id) n=0
    while :; do
        n=$((n + 1)) name=cut-$boot-$1-$n
        curl -fs -m 60 -o /dev/null -H 'Content-Type: application/json' \
            http://127.0.0.1:8001/api/v1/namespaces/default/configmaps \
            -d '{"metadata":{"name":"'"$name"'"},"data":{"n":"'$n'"}}' && say "ACK $name."
    done
}

# Everything that an uninstall must bring back. Caches and logs of the distribution's own programs are not ours.
picture() {
    {
        find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run \
            -o -path '/var/log/journal' -o -path /var/lib/systemd -o -path /var/lib/apt \
            -o -path /var/cache -o -path /var/backups -o -path /var/lib/dbus -o -path /var/lib/nfs -o -path /root \
            -o -path /var/tmp \) -prune -o -print | sort
        find /run -maxdepth 1 | sort | sed 's/^/run /'
        cut -d' ' -f5 /proc/self/mountinfo | sort | sed 's/^/mount /'
        ip -o link | cut -d: -f2 | sort | sed 's/^/link /'
        ip route | sed 's/^/route /'
        nft list tables | sed 's/^/nft /'
        find /sys/fs/cgroup -type d \( -name 'kubepods*' -o -name 'kedge*' ! -name kedge-test.service \) |
            sed 's/^/cgroup /'
    } >"$1"
}

# shellcheck source=/dev/null
. /test/clocks.sh

[ -n "$steps" ] || exit 0
for step in $steps; do
    case $step in
    install)
        picture /root/before
        INSTALL_KEDGE_BINARY=/test/kedge sh /test/install.sh --node-name=vm >$report 2>&1 || fail "install.sh failed"
        [ -f /sys/fs/cgroup/cgroup.controllers ] || fail "this is not cgroup v2"
        wait_for $limit "the node is Ready" node_ready
        import_image
        kubectl apply -f /test/web.yaml >/dev/null || fail "cannot apply"
        wait_for $limit "the pod is Ready" pod_ready
        wait_for $limit "the page" answers
        INSTALL_KEDGE_BINARY=/test/kedge sh /test/install.sh | grep -q 'nothing changed' ||
            fail "a second run is not quiet"
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
        wait_for $limit "the API" api_ready
        kubectl proxy --port=8001 >/dev/null 2>&1 &
        wait_for $limit "a door for curl" curl -fs -o /dev/null http://127.0.0.1:8001/readyz
        say "WRITING"
        for writer in 1 2 3 4; do
            write $writer &
        done
        wait
        ;;
    verify)
        wait_for $limit "the API" api_ready
        kubectl get configmaps -o name | sed -n 's|configmap/\(cut-.*\)|HAVE \1|p' >$report
        wait_for $limit "the node is Ready" node_ready
        wait_for $limit "the pod is Ready" pod_ready
        ;;
    clocks)
        wait_for $limit "the node is Ready" node_ready
        wait_for $limit "the pod is Ready" pod_ready
        clocks
        ;;
    small | disk | nfs | forks | slices)
        hostile
        $step
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
    *) fail "there is no such step" ;;
    esac
    say "OK $step"
done
sync
poweroff -f
