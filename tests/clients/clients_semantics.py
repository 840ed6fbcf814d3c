"""Snapshots, clones, rollbacks, resets, resizes and durability, as seen by clients."""

import json
import threading

from harness import (
    BLOCK, MIB, Failed, ControlSocket, check, connect, equal, refused_by_server, run, test, wait_read,
)


def put(handle, block, byte):
    handle.pwrite(bytes([byte]) * BLOCK, block * BLOCK)


def get(server, export, block):
    """The byte that fills a block, as seen by a new connection."""
    handle = connect(server, export)
    data = bytes(handle.pread(BLOCK, block * BLOCK))
    handle.shutdown()
    check(data == data[:1] * BLOCK, f"{export}: block {block} is a mixture")
    return data[0]


@test
def a_snapshot_holds_every_acknowledged_write(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "16M")
    h = connect(s, "disk")
    put(h, 1, 11)
    # Not flushed: an acknowledgement is sufficient.
    s.cli("snapshot", "create", "disk", "one")
    put(h, 1, 12)
    put(h, 2, 22)
    s.cli("snapshot", "create", "disk", "two")
    h.trim(BLOCK, 2 * BLOCK)
    expected = {"disk@one": (11, 0), "disk@two": (12, 22), "disk": (12, 0)}
    for _ in range(2):
        for export, (first, second) in expected.items():
            equal((get(s, export, 1), get(s, export, 2)), (first, second), export)
        h.flush()
        s.kill()
        s.start()
        h = connect(s, "disk")


