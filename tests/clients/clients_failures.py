"""Failures: a second server on the pool; stores that are full, read-only, removed, damaged or foreign;
SIGTERM under load."""

import os
import shutil
import socket
import threading
import time

from forebay import Failed
from harness import BLOCK, MIB, STOP_S, Skipped, check, connect, equal, need_root, refused_by_server, run, test
from harness import wait_for


def one_line(server, what):
    """Starts a server that must fail with status 1 and, in addition to its log, one line with the reason.
    Returns the line."""
    open(server.log, "w").close()
    server.launch()
    status = server.wait(60)
    equal(status, 1, f"exit status with {what}")
    lines = [line for line in server.log_tail().splitlines() if line.startswith("forebay:")]
    check(len(lines) == 1, f"{what}: expected one line for the user, found\n{server.log_tail()}")
    return lines[0]


def refuses_to_start(t, server, what, *words):
    line = one_line(server, what)
    check(any(word in line for word in words), f"{what}: '{line}' contains none of {words}")


def blocks_of(handle, count, first=0):
    return [bytes(handle.pread(BLOCK, (first + i) * BLOCK)) for i in range(count)]


def mount_tmpfs(t, size):
    need_root("mounting a small file system")
    where = t.path("small")
    os.mkdir(where)
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where)
    t.defer(run, "umount", "-l", where)
    return where


def listing(directory):
    """Names and contents of the files in a directory, without sockets."""
    out = {}
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, "rb") as f:
                out[name] = f.read()
    return out


@test
def a_second_server_is_refused(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "4M")
    h = connect(s, "disk")
    h.pwrite(b"1" * BLOCK, 0)
    second = t.server(start=False)
    second.log = t.path("second.log")
    refuses_to_start(t, second, "a second server", "use", "another")
    h.pwrite(b"2" * BLOCK, BLOCK)
    h.flush()
    equal(bytes(h.pread(1, 0)) + bytes(h.pread(1, BLOCK)), b"12", "blocks of the first server")
    s.kill()
    # The lock ends with its owner, so that a restart is possible.
    second.start()
    equal(bytes(connect(second, "disk").pread(1, BLOCK)), b"2", "block after the first server died")


def listen(t, family, address):
    """Another program that listens; returns its address."""
    sock = socket.socket(family)
    t.defer(sock.close)
    sock.bind(address)
    sock.listen()
    return sock.getsockname()


@test
def addresses_in_use_are_refused(t):
    """Each kind of address: one line names it, and neither the pool nor the other program is touched."""
    port = listen(t, socket.AF_INET, ("127.0.0.1", 0))[1]
    path = os.path.join(t.memory, "socket")
    listen(t, socket.AF_UNIX, path)
    tcp = f"127.0.0.1:{port}"
    for option, address in (("--nbd", tcp), ("--iscsi", tcp), ("--http", tcp), ("--nbd", f"unix:{path}")):
        s = t.server(option, address, start=False)
        line = one_line(s, f"{option} {address} in use")
        check(address in line and "stop it or choose another" in line, f"{option} {address}: {line}")
    control = t.server(start=False)
    listen(t, socket.AF_UNIX, control.control)
    check(control.control in one_line(control, "a control socket in use"), "the control socket is named")
    for family, address in ((socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, path)):
        with socket.socket(family) as client:
            client.connect(address)
    s = t.server()
    equal(s.json("volume", "list"), [], "volumes of a pool that no failed start has changed")


@test
def a_store_that_fills_up_during_an_import_keeps_no_part_of_it(t):
    where = mount_tmpfs(t, "320M")
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    s.cli("volume", "create", "disk", "--size", "16M")
    h = connect(s, "disk")
    h.pwrite(b"1" * BLOCK, 0)
    h.flush()
    big = t.noise_file("big.raw", 512 * MIB)
    line = s.refused("image", "import", "big", big)
    check("full" in line or "space" in line, f"the reason of the failed import: {line}")
    equal(s.json("image", "list"), [], "images")
    h.pwrite(b"2" * BLOCK, BLOCK)
    h.flush()
    s.cli("gc")
    small = t.noise_file("small.raw", 32 * MIB)
    s.cli("image", "import", "small", small)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", small, s.uri("small"))
    equal(bytes(h.pread(1, 0)) + bytes(h.pread(1, BLOCK)), b"12", "blocks of a client at the same time")
    h.shutdown()
    s.stop()
    s.offline("check")


