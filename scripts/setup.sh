#!/usr/bin/env bash
# Installs what `make demo`, `make test` and `make bench` need on Debian 12, apart from Rust.
#
# Cheap when nothing is missing: one dpkg-query, no network. Without root it prints the one command that an
# administrator has to run, and fails.
set -euo pipefail

# Grouped by who needs it. No group is optional: a test that quietly skips itself proves nothing.
packages=(
  gcc libc6-dev make ca-certificates               # linking Rust programs, running the Makefile
  qemu-system-x86 seabios                          # real guests
  qemu-utils nbdkit libnbd-bin python3-libnbd fio  # real NBD clients, and the servers that we compare with
  qemu-block-extra libiscsi-bin                    # real iSCSI clients: QEMU's own, and the conformance tests
  tgt                                              # the iSCSI target that we compare with
  debootstrap e2fsprogs                            # the Debian guest images
  xfsprogs ntfs-3g fuse3 mount fdisk kmod          # file systems made and checked on volumes
  util-linux python3-distlib                       # swap areas, and small programs for Windows to put on them
  openssl python3 jq                               # TLS test certificates, test drivers, JSON
)

say() { printf 'setup: %s\n' "$*"; }

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2>/dev/null | awk '/^.i/ {print $2}') || true
  comm -23 <(printf '%s\n' "${packages[@]}" | sort -u) <(sort -u <<<"$installed")
}

candidate() { apt-cache policy "$1" | awk '/Candidate:/ {print $2}'; }
installed() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || true; }

# A qemu-utils from backports pins a newer qemu-system-common than qemu-system-x86 of this release accepts, so
# that QEMU cannot be installed at all. Only then do both go to the version that apt would choose for QEMU.
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
    say "cargo is not installed: get Rust $need or newer from https://rustup.rs" >&2
    exit 1
  fi
  have=$(cargo --version | awk '{print $2}')
  if ! printf '%s\n%s\n' "$need" "$have" | sort -CV; then
    say "Rust $have is too old, $need or newer is needed: run 'rustup update stable'" >&2
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
    say "missing: ${missing[*]}; run this as root, then again what you were doing:" >&2
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
      say "qemu-utils $(installed qemu-utils) does not go with the qemu-system-x86 of this release: installing $match"
      install+=("$match" --allow-downgrades)
    fi
  fi
  # Debian's tgt starts a target on every address as soon as it is installed. The benchmarks run one of their own.
  if [[ " ${missing[*]} " == *" tgt "* && -d /run/systemd/system ]]; then
    say "tgt.service is masked, so that no target is open to the network"
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
