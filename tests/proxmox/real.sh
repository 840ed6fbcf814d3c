#!/usr/bin/env bash
# Tests the storage plug-in on the sources of Proxmox VE: run by `make test-proxmox`. Arguments are passed to
# prove.
#
# They are cloned to .cache/proxmox, or are in PVE_SOURCES, with one directory for each repository. They are
# used as they are, and they are not built or installed: tests/proxmox/lib/WithoutNode.pm describes what
# is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

repositories=(pve-storage pve-common pve-cluster pve-access-control pve-guest-common qemu-server pve-container)
# What their modules use.
packages=(
  libanyevent-perl libauthen-pam-perl libcrypt-openssl-random-perl libcrypt-openssl-rsa-perl libdevel-cycle-perl libfile-chdir-perl libfilesys-df-perl
  libio-multiplex-perl libio-socket-ssl-perl libjson-perl libjson-xs-perl liblinux-inotify2-perl libmime-base32-perl
  libnet-dbus-perl libnet-dns-perl libnet-ip-perl libnet-ldap-perl libnet-ssleay-perl libnetaddr-ip-perl libperl-critic-perl
  libposix-strptime-perl libstring-shellquote-perl libtest-mockmodule-perl libuuid-perl libwww-perl libxml-libxml-perl
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
done
if ((${#missing[@]} != 0)); then
  echo "missing: run 'apt-get install --no-install-recommends ${missing[*]}' as root, then repeat this command" >&2
  exit 1
fi

if [[ -z ${PVE_SOURCES:-} ]]; then
  PVE_SOURCES=$PWD/.cache/proxmox
  mkdir -p "$PVE_SOURCES"
  for repository in "${repositories[@]}"; do
    [[ -d $PVE_SOURCES/$repository/src ]] && continue
    git clone --quiet --depth 1 "https://github.com/proxmox/$repository" "$PVE_SOURCES/$repository"
  done
fi
export PVE_SOURCES
for repository in "${repositories[@]}"; do
  [[ -d $PVE_SOURCES/$repository/src ]] || { echo "$PVE_SOURCES/$repository/src does not exist" >&2; exit 1; }
done

perlcritic --quiet --profile packaging/proxmox/.perlcriticrc packaging/proxmox/lib
prove "$@" tests/proxmox/t tests/proxmox/real
