#!/bin/sh
# Makes the images that the manual's commands name, from Debian's static busybox: manual-images.sh FOLDER
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
. "$here/scripts/lib.sh"
[ $# = 1 ] || die "usage: manual-images.sh FOLDER"
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT
sh "$here/scripts/busybox-image.sh" "$rootfs.tar"
mkdir "$rootfs/bin"
busybox=$(command -v busybox || echo /bin/busybox)
cp "$busybox" "$rootfs/bin/busybox"
"$busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$rootfs/bin/$applet"
done
mkdir -p "$rootfs/etc" "$rootfs/tmp" "$rootfs/usr/share/nginx/html"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$rootfs/etc/passwd"
printf '<h1>Welcome to nginx!</h1>\n' >"$rootfs/usr/share/nginx/html/index.html"
printf '#!/bin/sh\nexec httpd -f -p 80 -h /usr/share/nginx/html\n' >"$rootfs/entrypoint"
chmod 755 "$rootfs/entrypoint"
# A web server on port 80 that goes by the name of one that everybody knows.
sh "$here/scripts/make-image.sh" docker.io/library/nginx:1.29 "$rootfs" "$1/nginx.tar" /entrypoint
sh "$here/scripts/make-image.sh" docker.io/library/busybox:1.37 "$rootfs" "$1/busybox.tar" /bin/sh
rm -f "$rootfs.tar"
