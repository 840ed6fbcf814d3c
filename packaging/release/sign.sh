#!/usr/bin/env bash
# Signs a release that build.sh has made: packaging/release/sign.sh DIRECTORY KEY
#
# KEY is the fingerprint of a secret key in the keyring of gpg. Adds to the directory:
#
#   apt/              the signed apt repository of the packages
#   SHA256SUMS.asc    the signature of SHA256SUMS
#
# To keep earlier releases installable, copy the former apt/ to the directory before.
set -euo pipefail
usage="usage: sign.sh DIRECTORY KEY"
out=${1:?$usage} key=${2:?$usage}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 || {
  printf 'sign: gpg has no secret key %s\n' "$key" >&2
  exit 1
}
(cd "$out" && sha256sum --check --quiet SHA256SUMS)
"$root/packaging/apt/repository.py" "$out/apt" "$key" "$out"/*.deb
gpg --batch --yes --local-user "$key" --armor --detach-sign --output "$out/SHA256SUMS.asc" "$out/SHA256SUMS"
