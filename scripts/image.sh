#!/bin/sh
# Makes a container image of kedge itself: a cluster in a privileged container, for tests of other software, as k3d and
# kind are. image.sh OUTPUT.tar; the name is kedge.local/kedge:VERSION. In it: the static kedge, containerd, runc and
# kubectl of scripts/programs.sh, busybox, and nft of this machine with its libraries (until the data plane needs none).
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# = 1 ] || die "usage: image.sh OUTPUT.tar"
kedge=${KEDGE_BIN:-$(sh "$root/scripts/bin-path.sh" release)}
[ -x "$kedge" ] || die "no static kedge: 'make release' makes it, or name it with KEDGE_BIN"
programs=$(KEDGE_BIN=$kedge sh "$root/scripts/programs.sh")
busybox=$(command -v busybox) || die "no busybox: apt-get install busybox-static"
version=$("$kedge" --version | awk '{ print $2 }')
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT
mkdir -p "$rootfs/bin" "$rootfs/etc" "$rootfs/tmp" "$rootfs/run" "$rootfs/root" \
    "$rootfs/var/lib/kedge" "$rootfs/var/log"
chmod 1777 "$rootfs/tmp"
cp "$busybox" "$rootfs/bin/busybox"
"$busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$rootfs/bin/$applet"
done
cp "$kedge" "$programs/containerd" "$programs/containerd-shim-runc-v2" "$programs/ctr" "$programs/runc" \
    "$programs/kubectl" "$rootfs/bin/"
nft=$(command -v nft) || die "no nft: apt-get install nftables"
for file in "$nft" $(ldd "$nft" | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p'); do
    mkdir -p "$rootfs${file%/*}"
    cp -L "$file" "$rootfs$file"
done
ln -s "$nft" "$rootfs/bin/nft"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$rootfs/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$rootfs/etc/group"
# The first process: a container's control group is its root, and a group that has processes gets no controllers for
# those below it. So what is in it goes one floor down, as in other images of clusters.
cat >"$rootfs/bin/entrypoint" <<'SCRIPT'
#!/bin/sh
set -e
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p /sys/fs/cgroup/init
    while read -r pid; do echo "$pid" >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || :; done \
        </sys/fs/cgroup/cgroup.procs
    sed 's/^/+/; s/ / +/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
mount --make-rshared /
exec kedge "$@"
SCRIPT
chmod 755 "$rootfs/bin/entrypoint"
sh "$root/scripts/make-image.sh" "kedge.local/kedge:$version" "$rootfs" "$1" /bin/entrypoint
say "kedge.local/kedge:$version is in $1"
