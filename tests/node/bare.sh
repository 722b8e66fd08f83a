# shellcheck shell=sh
# Makes a machine of a kernel and busybox, in namespaces of its own, and becomes it: FOLDER (empty), BUNDLE, INSTALLER,
# INSIDE (the script that is its first process), in the environment.
set -e
mount -t tmpfs -o mode=755 none "$FOLDER"
cd "$FOLDER"
mkdir -p bin dev proc sys tmp media root old
cp "$(command -v busybox)" bin/busybox
cp "$BUNDLE" media/kedge.bundle
cp "$INSTALLER" media/install.sh
printf '%s\n' "$INSIDE" >media/inside.sh
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
ip link set lo up
ip link add uplink type veth peer name uplink-peer
ip link set uplink up
ip link set uplink-peer up
ip address add 10.200.0.2/24 dev uplink
ip route add default via 10.200.0.1
pivot_root . old
# Names that are there already stay what they are.
/bin/busybox --install -s /bin 2>/dev/null || :
exec /bin/busybox env -i PATH=/bin HOME=/root /bin/busybox sh /media/inside.sh
