#!/usr/bin/env bash
# Builds the files of a release, unsigned: packaging/release/build.sh DIRECTORY
#
#   forebay_VERSION-1_ARCH.deb         the server, for Debian 12 and 13
#   forebay-proxmox_VERSION_all.deb    the storage plug-in for Proxmox VE 7 to 9
#   forebay-VERSION-ARCH.oci.tar       the container image, for podman load and docker load
#   forebay-VERSION.cdx.json           the bill of materials (CycloneDX)
#   SHA256SUMS                         checksums of these files
#
# FOREBAY_RELEASE_BIN is a binary that is packaged instead of a new one: only for tests.
#
# Equal commits give equal files on machines with equal versions of Rust, of the C compiler, and of the Debian
# packages that the image has libraries of. The path of the repository, the time and the user have no effect.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:?usage: build.sh DIRECTORY}
# The C library of Debian 12.
newest_libc=2.36

fail() {
  printf 'release: %s\n' "$*" >&2
  exit 1
}

[[ ! -e $out ]] || fail "$out exists: remove it, or choose another directory"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"

# Compiles the server without paths of this machine in it, and prints the path of the binary.
build() {
  local target=${CARGO_TARGET_DIR:-$root/target}/release-build
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} separator=$'\x1f'
  local maps=("$root=/usr/src/forebay" "$cargo_home=/usr/src/cargo" "$target=/usr/src/forebay/target")
  local rust=() c=()
  for map in "${maps[@]}"; do
    rust+=("--remap-path-prefix=$map")
    c+=("-ffile-prefix-map=$map")
  done
  CARGO_ENCODED_RUSTFLAGS=$(IFS=$separator && printf '%s' "${rust[*]}") CFLAGS=${c[*]} CARGO_INCREMENTAL=0 \
    "${CARGO:-cargo}" build --release --locked -p forebay-server --target-dir "$target" >&2
  printf '%s\n' "$target/release/forebay"
}

binary=${FOREBAY_RELEASE_BIN:-}
[[ -n $binary ]] || binary=$(build)
server=$(packaging/debian/build.sh "$binary" "$out")
arch=$(dpkg-deb --field "$server" Architecture)
[[ $(dpkg-deb --field "$server" Version) == "$version-1" ]] || fail "$binary is not of version $version"
libc=$(dpkg-deb --field "$server" Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p')
dpkg --compare-versions "$libc" le "$newest_libc" ||
  fail "the binary needs libc6 $libc, Debian 12 has $newest_libc: build on Debian 12"
if [[ -z ${FOREBAY_RELEASE_BIN:-} ]]; then
  for path in "$root" "${CARGO_HOME:-$HOME/.cargo}"; do
    # -c reads all of its input: without it, tar would fail when grep ends early.
    found=$(dpkg-deb --fsys-tarfile "$server" | tar -xO ./usr/bin/forebay | grep -caF "$path" || true)
    [[ $found == 0 ]] || fail "the binary contains the path $path of this machine"
  done
fi
packaging/proxmox/build-deb "$out" >/dev/null
packaging/container/image.py "$server" "$out/forebay-$version-$arch.oci.tar" >/dev/null
"${CARGO:-cargo}" run -q --locked -p xtask -- sbom >"$out/forebay-$version.cdx.json"
# Computed before the file exists, which would be among the others.
sums=$(cd "$out" && sha256sum -- *)
printf '%s\n' "$sums" | tee "$out/SHA256SUMS"
