"""A real Linux guest under QEMU that is never rebooted, while its server is killed and upgraded.

The guest boots from a desktop, and has a second disk, a volume with ext4. QEMU reconnects
(`reconnect-delay`). On both disks a database commits transactions with fsync and prints each to the guest's
console, a file of this machine: what is printed has to be there. On the volume, fio verifies what it wrote;
on the desktop, files are written with their checksums. All of them read the disk, not the guest's page cache.
"""

import os
import re
import time

from clients_filesystems import Fuse, need_fuse_and_loop
from forebay import Failed
from harness import check, equal, run, test
from hosts import ScriptedGuest, image

KILLS = int(os.environ.get("FOREBAY_GUEST_KILLS", "3"))
# Far longer than any outage: QEMU fails requests after this time.
RECONNECT_S = 300
# Time until the guest has to continue. QEMU's pauses between attempts to connect are 1, 2, 4, ... seconds.
CONTINUE_S = 90
# Names of the databases: by the disk on which they are.
DATABASES = ("volume", "desktop")
# What the kernel reports of a disk with errors, or of one that does not answer.
COMPLAINTS = re.compile(
    r"I/O error|EXT4-fs (error|warning)|Buffer I/O|blocked for more than|critical (medium|target)"
    r"|JBD2: Error|[Rr]emounting filesystem read-only|Aborting journal|BUG:|Oops"
)

# Commits transactions; of each tenth, everything is read back from the disk, through a new connection.
DATABASE = r"""
import os, sqlite3, sys, time
path, name = sys.argv[1:3]
KEEP = 100

def console(text):
    with open("/dev/ttyS0", "wb", buffering=0) as f:
        f.write(b"\n%s\n" % text.encode())

def content(n):
    return (b"%s %d " % (name.encode(), n)) * (50 + n % 500)

def opened():
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous=FULL")
    return db

def verify(expected):
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    db = opened()
    found = db.execute("SELECT n FROM counter").fetchone()[0]
    rows = db.execute("SELECT n, content FROM entries ORDER BY n").fetchall()
    wrong = [n for n, data in rows if data != content(n)]
    state = db.execute("PRAGMA integrity_check").fetchone()[0]
    want = list(range(max(1, found - KEEP + 1), found + 1))
    if found != expected or wrong or [n for n, _ in rows] != want or state != "ok":
        raise ValueError(f"counter {found}, expected {expected}; wrong {wrong}; rows {len(rows)}; {state}")
    db.close()

def work():
    db = opened()
    db.execute("CREATE TABLE counter (n INTEGER)")
    db.execute("CREATE TABLE entries (n INTEGER PRIMARY KEY, content BLOB)")
    db.execute("INSERT INTO counter VALUES (0)")
    n = 0
    while not os.path.exists("/run/stop"):
        n += 1
        db.execute("BEGIN")
        db.execute("UPDATE counter SET n = ?", (n,))
        db.execute("INSERT INTO entries VALUES (?, ?)", (n, content(n)))
        db.execute("DELETE FROM entries WHERE n <= ?", (n - KEEP,))
        db.execute("COMMIT")
        console(f"committed {name} {n}")
        if n % 10 == 0:
            verify(n)
            console(f"verified {name} {n}")
    db.close()

try:
    verify(int(sys.argv[3])) if sys.argv[3:] else work()
except Exception as e:
    console(f"FAILED {name}: {type(e).__name__}: {e}")
    sys.exit(1)
"""

# Each loop writes all blocks of a file and reads them back.
FIO = (
    "fio --name=verified --directory=/mnt/a --size=4M --rw=randwrite --bs=4k --direct=1 --ioengine=libaio"
    " --iodepth=4 --verify=crc32c --verify_backlog=128 --verify_fatal=1 --fsync=64 --randrepeat=0"
)

START = f"""
mkfs.ext4 -q /dev/vdb
mount -o discard /dev/vdb /mnt/a
mkdir -p /root/files
cat >/root/database.py <<'END'
{DATABASE}
END
cat >/root/fio.sh <<'END'
while [[ ! -e /run/stop ]]; do
  {FIO} || {{ echo; echo "FAILED fio"; tail -n 5 /run/fio.log; exit 1; }} >/dev/ttyS0
  echo >>/run/fio.loops
done >/run/fio.log 2>&1
END
cat >/root/files.sh <<'END'
cd /root/files
for ((n = 0; ; n = (n + 1) % 40)); do
  [[ -e /run/stop ]] && break
  head -c $((RANDOM * 4 + 1)) /dev/urandom >$n
  sync $n
  sha256sum $n >$n.sum
  sync $n.sum
  sleep 0.2
done
END
setsid python3 /root/database.py /mnt/a/db volume >/run/volume.log 2>&1 &
setsid python3 /root/database.py /root/db desktop >/run/desktop.log 2>&1 &
setsid bash /root/fio.sh &
setsid bash /root/files.sh >/run/files.log 2>&1 &
"""

