"""Space: equal data is stored once, unreferenced data is freed, and the statistics of both are correct."""

import json
import os
import random
import signal
import subprocess
import time

from forebay import Failed, spawn
from harness import (
    BLOCK, MIB, STOP_S, ControlSocket, check, connect, equal, refused_by_server, run, test, wait_for,
)


def stats(server):
    return server.json("stats")


def stored(server):
    """Bytes of the log after `gc` has freed all garbage."""
    server.cli("gc")
    return stats(server)["stored_bytes"]


def write_image(server, volume, file):
    run("nbdcopy", "--flush", file, server.uri(volume))
    server.wait_unused(volume)


def holds(t, server, volume, file):
    """Checks that a disk has the same content as `file`."""
    copy = t.path("copy")
    run("nbdcopy", server.uri(volume), copy)
    equal(run("cmp", file, copy, check=False).returncode, 0, f"contents of {volume}")
    os.unlink(copy)


def at_most(found, limit, what):
    check(found <= limit, f"{what}: {found / MIB:.1f} MiB, expected at most {limit / MIB:.1f}")


def at_least(found, limit, what):
    check(found >= limit, f"{what}: {found / MIB:.1f} MiB, expected at least {limit / MIB:.1f}")


@test
def an_image_imported_twice_is_stored_once(t):
    s = t.server()
    size = 64 * MIB
    noise = t.noise_file("noise", size)
    empty = stored(s)
    s.cli("image", "import", "first", noise)
    once = stored(s)
    at_least(once - empty, size, "stored by the first import of noise")
    s.cli("image", "import", "second", noise)
    at_most(stored(s) - once, size // 20, "stored by the second import")
    at_least(stats(s)["reduction"]["duplicate_blocks"] * BLOCK, size * 97 // 100, "found to be stored already")
    holds(t, s, "second", noise)
    # Deleting one image must not free blocks of the other.
    s.cli("image", "rm", "first")
    s.cli("gc")
    holds(t, s, "second", noise)


def text_file(t, name, size):
    """Lines of words: compressible, and no two blocks are equal."""
    words = ["forebay", "basin", "turbine", "surge", "segment", "batch", "block", "clone", "image", "of", "the", "a"]
    path = t.path(name)
    with open(path, "w") as f:
        while f.tell() < size:
            f.write(" ".join(t.random.choices(words, k=200)) + f" {t.random.random()}\n")
        f.truncate(size)
    return path


@test
def text_is_compressed_and_noise_is_not(t):
    s = t.server()
    size = 32 * MIB
    text, noise = text_file(t, "text", size), t.noise_file("noise", size)
    empty = stored(s)
    s.cli("image", "import", "text", text, "--format", "raw")
    with_text = stored(s)
    at_most(with_text - empty, size * 6 // 10, "stored of 32 MiB of text")
    s.cli("image", "import", "noise", noise)
    at_most(stored(s) - with_text, size * 105 // 100, "stored of 32 MiB of noise")
    holds(t, s, "text", text)
    holds(t, s, "noise", noise)
    s.kill()
    s.start()
    holds(t, s, "text", text)


def base_image(t):
    """An ext4 file system with some files and much free space, created without root."""
    tree = t.path("tree")
    os.makedirs(tree)
    for i in range(40):
        with open(os.path.join(tree, f"base{i}"), "wb") as f:
            f.write(t.random.randbytes(t.random.randrange(1, 400_000)))
    image = t.path("base.raw")
    # Small file systems have smaller blocks by default; those of guests are usually large.
    run("mke2fs", "-q", "-t", "ext4", "-b", "4096", "-d", tree, image, "160M")
    return image


def package_set(t, size):
    """Files that are added to every clone."""
    where = t.path("packages")
    os.makedirs(where)
    files, total = [], 0
    while total < size:
        path = os.path.join(where, f"f{len(files):04}")
        data = t.random.randbytes(t.random.choice([700, 5000, 40_000, 300_000, 1_500_000]))
        with open(path, "wb") as f:
            f.write(data)
        files.append(path)
        total += len(data)
    return files


def install(t, server, base, files, clone):
    """Writes the files into the clone's file system, in an order, and therefore at positions, that depend on
    the clone."""
    work, script = t.path(f"{clone}.raw"), t.path("script")
    run("cp", "--sparse=always", base, work)
    order = files[:]
    random.Random(clone).shuffle(order)
    with open(script, "w") as f:
        f.write("".join(f"write {path} {os.path.basename(path)}\n" for path in order))
    run("debugfs", "-w", "-f", script, work)
    write_image(server, clone, work)
    return work


@test
def clones_given_the_same_files_store_them_once(t):
    s = t.server()
    base = base_image(t)
    files = package_set(t, 48 * MIB)
    s.cli("image", "import", "base", base)
    s.cli("volume", "clone", "base", "pc", "--count", "3")
    before = stored(s)
    works = {"pc-001": install(t, s, base, files, "pc-001")}
    one = stored(s) - before
    at_least(one, 40 * MIB, "stored of the files of the first clone")
    for clone in ("pc-002", "pc-003"):
        works[clone] = install(t, s, base, files, clone)
    at_most(stored(s) - before, one * 11 // 10, "stored of the files of three clones")
    for clone, work in works.items():
        holds(t, s, clone, work)
        run("e2fsck", "-fn", work)


@test
def dedup_domains_share_nothing(t):
    s = t.server()
    size = 16 * MIB
    noise = t.noise_file("noise", size)
    s.cli("image", "import", "one", noise, "--dedup-domain", "1")
    before = stored(s)
    s.cli("image", "import", "two", noise, "--dedup-domain", "2")
    apart = stored(s)
    at_least(apart - before, size, "stored by an import in another domain")
    s.cli("volume", "create", "own", "--size", str(size), "--dedup-domain", "2")
    write_image(s, "own", noise)
    at_most(stored(s) - apart, size // 10, "stored by a volume of the same domain")
    s.cli("volume", "clone", "two", "copy")
    s.cli("snapshot", "create", "own", "s")
    for command, domain in [(("image", "show", "one"), 1), (("volume", "show", "copy"), 2)]:
        equal(s.json(*command)["dedup_domain"], domain, f"domain of {command[2]}")
        lines = s.cli(*command).stdout.splitlines()
        check(any(line.split() == ["dedup", "domain", str(domain)] for line in lines), f"no domain in {lines}")
    equal(s.json("snapshot", "list", "own")[0]["dedup_domain"], 2, "domain of a snapshot")
    s.kill()
    s.start()
    equal(s.json("volume", "show", "copy")["dedup_domain"], 2, "domain of a clone after a crash")


def interleave(t, server, volumes, size):
    """Fills volumes concurrently, so that their blocks are adjacent in the log. Returns handles and
    contents."""
    handles = {v: connect(server, v) for v in volumes}
    content = {v: t.random.randbytes(size) for v in volumes}
    for offset in range(0, size, 64 << 10):
        for v, h in handles.items():
            h.pwrite(content[v][offset : offset + (64 << 10)], offset)
    for h in handles.values():
        h.flush()
    return handles, content


def content_of(handle, size):
    """The complete content of a disk; one request can read at most 32 MiB."""
    return b"".join(bytes(handle.pread(16 * MIB, offset)) for offset in range(0, size, 16 * MIB))


def free(server):
    return stats(server)["store_free_bytes"]


@test
def space_of_deleted_and_discarded_data_is_freed(t):
    # With a limit, only this server changes the free space. Open segments are reserved completely, so small
    # segments are configured to keep that share small.
    s = t.server(config='[store]\nlimit = "2G"\n[log]\nsegment = "4M"\n')
    size = 160 * MIB
    for v in ("keep", "go"):
        s.cli("volume", "create", v, "--size", str(size))
    handles, content = interleave(t, s, ["keep", "go"], size)
    s.cli("gc")
    before = free(s)
    handles["go"].shutdown()
    s.cli("volume", "rm", "go")
    said = s.json("gc")
    at_least(free(s) - before, size * 95 // 100, "free again after a delete")
    check(said["freed_bytes"] > 0 and said["moved_bytes"] >= 0, f"gc said {said}")
    equal(content_of(handles["keep"], size) == content["keep"], True, "what stays, after gc")
    # Every other 64 KiB, so that no segment is free without cleaning.
    before = free(s)
    for offset in range(0, size, 128 << 10):
        handles["keep"].trim(64 << 10, offset)
    handles["keep"].flush()
    s.cli("gc")
    at_least(free(s) - before, size // 2 * 95 // 100, "free again after discards")
    s.kill()
    s.start()
    h = connect(s, "keep")
    for offset in range(0, size, 128 << 10):
        zero, data = bytes(h.pread(64 << 10, offset)), bytes(h.pread(64 << 10, offset + (64 << 10)))
        equal(zero.count(0), 64 << 10, f"zeroes at {offset} after a crash")
        equal(data == content["keep"][offset + (64 << 10) : offset + (128 << 10)], True, f"data at {offset}")
    # The statistics come directly from the server; verify the pool as well.
    h.shutdown()
    s.stop()
    run(s.bin, "--data", s.data, "check")


@test
def deduplication_continues_after_kill_9(t):
    s = t.server()
    size = 48 * MIB
    noise = t.noise_file("noise", size)
    s.cli("image", "import", "first", noise)
    s.kill()
    s.start()
    # It serves immediately; the index is read back in the background.
    equal(len(connect(s, "first").pread(BLOCK, 0)), BLOCK, "bytes read at once")
    wait_for(lambda: not stats(s)["reduction"]["index"]["segments_left"], "the index is back")
    before = stored(s)
    s.cli("image", "import", "second", noise)
    at_most(stored(s) - before, size // 10, "stored by the second import, after a crash")
    holds(t, s, "second", noise)


@test
def a_minimal_index_finds_fewer_duplicates_and_keeps_data_correct(t):
    for budget in ("0", '"64K"'):
        s = t.server(config=f"[dedup]\nindex = {budget}\n[reduce]\ncompress = false\n", data=f"data{len(budget)}")
        noise = t.noise_file("noise", 32 * MIB, holes=True)
        for name in ("first", "second"):
            s.cli("image", "import", name, noise)
            holds(t, s, name, noise)
        reduction = stats(s)["reduction"]
        equal(reduction["index"]["budget_bytes"], 65536 if "64" in budget else 0, "budget of the index")
        equal(reduction["compression_ratio"] or 1.0, 1.0, "compression, which is off")
        s.cli("gc")
        holds(t, s, "second", noise)
        s.stop()


@test
def the_statistics_of_space_are_consistent(t):
    s = t.server()
    check("not yet known: run 'forebay gc'" in s.cli("stats").stdout, "nothing is said of what is not known")
    equal(stats(s)["space"], None, "space before the first mark")
    s.cli("volume", "create", "a", "--size", "64M")
    s.cli("volume", "create", "b", "--size", "32M")
    h = connect(s, "a")
    block = [t.random.randbytes(BLOCK) for _ in range(256)]
    data = b"".join(block)

    def counts():
        r = stats(s)["reduction"]
        return [r[f"{kind}_blocks"] for kind in ("zero", "unchanged", "duplicate", "new")]

    def written(bytes_, offset):
        before = counts()
        h.pwrite(bytes_, offset)
        h.flush()
        return [now - then for then, now in zip(before, counts())]

    equal(written(data, 0), [0, 0, 0, 256], "new blocks (zero, unchanged, duplicate, new)")
    equal(written(data, 0), [0, 256, 0, 0], "the same once more")
    equal(written(data, MIB), [0, 0, 256, 0], "the same elsewhere")
    equal(written(bytes(MIB), 2 * MIB), [256, 0, 0, 0], "zeroes")
    h.shutdown()
    s.wait_unused("a")
    s.cli("snapshot", "create", "a", "s")
    s.cli("gc")
    now = stats(s)
    space = now["space"]
    check(abs(space["as_of_ms"] / 1000 - time.time()) < 60, f"as of {space['as_of_ms']}")
    equal(space["logical_bytes"], (64 + 64 + 32) * MIB, "sizes of a, a@s and b")
    equal(space["mapped_bytes"], 4 * MIB, "what a and a@s hold")
    equal(space["unique_bytes"], MIB, "distinct blocks")
    check(MIB <= space["live_bytes"] <= now["stored_bytes"], f"live {space} of stored {now['stored_bytes']}")
    check(space["reclaimable_bytes"] <= now["stored_bytes"], f"reclaimable {space}")
    equal(space["dedup_ratio"], 4.0, "deduplication")
    a, b = s.json("stats", "a")["space"], s.json("stats", "b")["space"]
    equal((a["mapped_bytes"], b["mapped_bytes"]), (2 * MIB, 0), "mapped bytes of a and b")
    check(a["exclusive_bytes"] < MIB // 2, f"a shares all with its snapshot: {a}")
    equal(a["as_of_ms"], space["as_of_ms"], "time of the mark")
    s.cli("snapshot", "rm", "a", "s")
    s.cli("gc")
    at_least(s.json("stats", "a")["space"]["exclusive_bytes"], MIB, "exclusive bytes of a, alone")
    text = s.cli("stats").stdout
    check("not yet known" not in text and "freed by deleting" in s.cli("stats", "a").stdout, f"stats say\n{text}")


@test
def gc_reports_progress_and_continues_without_its_client(t):
    s = t.server()
    for v in ("a", "b"):
        s.cli("volume", "create", v, "--size", "64M")
    handles, content = interleave(t, s, ["a", "b"], 64 * MIB)
    handles["b"].shutdown()
    s.wait_unused("b")
    api = ControlSocket(s.control)
    api.request("POST", "/api/v1/pool/gc", "{}", {"content-type": "application/json", "x-forebay": "1"})
    events = [json.loads(line) for line in api.getresponse().read().splitlines()]
    check(len(events) >= 2 and all(e["event"] == "progress" for e in events[:-1]), f"events {events}")
    equal(sorted(events[-1]), ["event", "freed_bytes", "moved_bytes"], "the last event's fields")
    equal(events[-1]["event"], "done", "the last event")
    s.cli("volume", "rm", "b")
    client = spawn([s.bin, "--socket", s.control, "gc"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(t.random.uniform(0, 0.05))
    client.send_signal(signal.SIGINT)
    said = client.communicate(timeout=60)[1]
    # It may have ended already, or may not yet handle the signal.
    check(client.returncode in (0, 1, -signal.SIGINT), f"status {client.returncode}: {said}")
    if client.returncode == 1:
        check("reclaim" in said and len(said.strip().splitlines()) == 1, f"interrupted gc said {said}")
    s.cli("gc")
    equal(content_of(handles["a"], 64 * MIB) == content["a"], True, "what stays")
    # A server that is stopped does not wait for the end of a cleaning.
    handles["a"].trim(32 * MIB, 0)
    handles["a"].shutdown()
    client = spawn([s.bin, "--socket", s.control, "gc"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(t.random.uniform(0, 0.1))
    took = s.stop()
    client.wait(60)
    check(took < STOP_S, f"it took {took:.1f} s to stop")
    s.start()
    h = connect(s, "a")
    equal(bytes(h.pread(32 * MIB, 32 * MIB)) == content["a"][32 * MIB :], True, "what stays, after a restart")


@test
def a_full_store_accepts_writes_again_when_space_is_free(t):
    s = t.server(config='[store]\nlimit = "320M"\n[memory]\nwrite_buffer = "16M"\n')
    equal(stats(s)["store_total_bytes"], 320 * MIB, "room in all")
    equal(stats(s)["room"], "ok", "room of an empty store")
    for v in ("disk", "other"):
        s.cli("volume", "create", v, "--size", "1G")
    other = connect(s, "other")
    kept = t.random.randbytes(32 * MIB)
    other.pwrite(kept, 0)
    other.flush()
    h = connect(s, "disk")
    count = fill(t, s, h)
    check(count > 60, f"only {count} MiB could be written")
    equal(stats(s)["room"], "full", "room of a full store")
    check("FULL" in s.cli("stats").stdout, "stats do not say that the store is full")
    log = open(s.log, errors="replace").read()
    # A reclaim that begins after the first warning finds garbage: the store has room, and becomes low again.
    check(1 <= log.count("is low on room") <= 2, f"{log.count('is low on room')} warnings of low room")
    equal(log.count("the store is full"), 1, "warnings of a full store")
    # Reads, cleaning and the command line continue to work.
    refused_by_server("ENOSPC", write_and_flush, other, kept, 64 * MIB)
    equal(bytes(other.pread(32 * MIB, 0)) == kept, True, "what was written before")
    s.cli("gc")
    h.trim(count // 2 * MIB, 0)
    h.flush()
    equal(bytes(h.pread(MIB, 0)).count(0), MIB, "zeroes after a discard")
    s.cli("gc")
    wait_for_room(s)
    # The same connections and server.
    other.pwrite(kept, 64 * MIB)
    other.flush()
    equal(bytes(other.pread(32 * MIB, 64 * MIB)) == kept, True, "what was written after")
    fill(t, s, h, count)
    h.shutdown()
    s.cli("volume", "rm", "disk")
    s.cli("gc")
    wait_for_room(s)
    other.pwrite(t.random.randbytes(32 * MIB), 128 * MIB)
    other.flush()
    s.kill()
    s.start()
    equal(bytes(connect(s, "other").pread(32 * MIB, 64 * MIB)) == kept, True, "after a crash")


def write_and_flush(handle, data, offset):
    """The write or its flush fails if there is no space."""
    handle.pwrite(data, offset)
    handle.flush()


def fill(t, server, handle, first=0):
    """Writes MiB by MiB until the store is full. Returns the number written."""
    import nbd

    for i in range(first, 1024):
        try:
            write_and_flush(handle, t.random.randbytes(MIB), i * MIB)
        except nbd.Error as e:
            equal(e.errno, "ENOSPC", f"error after {i} MiB")
            return i
    raise Failed("a GiB fits into a store of 320 MiB")


def wait_for_room(server):
    wait_for(lambda: stats(server)["room"] != "full", "room, after discards and gc")


@test
def the_space_of_each_disk_is_shown(t):
    s = t.server()
    s.cli("volume", "create", "new", "--size", "1M")
    check("not measured yet" in s.cli("volume", "list").stdout, s.cli("volume", "list").stdout)
    s.cli("volume", "rm", "--yes", "new")
    noise = t.noise_file("noise", 8 * MIB)
    s.cli("image", "import", "golden", noise)
    equal(stats(s)["guest"]["write"]["ops"], 0, "guests' writes after an import")
    s.cli("volume", "clone", "golden", "pc", "--count", "2")
    h = connect(s, "pc-001")
    h.pwrite(t.random.randbytes(MIB), MIB)
    h.flush()

    def used():
        disks = s.json("volume", "list") + s.json("image", "list")
        return {disk["name"]: disk["used_bytes"] for disk in disks}

    wait_for(lambda: used() == {"golden": 8 * MIB, "pc-001": MIB, "pc-002": 0}, "what each disk uses")
    text = s.cli("volume", "list").stdout
    check("USED" in text and "FREED BY DELETING" in text, text)
    h.trim(MIB // 2, MIB)
    h.flush()
    wait_for(lambda: used()["pc-001"] == MIB // 2, "what is used after a discard")
    s.cli("gc")
    top = s.json("space", "--top", "2")["disks"]
    equal([disk["name"] for disk in top], ["golden", "pc-001"], "the largest disks")
    at_least(top[1]["exclusive_bytes"], MIB // 2, "what deleting the clone frees")
    check(abs(top[1]["exclusive_as_of_ms"] / 1000 - time.time()) < 60, f"as of {top[1]}")
    check(" ago)" in s.cli("space", "--top").stdout, "the age of what deleting frees")
    equal(len(s.json("space", "--top")["disks"]), 3, "all disks are among the ten largest")
    check("disks" not in s.json("space"), "disks only on request")
    h.shutdown()
    s.wait_unused("pc-001")
    s.stop()
    s.start()
    wait_for(lambda: used() == {"golden": 8 * MIB, "pc-001": MIB // 2, "pc-002": 0}, "after a restart")


@test
def the_figures_of_space_agree(t):
    s = t.server(config="[store]\nlimit = \"512M\"\n")
    s.cli("volume", "create", "a", "--size", "256M")
    h = connect(s, "a")
    for at in range(0, 48 * MIB, 4 * MIB):
        h.pwrite(t.random.randbytes(4 * MIB), at)
    h.flush()
    for at in range(0, 48 * MIB, 2 * MIB):
        h.trim(MIB, at)
    h.flush()
    for _ in range(3):
        s.cli("gc")
        now, room = stats(s), s.json("space")
        check(room["live_bytes"] <= room["stored_bytes"], f"live and stored: {room}")
        check(now["offload"] is None or 0 <= now["offload"] <= 1, f"offload {now['offload']}")
        usable = room["store_total_bytes"] - room["store_reserve_bytes"]
        left = room["store_free_bytes"] - room["store_reserve_bytes"]
        check(abs(room["store_in_use"] - (1 - left / usable)) < 0.01, f"the part in use: {room}")
        freed = s.json("gc")["freed_bytes"]
        check(room["reclaimable_bytes"] == 0 or freed > 0, f"reclaimable, and gc freed nothing: {room}")
    h.shutdown()
