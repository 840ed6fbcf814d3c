"""A Linux host with two paths to a pool in Ceph, through takeovers: open-iscsi and dm-multipath of a guest.

The guest's image has no multipathd, which needs a service manager and udev. A loop in the guest does what it
does: it tests each path, fails and reinstates it, and selects the group of the path that is ready.
"""

import os

from clients_rados import CLUSTER, TAKEOVER_S
from clients_rados_paths import PUBLISHED_S, admitted, session, two
from datastore import TARGET
from harness import alone, check, equal, needs, test, wait_for
from hosts import LinuxHost

TAKEOVERS = int(os.environ.get("FOREBAY_RADOS_GUEST_TAKEOVERS", "1"))

NAME = "iqn.2026-01.org.example:host"
CONF = """
node.session.timeo.replacement_timeout = 2
node.conn[0].timeo.noop_out_interval = 1
node.conn[0].timeo.noop_out_timeout = 2
node.session.initial_login_retry_max = 60
"""
MULTIPATH = """
modprobe -a dm_multipath dm_round_robin
A=$(cat /sys/block/%(a)s/dev) B=$(cat /sys/block/%(b)s/dev)
dmsetup create mp --noudevsync --noudevrules --table "0 $(cat /sys/block/%(a)s/size) multipath \
1 queue_if_no_path 0 2 1 round-robin 0 1 1 $A 1 round-robin 0 1 1 $B 1"
dmsetup mknodes mp
cat >/tmp/monitor <<'END'
n=0
for path in "$1 $2" "$3 $4"; do
  n=$((n + 1))
  (
    set -- $path
    was=
    while :; do
      if sg_turs /dev/$1 >/dev/null 2>&1; then now=ready; else now=failed; fi
      if [[ $now != "$was" ]]; then
        echo "$1 $now" >>/tmp/paths
        if [[ $now == ready ]]; then
          dmsetup message mp 0 "reinstate_path $2" && dmsetup message mp 0 "switch_group $n"
        else
          dmsetup message mp 0 "fail_path $2"
        fi
      elif [[ $now == ready ]]; then
        # The kernel fails a path whose request failed, also if it is ready again.
        dmsetup message mp 0 "reinstate_path $2"
      fi
      was=$now
      sleep 0.5
    done
  ) >/dev/null 2>&1 &
done
END
setsid bash /tmp/monitor %(a)s $A %(b)s $B </dev/null >/dev/null 2>&1 &
"""
# Writes numbered blocks, one after another, until /tmp/stop exists; then reads all of them.
LEDGER = """
cat >/tmp/ledger.py <<'END'
import mmap, os, struct, sys
BLOCKS = 2000
disk = os.open("/dev/mapper/mp", os.O_RDWR | os.O_DIRECT)
page, acknowledged, n = mmap.mmap(-1, 4096), {}, 0
while not os.path.exists("/tmp/stop"):
    n += 1
    page[:] = struct.pack("<Q", n) * 512
    if os.pwritev(disk, [page], n % BLOCKS * 4096) != 4096:
        sys.exit(f"write {n} is short")
    acknowledged[n % BLOCKS] = n
    if n % 10 == 0:
        with open("/tmp/count.new", "w") as f:
            f.write(str(n))
        os.rename("/tmp/count.new", "/tmp/count")
for block, expected in acknowledged.items():
    os.preadv(disk, [page], block * 4096)
    if page[:] != struct.pack("<Q", expected) * 512:
        sys.exit(f"block {block}: not write {expected}, but {struct.unpack_from('<Q', page)[0]}")
print(f"{n} writes, {len(acknowledged)} blocks read")
END
setsid python3 /tmp/ledger.py </dev/null >/tmp/verdict 2>&1 &
"""


def path_of(guest, group):
    """The disk whose path has this target port group."""
    found = guest.run(
        "for d in $(ls /sys/block | grep ^sd); do "
        f"sg_vpd -p di /dev/$d | grep -qi 'target port group: 0x{group}' && echo $d; done; true"
    )
    check(found and "\n" not in found, f"disks with a path of group {group}: {found!r}")
    return found


def count(guest):
    return int(guest.run("cat /tmp/count 2>/dev/null || echo 0"))


@needs(CLUSTER)
@alone
@test
def rados_linux_host_with_two_paths_writes_through_takeovers(t):
    a, b = two(t, "multipath", "alua", apart=True)
    wait_for(lambda: admitted(session, b), "admitted by the standby", PUBLISHED_S)
    guest = LinuxHost(t, a, "host", NAME, CONF).wait_up()
    for server in (a, b):
        guest.login(TARGET, server.portal[1])
    first, second = path_of(guest, 1), path_of(guest, 2)
    sizes = guest.run(f"cat /sys/block/{first}/size /sys/block/{second}/size").split()
    equal(sizes, ["131072"] * 2, "sizes of the disk on both paths")
    groups = guest.run(f"sg_rtpg -d /dev/{second}")
    check("active/optimized" in groups and "standby" in groups, f"groups at the standby: {groups}")
    guest.run(MULTIPATH % {"a": first, "b": second})
    guest.run(LEDGER)
    owner, other = a, b
    for takeover in range(TAKEOVERS):
        before = count(guest)
        wait_for(lambda: count(guest) >= before + 50, "50 writes", 120)
        owner.kill()
        other.wait_ready(TAKEOVER_S)
        before = count(guest)
        wait_for(lambda: count(guest) >= before + 50, f"50 writes after takeover {takeover}", 120)
        owner.stand_by()
        owner.wait_bound()
        wait_for(lambda: admitted(session, owner), "admitted by the former owner", PUBLISHED_S)
        former = second if takeover % 2 else first
        wait_for(lambda: "standby state" in turs(guest, former), "a path of the former owner in standby", 120)
        owner, other = other, owner
    guest.run("touch /tmp/stop")
    wait_for(lambda: guest.run("cat /tmp/verdict") != "", "read again", 120)
    verdict = guest.run("cat /tmp/verdict")
    check(verdict.endswith("blocks read"), f"{verdict}\n{guest.run('cat /tmp/paths')}\n{guest.dmesg()[-3000:]}")
    log = guest.dmesg()
    check("Buffer I/O error on dev dm-0" not in log, f"errors above multipath:\n{log[-3000:]}")
    print(verdict)
    print("paths: " + ", ".join(guest.run("cat /tmp/paths").splitlines()))


def turs(guest, disk):
    return guest.run(f"sg_turs -v /dev/{disk} 2>&1 || true").lower()
