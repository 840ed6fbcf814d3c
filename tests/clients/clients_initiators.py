"""Other implementations of initiators: the Linux kernel's in emulated guests, and QEMU's."""

import hashlib
import os
import time

from forebay import Failed
from harness import MIB, check, equal, run, test, wait_for
from hosts import GATEWAY, TIMEOUT_S, Guest, LinuxHost, Network, accel, free_port, image

TARGET = "iqn.2026-01.org.example:disks"
ONE = "iqn.2026-01.org.example:one"
TWO = "iqn.2026-01.org.example:two"
SECRETS = {"hosts": "a secret of hosts", "storage": "a secret of storage"}
# CHAP in both directions with the best available digest, a checksum on every PDU, and short timeouts for a
# dead network.
CONF = f"""
node.session.auth.authmethod = CHAP
node.session.auth.chap_algs = SHA3-256
node.session.auth.username = hosts
node.session.auth.password = {SECRETS["hosts"]}
node.session.auth.username_in = storage
node.session.auth.password_in = {SECRETS["storage"]}
node.conn[0].iscsi.HeaderDigest = CRC32C
node.conn[0].iscsi.DataDigest = CRC32C
node.conn[0].timeo.noop_out_interval = 2
node.conn[0].timeo.noop_out_timeout = 2
"""
# Exit statuses of iscsiadm: the target rejected the guest's secret, the guest rejected the target's.
REFUSED_BY_TARGET, REFUSED_BY_GUEST = 24, 19
# Exit statuses of sg_persist.
UNIT_ATTENTION, CONFLICT = 6, 24
# Writes and verifies two file systems repeatedly until the file /tmp/stop exists.
LOAD = """
(
  trap '[[ -s /tmp/ended ]] || echo badly >/tmp/ended' EXIT
  until [[ -e /tmp/stop ]]; do
    fio --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite --bsrange=4k-64k --size=6M \
      --verify=crc32c --verify_fatal=1 --name=a --directory=/mnt/a --name=b --directory=/mnt/b &>/tmp/fio
  done
  echo well >/tmp/ended
) &
"""


def serve(t, *args):
    """A server with an iSCSI port and the secrets of both sides; and the port."""
    for user, secret in SECRETS.items():
        with open(t.path(f"{user}.secret"), "w") as f:
            f.write(secret)
    port = free_port()
    return t.server("--iscsi", f"127.0.0.1:{port}", *args), port


def says(said, *lines):
    """Checks that the output of a command contains each of these lines."""
    found = [" ".join(line.split()) for line in said.splitlines()]
    for line in lines:
        check(line in found, f"there is no line '{line}' in:\n{said}")


def mapped(s, volume):
    """Number of stored bytes of a volume."""
    s.cli("gc")
    return s.json("stats", volume)["space"]["mapped_bytes"]


def wait_for_writes(s, guest, count=40, timeout=120):
    """Waits until the guest has made `count` more writes on both disks."""

    def done():
        return [s.json("stats", v)["write"]["ops"] for v in ("a", "b")]

    want, deadline = [d + count for d in done()], time.monotonic() + timeout
    while any(d < w for d, w in zip(done(), want)):
        if time.monotonic() > deadline:
            raise Failed(f"writes have stopped:\n{guest.run('cat /tmp/fio; dmesg | tail -n 20')}")
        time.sleep(0.05)


def check_file_system(t, s, volume, *command):
    """Checks a volume's file system on this machine."""
    raw = t.path(f"{volume}.raw")
    run("nbdcopy", s.uri(volume), raw)
    run(*command, raw)
    os.unlink(raw)


def logs_in_with_secrets_only(guest, port):
    """Neither side accepts the other without the right secret; with both, the requested digests are used."""
    portal = f"{GATEWAY}:{port}"
    node = f"iscsiadm -m node -T {TARGET} -p {portal}"
    found = guest.run(f"iscsiadm -m discovery -t sendtargets -o nonpersistent -p {portal}; {node} -o new >&2")
    equal(found.splitlines()[0].split()[1], TARGET, "the target that discovery tells of")
    for key, user, status in (("password", "hosts", REFUSED_BY_TARGET), ("password_in", "storage", REFUSED_BY_GUEST)):
        update = f"{node} -o update -n node.session.auth.{key} -v"
        guest.run(f"{update} 'another secret'; {node} --login", status=status)
        guest.run(f"{update} '{SECRETS[user]}'")
    guest.run(f"{node} --login")
    session = guest.run("iscsiadm -m session -P 3")
    says(session, "username: hosts", "username_in: storage", "HeaderDigest: CRC32C", "DataDigest: CRC32C")


