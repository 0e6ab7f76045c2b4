#!/bin/sh
# Lays out what is in the image: the proxy under both its names, the shared libraries it is linked with, the roots of
# the operating system (for CA_ROOT_CA=SYSTEM), an account, a place for temporary files. No shell, no package manager.
#   deploy/image/rootfs.sh RINGWAY FOLDER
set -eu
binary=$1 root=$2

mkdir -p "$root/usr/local/bin" "$root/etc/ssl/certs" "$root/tmp" "$root/var/run" "$root/proc" "$root/sys" "$root/dev"
chmod 1777 "$root/tmp"
install -m 755 "$binary" "$root/usr/local/bin/ringway"
ln -sf ringway "$root/usr/local/bin/ztunnel"

# At the paths under which the loader looks for them; the loader itself is among them.
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done

# Their licenses want to be shipped along.
for package in libc6 libgcc-s1; do
    install -D -m 644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
done

cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nringway:x:1337:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
