#!/usr/bin/env python3
"""Real clients against the real server: run by `make test-clients`.

    run.py [NAME...]      only tests whose name contains NAME

Environment variables, with their defaults:

    FOREBAY_BIN           the server (target/debug/forebay)
    FOREBAY_SEED          seed of all random data (1)
    FOREBAY_TEST_JOBS     number of concurrent tests (3); tests with tight time limits always run alone
    FOREBAY_CRASH_ROUNDS  number of times that the crash test kills the server (60)
    FOREBAY_GHOST_CUTS    number of times that clients are cut and come back (400)
    FOREBAY_KEPT_ROUNDS   number of times that the test of kept writes ends the server (30)
    FOREBAY_GUEST_KILLS   number of times that the server of a running guest is killed, and upgraded (3)
    FOREBAY_POWER_CUTS    number of power cuts of the server's disk on each file system (4)
    FOREBAY_UPGRADE_KILLS number of upgrades whose processes are killed (20)
    FOREBAY_UPGRADE_CUTS  number of times that clients are cut during upgrades (60)
    FOREBAY_FUSED_RACES   number of Compare and Write operations of each host that races (400)
    FOREBAY_NVME_KILLS    number of times that the server of a Linux NVMe host is killed or upgraded (2)
    FOREBAY_NFS_KILLS     number of times that the server of a Linux NFS client is killed or upgraded (3)
    FOREBAY_NFS_CHURN     number of files that the Linux NFS client creates, renames and removes (300)
    FOREBAY_HOSTILE_S     seconds for which clients of each hostile kind run (5)

Of the tests with a Ceph cluster, `rados`; `make test-ceph` sets the values in brackets:

    FOREBAY_RADOS_KILLS     number of times that the server is killed (5) [200]
    FOREBAY_RADOS_TAKEOVERS number of times that a standby takes over (2) [50]
    FOREBAY_RADOS_PAUSES    number of times that a server is paused until a standby has taken over (1) [100]
    FOREBAY_RADOS_RACES     number of times that two servers race for a pool (3) [1000]
    FOREBAY_RADOS_HANDOVERS number of times that a pool is handed over (5) [100]
    FOREBAY_RADOS_UPGRADES  number of upgrades while a standby waits (3) [20]
    FOREBAY_RADOS_GUEST_TAKEOVERS  number of takeovers with a Linux host that has two paths (1) [6]
    FOREBAY_RADOS_PARTITIONS  number of partitions of the network, at random; 0: each kind of some (0) [40]
    FOREBAY_CLUSTER_ROUNDS  number of rounds of mixed faults of the nodes of a cluster (2) [100]
    FOREBAY_RADOS_OUTAGE_S  seconds for which most OSDs, or all monitors, are down (10) [60]
    FOREBAY_CEPH_STORE      store of the OSDs: memstore or bluestore (memstore)
"""

import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts", "pylib")]

from harness import run_tests  # noqa: E402

# The order in which they start: basic functions first, so that the first failure is closest to the cause;
# then the longest tests, so that others run next to them.
import clients_tools  # noqa: E402, F401
import clients_semantics  # noqa: E402, F401
import clients_input  # noqa: E402, F401
import clients_imports  # noqa: E402, F401
import clients_exports  # noqa: E402, F401
import clients_completion  # noqa: E402, F401
import clients_initiators  # noqa: E402, F401
import clients_nfs  # noqa: E402, F401
import clients_nfs_linux  # noqa: E402, F401
import clients_cluster  # noqa: E402, F401
import clients_cluster_images  # noqa: E402, F401
import clients_cluster_mixed  # noqa: E402, F401
import clients_crash  # noqa: E402, F401
import clients_ghosts  # noqa: E402, F401
import clients_kept  # noqa: E402, F401
import clients_reconnect  # noqa: E402, F401
import clients_memory  # noqa: E402, F401
import clients_lost  # noqa: E402, F401
import clients_copies  # noqa: E402, F401
import clients_upgrade  # noqa: E402, F401
import clients_handover  # noqa: E402, F401
import clients_upgrade_killed  # noqa: E402, F401
import clients_upgrade_corners  # noqa: E402, F401
import clients_iscsi  # noqa: E402, F401
import clients_nvme  # noqa: E402, F401
import clients_nvme_auth  # noqa: E402, F401
import clients_nvme_linux  # noqa: E402, F401
import clients_nvme_reservations  # noqa: E402, F401
import clients_aborts  # noqa: E402, F401
import clients_power  # noqa: E402, F401
import clients_send  # noqa: E402, F401
import clients_soak  # noqa: E402, F401
import clients_api  # noqa: E402, F401
import clients_openapi  # noqa: E402, F401
import clients_tls  # noqa: E402, F401
import clients_filesystems  # noqa: E402, F401
import clients_space  # noqa: E402, F401
import clients_desktops  # noqa: E402, F401
import clients_targets  # noqa: E402, F401
import clients_differences  # noqa: E402, F401
import clients_disconnect  # noqa: E402, F401
import clients_access  # noqa: E402, F401
import clients_luns  # noqa: E402, F401
import clients_fair  # noqa: E402, F401
import clients_classes  # noqa: E402, F401
import clients_hostile  # noqa: E402, F401
import clients_failures  # noqa: E402, F401
import clients_host  # noqa: E402, F401
import clients_proxmox  # noqa: E402, F401
import clients_demo  # noqa: E402, F401
import clients_restart  # noqa: E402, F401
import clients_metrics  # noqa: E402, F401
import clients_docs  # noqa: E402, F401
import clients_golden  # noqa: E402, F401
import clients_package  # noqa: E402, F401
import clients_packages  # noqa: E402, F401
import clients_rados  # noqa: E402, F401
import clients_rados_outages  # noqa: E402, F401
import clients_rados_partitions  # noqa: E402, F401
import clients_rados_memory  # noqa: E402, F401
import clients_rados_upgrade  # noqa: E402, F401
import clients_rados_handover  # noqa: E402, F401
import clients_rados_paths  # noqa: E402, F401
import clients_rados_pools  # noqa: E402, F401
import clients_rados_multipath  # noqa: E402, F401

if __name__ == "__main__":
    # SIGTERM ends the servers of a test run too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_tests(sys.argv[1:], int(os.environ.get("FOREBAY_SEED", "1"))))
