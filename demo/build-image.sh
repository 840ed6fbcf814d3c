#!/usr/bin/env bash
# Builds a guest image: Debian 12 with systemd and Debian's kernel, on ext4, as qcow2, and its kernel and
# initrd as files. Prints the directory that contains `disk.qcow2`, `vmlinuz` and `initrd.img`.
#
#     build-image.sh             the golden image of the demo
#     build-image.sh initiator   the same with the packages of an iSCSI and NVMe host, for the client tests
#
# The package mirror is DEBIAN_MIRROR or, by default, the mirror in the apt sources of this machine. The image
# is cached by the hash of this script and of guest/. It needs no loop devices or mounts on the host (mke2fs
# -d fills the file system), so it works in a container; debootstrap needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/mirror.sh"
cache=${FOREBAY_CACHE:-$here/../.cache}
suite=bookworm
include=systemd-sysv,dbus,udev,kmod,initramfs-tools,zstd,linux-image-cloud-amd64,procps,util-linux-extra
size=2G
kind=${1:-demo}
# Each kind has a separate cache directory, so that building one does not remove the others.
case $kind in
  demo) ;;
  initiator)
    include+=,open-iscsi,nvme-cli,sg3-utils,xfsprogs,e2fsprogs,fio,iproute2
    cache+=/initiator
    ;;
  *)
    printf 'image: unknown image "%s": use demo or initiator\n' "$kind" >&2
    exit 2
    ;;
esac

say() { printf 'image: %s\n' "$*" >&2; }

key() { cat "$here/build-image.sh" "$here"/guest/* | sha256sum | cut -c1-16; }

bootstrap() {
  local root=$1 mirror=$2
  # The image is built again after a power cut, so dpkg need not sync each file.
  mkdir -p "$root/etc/dpkg/dpkg.cfg.d" "$root/etc/initramfs-tools/conf.d"
  printf 'force-unsafe-io\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' \
    >"$root/etc/dpkg/dpkg.cfg.d/image"
  # An initrd with only the drivers of a virtio disk: a small one shortens the boot of emulated guests.
  printf 'MODULES=list\nCOMPRESS=lz4\nRESUME=none\n' >"$root/etc/initramfs-tools/conf.d/image"
  printf 'virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n' >"$root/etc/initramfs-tools/modules"
  # devtmpfs creates /dev/vda without udev, which would only make the initrd slower.
  for script in init-top/udev init-bottom/udev; do
    install -D -m 755 <(printf '#!/bin/sh\nexit 0\n') "$root/etc/initramfs-tools/scripts/$script"
  done
  debootstrap --variant=minbase --include="$include" "$suite" "$root" "$mirror"
}

configure() {
  local root=$1
  printf 'forebay-demo\n' >"$root/etc/hostname"
  printf '/dev/vda / ext4 defaults,discard 0 1\n' >"$root/etc/fstab"
  # Each clone creates its machine identity at its first boot.
  : >"$root/etc/machine-id"
  install -m 755 "$here"/guest/forebay-{guest,agent} "$root/usr/local/sbin/"
  install -m 644 "$here/guest/forebay-guest.service" "$root/etc/systemd/system/"
  mkdir -p "$root/srv/own"
  chroot "$root" systemctl enable --quiet forebay-guest.service
  chroot "$root" systemctl mask --quiet getty.target e2scrub_reap.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
  if [[ $kind == initiator ]]; then
    # The tests start them when needed, so that a boot does not wait for them.
    chroot "$root" systemctl mask --quiet iscsid.socket iscsid.service open-iscsi.service
    mkdir -p "$root"/mnt/{a,b}
  fi
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
}

build() {
  local out=$1 root=$1/root mirror=$2
  bootstrap "$root" "$mirror"
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
  local dir log mirror
  dir=$cache/image-$(key)
  log=$cache/image.log
  exec 9>"$cache/image.lock"
  flock 9 # concurrent builds would write to the same directory
  if [[ ! -e $dir/disk.qcow2 ]]; then
    if ((EUID != 0)); then
      say "building the guest image needs root: run 'sudo demo/build-image.sh $kind' once; it stays cached"
      exit 1
    fi
    mirror=$(debian_mirror "$suite")
    say "building a Debian 12 image from $mirror with debootstrap (a few minutes, once; log: $log)"
    rm -rf "$cache"/image.new "$cache"/image-*
    mkdir "$cache/image.new"
    # Not in the condition of an `if`: bash would ignore errors inside.
    trap 'tail -n 20 "$log" >&2; say "building the image failed; the end of $log is above"' EXIT
    build "$cache/image.new" "$mirror" >"$log" 2>&1
    trap - EXIT
    mv "$cache/image.new" "$dir"
  fi
  printf '%s\n' "$dir"
}

main "$@"
