#!/usr/bin/env bash
# Installs the Debian packages that `make demo`, `make test` and `make bench` need. Rust is only checked.
#
# If all are installed it runs one dpkg-query and needs no network. Without root it prints the command that an
# administrator has to run, and fails.
set -euo pipefail

# Grouped by use. No group is optional: a test that is skipped silently proves nothing.
packages=(
  gcc libc6-dev make ca-certificates               # linking Rust programs, running the Makefile
  qemu-system-x86 seabios                          # real guests
  qemu-utils nbdkit libnbd-bin python3-libnbd fio  # real NBD clients, and servers to compare with
  qemu-block-extra libiscsi-bin libnfs-utils       # real iSCSI and NFS clients, and the conformance tests
  tgt                                              # the iSCSI target to compare with
  debootstrap e2fsprogs                            # the Debian guest images
  xfsprogs ntfs-3g fuse3 mount fdisk kmod          # file systems made and checked on volumes
  util-linux python3-distlib                       # swap areas, and small Windows programs as test data
  ceph-mon ceph-mgr ceph-osd ceph-common           # a Ceph cluster for pools in RADOS
  python3-rados libtcmalloc-minimal4               # its control, with librados2, which the server loads
  perl libjson-perl libio-socket-ssl-perl          # the storage plug-in for Proxmox VE
  python3-venv python3-yaml                        # tools from PyPI; the examples of the documentation
  chromium chromium-driver python3-selenium        # the dashboard in a real browser
  fonts-dejavu-core                                # letters on its pages
  iproute2 nftables                                # networks of tests, and their failures
  gpg gpg-agent binutils xz-utils                  # packages of a release, and their signatures
  openssl python3 jq                               # TLS test certificates, test drivers, JSON
)

say() { printf 'setup: %s\n' "$*"; }

missing_packages() {
  local installed
  # Debian 13 has renamed some libraries, to NAMEt64; apt accepts the former names.
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" "${packages[@]/%/t64}" 2>/dev/null |
    awk '/^.i/ {sub(/t64$/, "", $2); print $2}') || true
  comm -23 <(printf '%s\n' "${packages[@]}" | sort -u) <(sort -u <<<"$installed")
}

candidate() { apt-cache policy "$1" | awk '/Candidate:/ {print $2}'; }
installed() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || true; }

# A qemu-utils from backports depends on a newer qemu-system-common than qemu-system-x86 of this release
# accepts, so that QEMU cannot be installed. Only then qemu-utils is downgraded to apt's candidate of QEMU.
matching_qemu_utils() {
  local want have
  want=$(candidate qemu-system-x86)
  have=$(installed qemu-utils)
  if [[ -n $have && $have != "$want" ]] && dpkg --compare-versions "$have" gt "$want"; then
    printf 'qemu-utils=%s\n' "$want"
  fi
}

require_rust() {
  local need=1.89 have
  if ! command -v cargo >/dev/null; then
    say "cargo is not installed: install Rust $need or newer from https://rustup.rs" >&2
    exit 1
  fi
  have=$(cargo --version | awk '{print $2}')
  if ! printf '%s\n%s\n' "$need" "$have" | sort -CV; then
    say "Rust $have is too old, $need or newer is required: run 'rustup update stable'" >&2
    exit 1
  fi
}

main() {
  require_rust
  if ! command -v dpkg-query >/dev/null; then
    say "this is not a Debian system; install the equivalents of: ${packages[*]}" >&2
    exit 1
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    say "everything is installed"
    return
  fi
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if ((EUID != 0)); then
    say "missing: ${missing[*]}; run this command as root, then repeat yours:" >&2
    printf '  apt-get update && %s\n' "${install[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  if [[ " ${missing[*]} " == *" qemu-system-x86 "* ]]; then
    local match
    match=$(matching_qemu_utils)
    if [[ -n $match ]]; then
      say "qemu-utils $(installed qemu-utils) is not compatible with qemu-system-x86 of this release: installing $match"
      install+=("$match" --allow-downgrades)
    fi
  fi
  # Debian's tgt listens on every address as soon as it is installed. The benchmarks start a separate one.
  if [[ " ${missing[*]} " == *" tgt "* && -d /run/systemd/system ]]; then
    say "masking tgt.service, so that it does not open a target to the network"
    systemctl mask tgt.service
  fi
  "${install[@]}"
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} != 0)); then
    say "apt-get succeeded, but these are still missing: ${missing[*]}" >&2
    exit 1
  fi
  say "done"
}

main "$@"
