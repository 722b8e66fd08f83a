# shellcheck shell=sh
# What the first process of a pretend machine does before all else, in namespaces of its own. /sys has to be mounted
# anew to show the network of this namespace, which would hide the cgroups: they are carried over. All of it is private
# until the end; then it is shared, as the mounts of a machine run by systemd are. MACHINE_ID is the number by which the
# machine is known.
set -e
hold=$(mktemp -d)
mount --rbind /sys/fs/cgroup "$hold"
mount -t sysfs sysfs /sys
mount --rbind "$hold" /sys/fs/cgroup
umount -l "$hold"
rmdir "$hold"
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
if [ -e /etc/machine-id ]; then
    printf '%032d\n' "$MACHINE_ID" >/run/machine-id
    mount --bind /run/machine-id /etc/machine-id
fi
mount --make-rshared /
ip link set lo up
