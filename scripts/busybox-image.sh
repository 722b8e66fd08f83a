#!/bin/sh
# Makes the image kedge.local/busybox:1 from Debian's static busybox: busybox-image.sh OUTPUT.tar
set -eu
. "$(dirname -- "$0")/lib.sh"
[ $# = 1 ] || die "usage: busybox-image.sh OUTPUT.tar"
busybox=$(command -v busybox || echo /bin/busybox)
[ -x "$busybox" ] || die "no busybox: apt-get install busybox-static"
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT
mkdir -p "$rootfs/bin" "$rootfs/etc" "$rootfs/tmp" "$rootfs/www" "$rootfs/root"
chmod 1777 "$rootfs/tmp"
cp "$busybox" "$rootfs/bin/busybox"
"$busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$rootfs/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$rootfs/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$rootfs/etc/group"
sh "$root/scripts/make-image.sh" kedge.local/busybox:1 "$rootfs" "$1" /bin/sh
