#!/usr/bin/env bash
# A throw-away Ceph cluster on the loopback interface, for tests: a monitor, a manager and several OSDs.
#
# It needs no root and no service manager, and writes only to its directory. It listens on one address only.
#
#   cluster.sh start               start a cluster with the pool `test`; returns when it is clean, in 3 to 6 s
#   cluster.sh destroy             kill all its processes, and remove its directory
#   cluster.sh status              the state of the cluster and of its processes
#   cluster.sh kill-osd N          SIGKILL; with memstore, the OSD also loses its data, like a replaced disk
#   cluster.sh start-osd N         start an OSD that was killed
#   cluster.sh pause-osd N         SIGSTOP: the OSD hangs
#   cluster.sh resume-osd N        SIGCONT
#   cluster.sh kill-mon            SIGKILL
#   cluster.sh start-mon
#   cluster.sh wait-up [S]         wait until all OSDs are up, for at most S (60) seconds
#   cluster.sh wait-clean [S]      wait until all placement groups are active and clean
#   cluster.sh pool NAME           create a pool
#   cluster.sh ec-pool NAME        create an erasure-coded pool
#   cluster.sh acting POOL NAMESPACE OBJECT  the OSDs that have an object, one per line, the primary first
#   cluster.sh growing POOL NAMESPACE S  the objects that grow within S seconds, one per line
#   cluster.sh quota NAME BYTES    limit the bytes in a pool; 0: no limit
#
# Environment variables of `start`, with their defaults; the other commands need CL_DIR only:
#
#   CL_DIR       directory of the cluster, with ceph.conf (${TMPDIR:-/tmp}/forebay-ceph)
#   CL_PORT      the monitor's port; the 199 following ones are for the other processes (17800)
#   CL_IP        the address of all processes (127.0.0.1)
#   CL_OSDS      number of OSDs (3)
#   CL_STORE     memstore: fast, in memory; bluestore: in files, durable (memstore)
#   CL_SIZE      size of each OSD (16G; bluestore's files are sparse)
#   CL_AUTH      cephx: with keys; none: without (cephx)
#   CL_REPLICAS  replicas of an object (3); CL_MIN of them (2) must be up to serve it
#   CL_PGS       placement groups of a pool (8)
#   CL_OWNER     number of a process at whose end the cluster is destroyed (none)
#   CL_KEEP      1: keep the files of a start that failed
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${CL_DIR:-${TMPDIR:-/tmp}/forebay-ceph}
CONF=$DIR/ceph.conf
# What `start` received applies to all later commands.
if [[ -f $DIR/settings ]]; then
  # shellcheck disable=SC1091
  source "$DIR/settings"
fi
PORT=${CL_PORT:-17800}
IP=${CL_IP:-127.0.0.1}
OSDS=${CL_OSDS:-3}
STORE=${CL_STORE:-memstore}
SIZE=${CL_SIZE:-16G}
AUTH=${CL_AUTH:-cephx}
REPLICAS=${CL_REPLICAS:-3}
MIN=${CL_MIN:-2}
PGS=${CL_PGS:-8}

# Debian's Python, for which python3-rados is packaged; others earlier in PATH lack it.
PYTHON=/usr/bin/python3
# Admin sockets are in the directory, and the path of a socket has at most 107 bytes.
MAX_DIR_BYTES=80
# Longest wait for a start, in seconds, on a busy machine.
START_S=60
# Debian builds Ceph with glibc's malloc. With tcmalloc, bluestore is a third faster, in half the memory.
TCMALLOC=$(compgen -G '/usr/lib/*/libtcmalloc_minimal.so.4' | head -n 1 || true)

export CEPH_CONF=$CONF CEPH_ARGS=
umask 077

say() { printf 'cluster.sh: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# All requests to the monitor are one Python process: the `ceph` command needs 0.4 s of CPU for each.
monitor() { "$PYTHON" "$HERE/monitor.py" "$CONF" "$@"; }

# ---- processes ------------------------------------------------------------------------------------------

# When a process began, in ticks since boot; fails if it has ended. It distinguishes a process from a later
# one with the same number.
began() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The fields after the name, which may contain blanks: the state, and 19 fields later the time.
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} != Z ]] && echo "${stat[19]}"
}

# spawn NAME COMMAND...: start a process that outlives this script. Its number and its begin are in
# `run/NAME.process`.
spawn() {
  local name=$1
  shift
  setsid "$@" </dev/null >>"$DIR/log/$name.out" 2>&1 &
  disown
  echo "$! $(began $! || echo ended)" >"$DIR/run/$name.process"
}

# The number of a process of this cluster; fails if it has ended.
process() {
  local pid begin
  read -r pid begin 2>/dev/null <"$DIR/run/$1.process" || return 1
  [[ $(began "$pid") == "$begin" ]] && echo "$pid"
}

