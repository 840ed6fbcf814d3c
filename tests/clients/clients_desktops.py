"""Desktops: data in RAM, overflow, and the effects of a reset, a crash and a restart."""

import os
import time

from forebay import Failed
from harness import BLOCK, MIB, Skipped, alone, check, connect, equal, need_root, refused_by_server, run, test, wait_for

SIZE = 96 * MIB


def with_image(t, text="[memory]\ndesktops = \"256M\"\n"):
    """A server with an image whose first half is noise."""
    s = t.server(config=text)
    noise = t.noise_file("noise", SIZE // 2)
    with open(noise, "r+b") as f:
        f.truncate(SIZE)
    s.cli("image", "import", "golden", noise)
    # After an import, the server reclaims its space, which writes to the store.
    s.cli("gc")
    return s, noise


def desktops(s):
    return s.json("stats")["desktops"]


def settled_figures(s, name):
    """The figures of one desktop and of all, between which none was written to the store: a write that has
    begun may end after the last request of its guest."""

    def figures():
        before, own, after = desktops(s), s.json("stats", name), desktops(s)
        return (own, after) if before["overflow"] == after["overflow"] else None

    return wait_for(figures, "the end of the overflow")


def as_image(t, s, name, image):
    """Checks that a desktop equals its image."""
    copy = t.path("copy")
    run("nbdcopy", s.uri(name), copy)
    equal(run("cmp", image, copy, check=False).returncode, 0, f"'{name}' compared with its image")


def fill(h, start, data):
    """Writes as guests do: 64 KiB at a time with flushes in between."""
    for at in range(0, len(data), 64 << 10):
        h.pwrite(data[at:at + (64 << 10)], start + at)
        if at % MIB == 0:
            h.flush()


@test
def a_desktop_writes_only_to_ram(t):
    s, image = with_image(t)
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--write-cache", "64M")
    s.cli("volume", "create", "other", "--size", "1M")
    h, other = connect(s, "desk"), connect(s, "other")
    # Before the first answer it is recorded that answers of this desktop are not durable.
    h.pwrite(b"x" * BLOCK, 8 * MIB)
    before = s.json("stats")
    data = t.random.randbytes(16 * MIB)
    for _ in range(4):
        fill(h, 8 * MIB, data)
    h.flush()
    # Data of a volume is written at a certain age: older data has been written by then, or is not written.
    other.pwrite(b"x" * BLOCK, 0)
    by_age = before["commit"]["by_age"]
    wait_for(lambda: s.json("stats")["commit"]["by_age"] > by_age, "the commit of old data")
    after = s.json("stats")
    # The commits record the state of the volume, before and after its write, and write its data.
    check(after["commits"] <= before["commits"] + 3, "there were other commits than those of a volume")
    written = after["store"]["write"]["bytes"] - before["store"]["write"]["bytes"]
    check(written < 16 * BLOCK, f"{written} bytes were written to the store for 64 MiB of guest writes")
    equal(desktops(s)["cached_bytes"], 16 * MIB, "bytes in RAM")
    equal(bytes(h.pread(16 * MIB, 8 * MIB)), data, "what was written")
    h.trim(8 * MIB, 8 * MIB)
    check(desktops(s)["cached_bytes"] < 9 * MIB, "a discard frees RAM")
    h.shutdown()
    s.cli("volume", "reset", "desk")
    equal(desktops(s)["cached_bytes"], 0, "bytes in RAM after the reset")
    as_image(t, s, "desk", image)


@test
def a_desktop_overflows_and_keeps_its_contents_until_it_is_reset(t):
    s, image = with_image(t)
    s.cli("volume", "clone", "golden", "desk", "--count", "2", "--desktop", "--write-cache", "4M")
    for stop in (s.kill, s.stop):
        h = connect(s, "desk-001")
        data = t.random.randbytes(40 * MIB)
        before = s.json("stats")["store"]["write"]
        fill(h, 0, data)
        equal(bytes(h.pread(32 * MIB, 0)) + bytes(h.pread(8 * MIB, 32 * MIB)), data, "what was written")
        own, held = settled_figures(s, "desk-001")
        check(held["cached_bytes"] <= 5 * MIB, f"{held['cached_bytes']} bytes in RAM")
        check(held["overflow"]["bytes"] > 30 * MIB, f"overflow: {held['overflow']}")
        equal((own["write_cache_bytes"], own["overflow"]), (4 * MIB, held["overflow"]), "figures of the desktop")
        check(" of 4 MiB" in s.cli("stats", "desk-001").stdout, "the write cache in the text")
        after = s.json("stats")["store"]["write"]
        mean = (after["bytes"] - before["bytes"]) / (after["ops"] - before["ops"])
        check(mean > MIB, f"the mean write to the store had {mean:.0f} bytes")
        del h
        stop()
        s.start()
        h = connect(s, "desk-001")
        equal(bytes(h.pread(32 * MIB, 0)) + bytes(h.pread(8 * MIB, 32 * MIB)), data, "what the server left")
        h.shutdown()
        s.wait_unused("desk-001")
        s.cli("volume", "reset", "desk-001")
        as_image(t, s, "desk-001", image)
        as_image(t, s, "desk-002", image)
    s.stop()
    run(s.bin, "check", "--data", s.data)


@test
def a_desktop_is_persisted_while_its_guest_writes(t):
    s, _ = with_image(t)
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--write-cache", "8M")
    h = connect(s, "desk")
    data = t.random.randbytes(24 * MIB)
    fill(h, 4 * MIB, data)
    s.cli("volume", "persist", "desk", "--sync", "flush")
    h.pwrite(b"x" * BLOCK, 0)
    h.flush()
    s.kill()
    s.start()
    h = connect(s, "desk")
    equal(bytes(h.pread(24 * MIB, 4 * MIB)), data, "what was written before")
    equal(bytes(h.pread(BLOCK, 0)), b"x" * BLOCK, "what was written after")
    s.cli("snapshot", "create", "desk", "now")
    # An image created from it has separate desktops.
    s.cli("image", "create", "next", "desk@now")
    h.pwrite(b"y" * BLOCK, 0)
    s.cli("volume", "clone", "next", "heir", "--desktop")
    heir = connect(s, "heir")
    equal(bytes(heir.pread(BLOCK, 0)), b"x" * BLOCK, "the image is as the snapshot was")
    equal(bytes(heir.pread(24 * MIB, 4 * MIB)), data, "and holds all of it")


@test
def a_desktop_is_reset_after_a_clean_disconnect_and_not_after_a_lost_connection(t):
    s, image = with_image(t)
    for name in ("desk", "later"):
        s.cli("volume", "clone", "golden", name, "--desktop", "--reset", "disconnect")
    h, later = connect(s, "desk"), connect(s, "later")
    h.pwrite(b"z" * MIB, 0)
    later.pwrite(b"z" * MIB, 0)
    del h  # closes the socket without NBD_CMD_DISC
    s.wait_unused("desk")
    # A reset of the first desktop would precede the reset of this one.
    later.shutdown()
    wait_for(lambda: s.json("stats", "later")["cached_bytes"] == 0, "the reset of another desktop")
    h = connect(s, "desk")
    equal(bytes(h.pread(MIB, 0)), b"z" * MIB, "what was written before the connection broke")
    second = connect(s, "desk")
    h.shutdown()
    equal(bytes(second.pread(MIB, 0)), b"z" * MIB, "read by a client that is still connected")
    second.shutdown()
    wait_for(lambda: desktops(s)["cached_bytes"] == 0, "the reset of the desktop")
    as_image(t, s, "desk", image)


@alone
@test
def five_hundred_desktops_are_reset_in_a_second(t):
    s, image = with_image(t)
    s.cli("volume", "clone", "golden", "desk", "--count", "500", "--desktop", "--write-cache", "1M")
    names = [f"desk-{n:03}" for n in range(1, 501)]
    took = []
    # The fastest: another one may have to wait for a slow disk.
    for _ in range(3):
        for name in names[::25]:
            h = connect(s, name)
            fill(h, 0, t.random.randbytes(2 * MIB))
            h.shutdown()
            s.wait_unused(name)
        begin = time.monotonic()
        s.cli("volume", "reset", *names)
        took.append(time.monotonic() - begin)
        equal(desktops(s)["cached_bytes"], 0, "bytes in RAM")
    check(min(took) < 1, f"the resets took {took} s")
    as_image(t, s, names[25], image)


@test
def a_fleet_gets_another_image(t):
    s, first = with_image(t)
    second = t.noise_file("second", SIZE // 2)
    with open(second, "r+b") as f:
        f.truncate(2 * SIZE)
    s.cli("image", "import", "next", second)
    s.cli("volume", "clone", "golden", "pc", "--count", "3", "--desktop", "--reset", "disconnect", "--write-cache", "16M")
    s.cli("volume", "clone", "golden", "pc-disk")
    s.cli("volume", "create", "pc-other", "--size", "1M")
    for name in ("pc-001", "pc-disk"):
        h = connect(s, name)
        h.pwrite(bytes([7]) * BLOCK, 0)
        h.shutdown()
    uuids = {disk["name"]: disk["uuid"] for disk in s.json("volume", "list")}

    # A pattern stands for clones, and needs a confirmation.
    asked = s.cli("volume", "reset", "pc-*", "--to", "next", check=False)
    check("would reset 4 volumes" in asked.stderr, asked.stderr)
    none = s.cli("volume", "reset", "web-*", "--to", "next", "-y", check=False)
    check("no clone matches 'web-*'" in none.stderr, none.stderr)
    # All or none.
    h = connect(s, "pc-002")
    used = s.cli("volume", "reset", "pc-*", "--to", "next", "-y", check=False)
    check("'pc-002' is in use" in used.stderr, used.stderr)
    equal({disk["origin"] for disk in s.json("volume", "list")}, {"golden", None}, "origins after a refusal")
    h.shutdown()
    check("reset 4 volumes" in s.cli("volume", "reset", "pc-*", "--to", "next", "-y").stdout, "four clones")

    for disk in s.json("volume", "list"):
        if disk["name"] != "pc-other":
            equal((disk["origin"], disk["size_bytes"]), ("next", 2 * SIZE), f"the origin of {disk['name']}")
            as_image(t, s, disk["name"], second)
        equal(disk["uuid"], uuids[disk["name"]], f"the identity of {disk['name']}")
    # What follows is a reset to the new image, also the automatic one, and after a crash.
    h = connect(s, "pc-001")
    h.pwrite(bytes([9]) * BLOCK, 0)
    h.shutdown()
    as_image(t, s, "pc-001", second)
    s.kill()
    s.start()
    for name in ("pc-001", "pc-003", "pc-disk"):
        as_image(t, s, name, second)
    s.cli("image", "rm", "golden")
    s.cli("volume", "reset", "pc-disk")
    as_image(t, s, "pc-disk", second)


@test
def errors_for_unsupported_operations_of_a_desktop_name_the_alternative(t):
    s, _ = with_image(t)
    s.cli("volume", "clone", "golden", "desk", "--desktop")
    s.cli("volume", "clone", "golden", "kept")
    for command, text in [
        (("snapshot", "create", "desk", "s"), "volume persist"),
        (("volume", "clone", "desk", "c"), "volume persist"),
        (("volume", "resize", "desk", "1G"), "volume persist"),
        (("volume", "clone", "kept", "d", "--desktop"), "an image or a snapshot"),
        (("volume", "persist", "kept"), "a desktop"),
    ]:
        try:
            s.cli(*command)
        except Failed as e:
            check(text in str(e), f"{' '.join(command)}: {e}")
        else:
            raise Failed(f"{' '.join(command)} succeeded")
    h = connect(s, "desk")
    try:
        s.cli("volume", "reset", "desk")
    except Failed as e:
        check("in use" in str(e), str(e))
    else:
        raise Failed("a desktop in use was reset")
    del h


@test
def a_desktop_continues_after_a_full_store(t):
    s, _ = with_image(t, '[store]\nlimit = "160M"\n[log]\nsegment = "4M"\n[memory]\nwrite_buffer = "4M"\n')
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--write-cache", "4M")
    s.cli("volume", "create", "ballast", "--size", "96M")
    h = connect(s, "ballast")
    refused_by_server("ENOSPC", fill, h, 0, t.random.randbytes(96 * MIB))
    h.shutdown()
    s.wait_unused("ballast")
    h = connect(s, "desk")
    data = t.random.randbytes(48 * MIB)
    refused_by_server("ENOSPC", fill, h, 0, data)
    written = 0
    while written < len(data) and bytes(h.pread(64 << 10, written)) == data[written:written + (64 << 10)]:
        written += 64 << 10
    check(written >= 3 * MIB, f"{written} bytes were accepted")
    s.cli("volume", "rm", "ballast")
    s.cli("gc")
    fill(h, written, data[written:])
    equal(bytes(h.pread(24 * MIB, 0)), data[:24 * MIB], "what was written")


def write_text(path, value):
    with open(path, "w") as f:
        f.write(str(value))


class MemoryGroups:
    """Control groups with a memory limit, of cgroup v2 or of the memory controller of v1."""

    PLACES = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))

    def __init__(self):
        self.made = []
        # The file with the limit of the last group.
        self.limit = None

    def bound(self, pid, limit):
        """Moves a process into a separate group with this memory limit."""
        need_root("a control group")
        for root, limit_file in self.PLACES:
            group = os.path.join(root, f"forebay-test-{pid}")
            try:
                os.mkdir(group)
            except OSError:
                continue
            self.made.append(group)
            # A directory that is no control group has no such file.
            if os.path.exists(os.path.join(group, limit_file)):
                self.limit = os.path.join(group, limit_file)
                write_text(self.limit, limit)
                write_text(os.path.join(group, "cgroup.procs"), pid)
                return
        raise Skipped("no control group with a memory limit is available")

    def tighten(self, room):
        """Limits the last group to its present use and `room` bytes."""
        for name in ("memory.current", "memory.usage_in_bytes"):
            use = os.path.join(os.path.dirname(self.limit), name)
            if os.path.exists(use):
                with open(use) as f:
                    write_text(self.limit, (int(f.read()) + room) // BLOCK * BLOCK)

    def remove(self):
        for group in self.made:
            os.rmdir(group)


@test
def caches_shrink_to_half_the_memory(t):
    groups = MemoryGroups()
    t.defer(groups.remove)  # after the server has ended
    s = t.server(
        config='[memory]\nread_cache = "192M"\ndesktops = "512M"\nwrite_buffer = "16M"\nmap_cache = "16M"\n'
        '[dedup]\nindex = "16M"\n'
    )
    groups.bound(s.process.pid, 384 * MIB)
    size = 256 * MIB
    image = t.noise_file("noise", size)
    s.cli("image", "import", "golden", image)
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--write-cache", "512M")
    h = connect(s, "desk")
    for at in range(0, size, MIB):
        h.pread(MIB, at)
    pieces = [t.random.randbytes(MIB) for _ in range(240)]
    for n, piece in enumerate(pieces):
        h.pwrite(piece, n * MIB)
        # The pace of a guest: the server measures its memory at intervals, and no event shows when.
        time.sleep(0.01)
    wait_for(lambda: s.json("stats")["memory_bytes"] < 384 * MIB, "at most 384 MiB are resident")
    stats = s.json("stats")
    shrunk = stats["read_cache"]["budget_bytes"] + stats["desktops"]["budget_bytes"]
    check(shrunk < 700 * MIB, f"budgets of {shrunk / MIB:.0f} MiB are left of 704")
    for n, piece in enumerate(pieces):
        equal(bytes(h.pread(MIB, n * MIB)) == piece, True, f"MiB {n}")