@test
def a_read_only_store_is_refused(t):
    where = mount_tmpfs(t, "256M")
    data = os.path.join(where, "data")
    s = t.server(data=data)
    s.cli("volume", "create", "disk", "--size", "1M")
    s.stop()
    run("mount", "-o", "remount,ro", where)
    refuses_to_start(t, s, "a read-only store", "read-only", "Read-only")
    run("mount", "-o", "remount,rw", where)
    s.start()
    equal(len(s.json("volume", "list")), 1, "volumes afterwards")


@test
def a_full_store_fails_writes_and_serves_reads(t):
    where = mount_tmpfs(t, "320M")
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    s.cli("volume", "create", "disk", "--size", "1G")
    h = connect(s, "disk")
    written = fill_until_refused(t, h)
    check(written > 60, f"only {written} MiB could be written")
    for _ in range(3):
        refused_by_server("ENOSPC", fill_more, t, h, written)
    first = [bytes(h.pread(16, i * MIB)) for i in range(written)]
    equal(first, [tag(i) for i in range(written)], "what was acknowledged")
    equal(s.json("stats")["room"], "full", "room, as stats say")
    refused = s.refused("status")
    check("the store has no room for data" in refused, f"the status of a full store: {refused}")
    # Discards and cleaning, which need no space for data, still work.
    h.trim(MIB, (written - 1) * MIB)
    h.flush()
    s.cli("gc")
    h.shutdown()
    s.wait_unused("disk")
    s.kill()
    s.start()
    h = connect(s, "disk")
    flushed = [bytes(h.pread(16, i * MIB)) for i in range(written - 1)]
    equal(flushed, [tag(i) for i in range(written - 1)], "what was flushed, after a crash")
    h.shutdown()
    # Deleting a volume frees space, without a restart.
    s.cli("volume", "rm", "disk")
    s.cli("gc")
    equal(s.json("stats")["room"], "ok", "room after a delete")
    s.cli("volume", "create", "next", "--size", "64M")
    h = connect(s, "next")
    h.pwrite(t.random.randbytes(8 * MIB), 0)
    h.flush()


def mount_below_quota(t, size, quota):
    """A btrfs subvolume with a quota that statfs does not show."""
    need_root("mounting a small file system")
    with open("/proc/filesystems") as f:
        if not shutil.which("mkfs.btrfs") or "btrfs" not in f.read().split():
            raise Skipped("needs btrfs-progs, and btrfs in the kernel")
    file, where = t.path("btrfs.img"), t.path("btrfs")
    with open(file, "wb") as f:
        f.truncate(size)
    os.mkdir(where)
    run("mkfs.btrfs", "-q", file)
    run("mount", "-o", "loop", file, where)
    t.defer(run, "umount", "-l", where)
    below = os.path.join(where, "below")
    run("btrfs", "subvolume", "create", below)
    run("btrfs", "quota", "enable", where)
    run("btrfs", "qgroup", "limit", str(quota), below)
    return below


@test
def a_hidden_quota_keeps_neither_deletions_nor_a_stop_from_working(t):
    where = mount_below_quota(t, 900 * MIB, 200 * MIB)
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    for name in ("kept", "large"):
        s.cli("volume", "create", name, "--size", "1G")
    kept = connect(s, "kept")
    data = t.random.randbytes(24 * MIB)
    kept.pwrite(data, 0)
    kept.flush()
    large = connect(s, "large")
    written = fill_until_refused(t, large)
    check(written > 10, f"only {written} MiB could be written")
    equal(s.json("stats")["room"], "full", "room, as stats say")
    # A restart, with nothing freed.
    large.shutdown()
    kept.shutdown()
    s.stop()
    s.start()
    refused_by_server("ENOSPC", fill_more, t, connect(s, "large"), written)
    s.wait_unused("large")
    # A start needs room for its sockets, which are in the data directory unless configured otherwise.
    short = os.path.join(s.sockets, "data")
    os.symlink(s.data, short)
    s.control, elsewhere = os.path.join(short, "control"), s.control
    for _ in range(4):
        s.kill()
        s.start()
    s.kill()
    s.control = elsewhere
    s.start()
    s.cli("volume", "rm", "large")
    s.cli("gc")
    kept = connect(s, "kept")
    wait_for(lambda: is_written(kept, data, 32 * MIB), "a write into the room that a deletion freed")
    equal(bytes(kept.pread(24 * MIB, 0)) == data, True, "what was written before")
    kept.shutdown()
    s.stop()


