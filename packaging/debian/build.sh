#!/bin/sh
# Builds the Debian package from a built binary: packaging/debian/build.sh BINARY DIRECTORY
#
# Needs dpkg-deb, gzip, strip, and the repository. Prints the path of the package. The binary determines the
# oldest Debian: one that was built on Debian 12 runs on 12 and 13. Equal inputs give equal packages.
set -eu
# Times in the package, which are those of no file.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}" LC_ALL=C
binary=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=$("$binary" --version | awk '{print $2}')${FOREBAY_DEB_REVISION:--1}
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
umask 022

put() { # MODE SOURCE TARGET
    install -D -m "$1" "$2" "$stage/$3"
}
doc=usr/share/doc/forebay
units=usr/lib/systemd/system
put 755 "$binary" usr/bin/forebay
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$stage/usr/bin/forebay"
put 644 "$here/forebay.toml" etc/forebay/forebay.toml
for unit in forebay.service forebay.socket forebay-control.socket; do
    put 644 "$root/packaging/systemd/$unit" "$units/$unit"
done
sed -i -e 's|/usr/local/bin/forebay|/usr/bin/forebay|' -e 's| Installed to /etc/systemd/system together with its sockets;| |' \
    -e 's|; *see docs/upgrade.md| See /usr/share/doc/forebay/upgrade.md|' "$stage/$units/forebay.service"
for unit in forebay.service forebay.socket forebay-control.socket; do
    sed -f "$root/packaging/systemd/instance.sed" "$stage/$units/$unit" > "$stage/$units/${unit%.*}@.${unit##*.}"
done

mkdir -p "$stage/usr/share/man/man1" "$stage/usr/share/bash-completion/completions" "$stage/usr/share/zsh/vendor-completions" \
    "$stage/usr/share/fish/vendor_completions.d" "$stage/$doc/examples" "$stage/DEBIAN" "$stage/usr/share/lintian/overrides"
"$binary" man | gzip -9n > "$stage/usr/share/man/man1/forebay.1.gz"
"$binary" completions bash > "$stage/usr/share/bash-completion/completions/forebay"
"$binary" completions zsh > "$stage/usr/share/zsh/vendor-completions/_forebay"
"$binary" completions fish > "$stage/usr/share/fish/vendor_completions.d/forebay.fish"
"$here/install-docs.sh" "$root" "$stage/$doc"
put 644 "$root/CHANGELOG.md" "$doc/changelog"
gzip -9n "$stage/$doc/changelog"
put 644 "$here/copyright" "$doc/copyright"
for example in forebay-alerts.yml forebay-alerts-test.yml forebay-dashboard.json; do
    put 644 "$root/packaging/monitoring/$example" "$doc/examples/$example"
done
put 644 "$here/lintian-overrides" usr/share/lintian/overrides/forebay
{
    echo "forebay ($version) unstable; urgency=medium"
    echo
    echo "  * Release $version; the changes are in changelog.gz."
    echo
    echo " -- Forebay developers <forebay@example.org>  $(date -R -u -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n > "$stage/$doc/changelog.Debian.gz"

for script in postinst prerm postrm; do
    put 755 "$here/$script" "DEBIAN/$script"
done
echo /etc/forebay/forebay.toml > "$stage/DEBIAN/conffiles"
(cd "$stage" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) > "$stage/DEBIAN/md5sums"
# The newest symbol version of the C library that the binary uses.
libc=$(strings -a "$binary" | grep -xE 'GLIBC_2\.[0-9]+' | sort -t. -k2 -n | tail -1 | sed 's/GLIBC_//')
# In KiB, as Debian computes it. What files occupy depends on the file system.
size=$(find "$stage" -path "$stage/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '0\n' |
    awk '{kib += $1 > 0 ? int(($1 + 1023) / 1024) : 1} END {print kib}')
cat > "$stage/DEBIAN/control" <<CONTROL
Package: forebay
Version: $version
Section: admin
Priority: optional
Architecture: $arch
Maintainer: Forebay developers <forebay@example.org>
Installed-Size: $size
Depends: libc6 (>= $libc), libgcc-s1, passwd, init-system-helpers (>= 1.60)
Recommends: librados2
Suggests: libnbd-bin, prometheus, qemu-utils
Homepage: https://example.org/forebay
Description: storage server for virtual machine disks over NBD and iSCSI
 Forebay serves the disks of virtual machines, with snapshots and clones of
 golden images. Writes of all guests become sequential appends to one log, and
 clones share one copy in the read cache, so that a fleet of desktops needs few
 operations of the storage behind it: a directory, or a pool in Ceph.
CONTROL
mkdir -p "$out"
deb="$out/forebay_${version}_${arch}.deb"
# The output of xz depends on the number of threads.
dpkg-deb --root-owner-group --threads-max=1 "-Z${FOREBAY_DEB_COMPRESSION:-xz}" --build "$stage" "$deb" > /dev/null
echo "$deb"
