"""Golden pools: pools as each release wrote them open with this release and have the same contents. A pool
of another format version is refused.

`tests/golden/RELEASE-KIND.tar.xz` has the directory `pool`. For a server that was killed it also has `memory`
with the file of acknowledged writes. FOREBAY_WRITE_GOLDEN=1 writes the pools of the present release. A pool
of a published release is never changed; a later release that writes other kinds of data adds a kind.
"""

import glob
import os
import random
import re
import shutil
import subprocess
import uuid

from clients_lost import refused, with_boot_id
from forebay import run
from harness import BLOCK, MIB, check, connect, equal, test

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
BLOCKS = 64
TARGET = "iqn.2026-01.org.example:golden"
MEMORY = '[memory]\nread_cache = "16M"\nwrite_buffer = "4M"\ndesktops = "4M"\n'


def content(kind, number):
    """A block, which can be computed again. Blocks of the kind "noise" cannot be compressed."""
    if kind == "noise":
        return random.Random(f"noise {number}").randbytes(BLOCK)
    return f"{kind} {number:06} ".encode().ljust(32, b".") * (BLOCK // 32)


def write(handle, kind, numbers):
    for number in numbers:
        handle.pwrite(content(kind, number), number * BLOCK)


def fill(server, name, kind, numbers):
    h = connect(server, name)
    write(h, kind, numbers)
    h.flush()
    h.shutdown()


def expect_blocks(server, export, kinds, size=16 * MIB):
    """Compares an export with the kind of each block, by number. A block without a kind is zero."""
    h = connect(server, export)
    equal(h.get_size(), size, f"size of {export}")
    for number in range(BLOCKS):
        expected = content(kinds[number], number) if number in kinds else bytes(BLOCK)
        equal(bytes(h.pread(BLOCK, number * BLOCK)) == expected, True, f"block {number} of {export}")
    equal(bytes(h.pread(MIB, size - MIB)), bytes(MIB), f"the end of {export}")
    h.shutdown()


def make_stopped(s):
    """A pool with each kind of disk, snapshots, limits, a quota and a target, after an orderly stop."""
    s.cli("volume", "create", "base", "--size", "8M")
    fill(s, "base", "first", range(BLOCKS))
    s.cli("snapshot", "create", "base", "before")
    fill(s, "base", "second", range(BLOCKS // 2))
    s.cli("volume", "resize", "base", "16M")
    s.cli("image", "create", "image", "base@before")
    s.cli("volume", "clone", "image", "clone")
    fill(s, "clone", "third", range(0, BLOCKS, 4))
    s.cli("volume", "clone", "image", "desktop", "--desktop")
    s.cli("volume", "limit", "clone", "--iops", "5000", "--tenant", "acme")
    s.cli("tenant", "limit", "acme", "--quota", "1G")
    s.cli("volume", "create", "noise", "--size", "16M", "--sync", "always")
    fill(s, "noise", "noise", range(16))
    h = connect(s, "noise")
    h.trim(4 * BLOCK, 8 * BLOCK)
    h.shutdown()
    s.cli("volume", "create", "gone", "--size", "16M")
    fill(s, "gone", "gone", range(BLOCKS))
    s.cli("volume", "rm", "gone")
    s.cli("target", "create", TARGET)
    s.cli("lun", "map", TARGET, "base")
    s.cli("gc")
    s.stop()


def expect_stopped(s):
    first = dict.fromkeys(range(BLOCKS), "first")
    third = dict.fromkeys(range(0, BLOCKS, 4), "third")
    expect_blocks(s, "base", first | dict.fromkeys(range(BLOCKS // 2), "second"))
    expect_blocks(s, "clone", first | third, 8 * MIB)
    for export in ("base@before", "image", "desktop"):
        expect_blocks(s, export, first, 8 * MIB)
    expect_blocks(s, "noise", {n: "noise" for n in range(16) if not 8 <= n < 12})
    equal({v["name"] for v in s.json("volume", "list")}, {"base", "clone", "desktop", "noise"}, "volumes")
    equal(s.json("volume", "show", "clone")["limits"]["iops"], 5000, "limits")
    equal(s.json("volume", "show", "noise")["sync"], "always", "durability of a volume")
    equal(s.json("tenant", "show", "acme")["limits"]["quota"], 1 << 30, "the quota of a tenant")
    equal([lun["disk"] for lun in s.json("target", "show", TARGET)["luns"]], ["base"], "LUNs")


def make_killed(s):
    """The pool of a server that was killed: a log after the last checkpoint, and acknowledged writes that are
    only in memory."""
    s.cli("volume", "create", "late", "--size", "16M")
    fill(s, "late", "first", range(BLOCKS))
    s.cli("image", "create", "image", "late")
    s.cli("volume", "clone", "image", "desktop", "--desktop")
    handles = [connect(s, name) for name in ("late", "desktop")]
    # The server gets no time for a commit, which would make these writes durable.
    write(handles[1], "noise", range(8))
    write(handles[0], "second", range(8))
    s.kill()


def expect_killed(s):
    first = dict.fromkeys(range(BLOCKS), "first")
    expect_blocks(s, "image", first)
    expect_blocks(s, "late", first | dict.fromkeys(range(8), "second"))
    expect_blocks(s, "desktop", first | dict.fromkeys(range(8), "noise"))


# Name of a kind: what makes the pool, what it has to contain, and a volume on which to write.
KINDS = {"stopped": (make_stopped, expect_stopped, "clone"), "killed": (make_killed, expect_killed, "late")}


def write_golden(t, kind):
    """Writes the pool of the present release, which must not be published yet."""
    base = t.path(f"new-{kind}")
    os.mkdir(base)
    s = t.server(data=f"{base}/pool", config=MEMORY)
    KINDS[kind][0](s)
    parts = ["pool"]
    if kind == "killed":
        shutil.copytree(s.memory, os.path.join(base, "memory"))
        parts.append("memory")
    release = run(s.bin, "--version").stdout.split()[1]
    check(not run("git", "-C", GOLDEN, "tag", "--list", f"v{release}").stdout, f"release {release} has a tag already")
    file = os.path.join(GOLDEN, f"{release}-{kind}.tar.xz")
    run("tar", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-C", base, "-cJf", file, *parts)


def golden_pools():
    """Release, kind and file of each golden pool."""
    files = sorted(glob.glob(os.path.join(GOLDEN, "*.tar.xz")))
    return [(*re.fullmatch(r"(.+)-([a-z]+)\.tar\.xz", os.path.basename(file)).groups(), file) for file in files]


def unpack(t, name, file):
    """Unpacks a golden pool to the directory `name` of a test, and returns a server for it, which does not
    run yet. Gives the memory the name under which the server searches for it: it contains device and inode of
    the superblock file. Memory does not survive a boot of the host, so the server sees the boot in which the
    memory was written."""
    base = t.path(name)
    os.mkdir(base)
    run("tar", "--sparse", "-C", base, "-xJf", file)
    found = glob.glob(os.path.join(base, "memory", "**", "forebay-*"), recursive=True)
    s = t.server("--cache", "16M", data=os.path.join(base, "pool"), start=False)
    for memory in filter(os.path.isfile, found):
        with open(memory, "rb") as f:
            header = f.read(BLOCK)
        equal(header[:8], b"FBRETAIN", "the header of a retained memory")
        with_boot_id(t, s, str(uuid.UUID(bytes=header[32:48])))
        status = os.stat(os.path.join(base, "pool", "superblock"))
        pool = re.match(r"forebay-[0-9a-f]{32}", os.path.basename(memory))[0]
        shutil.copy(memory, os.path.join(t.memory, f"{pool}-{status.st_dev:x}-{status.st_ino}-00000000"))
    return s


@test
def golden_pools_of_every_release_open(t):
    if os.environ.get("FOREBAY_WRITE_GOLDEN"):
        os.makedirs(GOLDEN, exist_ok=True)
        for kind in KINDS:
            write_golden(t, kind)
    pools = golden_pools()
    releases = {release for release, _, _ in pools}
    check("0.1.0" in releases, f"golden pools of 0.1.0, among {sorted(releases)}")
    for release in releases:
        equal({kind for r, kind, _ in pools if r == release} >= set(KINDS), True, f"all kinds of pools of {release}")
    for release, kind, file in pools:
        _, expect, volume = KINDS[kind]
        s = unpack(t, f"{release}-{kind}", file)
        s.start()
        expect(s)
        fill(s, volume, "fourth", [1])
        s.stop()
        s.offline("check")
        s.start()
        h = connect(s, volume)
        equal(bytes(h.pread(BLOCK, BLOCK)) == content("fourth", 1), True, "a block that this release wrote")
        h.shutdown()
        s.stop()


@test
def golden_memory_has_writes_that_are_nowhere_else(t):
    """Without its memory, the pool of the killed server has lost writes: so the test above proves that the
    memory is read."""
    killed = [(release, file) for release, kind, file in golden_pools() if kind == "killed"]
    check(killed, "golden pools of killed servers")
    for release, file in killed:
        s = unpack(t, f"{release}-without", file)
        for memory in glob.glob(os.path.join(t.memory, "forebay-*")):
            os.unlink(memory)
        s.start()
        for name in ("late", "desktop"):
            refused(s.uri(name), f"'{name}'")
        s.stop()


@test
def a_pool_of_another_version_is_refused(t):
    s = t.server("--cache", "16M")
    s.cli("volume", "create", "v", "--size", "16M")
    s.stop()
    file = os.path.join(s.data, "superblock")
    with open(file, "rb") as f:
        before = f.read()
    present = int.from_bytes(before[8:12], "little")
    serve = ["serve", "--data", s.data, "--socket", s.control]
    for version, remedy in ((3, "copy the disks to a new pool"), (present + 1, "upgrade forebay")):
        with open(file, "r+b") as f:
            for copy in (0, 4096):
                f.seek(copy + 8)
                f.write(version.to_bytes(4, "little"))
        for command in (serve, ["check", "--data", s.data], ["inspect", "--data", s.data]):
            refused_one = subprocess.run([s.bin, *command], capture_output=True, text=True, timeout=60)
            check(refused_one.returncode == 1, f"{command[0]}, version {version}: {refused_one}")
            for part in (f"format version {version}", remedy):
                check(part in refused_one.stderr, f"{command[0]}, version {version}: {refused_one.stderr}")
    with open(file, "r+b") as f:
        f.write(before)
    s.start()
    equal([v["name"] for v in s.json("volume", "list")], ["v"], "the pool is unchanged")