@test
def a_pool_that_cannot_hold_its_reserve_is_full_from_the_start(t):
    """Such as one of an earlier release, which is opened close to a quota that statfs does not show."""
    where = mount_below_quota(t, 900 * MIB, 300 * MIB)
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    for name in ("kept", "large"):
        s.cli("volume", "create", name, "--size", "1G")
        h = connect(s, name)
        for at in (0, 20 * MIB):
            h.pwrite(t.random.randbytes(20 * MIB), at)
        h.flush()
        h.shutdown()
    s.stop()
    shutil.rmtree(os.path.join(s.data, "reserve"))
    other = os.path.join(where, "other")
    run("sync", "-f", where)
    run("fallocate", "-l", str(150 * MIB), other)
    s.start()
    equal(s.json("stats")["room"], "full", "room, as stats say")
    kept = connect(s, "kept")
    refused_by_server("ENOSPC", fill_more, t, kept, 40)
    s.cli("volume", "rm", "large")
    s.cli("gc")
    os.remove(other)
    wait_for(lambda: is_written(kept, t.random.randbytes(MIB), 64 * MIB), "a write when there is room again")
    kept.shutdown()
    s.stop()


def is_written(h, data, offset):
    """Whether there is room for a write."""
    import nbd

    try:
        h.pwrite(data, offset)
        h.flush()
        return True
    except nbd.Error as e:
        equal(e.errno, "ENOSPC", "error while there is no room yet")
        return False


def tag(i):
    return b"MiB %012d" % i


def fill_until_refused(t, h):
    """Writes MiB by MiB with a flush after each, until the store is full. Returns the number flushed."""
    import nbd

    for i in range(1024):
        try:
            h.pwrite(tag(i) + t.random.randbytes(MIB - 16), i * MIB)
            h.flush()
        except nbd.Error as e:
            equal(e.errno, "ENOSPC", f"error after {i} MiB")
            return i
    raise Failed("a GiB fits into a store of 320 MiB")


def fill_more(t, h, written):
    """The write or its flush must fail."""
    h.pwrite(t.random.randbytes(32 * MIB), (written + 1) * MIB)
    h.flush()


@test
def a_deleted_store_fails_requests(t):
    s = t.server("--cache", "1M")
    s.cli("volume", "create", "disk", "--size", "256M")
    noise = t.noise_file("noise", 128 * MIB)
    run("nbdcopy", "--flush", noise, s.uri("disk"))
    shutil.rmtree(s.data)
    with open(noise, "rb") as f:
        expected = f.read()
    h = connect(s, "disk")
    outcomes = {"right": 0, "failed": 0}
    import nbd

    for i in range(0, 128, 4):
        try:
            data = bytes(h.pread(BLOCK, i * MIB))
        except nbd.Error:
            outcomes["failed"] += 1
            continue
        equal(data == expected[i * MIB : i * MIB + BLOCK], True, f"a read at {i} MiB that succeeded is right")
        outcomes["right"] += 1
    # An open segment exists until it is full; the next one cannot be created.
    try:
        for i in range(10):
            h.pwrite(t.random.randbytes(16 * MIB), i * 16 * MIB)
            h.flush()
        raise Failed("flushes of 160 MiB succeeded although the store is gone")
    except nbd.Error:
        pass
    refused_by_server("EIO", write_and_flush, h)
    # It must still end after SIGTERM.
    s.process.terminate()
    s.wait(60)


def write_and_flush(handle):
    """The write or its flush must fail."""
    handle.pwrite(b"x" * BLOCK, 0)
    handle.flush()


