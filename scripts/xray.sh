#!/usr/bin/env bash
# Runs all built-in scenarios of forebay-xray, scaled so that all take some 30 minutes on two cores.
#
#   xray.sh [NAME...]    only these scenarios
#
# Environment: XRAY (the program), FOREBAY_BIN (the server), XRAY_DIR (directory for reports), XRAY_PEER (the
# peer of Forebay where one without Ceph is possible).
#
# A scenario whose checks fail does not stop the others: the figures depend on the machine. Other failures do.
set -uo pipefail

XRAY=${XRAY:-target/release/forebay-xray}
FOREBAY_BIN=${FOREBAY_BIN:-target/release/forebay}
DIR=${XRAY_DIR:-target/xray/all-$(date +%Y%m%d-%H%M%S)}
PEER=${XRAY_PEER:-qemu-nbd}

# Factors of sizes, rates and times, by the first pattern that matches.
factors() {
  case $1 in
    four-corners) echo 0.03 1 0.03 ;;
    oltp-medium) echo 0.001 0.1 0.003 ;;
    snapshot-impact-*) echo 0.004 0.1 0.0003 ;;
    boot-storm | logon-storm) echo 0.02 0.2 0.02 ;;
    hci-workflow) echo 0.01 0.1 0.01 ;;
    clone-impact | database-colocation) echo 0.004 0.1 0.005 ;;
    power-loss) echo 0.004 0.1 0.02 ;;
    server-* | osd-lost) echo 0.004 0.1 0.006 ;;
    shared-volume*) echo 0.016 0.5 0.03 ;;
    ingestion) echo 0.008 1 1 ;;
    node-failure | sequential-node-failure | vm-high-availability) echo 0.004 0.1 0.02 ;;
    extended-node-failure) echo 0.004 0.5 0.004 ;;
    rolling-upgrade | live-migration) echo 0.004 0.1 0.01 ;;
    vdi-*) echo 0.004 0.5 0.003 ;;
    *) echo 0.004 0.1 0.003 ;;
  esac
}

# A snapshot of a disk in use, OSDs and nodes need Ceph on the side of the peer.
targets() {
  case $1 in
    snapshot-impact-* | osd-lost) echo forebay-rados librbd ;;
    *node-failure | vm-high-availability) echo forebay-rados-2 librbd ;;
    rolling-upgrade | live-migration) echo forebay-rados-2 ;;
    shared-volume) echo forebay-iscsi ;;
    shared-volume-reserve) echo forebay-iscsi tgtd ;;
    server-upgraded) echo forebay ;;
    *) echo forebay "$PEER" ;;
  esac
}

failed=0 missed=()
mapfile -t names < <(if (($# > 0)); then printf '%s\n' "$@"; else "$XRAY" scenario list | awk '{print $1}'; fi)
mkdir -p "$DIR"
for name in "${names[@]}"; do
  read -r size rate time <<<"$(factors "$name")"
  arguments=(--dir "$DIR/$name" --forebay "$FOREBAY_BIN" --quiet)
  arguments+=(--scale-size "$size" --scale-rate "$rate" --scale-time "$time")
  for target in $(targets "$name"); do
    arguments+=(--target "$target")
  done
  "$XRAY" run "$name" "${arguments[@]}"
  case $? in
    0) ;;
    3) missed+=("$name") ;;
    130 | 143) exit 130 ;;
    *) failed=1 ;;
  esac
done
echo "reports: $DIR; scenarios in which a check failed: ${missed[*]:-none}"
exit $failed
