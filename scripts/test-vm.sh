#!/bin/sh
# A whole machine under emulation (systemd, cgroup v2, a kernel of its own): install.sh, a page, a reboot, pods that eat
# its 512 MB, fill its disk, hang on a silent NFS server and fork without end, power cuts during writes, and an
# uninstall that leaves nothing. KEDGE_POWER_CUTS says how many (default 5), KEDGE_VM_STEPS which steps (default all;
# all but install go on with the disk of the last run; a comma joins steps that need no boot between them).
# KEDGE_VM_ACCEL=kvm where that works. Takes long: outside .ci/run.
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root
work=${KEDGE_VM_DIR:-/var/tmp/kedge-vm}
cuts=${KEDGE_POWER_CUTS:-5}
steps=${KEDGE_VM_STEPS:-install reboot,disk,nfs,forks,slices small clocks cuts uninstall}
# Some clouds show a /dev/kvm on which guests hang: emulation is slow and works everywhere.
accel=${KEDGE_VM_ACCEL:-tcg}
mkdir -p "$work"

for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap mke2fs:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null 2>&1 ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${pair##*:}" >/dev/null
done
program=${KEDGE_BINARY:-$(sh "$root/scripts/bin-path.sh" release)}
[ -x "$program" ] || die "no kedge at $program: run 'make release', or name one with KEDGE_BINARY"

tree=$work/root
if [ ! -f "$tree/.complete" ]; then
    say "making a Debian root"
    rm -rf "$tree"
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,udev,dbus,kmod,iproute2,nftables,containerd,runc,conntrack,curl,ca-certificates,procps,diffutils,linux-image-cloud-amd64,initramfs-tools,busybox-static,nfs-common,nfs-kernel-server \
        bookworm "$tree" >"$work/debootstrap.log" 2>&1 || die "debootstrap failed; see $work/debootstrap.log"
    : >"$tree/.complete"
fi
make_disk() {
    say "making the disk"
    sh "$root/scripts/busybox-image.sh" "$work/busybox.tar"
    mkdir -p "$tree/test" "$tree/etc/systemd/network" "$tree/etc/systemd/system/multi-user.target.wants"
    cp "$program" "$tree/test/kedge"
    cp "$root/install.sh" "$root/tests/vm/guest.sh" "$root/tests/vm/clocks.sh" "$root/tests/vm/web.yaml" \
        "$work/busybox.tar" "$tree/test/"
    cp "$(command -v kubectl)" "$tree/usr/bin/kubectl"
    echo kedge-vm >"$tree/etc/hostname"
    # A root of debootstrap's has neither, and containerd copies the first into every sandbox.
    printf '127.0.0.1 localhost kedge-vm\n' >"$tree/etc/hosts"
    : >"$tree/etc/resolv.conf"
    printf '[Match]\nName=en* eth*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' \
        >"$tree/etc/systemd/network/10-all.network"
    printf '%s\n' '[Unit]' 'After=multi-user.target' '[Service]' 'ExecStart=/bin/sh /test/guest.sh' \
        'TimeoutStartSec=0' 'OOMScoreAdjust=-900' >"$tree/etc/systemd/system/kedge-test.service"
    ln -sf ../kedge-test.service "$tree/etc/systemd/system/multi-user.target.wants/kedge-test.service"
    ln -sf /lib/systemd/system/systemd-networkd.service \
        "$tree/etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
    # The distribution's own containerd is not used and would only take time.
    rm -f "$tree/etc/systemd/system/multi-user.target.wants/containerd.service"
    # Neither do the parts of NFS run before their step.
    rm -f "$tree"/etc/systemd/system/*.wants/nfs-* "$tree"/etc/systemd/system/*.wants/rpc* \
        "$tree"/etc/systemd/system/*.wants/proc-fs-nfsd.mount
    rm -f "$work/disk.img"
    mke2fs -q -t ext4 -d "$tree" "$work/disk.img" 3G
}
# Between commas, as "uninstall" holds the word, too.
case ,$(printf %s "$steps" | tr ' ' ,), in *,install,*) make_disk ;; esac
[ -f "$work/disk.img" ] || die "no disk of an earlier run: begin with the step install"
kernel=$(find "$tree/boot" -name 'vmlinuz-*' | head -n 1)
initrd=$(find "$tree/boot" -name 'initrd.img-*' | head -n 1)

pid=
cleanup() { [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true; }
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

start() { # start STEP: the machine in the background, its report in $work/STEP.out
    : >"$work/$1.out"
    case $1 in *small*) memory=512 ;; *) memory=2048 ;; esac
    # What a kernel does against neighbours on a processor costs an emulator dearly.
    # Without O_DIRECT, but every flush of the guest reaches the file: what it had not flushed dies with the emulator's
    # guest memory.
    nice -n 5 qemu-system-x86_64 -machine q35 -accel "$accel" -cpu max -smp 2 -m $memory -display none -monitor none \
        -kernel "$kernel" -initrd "$initrd" \
        -append "root=/dev/vda rw console=ttyS0 quiet mitigations=off kedge.step=$1" \
        -drive "file=$work/disk.img,if=virtio,format=raw,cache=writeback" -netdev user,id=n \
        -device virtio-net-pci,netdev=n \
        -serial "file:$work/$1.console" -serial "file:$work/$1.out" </dev/null >"$work/qemu.log" 2>&1 &
    pid=$!
}
step() { # step NAME,NAME: boots, waits until the guest has switched itself off
    say "$1"
    began=$(date +%s)
    start "$1"
    wait "$pid" || true
    pid=
    grep -a '^NOTE' "$work/$1.out" || true
    grep -qa "^OK ${1##*,}" "$work/$1.out" || { tail -n 60 "$work/$1.out" "$work/$1.console"; die "$1 failed"; }
    say "$1: $(($(date +%s) - began)) s"
}

power_cuts() {
    : >"$work/acked"
    cut=0
    while [ "$cut" -lt "$cuts" ]; do
        cut=$((cut + 1))
        start write
        until grep -qa WRITING "$work/write.out"; do
            kill -0 "$pid" 2>/dev/null || { tail -n 40 "$work/write.out"
                die "the guest did not come back after power cut $((cut - 1))"; }
            sleep 1
        done
        # In the midst of the writes: some are through, others on their way.
        enough=$((1 + $(od -An -N1 -tu1 /dev/urandom) % 100))
        until [ "$(grep -ac '^ACK' "$work/write.out")" -ge "$enough" ]; do
            kill -0 "$pid" 2>/dev/null || { tail -n 40 "$work/write.out"
                die "the guest ended by itself after power cut $((cut - 1))"; }
            sleep 0.2
        done
        kill -9 "$pid"
        wait "$pid" 2>/dev/null || true
        pid=
        # A line that the cut has torn has no dot at its end.
        tr -d '\r' <"$work/write.out" | sed -n 's/^ACK \(.*\)\.$/\1/p' >>"$work/acked"
        say "power cut $cut of $cuts: $(wc -l <"$work/acked") writes acknowledged so far"
    done
    if [ "$cuts" -gt 0 ]; then
        step verify
        tr -d '\r' <"$work/verify.out" | sed -n 's/^HAVE //p' | sort >"$work/have"
        lost=$(sort "$work/acked" | comm -23 - "$work/have")
        [ -z "$lost" ] || die "acknowledged writes are lost: $lost"
        say "no acknowledged write was lost"
    fi
}

for name in $steps; do
    case $name in cuts) power_cuts ;; *) step "$name" ;; esac
done
say "ended well: $steps"
