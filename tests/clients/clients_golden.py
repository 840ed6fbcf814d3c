"""Golden pools: one of each format version from 4 on, as its release wrote it, opens with this release and
reads the same. A pool of another version is refused.

FOREBAY_WRITE_GOLDEN=1 writes the pool of the present version. Never change it after a release.
"""

import glob
import os
import re
import subprocess

from forebay import run
from harness import BLOCK, MIB, check, connect, equal, test

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
BLOCKS = 64


def content(name, number):
    """A block, which can be computed again."""
    return f"{name} {number:06} ".encode().ljust(32, b".") * (BLOCK // 32)


def fill(server, name, kind, numbers):
    h = connect(server, name)
    for number in numbers:
        h.pwrite(content(kind, number), number * BLOCK)
    h.flush()
    h.shutdown()


def make_pool(t):
    """A pool with each kind of disk, a snapshot, limits, and a target. Returns its directory."""
    s = t.server("--cache", "16M")
    s.cli("volume", "create", "base", "--size", "16M")
    fill(s, "base", "first", range(BLOCKS))
    s.cli("snapshot", "create", "base", "before")
    fill(s, "base", "second", range(BLOCKS // 2))
    s.cli("image", "create", "image", "base@before")
    s.cli("volume", "clone", "image", "clone")
    fill(s, "clone", "third", range(0, BLOCKS, 4))
    s.cli("volume", "clone", "image", "desktop", "--desktop")
    s.cli("volume", "limit", "clone", "--iops", "5000", "--tenant", "acme")
    s.cli("target", "create", "iqn.2026-01.org.example:golden")
    s.cli("lun", "map", "iqn.2026-01.org.example:golden", "base")
    s.cli("gc")
    s.stop()
    return s.data


def expect(server):
    """The contents of that pool."""
    second = {number: "second" for number in range(BLOCKS // 2)}
    third = {number: "third" for number in range(0, BLOCKS, 4)}
    for export, changed in (("base", second), ("base@before", {}), ("image", {}), ("clone", third), ("desktop", {})):
        h = connect(server, export)
        for number in range(BLOCKS):
            expected = content(changed.get(number, "first"), number)
            equal(bytes(h.pread(BLOCK, number * BLOCK)) == expected, True, f"block {number} of {export}")
        equal(bytes(h.pread(MIB, 15 * MIB)), bytes(MIB), f"the end of {export}")
        h.shutdown()
    equal(server.json("volume", "show", "clone")["limits"]["iops"], 5000, "limits")
    luns = server.json("target", "show", "iqn.2026-01.org.example:golden")["luns"]
    equal([lun["disk"] for lun in luns], ["base"], "LUNs")


def version_of(directory):
    """The format version in the superblock."""
    with open(os.path.join(directory, "superblock"), "rb") as f:
        return int.from_bytes(f.read(16)[8:12], "little")


@test
def pools_of_every_golden_version_open(t):
    if os.environ.get("FOREBAY_WRITE_GOLDEN"):
        data = make_pool(t)
        os.makedirs(GOLDEN, exist_ok=True)
        file = os.path.join(GOLDEN, f"pool-v{version_of(data)}.tar.xz")
        run("tar", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-C", data, "-cJf", file, ".")
    pools = sorted(glob.glob(os.path.join(GOLDEN, "pool-v*.tar.xz")))
    check(pools, "no golden pool")
    for pool in pools:
        version = re.search(r"pool-v(\d+)", pool)[1]
        name = f"v{version}"
        os.mkdir(t.path(name))
        run("tar", "--sparse", "-C", t.path(name), "-xJf", pool)
        equal(version_of(t.path(name)), int(version), f"version of {pool}")
        s = t.server("--cache", "16M", data=name)
        expect(s)
        fill(s, "clone", "fourth", [1])
        s.stop()
        s.offline("check")
        s.start()
        h = connect(s, "clone")
        equal(bytes(h.pread(BLOCK, BLOCK)) == content("fourth", 1), True, "a block that this release wrote")
        h.shutdown()
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
            refused = subprocess.run([s.bin, *command], capture_output=True, text=True, timeout=60)
            check(refused.returncode == 1, f"{command[0]}, version {version}: {refused}")
            for part in (f"format version {version}", remedy):
                check(part in refused.stderr, f"{command[0]}, version {version}: {refused.stderr}")
    with open(file, "r+b") as f:
        f.write(before)
    s.start()
    equal([v["name"] for v in s.json("volume", "list")], ["v"], "the pool is unchanged")
