#!/usr/bin/env bash
# Makes a guest image: a real Debian 12 with systemd and Debian's kernel, on ext4, as qcow2, with its kernel and
# initrd beside it. Prints the directory that holds `disk.qcow2`, `vmlinuz` and `initrd.img`.
#
#     build-image.sh             the golden image of the demo
#     build-image.sh initiator   the same with what an iSCSI host needs, for the client tests
#
# Cached by the hash of everything that goes into it. No loop devices or mounts on the host (mke2fs -d fills the
# file system), so it works in a container; debootstrap needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FOREBAY_CACHE:-$here/../.cache}
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
include=systemd-sysv,dbus,udev,kmod,initramfs-tools,zstd,linux-image-cloud-amd64,procps,util-linux-extra
size=2G
kind=${1:-demo}
# Each kind has a directory of its own in the cache, so that making one leaves the others.
case $kind in
  demo) ;;
  initiator)
    include+=,open-iscsi,sg3-utils,xfsprogs,e2fsprogs,fio,iproute2
    cache+=/initiator
    ;;
  *)
    printf 'image: there is no image "%s"\n' "$kind" >&2
    exit 2
    ;;
esac

say() { printf 'image: %s\n' "$*" >&2; }

key() { cat "$here/build-image.sh" "$here"/guest/* | sha256sum | cut -c1-16; }

bootstrap() {
  local root=$1
  # Nothing of it must survive a power cut, so dpkg need not sync each file.
  mkdir -p "$root/etc/dpkg/dpkg.cfg.d" "$root/etc/initramfs-tools/conf.d"
  printf 'force-unsafe-io\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' \
    >"$root/etc/dpkg/dpkg.cfg.d/image"
  # An initrd with just the drivers of a virtio disk: small, so that emulated guests boot soon as well.
  printf 'MODULES=list\nCOMPRESS=lz4\nRESUME=none\n' >"$root/etc/initramfs-tools/conf.d/image"
  printf 'virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n' >"$root/etc/initramfs-tools/modules"
  # devtmpfs makes /dev/vda by itself; udev in the initrd would only take its time.
  for script in init-top/udev init-bottom/udev; do
    install -D -m 755 <(printf '#!/bin/sh\nexit 0\n') "$root/etc/initramfs-tools/scripts/$script"
  done
  debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror"
}

configure() {
  local root=$1
  printf 'forebay-demo\n' >"$root/etc/hostname"
  printf '/dev/vda / ext4 defaults,discard 0 1\n' >"$root/etc/fstab"
  # Each clone makes a machine identity of its own at its first boot.
  : >"$root/etc/machine-id"
  install -m 755 "$here"/guest/forebay-{guest,agent} "$root/usr/local/sbin/"
  install -m 644 "$here/guest/forebay-guest.service" "$root/etc/systemd/system/"
  mkdir -p "$root/srv/own"
  chroot "$root" systemctl enable --quiet forebay-guest.service
  chroot "$root" systemctl mask --quiet getty.target e2scrub_reap.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
  if [[ $kind == initiator ]]; then
    # Who needs them starts them: a boot should not wait for them.
    chroot "$root" systemctl mask --quiet iscsid.socket iscsid.service open-iscsi.service
    mkdir -p "$root"/mnt/{a,b}
  fi
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
}

build() {
  local out=$1 root=$1/root
  bootstrap "$root"
  configure "$root"
  cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
  cp "$root"/boot/initrd.img-* "$out/initrd.img"
  mke2fs -q -t ext4 -L golden -d "$root" "$out/disk.raw" "$size"
  qemu-img convert -O qcow2 "$out/disk.raw" "$out/disk.qcow2"
  rm -rf "$root" "$out/disk.raw"
}

main() {
  mkdir -p "$cache"
  cache=$(cd "$cache" && pwd)
  local dir log
  dir=$cache/image-$(key)
  log=$cache/image.log
  exec 9>"$cache/image.lock"
  flock 9 # two builds at once would fill one directory
  if [[ ! -e $dir/disk.qcow2 ]]; then
    if ((EUID != 0)); then
      say "making the guest image needs root (debootstrap): run 'sudo demo/build-image.sh $kind' once; it stays cached"
      exit 1
    fi
    say "making a Debian 12 image with debootstrap (a few minutes, once; log: $log)"
    rm -rf "$cache"/image.new "$cache"/image-*
    mkdir "$cache/image.new"
    # Not in an `if`: bash would ignore errors inside.
    trap 'tail -n 20 "$log" >&2; say "making the image failed; the end of $log is above"' EXIT
    build "$cache/image.new" >"$log" 2>&1
    trap - EXIT
    mv "$cache/image.new" "$dir"
  fi
  printf '%s\n' "$dir"
}

main "$@"
