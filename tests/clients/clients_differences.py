"""Differences of snapshots: by the command line, and as an NBD metadata context, with which a backup reads
only what has changed."""

import json

import nbd

from harness import BLOCK, MIB, check, connect, equal, run, test

CONTEXT = "forebay:changed-since="
CHANGED, ZEROED = 1, 2


def changes(handle, context):
    """The ranges of a context whose state is not 0, as offset, length and state."""
    found, at, size = [], 0, handle.get_size()

    def note(name, offset, entries, _):
        nonlocal at
        if name != context:
            return
        equal(offset, at, "start of the description")
        for length, state in zip(entries[::2], entries[1::2]):
            if state:
                found.append((at, length, state))
            at += length

    while at < size:
        before = at
        handle.block_status(min(size - at, 1 << 30), at, note)
        check(at > before, "the description does not advance")
    return found


def reader(s, export, *contexts):
    handle = nbd.NBD()
    for context in contexts:
        handle.add_meta_context(context)
    handle.connect_uri(s.uri(export))
    for context in contexts:
        check(handle.can_meta_context(context), f"{context} is not selected")
    return handle


def back_up(s, export, since, file):
    """Copies what has changed since a snapshot to a file that has the contents of the snapshot."""
    context = CONTEXT + since
    source, read = reader(s, export, "base:allocation", context), 0
    with open(file, "r+b") as f:
        for offset, length, state in changes(source, context):
            f.seek(offset)
            if state & ZEROED:
                f.write(bytes(length))
                continue
            for at in range(offset, offset + length, MIB):
                piece = min(MIB, offset + length - at)
                f.write(source.pread(piece, at))
                read += piece
    source.shutdown()
    return read


@test
def a_backup_reads_only_what_has_changed(t):
    s = t.server()
    size = 64 * MIB
    s.cli("volume", "create", "db", "--size", str(size))
    h = connect(s, "db")
    for at in range(0, 32 * MIB, MIB):
        h.pwrite(t.random.randbytes(MIB), at)
    h.flush()
    s.cli("snapshot", "create", "db", "monday")
    run("nbdcopy", s.uri("db@monday"), t.path("backup"))
    for day in ("tuesday", "wednesday"):
        for _ in range(20):
            h.pwrite(t.random.randbytes(BLOCK), t.random.randrange(size // BLOCK) * BLOCK)
        h.trim(2 * MIB, t.random.randrange(30) * MIB)
        h.zero(MIB, t.random.randrange(30) * MIB)
        s.cli("snapshot", "create", "db", day)
        before = "monday" if day == "tuesday" else "tuesday"
        read = back_up(s, f"db@{day}", before, t.path("backup"))
        check(0 < read <= 20 * BLOCK, f"{read} bytes were read for 20 changed blocks")
        run("nbdcopy", s.uri(f"db@{day}"), t.path("whole"))
        run("cmp", t.path("backup"), t.path("whole"))
    # The volume itself: a write that was answered is in the description, before any flush.
    h.pwrite(t.random.randbytes(BLOCK), 40 * MIB)
    equal(changes(reader(s, "db", CONTEXT + "wednesday"), CONTEXT + "wednesday"), [(40 * MIB, BLOCK, CHANGED)], "db")


@test
def nbdinfo_shows_the_contexts_and_their_maps(t):
    s = t.server()
    s.cli("volume", "create", "db", "--size", "8M")
    h = connect(s, "db")
    h.pwrite(b"x" * MIB, 0)
    h.flush()
    for name in ("a", "b"):
        s.cli("snapshot", "create", "db", name)
    s.cli("volume", "clone", "db@a", "clone")
    h.pwrite(b"y" * BLOCK, 4 * BLOCK)
    h.trim(BLOCK, 0)
    listed = json.loads(run("nbdinfo", "--json", s.uri("db")).stdout)["exports"][0]["contexts"]
    equal(listed, ["base:allocation", f"{CONTEXT}a", f"{CONTEXT}b"], "contexts of the volume")
    listed = json.loads(run("nbdinfo", "--json", s.uri("clone")).stdout)["exports"][0]["contexts"]
    equal(listed, ["base:allocation", f"{CONTEXT}db@a"], "contexts of the clone")
    shown = json.loads(run("nbdinfo", f"--map={CONTEXT}a", "--json", s.uri("db")).stdout)
    found = [(e["offset"], e["length"], e["type"]) for e in shown if e["type"]]
    equal(found, [(0, BLOCK, CHANGED | ZEROED), (4 * BLOCK, BLOCK, CHANGED)], "the map since a")
    shown = json.loads(run("nbdinfo", f"--map={CONTEXT}db@a", "--json", s.uri("clone")).stdout)
    equal([e["type"] for e in shown], [0], "the clone has not changed")
    refused = run("nbdinfo", f"--map={CONTEXT}none", s.uri("db"), check=False)
    check(refused.returncode != 0 and "does not support" in refused.stderr, refused.stderr)


@test
def the_command_lists_the_same_ranges(t):
    s = t.server()
    s.cli("volume", "create", "db", "--size", "8M")
    h = connect(s, "db")
    h.pwrite(b"x" * MIB, 0)
    s.cli("snapshot", "create", "db", "a b&c")
    h.pwrite(b"y" * BLOCK, 4 * BLOCK)
    h.trim(BLOCK, 0)
    lines = [json.loads(line) for line in s.cli("--json", "volume", "diff", "db", "--from", "a b&c").stdout.splitlines()]
    expected = [
        {"change": "zero", "offset_bytes": 0, "length_bytes": BLOCK},
        {"change": "data", "offset_bytes": 4 * BLOCK, "length_bytes": BLOCK},
        {"change": "end", "size_bytes": 8 * MIB, "from_size_bytes": 8 * MIB, "data_bytes": BLOCK, "zero_bytes": BLOCK},
    ]
    equal(lines, expected, "the lines in JSON")
    text = s.cli("volume", "diff", "db", "--from", "a b&c").stdout.splitlines()
    equal(text[-1], "4 KiB written and 4 KiB zeroed of 8 MiB", "the last line")
    equal([line.split() for line in text[:-1]], [["0", "4096", "zero"], ["16384", "4096", "data"]], "the ranges")
    refused = s.cli("volume", "diff", "db", "--from", "none", check=False)
    equal((refused.returncode, refused.stdout), (1, ""), "an unknown snapshot")
    check("no volume, snapshot or image is named 'none'" in refused.stderr, refused.stderr)


@test
def a_context_survives_an_upgrade_and_keeps_its_snapshot(t):
    s = t.server()
    s.cli("volume", "create", "db", "--size", "8M")
    h = connect(s, "db")
    h.pwrite(b"x" * MIB, 0)
    s.cli("snapshot", "create", "db", "a")
    context = CONTEXT + "a"
    r = reader(s, "db", context)
    equal(changes(r, context), [], "before the write")
    report = s.upgrade()
    equal(report["closed"], 0, f"closed connections of {report}")
    h.pwrite(b"y" * BLOCK, 4 * BLOCK)
    equal(changes(r, context), [(4 * BLOCK, BLOCK, CHANGED)], "after the upgrade")
    refused = s.cli("snapshot", "rm", "db", "a", check=False)
    check("in use" in refused.stderr, refused.stderr)
    r.shutdown()