@test
def a_snapshot_cannot_be_written(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    s.cli("snapshot", "create", "disk", "one")
    h = connect(s, "disk@one")
    check(h.is_read_only(), "the snapshot is not offered read-only")
    # The server must reject writes independently of the client's checks.
    h.set_strict_mode(0)
    refused_by_server("EPERM", h.pwrite, bytes(BLOCK), 0)
    refused_by_server("EPERM", h.trim, BLOCK, 0)
    refused_by_server("EPERM", h.zero, BLOCK, 0)


@test
def clones_are_independent(t):
    s = t.server()
    image = t.noise_file("golden.raw", 8 * MIB)
    s.cli("image", "import", "golden", image)
    s.cli("volume", "clone", "golden", "pc", "--count", "3")
    handles = {name: connect(s, name) for name in ("pc-001", "pc-002", "pc-003")}
    for i, h in enumerate(handles.values()):
        put(h, 100 + i, i + 1)
        put(h, 200, 50 + i)
        h.flush()
    # A clone of a clone, through a snapshot.
    s.cli("snapshot", "create", "pc-001", "base")
    s.cli("volume", "clone", "pc-001@base", "grandchild")
    put(handles["pc-001"], 200, 99)
    equal(get(s, "grandchild", 200), 50, "block of the grandchild")
    for i, name in enumerate(handles):
        equal(get(s, name, 100 + i), i + 1, f"own block of {name}")
        equal(get(s, name, 200), 99 if i == 0 else 50 + i, f"common block of {name}")
    run("cmp", image, export_file(t, s, "golden"))


def export_file(t, server, export):
    path = t.path("export.raw")
    run("nbdcopy", server.uri(export), path)
    return path


@test
def rollback_and_reset_restore_earlier_contents(t):
    s = t.server()
    image = t.noise_file("golden.raw", 4 * MIB)
    s.cli("image", "import", "golden", image)
    s.cli("volume", "clone", "golden", "pc")
    h = connect(s, "pc")
    put(h, 5, 1)
    s.cli("snapshot", "create", "pc", "good")
    put(h, 5, 2)
    put(h, 6, 3)
    check("in use" in s.refused("snapshot", "rollback", "pc", "good"), "the error does not name the reason")
    check("in use" in s.refused("volume", "reset", "pc"), "the error does not name the reason")
    h.shutdown()
    s.cli("snapshot", "rollback", "pc", "good")
    equal(get(s, "pc", 5), 1, "block 5 after the rollback")
    s.kill()
    s.start()
    equal(get(s, "pc", 5), 1, "block 5 after the rollback and a crash")
    s.cli("volume", "reset", "pc")
    run("cmp", image, export_file(t, s, "pc"))


@test
def disks_with_dependents_are_not_deleted(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("golden.raw", MIB))
    s.cli("volume", "clone", "golden", "pc")
    s.cli("snapshot", "create", "pc", "one")
    s.cli("volume", "clone", "pc@one", "child")
    check("clone" in s.refused("image", "rm", "golden"), "golden: the error does not name the reason")
    check("snapshot" in s.refused("volume", "rm", "pc"), "pc: the error does not name the reason")
    check("clone" in s.refused("snapshot", "rm", "pc", "one"), "pc@one: the error does not name the reason")
    h = connect(s, "child")
    check("in use" in s.refused("volume", "rm", "child"), "child: the error does not name the reason")
    h.shutdown()
    # In the order of dependence, all of them can be deleted.
    s.cli("volume", "rm", "child")
    s.cli("snapshot", "rm", "pc", "one")
    s.cli("volume", "rm", "pc")
    s.cli("image", "rm", "golden")
    equal([*s.json("volume", "list"), *s.json("image", "list")], [], "remaining disks")


@test
def an_operation_waits_for_a_closing_connection(t):
    """The server detects a closed connection later than the client closes it."""
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M")
    h = connect(s, "disk")
    put(h, 0, 1)
    api = ControlSocket(s.control)
    headers = {"content-type": "application/json", "x-forebay": "1"}
    body = json.dumps({"size_bytes": 2 * MIB})
    api.request("POST", "/api/v1/volumes/disk/resize", body, headers)
    # The operation has begun.
    wait_read(api.sock)
    h.shutdown()
    answer = api.getresponse()
    equal((answer.status, json.loads(answer.read())["size_bytes"]), (200, 2 * MIB), "the answer")
    h = connect(s, "disk")
    check("in use by 1 client: process" in s.refused("volume", "rm", "disk"), "the error does not name the reason")
    equal(bytes(h.pread(1, 0)), b"\1", "a byte after the error")


@test
def a_new_size_is_seen_by_new_connections(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M")
    h = connect(s, "disk")
    put(h, 1023, 7)
    s.cli("volume", "resize", "disk", "8M")
    put(h, 1023, 8)
    equal(connect(s, "disk").get_size(), 8 * MIB, "size after growing")
    equal((get(s, "disk", 1023), get(s, "disk", 2047)), (8, 0), "blocks after growing")
    h = connect(s, "disk")
    put(h, 2047, 9)
    h.shutdown()
    # Data beyond the new end is discarded.
    error = s.refused("volume", "resize", "disk", "2M")
    check("is 8 MiB; 2 MiB is smaller" in error and "--shrink" in error, f"a smaller size without --shrink: {error}")
    equal(get(s, "disk", 2047), 9, "the last block after the refusal")
    s.cli("volume", "resize", "disk", "2M", "--shrink")
    equal(connect(s, "disk").get_size(), 2 * MIB, "size after shrinking")
    s.cli("volume", "resize", "disk", "8M")
    equal((get(s, "disk", 1023), get(s, "disk", 2047)), (0, 0), "blocks after shrinking and growing")


@test
def connections_share_one_disk(t):
    """The guarantees of multi-conn: an acknowledged write is visible on all connections, and a flush on one
    of them covers the acknowledged writes of all."""
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M")
    handles = [connect(s, "disk") for _ in range(4)]
    for i in range(200):
        writer, reader = handles[i % 4], handles[(i + 1) % 4]
        put(writer, i % 64, i % 251)
        equal(bytes(reader.pread(1, (i % 64) * BLOCK))[0], i % 251, f"write {i}")
    handles[3].flush()
    s.kill()
    s.start()
    for i in range(200 - 64, 200):
        equal(get(s, "disk", i % 64), i % 251, f"write {i} after the crash")


@test
def write_through_needs_no_flush(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M", "--sync", "always")
    h = connect(s, "disk")
    for i in range(50):
        put(h, i, i + 1)
    s.kill()
    s.start()
    for i in range(50):
        equal(get(s, "disk", i), i + 1, f"block {i}")


@test
def fua_needs_no_flush(t):
    import nbd

    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M")
    h = connect(s, "disk")
    for i in range(20):
        h.pwrite(bytes([i + 1]) * BLOCK, i * BLOCK, nbd.CMD_FLAG_FUA)
    h.zero(BLOCK, 3 * BLOCK, nbd.CMD_FLAG_FUA)
    s.kill()
    s.start()
    for i in range(20):
        equal(get(s, "disk", i), 0 if i == 3 else i + 1, f"block {i}")


@test
def overlapping_writes_leave_whole_blocks(t):
    """Two clients write the same blocks repeatedly; each block contains one of the writes, never a
    mixture."""
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    failures = []

    def hammer(bytes_):
        try:
            h = connect(s, "disk")
            for _ in range(150):
                for byte in bytes_:
                    h.pwrite(bytes([byte]) * 16 * BLOCK, 8 * BLOCK)
        except Exception as e:  # reported by the main thread
            failures.append(e)

    threads = [threading.Thread(target=hammer, args=(range(1 + 4 * i, 5 + 4 * i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        check(get(s, "disk", 15) < 9, "a byte of no write")
    for thread in threads:
        thread.join()
    if failures:
        raise Failed(f"a writer failed: {failures[0]}")


@test
def a_thousand_clones(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("golden.raw", MIB))
    s.cli("volume", "clone", "golden", "pc", "--count", "1000")
    equal(len(s.json("volume", "list")), 1000, "clones")
    h = connect(s, "pc-1000")
    put(h, 1, 1)
    h.flush()
    s.kill()
    s.start()
    equal(len(s.json("volume", "list")), 1000, "clones after a crash")
    # Numbers are padded to the same width, so that names sort.
    equal((get(s, "pc-1000", 1), s.json("volume", "show", "pc-0001")["origin"]), (1, "golden"), "clones")
