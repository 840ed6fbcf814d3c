"""The Linux kernel's NVMe/TCP host in an emulated guest: file systems, discards, live resize, and a server
that is killed and upgraded under load without an I/O error."""

import os
import re

from clients_initiators import LOAD, wait_for_writes
from harness import MIB, check, equal, run, test, wait_for
from hosts import GATEWAY, LinuxHost, free_port

TARGET = "iqn.2026-01.org.example:disks"
SUBSYSTEM = "nqn.2026-01.org.example:disks"
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
KILLS = int(os.environ.get("FOREBAY_NVME_KILLS", "2"))
COMPLAINTS = re.compile(r"I/O error|EXT4-fs (error|warning)|XFS .*(error|orruption)|critical (medium|target)|BUG:|Oops")


def mapped(s, volume):
    """Number of stored bytes of a volume."""
    s.cli("gc")
    return s.json("stats", volume)["space"]["mapped_bytes"]


def connect(guest, port, digests=True):
    """Connects the kernel's host to the subsystem. nvme-cli only writes this line to the same file."""
    options = f"transport=tcp,traddr={GATEWAY},trsvcid={port},nqn={SUBSYSTEM},hostnqn={HOST}"
    options += f",hostid={HOST[-36:]},reconnect_delay=1,ctrl_loss_tmo=600,keep_alive_tmo=5"
    options += ",hdr_digest,data_digest" if digests else ""
    guest.run(f"echo -n '{options}' >/dev/nvme-fabrics")


@test
def linux_nvme_host_with_file_systems(t):
    port = free_port()
    s = t.server("--nvme", f"127.0.0.1:{port}", "--remote-answers", "memory")
    for name, size in (("a", "256M"), ("b", "320M"), ("c", "64M")):
        s.cli("volume", "create", name, "--size", size)
    s.cli("target", "create", TARGET)
    s.cli("target", "allow", TARGET, HOST)
    for lun, disk, *options in ((0, "a"), (5, "b"), (7, "c", "--write-back")):
        s.cli("lun", "map", TARGET, disk, "--lun", str(lun), *options)
    guest = LinuxHost(t, s, "nvme", "iqn.2026-01.org.example:unused").wait_up()
    guest.run("modprobe nvme-tcp")
    discovered = guest.run(f"nvme discover -t tcp -a {GATEWAY} -s {port} --hostnqn={HOST} || true")
    check(f"subnqn:  {SUBSYSTEM}" in discovered and f"trsvcid: {port}" in discovered, discovered)
    connect(guest, port)
    wait_for(lambda: guest.run("ls /dev | grep -c '^nvme0n' || true") == "3", "the namespaces", 120)
    # Namespaces by their UUID, whose disk is then known.
    disks = {}
    for volume in ("a", "b", "c"):
        uuid = s.json("volume", "show", volume)["uuid"]
        disks[volume] = guest.run(f"dirname $(grep -l {uuid} /sys/block/nvme?n*/uuid) | xargs basename")
    a, b, c = disks["a"], disks["b"], disks["c"]
    show = f"cd /sys/block/{a}; cat nguid queue/logical_block_size queue/discard_granularity queue/write_cache"
    uuid = s.json("volume", "show", "a")["uuid"]
    equal(guest.run(show).splitlines(), [uuid, "512", "512", "write back"], "identity and limits")
    guest.run(f"""
        mkfs.ext4 -q /dev/{a}; mkfs.xfs -q /dev/{b}
        mount /dev/{a} /mnt/a; mount /dev/{b} /mnt/b
        for d in a b; do head -c 3M /dev/urandom >/mnt/$d/kept; sha256sum /mnt/$d/kept >>/tmp/sums; done
        sync
    """)
    guest.run(LOAD)
    for n in range(KILLS):
        wait_for_writes(s, guest, timeout=240)
        if n % 2:
            s.upgrade()
        else:
            s.kill()
            s.start()
    wait_for_writes(s, guest, timeout=240)
    # A live resize: the kernel reads the new size when it is informed of it.
    for volume in ("a", "b"):
        s.cli("volume", "resize", volume, "512M")
    sectors = f"cat /sys/block/{a}/size /sys/block/{b}/size"
    wait_for(lambda: guest.run(sectors).split() == ["1048576"] * 2, "the new sizes", 120)
    ended = guest.run("touch /tmp/stop; until [[ -s /tmp/ended ]]; do sleep 1; done; cat /tmp/ended /tmp/fio")
    check(ended.startswith("well\n"), f"fio ended {ended}")
    guest.run(f"resize2fs /dev/{a}; xfs_growfs /mnt/b")
    guest.run("fallocate -l 400M /mnt/a/much; fallocate -l 400M /mnt/b/much; rm /mnt/?/much")
    # Discarded blocks are freed at the server, and read as zeroes.
    guest.run(f"head -c 8M /dev/urandom | dd of=/dev/{c} bs=1M oflag=direct iflag=fullblock conv=fsync")
    check(mapped(s, "c") >= 8 * MIB, "the bytes that were written are not stored")
    guest.run(f"blkdiscard -o 1M /dev/{c}; sync /dev/{c}")
    equal(mapped(s, "c"), MIB, "stored bytes that were not discarded")
    guest.run(f"blkdiscard -z -l 1M /dev/{c}; blockdev --flushbufs /dev/{c}; cmp -n 64M /dev/{c} /dev/zero")
    guest.run(f"sync /dev/{c}")
    equal(mapped(s, "c"), 0, "stored bytes of zeroes")
    guest.run(f"umount /mnt/a; umount /mnt/b; mount /dev/{a} /mnt/a; mount /dev/{b} /mnt/b")
    guest.run("sha256sum -c /tmp/sums")
    found = COMPLAINTS.findall(guest.dmesg())
    check(not found, f"the guest's log has {found}:\n{guest.dmesg()}")
    guest.run("umount /mnt/a; umount /mnt/b; echo 1 >/sys/class/nvme/nvme0/delete_controller")
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of the controller")
    guest.kill()
    for volume, command in (("a", ("e2fsck", "-fn")), ("b", ("xfs_repair", "-n", "-f"))):
        raw = t.path(f"{volume}.raw")
        run("nbdcopy", s.uri(volume), raw)
        run(*command, raw)
    s.stop()
    run(s.bin, "check", "--data", s.data)