names() {
  local file
  for file in "$DIR"/run/*.process; do
    [[ -e $file ]] && basename "$file" .process
  done
}

# send SIGNAL NAME
send() {
  local pid
  pid=$(process "$2") || die "$2 does not run"
  kill "-$1" "$pid"
}

# Kills processes, and waits until they have ended.
kill_all() {
  local name pid
  for name in "$@"; do
    if pid=$(process "$name"); then kill -KILL "$pid" 2>/dev/null || true; fi
  done
  for name in "$@"; do
    while process "$name" >/dev/null; do sleep 0.02; done
  done
}

start_mon() {
  if ! process mon.a >/dev/null; then spawn mon.a ceph-mon -f -c "$CONF" -i a; fi
}

start_mgr() { spawn mgr.x ceph-mgr -f -c "$CONF" -i x --no-mon-config; }

start_osd() {
  if ! process "osd.$1" >/dev/null; then
    spawn "osd.$1" env ${TCMALLOC:+"LD_PRELOAD=$TCMALLOC"} ceph-osd -f -c "$CONF" -i "$1" --no-mon-config
  fi
}

# ---- configuration --------------------------------------------------------------------------------------

write_conf() {
  local bytes system
  bytes=$(numfmt --from=iec "$SIZE")
  cat >"$CONF" <<C
[global]
fsid = $FSID
mon_host = [v2:$IP:$PORT/0]
public_addr = $IP
cluster_addr = $IP
ms_bind_ipv6 = false
ms_bind_port_min = $((PORT + 10))
ms_bind_port_max = $((PORT + 199))
auth_cluster_required = $AUTH
auth_service_required = $AUTH
auth_client_required = $AUTH
auth_allow_insecure_global_id_reclaim = false
keyring = $DIR/keyring
run_dir = $DIR/run
admin_socket = $DIR/run/\$name.asok
pid_file =
log_file = $DIR/log/\$name.log
crash_dir = $DIR/log
mon_cluster_log_file = $DIR/log/cluster.log
osd_pool_default_size = $REPLICAS
osd_pool_default_min_size = $MIN
osd_pool_default_pg_num = $PGS
osd_pool_default_pgp_num = $PGS
osd_pool_default_pg_autoscale_mode = off
# All OSDs are on one host.
osd_crush_chooseleaf_type = 0
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
# An OSD without room aborts, and cannot start again. Clients are refused earlier.
mon_osd_nearfull_ratio = .70
mon_osd_backfillfull_ratio = .75
mon_osd_full_ratio = .80
osd_failsafe_full_ratio = .90
# An OSD that hangs is marked down after 4 s, if two others report it: a single report could be from an OSD
# that was paused itself. It is never marked out.
osd_heartbeat_interval = 1
osd_heartbeat_grace = 4
mon_osd_min_down_reporters = 2
mon_osd_reporter_subtree_level = osd
mon_osd_adjust_heartbeat_grace = false
mon_osd_adjust_down_out_interval = false
mon_osd_down_out_interval = 3600
mon_osd_min_up_ratio = 0
mon_osd_min_in_ratio = 0
osd_pool_default_read_lease_ratio = 0.5
C
  for system in none mon paxos ms osd bluestore bdev bluefs rocksdb monc objecter auth mgr mgrc; do
    echo "debug_$system = 0/0" >>"$CONF"
  done
  cat >>"$CONF" <<C
[client]
# Clients leave no files.
log_file = /dev/null
admin_socket =
[mon]
mon_data = $DIR/mon
mon_data_avail_warn = 1
mon_data_avail_crit = 0
# Pools that reach their quotas are found in each tick.
mon_tick_interval = 1
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
mon_rocksdb_options = write_buffer_size=4194304,compression=kNoCompression
[mgr]
mgr_data = $DIR/mgr
mgr_initial_modules =
mgr_tick_period = 1
mgr_stats_period = 1
[osd]
osd_data = $DIR/osd\$id
osd_objectstore = $STORE
mgr_stats_period = 1
osd_mon_report_interval = 1
osd_max_backfills = 4
osd_recovery_max_active = 8
osd_recovery_sleep = 0
osd_recovery_sleep_hdd = 0
osd_recovery_sleep_ssd = 0
osd_recovery_sleep_hybrid = 0
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
osd_memory_target = 939524096
osd_class_update_on_start = false
osd_max_pg_log_entries = 1000
osd_min_pg_log_entries = 250
osd_pg_log_dups_tracked = 1000
ms_async_op_threads = 2
memstore_device_bytes = $bytes
bluestore_block_path =
bluestore_block_create = true
bluestore_block_size = $bytes
bluestore_block_preallocate_file = false
bluestore_block_db_create = false
bluestore_block_wal_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
bluestore_fsck_on_mount = false
# A file on a disk of unknown kind is treated as a hard disk; these are the values of a solid-state disk.
bluestore_prefer_deferred_size = 32768
bluestore_throttle_cost_per_io = 4000
bluestore_rocksdb_options = compression=kNoCompression,max_write_buffer_number=4,min_write_buffer_number_to_merge=1,recycle_log_file_num=4,write_buffer_size=16777216,writable_file_max_buffer_size=0,compaction_readahead_size=2097152,max_background_compactions=2,max_total_wal_size=67108864
C
}

# ---- start and destroy ----------------------------------------------------------------------------------

start() {
  [[ ! -e $DIR/settings ]] || die "$DIR already contains a cluster; destroy it first"
  ((${#DIR} <= MAX_DIR_BYTES)) || die "the path $DIR is too long: use CL_DIR with at most $MAX_DIR_BYTES bytes"
  [[ $STORE == memstore || $STORE == bluestore ]] || die "unknown CL_STORE $STORE: memstore or bluestore"
  command -v ceph-osd >/dev/null || die "Ceph is not installed: run 'make setup'"
  if (exec 3<>"/dev/tcp/$IP/$PORT") 2>/dev/null; then die "port $PORT is in use; choose another CL_PORT"; fi
  mkdir -p "$DIR"/{run,log,mon,mgr}
  FSID=$(</proc/sys/kernel/random/uuid)
  cat >"$DIR/settings" <<S
CL_PORT=$PORT CL_IP=$IP CL_OSDS=$OSDS CL_STORE=$STORE CL_SIZE=$SIZE CL_AUTH=$AUTH
CL_REPLICAS=$REPLICAS CL_MIN=$MIN CL_PGS=$PGS
S
  # `destroy` in another process ends this script first, so that it starts no other process.
  echo "$$ $(began $$)" >"$DIR/run/start.process"
  trap start_failed EXIT
  if [[ -n ${CL_OWNER:-} ]]; then
    setsid "${BASH_SOURCE[0]}" watch "$CL_OWNER" </dev/null >/dev/null 2>&1 &
    disown
  fi
  write_conf
  monitor keyring "$OSDS" >"$DIR/keyring"
  make_processes
  monitor wait-up "$OSDS" "$START_S"
  monitor pool test "$PGS"
  monitor wait-clean "$START_S"
  trap - EXIT
  rm "$DIR/run/start.process"
  say "ready: --ceph-conf $CONF"
}

# Makes the stores of the monitor and of the OSDs, at the same time, and starts all processes.
make_processes() {
  local i mkfs=() uuids=()
  monmaptool --create --clobber --fsid "$FSID" --addv a "[v2:$IP:$PORT]" "$DIR/monmap" >"$DIR/log/monmap.out" 2>&1
  for ((i = 0; i < OSDS; i++)); do
    uuids+=("$(</proc/sys/kernel/random/uuid)")
    mkdir "$DIR/osd$i"
    ceph-osd -f -c "$CONF" -i "$i" --mkfs --osd-uuid "${uuids[i]}" --no-mon-config \
      </dev/null >"$DIR/log/mkfs.$i.out" 2>&1 &
    mkfs+=($!)
  done
  ceph-mon -c "$CONF" -i a --mkfs --monmap "$DIR/monmap" --keyring "$DIR/keyring" </dev/null >"$DIR/log/mkfs.mon.out" 2>&1
  start_mon
  monitor new-osds "${uuids[@]}"
  start_mgr
  for i in "${mkfs[@]}"; do wait "$i"; done
  for ((i = 0; i < OSDS; i++)); do start_osd "$i"; done
}

start_failed() {
  local job
  say "the cluster does not start"
  tail -n 5 "$DIR"/log/*.out >&2 || true
  for job in $(jobs -p); do kill -KILL "$job" 2>/dev/null || true; done
  rm -f "$DIR/run/start.process"
  [[ ${CL_KEEP:-0} == 1 ]] || destroy
}

destroy() {
  [[ -f $DIR/settings ]] || return 0
  kill_all start
  # shellcheck disable=SC2046
  kill_all $(names)
  rm -rf --one-file-system "$DIR"
}

# Destroys the cluster when a process has ended.
watch() {
  local begin
  begin=$(began "$1" || true)
  while [[ -n $begin && $(began "$1") == "$begin" ]]; do
    sleep 0.5
    [[ -d $DIR ]] || return 0
  done
  destroy
}

status() {
  local name
  ceph --connect-timeout 10 -c "$CONF" -s || true
  for name in $(names); do
    echo "$name: $(process "$name" || echo ended)"
  done
}

main() {
  local command=${1:-} argument=${2:-}
  case $command in
    start) start ;;
    destroy) destroy ;;
    status) status ;;
    kill-osd) kill_all "osd.$argument" ;;
    start-osd) start_osd "$argument" ;;
    pause-osd) send STOP "osd.$argument" ;;
    resume-osd) send CONT "osd.$argument" ;;
    kill-mon) kill_all mon.a ;;
    start-mon) start_mon ;;
    wait-up) monitor wait-up "$OSDS" "${argument:-60}" ;;
    wait-clean) monitor wait-clean "${argument:-60}" ;;
    pool) monitor pool "$argument" "$PGS" ;;
    ec-pool) monitor ec-pool "$argument" "$PGS" ;;
    growing) monitor growing "$argument" "$3" "$4" ;;
    acting) monitor acting "$argument" "$3" "$4" ;;
    quota) monitor quota "$argument" "$3" ;;
    watch) watch "$argument" ;;
    *) usage ;;
  esac
}

main "$@"