STOP = """
touch /run/stop
while pgrep -f '/root/(database.py|fio.sh|files.sh)' >/dev/null; do sleep 0.2; done
wc -l </run/fio.loops
"""

# $VOLUME and $DESKTOP are the last transactions.
VERIFY = """
umount /mnt/a
e2fsck -fn /dev/vdb
mount /dev/vdb /mnt/a
python3 /root/database.py /mnt/a/db volume $VOLUME
python3 /root/database.py /root/db desktop $DESKTOP
cd /root/files
cat *.sum | sha256sum --quiet -c -
cd /
umount /mnt/a
mount -o remount,ro /
"""


class Console:
    """What the guest has printed: the outside record of its transactions."""

    def __init__(self, path):
        self.path = path

    def lines(self):
        with open(self.path, errors="replace") as f:
            return f.read().replace("\r", "").split("\n")[:-1]

    def committed(self):
        """The last transaction of each database. Fails if the guest reports a failure."""
        last = dict.fromkeys(DATABASES, 0)
        for line in self.lines():
            words = line.split()
            if words[:1] == ["FAILED"]:
                raise Failed(f"the guest reports: {line}")
            if len(words) == 3 and words[0] == "committed":
                last[words[1]] = int(words[2])
        return last

    def wait_beyond(self, before, guest):
        """Waits until each database has committed a transaction after these."""
        deadline = time.monotonic() + CONTINUE_S
        while True:
            now = self.committed()
            if all(now[name] > before[name] for name in DATABASES):
                return now
            if guest.process.poll() is not None:
                raise Failed("QEMU has ended")
            check(time.monotonic() < deadline, f"no new transactions in {CONTINUE_S} s; the last are {now}")
            time.sleep(0.02)


def drive(server, export):
    """A disk of QEMU that reconnects."""
    where = f"driver=nbd,server.type=unix,server.path={server.nbd},export={export}"
    return f"{where},reconnect-delay={RECONNECT_S},cache.direct=on,discard=unmap"


def booted(t, server):
    """A guest with its root on a desktop, and a volume as its second disk."""
    server.cli("image", "import", "golden", os.path.join(image(), "disk.qcow2"))
    # Small, so that it overflows to the store.
    server.cli("volume", "clone", "golden", "desktop", "--desktop", "--write-cache", "2M")
    server.cli("volume", "create", "volume", "--size", "96M")
    args = ["-blockdev", f"{drive(server, 'volume')},node-name=volume", "-device", "virtio-blk-pci,drive=volume"]
    return ScriptedGuest(t, server, "guest", drive(server, "desktop"), args).wait_up()


def interrupt(t, server, guest, console, how, count):
    """Calls `how` at random moments; the guest has to continue each time. Returns the longest pause."""
    longest = 0.0
    for _ in range(count):
        time.sleep(t.random.uniform(0.1, 1.5))
        before, begin = console.committed(), time.monotonic()
        how()
        console.wait_beyond(before, guest)
        longest = max(longest, time.monotonic() - begin)
    return longest


def guest_lives_on(t, server, interruptions, count):
    """Runs a guest while its server is interrupted: `interruptions` has the functions that do it, by name.
    Each is called `count` times. Afterwards verifies the guest's disks, in the guest and from outside."""
    guest = booted(t, server)
    guest.run(START)
    console = Console(guest.console)
    console.wait_beyond(dict.fromkeys(DATABASES, 10), guest)
    pauses = {name: interrupt(t, server, guest, console, how, count) for name, how in interruptions.items()}
    loops = int(guest.run(STOP))
    last = console.committed()
    guest.run(VERIFY.replace("$VOLUME", str(last["volume"])).replace("$DESKTOP", str(last["desktop"])))
    complaints = [line for line in guest.dmesg().splitlines() if COMPLAINTS.search(line)]
    equal(complaints, [], "errors in the kernel log of the guest")
    console.committed()
    check(loops > 0, "fio has not completed a loop")
    guest.kill()
    for name in DATABASES:
        fuse = Fuse(t, server, name)
        run("e2fsck", "-fn", fuse.file)
        fuse.close()
    said = ", ".join(f"longest pause by {what} {s:.1f} s" for what, s in pauses.items())
    print(f"     {count} of each; {said}; {sum(last.values())} transactions, {loops} loops of fio")


@test
def a_guest_lives_on_when_its_server_is_killed(t):
    need_fuse_and_loop()
    server = t.server()

    def kill():
        server.kill()
        time.sleep(t.random.uniform(0.0, 0.3))
        server.start()

    guest_lives_on(t, server, {"kill -9": kill}, KILLS)