@test
def damaged_pools_are_refused_or_recovered(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "16M")
    noise = t.noise_file("noise", 16 * MIB)
    run("nbdcopy", "--flush", noise, s.uri("disk"))
    s.stop()
    good = t.path("good")
    shutil.copytree(s.data, good)
    supers = [n for n in listing(good) if not n.endswith(".seg") and os.path.getsize(os.path.join(good, n))]
    check(supers, f"no superblock among {os.listdir(good)}")

    def damage(change):
        shutil.rmtree(s.data)
        shutil.copytree(good, s.data)
        change(s.data)

    for name in supers:
        damage(lambda d, n=name: os.truncate(os.path.join(d, n), 100))
        before = listing(s.data)
        starts_whole_or_refuses(t, s, noise, f"{name} cut to 100 bytes")
        check(set(before) <= set(listing(s.data)) | {name}, f"{name}: files of a damaged pool were deleted")
    segments = [n for n in listing(good) if n.endswith(".seg")]
    for name in segments:
        damage(lambda d, n=name: os.truncate(os.path.join(d, n), os.path.getsize(os.path.join(d, n)) // 2))
        never_serves_wrong_data(t, s, noise, f"{name} cut in half")
        damage(lambda d, n=name: flip_bits(t, os.path.join(d, n)))
        never_serves_wrong_data(t, s, noise, f"{name} with flipped bits")
        damage(lambda d, n=name: os.unlink(os.path.join(d, n)))
        never_serves_wrong_data(t, s, noise, f"{name} missing")


def flip_bits(t, path):
    with open(path, "r+b") as f:
        size = os.path.getsize(path)
        for _ in range(40):
            offset = t.random.randrange(size)
            f.seek(offset)
            byte = f.read(1)[0]
            f.seek(offset)
            f.write(bytes([byte ^ (1 << t.random.randrange(8))]))


def start_or_status(server):
    """Starts the server; false if it fails with status 1 and one line for the user."""
    open(server.log, "w").close()
    try:
        server.start()
        return True
    except Failed:
        check(server.process is not None and server.process.poll() == 1, f"no refusal:\n{server.log_tail()}")
        server.process = None
        lines = [line for line in server.log_tail().splitlines() if line.startswith("forebay:")]
        check(len(lines) == 1, f"expected one line for the user:\n{server.log_tail()}")
        return False


def starts_whole_or_refuses(t, server, noise, what):
    if start_or_status(server):
        run("nbdcopy", server.uri("disk"), t.path("copy"))
        equal(run("cmp", noise, t.path("copy"), check=False).returncode, 0, f"contents with {what}")
        server.stop()


def never_serves_wrong_data(t, server, noise, what):
    """With a part of the log missing, a volume may lose its newest blocks or return read errors, but never
    other data."""
    import nbd

    if not start_or_status(server):
        return
    if any(v["name"] == "disk" for v in server.json("volume", "list")):
        with open(noise, "rb") as f:
            expected = f.read()
        h = connect(server, "disk")
        for b in range(0, len(expected) // BLOCK, 3):
            try:
                data = bytes(h.pread(BLOCK, b * BLOCK))
            except nbd.Error:
                continue
            # All writes were flushed before a clean end, so a zero block would be silent loss.
            check(data == expected[b * BLOCK : (b + 1) * BLOCK], f"{what}: block {b} is wrong, and no error")
    server.kill()


@test
def files_in_foreign_directories_are_not_changed(t):
    data = t.path("data")
    os.mkdir(data)
    with open(os.path.join(data, "thesis.odt"), "w") as f:
        f.write("years of work")
    s = t.server(start=False)
    status = one_line_or_start(s)
    with open(os.path.join(data, "thesis.odt")) as f:
        equal(f.read(), "years of work", f"a file that was there before (server status {status})")
    if status is None:
        s.stop()
    # Invalid superblocks.
    for name in ("superblock", "superblock.0", "superblock.1", "0.super", "super-0", "super-1"):
        with open(os.path.join(data, name), "wb") as f:
            f.write(b"not a superblock" * 512)
    before = listing(data)
    status = one_line_or_start(s)
    check(all(listing(data).get(n) == c for n, c in before.items()), f"foreign files were changed (status {status})")


def one_line_or_start(server):
    """None if it starts, otherwise its status."""
    return None if start_or_status(server) else 1


@test
def sigterm_under_load_is_quick_and_loses_no_write(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "64M")
    for round_ in range(5):
        acknowledged, stop = [{} for _ in range(4)], threading.Event()
        threads = [
            threading.Thread(target=write_until_gone, args=(s, i, blocks, stop))
            for i, blocks in enumerate(acknowledged)
        ]
        for thread in threads:
            thread.start()
        # The first answer waits for a commit.
        wait_for(lambda blocks=acknowledged: sum(map(len, blocks)) > 50, f"writes in round {round_}", 60)
        time.sleep(t.random.uniform(0, 0.4))
        took = s.stop()
        stop.set()
        for thread in threads:
            thread.join()
        check(took < STOP_S, f"it took {took:.1f} s to stop")
        s.start()
        h = connect(s, "disk")
        for blocks in acknowledged:
            for block, stamp in blocks.items():
                found = bytes(h.pread(BLOCK, block * BLOCK))[:8]
                check(
                    int.from_bytes(found, "big") >= stamp,
                    f"round {round_}, block {block}: an acknowledged write is gone after a clean stop",
                )
        h.shutdown()


def write_until_gone(server, number, acknowledged, stop):
    """Writes stamped blocks in a separate range, and records each acknowledged one."""
    import nbd

    h = connect(server, "disk")
    stamp = time.monotonic_ns()
    try:
        while not stop.is_set():
            block = number * 4096 + stamp % 512
            h.pwrite(stamp.to_bytes(8, "big") * (BLOCK // 8), block * BLOCK)
            acknowledged[block] = stamp
            stamp += 1
    except nbd.Error:
        pass
