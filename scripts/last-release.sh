#!/usr/bin/env bash
# Builds the last release before this commit, once, and prints the path of its binary: the release from which
# tests upgrade. FOREBAY_OLD, if set, is the path of a binary that is used instead.
#
# Before the first release there is none: then it builds the present commit, and says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'last release: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

if [[ -n ${FOREBAY_OLD:-} ]]; then
  [[ -x $FOREBAY_OLD ]] || fail "FOREBAY_OLD=$FOREBAY_OLD is not a binary"
  say "$FOREBAY_OLD, as FOREBAY_OLD says"
  printf '%s\n' "$FOREBAY_OLD"
  exit
fi

# Without its history, a checkout does not show the tags before this commit.
[[ $(git rev-parse --is-shallow-repository) == false ]] ||
  fail "this is a shallow clone, whose releases are unknown: run 'git fetch --unshallow --tags'"

# The commit of a release is compared with the release before it.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
if tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null); then
  say "$tag"
  commit=$tag
else
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
  [[ $version == 0.1.0 ]] || fail "no tag of a release before version $version: run 'git fetch --tags'"
  say "THE FIRST RELEASE HAS NO TAG YET (v0.1.0): the present commit stands for it"
  commit=HEAD
fi

name=$(git rev-parse --verify "$commit^{commit}")
out=$target/releases/$name
if [[ ! -x $out/forebay ]]; then
  rm -rf "$out"
  mkdir -p "$out/source"
  git archive "$commit" | tar -x -C "$out/source"
  say "building $commit"
  (cd "$out/source" && CARGO_TARGET_DIR=$out/target "${CARGO:-cargo}" build --release --locked -p forebay-server) >&2
  mv "$out/target/release/forebay" "$out/forebay"
  rm -rf "$out/source" "$out/target"
fi
printf '%s\n' "$out/forebay"
