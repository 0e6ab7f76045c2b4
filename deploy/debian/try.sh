#!/bin/sh
# Installs the package into a throw-away copy of this machine's system, looks, and purges it. Needs root.
#   deploy/debian/try.sh PACKAGE
set -eu
if [ "${2:-}" != inside ]; then
    exec unshare --mount --pid --fork -- "$(realpath "$0")" "$(realpath "$1")" inside
fi

fail() {
    echo "$0: $*" >&2
    exit 1
}

# Everything that is written goes to memory, over the system as it is.
mount --make-rprivate /
above=$(mktemp -d)
mount -t tmpfs tmpfs "$above"
mkdir "$above/upper" "$above/work" "$above/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$above/upper,workdir=$above/work" "$above/root"
cp "$1" "$above/root/ringway.deb"
mount -t proc proc "$above/root/proc"
mount --rbind /dev "$above/root/dev"
chroot "$above/root" sh -eu <<'INSIDE' || fail "the package doesn't install as it should"
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
! getent passwd ringway >/dev/null
dpkg --install /ringway.deb >/dev/null
dpkg --verify ringway
getent passwd ringway | grep -q ':/nonexistent:/usr/sbin/nologin$'
ringway version | grep -q '^ringway '
# The example is a configuration that the program takes.
env -i PATH="$PATH" sh -c 'set -a; . /usr/share/doc/ringway/examples/ringway.env; ringway config check'
# The service's directives, and that what it starts is there.
systemd-analyze verify ringway.service ringway-redirect.service
systemd-analyze --offline=true --threshold=40 security ringway.service >/dev/null
nft --check --file /usr/share/ringway/redirect.nft
dpkg --purge ringway >/dev/null
for left in usr/bin/ringway lib/systemd/system/ringway.service usr/share/ringway usr/share/doc/ringway etc/ringway; do
    test ! -e "/$left"
done
INSIDE
echo "package: installed, looked at and purged"