def is_what_it_says(s, guest, a, c):
    """Size, blocks, caches, identity and provisioning, as seen by the kernel and as reported by the disk."""
    columns = "NAME,SIZE,RO,PHY-SEC,LOG-SEC,ROTA,DISC-GRAN,OPT-IO"
    lines = [line.split() for line in guest.run(f"lsblk -dnrb -o {columns} | grep ^sd").splitlines()]
    found = sorted((int(size) // MIB, *rest) for _, size, *rest in lines)
    alike = ("4096", "512", "0", "4096", str(MIB))
    expected = [(64, "0", *alike), (64, "1", *alike), (256, "0", *alike), (320, "0", *alike)]
    equal(found, expected, f"{columns}, without the name")
    caches = guest.run(f"cat /sys/block/{a}/device/scsi_disk/*/cache_type /sys/block/{c}/device/scsi_disk/*/cache_type")
    equal(caches.splitlines(), ["write through", "write back"], "caches")
    serial = s.json("volume", "show", "a")["uuid"].replace("-", "")
    says(
        guest.run(f"""
            sg_inq /dev/{a}
            for page in sn di bl bdc lbpv; do sg_vpd -p $page /dev/{a}; done
            sg_readcap -l /dev/{a}
            sg_luns /dev/{a}
        """),
        *("Vendor identification: FOREBAY", "Product identification: VOLUME"),
        f"Unit serial number: {serial}",
        *("designator type: NAA, code set: Binary", f"{TARGET},t,0x0001"),
        *("Maximum compare and write length: 255 blocks", "Optimal unmap granularity: 8 blocks"),
        *("Unmap command supported (LBPU): 1", "Logical block provisioning read zeros (LBPRZ): 1"),
        *("Provisioning type: 2 (thin provisioned)", "Non-rotating medium (e.g. solid state)"),
        *("Logical block provisioning: lbpme=1, lbprz=1", "Device size: 268435456 bytes, 256.0 MiB, 0.27 GB"),
        "Logical blocks per physical block exponent=3 [so physical block length=4096 bytes]",
        *(f"{lun:04}000000000000" for lun in (0, 5, 7, 9)),
    )


# What the kernel logs when a connection is lost.
LOST = "detected conn error"


def goes_on_without_its_connection(s, guest, network):
    """During writes, all connections are reset, then they stop forwarding, then the server crashes and
    restarts."""
    guest.run(LOAD)
    wait_for_writes(s, guest)
    network.cut()
    wait_for_writes(s, guest)
    network.freeze()
    wait_for_writes(s, guest)
    # It is the same session: it has replaced that of the dead connection.
    equal([i["initiator"] for i in s.json("target", "show", TARGET)["sessions"]], [ONE], "sessions")
    lost = guest.dmesg().count(LOST)
    s.kill()
    wait_for(lambda: guest.dmesg().count(LOST) > lost, "the guest loses the connection")
    s.start()
    wait_for_writes(s, guest)
    ended = guest.run("touch /tmp/stop; until [[ -s /tmp/ended ]]; do sleep 1; done; cat /tmp/ended /tmp/fio")
    check(ended.startswith("well\n"), f"fio ended {ended}")
    log = guest.dmesg()
    lost = log.count(LOST)
    check(lost >= 3, f"connections were lost {lost} times, expected three:\n{log}")
    for bad in ("I/O error", "EXT4-fs error", "Corruption", "offline"):
        check(bad not in log, f"'{bad}' is in the guest's log:\n{log}")


def sees_grown_disks(s, guest, a, b):
    """Disks grow while their file systems are mounted; the guest rescans them and uses the new space."""
    for volume in ("a", "b"):
        s.cli("volume", "resize", volume, "512M")
    sectors = f"cat /sys/block/{a}/size /sys/block/{b}/size"
    guest.run("iscsiadm -m node -R")
    equal(guest.run(sectors).split(), ["1048576"] * 2, "sectors")
    guest.run(f"resize2fs /dev/{a}; xfs_growfs /mnt/b")
    # 400 MiB can be allocated, more than either had before.
    guest.run("fallocate -l 400M /mnt/a/much; fallocate -l 400M /mnt/b/much; rm /mnt/?/much")


def gives_space_back(s, guest, c):
    """Blocks that the guest discards, in a file system or directly, are freed at the server."""
    guest.run(f"head -c 8M /dev/urandom | tee /mnt/a/noise /mnt/b/noise >/dev/{c}; sync")
    before = [mapped(s, volume) for volume in ("a", "b", "c")]
    check(min(before) >= 8 * MIB, f"{before} bytes are stored, expected 8 MiB of each")
    guest.run(f"rm /mnt/?/noise; sync; fstrim /mnt/a; fstrim /mnt/b; blkdiscard -o 1M /dev/{c}")
    after = [mapped(s, volume) for volume in ("a", "b", "c")]
    check(all(b - a >= 7 * MIB for b, a in zip(before, after)), f"{before} bytes were stored, then {after}")
    equal(after[2], MIB, "what was not discarded")
    # Discarded blocks read as zeros, not from the guest's cache.
    guest.run(f"blkdiscard -z -l 1M /dev/{c}; blockdev --flushbufs /dev/{c}; cmp -n 64M /dev/{c} /dev/zero")
    equal(mapped(s, "c"), 0, "bytes that are stored of zeros")


@test
def linux_host_with_file_systems_on_luns(t):
    s, port = serve(t, "--remote-answers", "memory")
    for name, size in (("a", "256M"), ("b", "320M"), ("c", "64M")):
        s.cli("volume", "create", name, "--size", size)
    s.cli("snapshot", "create", "c", "s")
    both_ways = ("--chap-user", "hosts", "--chap-secret-file", t.path("hosts.secret"))
    both_ways += ("--mutual-user", "storage", "--mutual-secret-file", t.path("storage.secret"))
    s.cli("target", "create", TARGET, *both_ways)
    s.cli("target", "allow", TARGET, ONE)
    for lun, disk, *options in ((0, "a"), (5, "b"), (7, "c", "--write-back"), (9, "c@s")):
        s.cli("lun", "map", TARGET, disk, "--lun", str(lun), *options)
    network = Network(t, port)
    guest = LinuxHost(t, s, "one", ONE, CONF).wait_up()
    logs_in_with_secrets_only(guest, network.port)
    a, b, c = (guest.disk(lun) for lun in (0, 5, 7))
    is_what_it_says(s, guest, a, c)
    guest.run(f"""
        mkfs.ext4 -q /dev/{a}; mkfs.xfs -q /dev/{b}
        mount /dev/{a} /mnt/a; mount /dev/{b} /mnt/b
        for d in a b; do head -c 3M /dev/urandom >/mnt/$d/kept; sha256sum /mnt/$d/kept >>/tmp/sums; done
        sync
    """)
    goes_on_without_its_connection(s, guest, network)
    sees_grown_disks(s, guest, a, b)
    gives_space_back(s, guest, c)
    guest.run(f"umount /mnt/a; umount /mnt/b; mount /dev/{a} /mnt/a; mount /dev/{b} /mnt/b")
    guest.run("sha256sum -c /tmp/sums")
    guest.run("umount /mnt/a; umount /mnt/b; iscsiadm -m node --logout")
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of the sessions")
    guest.kill()
    check_file_system(t, s, "a", "e2fsck", "-fn")
    check_file_system(t, s, "b", "xfs_repair", "-n", "-f")
    s.stop()
    run(s.bin, "check", "--data", s.data)


class Sharer:
    """A host that shares a disk with another, using persistent reservations with a separate key."""

    def __init__(self, guest, key, port):
        self.guest, self.key = guest, key
        guest.wait_up()
        guest.login(TARGET, port)
        self.disk = "/dev/" + guest.disk(0)

    def say(self, service, *others, status=0):
        """A PERSISTENT RESERVE OUT of type Write Exclusive - Registrants Only, if the service action has a
        type."""
        keys = " ".join([f"--param-rk={self.key}", *others])
        return self.guest.run(f"sg_persist -n --out --{service} {keys} --prout-type=5 {self.disk}", status)

    def register(self, *options):
        self.guest.run(f"sg_persist -n --out --register --param-sark={self.key} {' '.join(options)} {self.disk}")

    def keys(self):
        """The keys of all registrations, as seen by this host."""
        said = self.guest.run(f"sg_persist -n --in --read-keys {self.disk}")
        return sorted(line.strip() for line in said.splitlines() if line.startswith("    0x"))

    def is_told(self, what):
        """The disk has a unit attention for this host, which precedes other results."""
        said = self.guest.run(f"sg_persist -n --in --read-keys {self.disk}", status=UNIT_ATTENTION)
        says(said, f"Additional sense: {what}")

    def hear_all(self):
        """Executes commands until no unit attention is pending: that of a reset, and, where the disk of the
        machine is nearly full, that of a store that is low on room, which the first good command notes."""
        self.guest.run(f"for attempt in 1 2 3 4; do sg_turs {self.disk} || true; done")

    def write(self, at, conflicts=False):
        """Writes a block that contains its key; with `conflicts`, that must fail."""
        said = self.guest.run(
            f"printf '%-4096s' {self.key} | dd of={self.disk} bs=4096 seek={at} oflag=direct iflag=fullblock",
            status=1 if conflicts else 0,
        )
        check(("Invalid exchange" in said) == conflicts, f"{self.guest.name} wrote, with this output: {said}")

    def read(self, at):
        """The key in this block."""
        return self.guest.run(f"dd if={self.disk} bs=4096 skip={at} count=1 iflag=direct status=none | tr -d ' '")


@test
def linux_hosts_fence_each_other(t):
    s, port = serve(t)
    s.cli("volume", "create", "shared", "--size", "16M")
    s.cli("target", "create", TARGET)
    for host in (ONE, TWO):
        s.cli("target", "allow", TARGET, host)
    s.cli("lun", "map", TARGET, "shared")
    guests = [LinuxHost(t, s, name, iqn) for name, iqn in (("one", ONE), ("two", TWO))]
    one, two = (Sharer(guest, key, port) for guest, key in zip(guests, ("0x1", "0x2")))

    one.register("--param-aptpl")
    one.say("reserve")
    two.write(2, conflicts=True)
    two.register("--param-aptpl")
    equal([one.keys(), two.keys()], [["0x1", "0x2"]] * 2, "keys")
    two.say("reserve", status=CONFLICT)
    one.write(1)
    two.write(2)
    equal([one.read(2), two.read(1)], ["0x2", "0x1"], "what each reads of the other")

    # The first host fences the second, which can still read but not write, also after a restart of the
    # server.
    one.say("preempt", "--param-sark=0x2")
    for crashed in (False, True):
        if crashed:
            s.kill()
            s.start()
            # Both reconnect without action.
            for host in (one, two):
                host.hear_all()
        one.write(1)
        two.write(1, conflicts=True)
        if not crashed:
            two.is_told("Registrations preempted")
        equal([one.keys(), two.keys()], [["0x1"]] * 2, "remaining keys")
        equal(two.read(1), "0x1", "what the fenced host reads")

    # The reverse: the second host registers again, and preempts the reservation of the first.
    two.register()
    two.say("preempt-abort", "--param-sark=0x1")
    two.write(1)
    one.write(1, conflicts=True)
    one.is_told("Registrations preempted")
    equal([one.keys(), one.read(1)], [["0x2"], "0x2"], "what the first host sees in the end")
    said = one.guest.run(f"sg_persist -n --in --read-reservation {one.disk}")
    check("Key=0x2" in said and "type: Write Exclusive, registrants only" in said, said)
    two.say("release")
    two.guest.run("iscsiadm -m node --logout")
    one.write(3)


@test
def qemu_boots_from_a_lun(t):
    s, port = serve(t)
    s.cli("volume", "create", "disk", "--size", "2G")
    s.cli("target", "create", TARGET, "--chap-user", "hosts", "--chap-secret-file", t.path("hosts.secret"))
    # The default names of qemu-img and of a guest.
    s.cli("target", "allow", TARGET, "iqn.2008-11.org.linux-kvm")
    s.cli("target", "allow", TARGET, "iqn.2008-11.org.linux-kvm:booted")
    s.cli("lun", "map", TARGET, "disk", "--write-back")
    golden = os.path.join(image(), "disk.qcow2")
    uri = f"iscsi://hosts%{SECRETS['hosts']}@127.0.0.1:{port}/{TARGET}/0"
    run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", golden, uri)
    run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", golden, uri)
    refused = run("qemu-img", "info", uri.replace(SECRETS["hosts"], "another secret"), check=False)
    equal(refused.returncode, 1, "exit status of qemu-img with another secret")
    check("Authentication failure" in refused.stderr, refused.stderr)

    drive = f"driver=iscsi,transport=tcp,portal=127.0.0.1:{port},target={TARGET},lun=0,cache.direct=on,discard=unmap"
    secret = ["-object", f"secret,id=chap,file={t.path('hosts.secret')}"]
    deadline = time.monotonic() + TIMEOUT_S
    guest = Guest("booted", image(), f"{drive},user=hosts,password-secret=chap", accel(), t.dir, s.sockets, secret)
    t.defer(guest.kill)
    guest.expect("up", deadline)
    guest.say("work")
    _, files, digest = guest.expect("done", deadline)
    guest.say("off")
    guest.wait(deadline)
    check(s.json("stats", "disk")["discard"]["ops"] > 0, "the guest has discarded what it deleted")

    # Out of the LUN again: its file system is clean, and the files are those that the guest has told of.
    raw, out = t.path("disk.raw"), t.path("out")
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, raw)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, uri)
    run("e2fsck", "-fn", raw)
    os.mkdir(out)
    run("debugfs", "-R", f"rdump /srv/own/booted {out}", raw)
    manifest = os.path.join(out, "booted", "manifest")
    with open(manifest, "rb") as f:
        equal(hashlib.sha256(f.read()).hexdigest(), digest, "the list of files")
    said = run("sha256sum", "--check", "manifest", cwd=os.path.dirname(manifest)).stdout
    equal(len(said.splitlines()), int(files), "files")
