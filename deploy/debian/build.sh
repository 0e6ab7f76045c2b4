#!/bin/sh
# Makes the Debian package for machines outside Kubernetes from a binary that is built already.
#   deploy/debian/build.sh RINGWAY [FOLDER]     the package comes into the folder, here by default
# The version is the one in Cargo.toml, or VERSION. SOURCE_DATE_EPOCH (default: of the last commit) dates the files, so
# that the same input gives the same package.
set -eu
binary=$(realpath "$1")
folder=$(realpath "${2:-.}")
cd "$(dirname "$0")/../.."

version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)}
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022

file() {
    install -D -m "$1" "$2" "$tree/$3"
}
file 755 "$binary" usr/bin/ringway
strip --strip-debug "$tree/usr/bin/ringway"
file 644 deploy/systemd/ringway.service lib/systemd/system/ringway.service
file 644 deploy/systemd/ringway-redirect.service lib/systemd/system/ringway-redirect.service
file 644 deploy/systemd/redirect.nft usr/share/ringway/redirect.nft
file 644 deploy/systemd/ringway.env usr/share/doc/ringway/examples/ringway.env
(cd deploy/docs && find . -name '*.md') | while read -r page; do
    file 644 "deploy/docs/$page" "usr/share/doc/ringway/$page"
done
file 644 deploy/debian/copyright usr/share/doc/ringway/copyright
file 644 deploy/debian/lintian-overrides usr/share/lintian/overrides/ringway
{
    echo "ringway ($version) unstable; urgency=medium"
    echo
    echo "  * This version; CHANGELOG.md of the source says what is new."
    echo
    echo " -- Ringway <ringway@localhost>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$tree/changelog.gz"
file 644 "$tree/changelog.gz" usr/share/doc/ringway/changelog.gz
rm "$tree/changelog.gz"
"$binary" completions bash >"$tree/completions"
file 644 "$tree/completions" usr/share/bash-completion/completions/ringway
rm "$tree/completions"

# The C library that the binary needs at least: the newest version among its symbols.
libc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | sed 's/GLIBC_//')
mkdir "$tree/DEBIAN"
for script in postinst prerm postrm; do
    file 755 "deploy/debian/$script" "DEBIAN/$script"
done
(cd "$tree" && find usr lib -type f -exec md5sum {} + | sort -k 2) >"$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: ringway
Version: $version
Architecture: $architecture
Maintainer: Ringway <ringway@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: libc6 (>= $libc), libgcc-s1, adduser
Recommends: nftables, ca-certificates
Section: net
Priority: optional
Description: node proxy of an Istio ambient mesh, for one machine
 Ringway gives the workload of a machine outside Kubernetes an identity in an
 Istio ambient mesh: mutual TLS, L4 policy and telemetry, by the same program
 that serves the pods of a node in Kubernetes.
CONTROL
find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group --build "$tree" "$folder/ringway_${version}_$architecture.deb"
