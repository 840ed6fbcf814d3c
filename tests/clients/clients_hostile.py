"""Clients that use as many connections, descriptors and as much time as possible. Other clients are still
served."""

import contextlib
import os
import resource
import socket
import struct
import time

from datastore import TARGET, target
from forebay import binary
from harness import BLOCK, MIB, Skipped, check, connect, equal, test
from initiator import Closed, Initiator

IHAVEOPT = 0x49484156454F5054
OPT_EXPORT_NAME, OPT_STRUCTURED_REPLY = 1, 8


def configured(t, text, name="config.toml"):
    """Arguments for a server with this configuration file."""
    with open(t.path(name), "w") as f:
        f.write(text)
    return ["--config", t.path(name)]


def with_descriptors(t, server, hard):
    """Makes a server run with a hard limit of open files."""
    script = t.path("limited")
    with open(script, "w") as f:
        f.write(f'#!/bin/sh\nulimit -n {hard}\nexec {binary()} "$@"\n')
    os.chmod(script, 0o755)
    server.bin = script
    return server


def need_descriptors(count):
    """Raises the limit of this process, or skips the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise Skipped(f"needs {count} open files, and {hard} are allowed")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def flood(t, count, make):
    """Opens `count` sockets, which are closed at the end of the test."""
    for _ in range(count):
        t.defer(make().close)


def unix(path):
    s = socket.socket(socket.AF_UNIX)
    # The connect blocks while the kernel's queue is full.
    s.settimeout(60)
    s.connect(path)
    return s


def chosen(path, export):
    """An NBD client that has selected an export, or `None` if the server rejected it."""
    s = unix(path)
    try:
        s.sendall(struct.pack(">IQII", 3, IHAVEOPT, OPT_EXPORT_NAME, len(export)) + export.encode())
        # Greeting, flags, size and flags.
        received = b""
        while len(received) < 18 + 10:
            piece = s.recv(100)
            if not piece:
                s.close()
                return None
            received += piece
    except ConnectionError:
        s.close()
        return None
    return s


def closed_within(s, seconds, busy=lambda: None):
    """Seconds until the server closes a connection; `busy` is called repeatedly until then."""
    begin = time.monotonic()
    s.settimeout(0.1)
    while time.monotonic() - begin < seconds:
        try:
            busy()
            if not s.recv(65536):
                return time.monotonic() - begin
        except TimeoutError:
            pass
        except ConnectionError:
            return time.monotonic() - begin
    return None


def write_and_verify(t, handle, size):
    """Writes `size` bytes with flushes in between, and reads them back."""
    data = t.random.randbytes(size)
    for offset in range(0, size, MIB):
        handle.pwrite(data[offset : offset + MIB], offset)
        handle.flush()
    for offset in range(0, size, MIB):
        equal(bytes(handle.pread(MIB, offset)), data[offset : offset + MIB], f"the MiB at {offset}")


@test
def idle_connections_leave_descriptors_to_the_store(t):
    need_descriptors(4096)
    args = configured(t, '[log]\nsegment = "4M"')
    s = with_descriptors(t, t.server(*args, start=False), 600).start()
    s.cli("volume", "create", "disk", "--size", "256M")
    good = connect(s, "disk")
    # Clients that have negotiated, as many as are accepted, and additional ones that have not.
    let_in = [c for c in (chosen(s.nbd, "disk") for _ in range(600)) if c]
    for c in let_in:
        t.defer(c.close)
    check(100 <= len(let_in) <= 500, f"{len(let_in)} of 600 clients were let in with 600 descriptors")
    with contextlib.suppress(OSError):
        flood(t, 600, lambda: unix(s.nbd))
    write_and_verify(t, good, 48 * MIB)
    equal(s.json("volume", "list")[0]["name"], "disk", "volumes")
    with open(s.log) as f:
        complaints = [line for line in f if "refused a client" in line or "cannot accept" in line]
    check(len(complaints) <= 60, f"{len(complaints)} lines of log for 1,200 clients")
    # The pool has not latched: it closes, opens, and contains all data.
    s.stop()
    s.start()
    write_and_verify(t, connect(s, "disk"), 8 * MIB)


@test
def the_soft_limit_of_descriptors_is_raised(t):
    need_descriptors(4096)
    s = with_descriptors(t, t.server(start=False), "4096; ulimit -S -n 256").start()
    s.cli("volume", "create", "disk", "--size", "16M")
    flood(t, 700, lambda: unix(s.nbd))
    write_and_verify(t, connect(s, "disk"), 4 * MIB)


@test
def idle_connections_do_not_block_logins(t):
    need_descriptors(4096)
    s, address = target(t, "disk")
    flood(t, 1100, lambda: socket.create_connection(address, timeout=60))
    flood(t, 200, lambda: unix(s.nbd))
    begin = time.monotonic()
    Initiator(address, TARGET)
    check(time.monotonic() - begin < 60, "a login is slow with many idle connections")
    equal(connect(s, "disk").get_size(), 64 * MIB, "size")


@test
def discovery_sessions_are_evicted_and_end_when_idle(t):
    args = configured(t, "[limits]\nnegotiating = 20\nnegotiation_timeout_s = 2")
    _, address = target(t, "disk", serve=args)
    kept = Initiator(address, TARGET).ready()
    for _ in range(60):
        idle = Initiator(address)
    took = closed_within(idle.socket, 60)
    check(took is not None, "an idle discovery session does not end")
    # A session with a target is neither evicted nor ended.
    equal(kept.command(bytes(6)).status, 0, "TEST UNIT READY")


@test
def negotiations_have_a_total_deadline(t):
    args = configured(t, "[limits]\nnegotiation_timeout_s = 2")
    s, address = target(t, "disk", serve=args)
    nbd = unix(s.nbd)
    nbd.sendall(struct.pack(">I", 3))
    # Not one about exports: these are limited in number.
    took = closed_within(nbd, 60, lambda: nbd.sendall(struct.pack(">QII", IHAVEOPT, OPT_STRUCTURED_REPLY, 0)))
    check(took is not None, "NBD: a sequence of options never ends")
    check(took > 1, f"NBD: cut after {took} s")
    iscsi = socket.create_connection(address)
    took = closed_within(iscsi, 60, lambda: iscsi.sendall(b"\x43"))
    check(took is not None, "iSCSI: a login sent byte by byte never ends")


@test
def connections_per_address_are_limited(t):
    args = configured(t, "[limits]\nconnections_per_address = 4")
    s, address = target(t, "disk", serve=args)
    there = [Initiator(address, TARGET, isid=n).ready() for n in range(4)]
    try:
        Initiator(address, TARGET, isid=9)
        check(False, "a fifth session from one address is accepted")
    except (Closed, ConnectionError):
        pass
    equal(there[0].command(bytes(6)).status, 0, "TEST UNIT READY")
    equal(connect(s, "disk").get_size(), 64 * MIB, "size, over a UNIX socket")


def peak(server, begin=False):
    """Peak of the server's resident memory since the last call with `begin`, in bytes."""
    if begin:
        with open(f"/proc/{server.process.pid}/clear_refs", "w") as f:
            f.write("5")
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def nbd_request(command, offset, length, data=b""):
    return struct.pack(">IHHQQI", 0x25609513, 0, command, 7, offset, length) + data


def push(what, most=3):
    """Sends as much data to each socket as it accepts within `most` seconds; the rest is dropped."""
    left = {s: memoryview(data) for s, data in what.items()}
    begin = moved = time.monotonic()
    for s in left:
        s.setblocking(False)
    # Ends when no socket accepts more data.
    while left and time.monotonic() - begin < most and time.monotonic() - moved < 0.5:
        for s in list(left):
            try:
                left[s] = left[s][s.send(left[s][:MIB]) :]
                moved = time.monotonic()
            except BlockingIOError:
                continue
            except OSError:
                del left[s]
                continue
            if not left[s]:
                del left[s]


# Requests of a hostile NBD client after it has selected an export. No such client reads replies.
HOSTILE = {
    "a write of 32 MiB without its last byte": lambda: nbd_request(1, 0, 32 * MIB, bytes(32 * MIB - 1)),
    "a write of 100 KiB without its last byte": lambda: nbd_request(1, 0, 100 << 10, bytes((100 << 10) - 1)),
    "reads of 32 MiB": lambda: nbd_request(0, 0, 32 * MIB) * 200,
    "reads of 128 KiB": lambda: nbd_request(0, 0, 128 << 10) * 200,
    "small reads": lambda: nbd_request(0, 0, 4096) * 9000,
    "trims of every other block": lambda: b"".join(nbd_request(4, n * 8192, 4096) for n in range(9000)),
}
# The server's allocator retains some of the freed memory.
BUDGET, MARGIN = 160 * MIB, 96 * MIB
# Duration of the load by hostile clients of each kind.
SECONDS = int(os.environ.get("FOREBAY_HOSTILE_S", "5"))


def hostile_server(t):
    """A server with a small budget, its address, and its memory with full caches and no clients."""
    need_descriptors(4096)
    args = configured(
        t,
        '[memory]\nread_cache = "16M"\nmap_cache = "16M"\nwrite_buffer = "16M"\n'
        '[dedup]\nindex = "8M"\n[limits]\nclient_memory = "160M"\nstall_timeout_s = 2\n',
    )
    s, address = target(t, "disk", "good", size="1G", serve=args)
    # The caches are filled before memory is measured.
    good = connect(s, "good")
    for offset in range(0, 96 * MIB, MIB):
        good.pwrite(t.random.randbytes(MIB), offset)
    good.flush()
    for offset in range(0, 96 * MIB, MIB):
        good.pread(MIB, offset)
    good.shutdown()
    is_served(t, s, "without others")
    return s, address, peak(s, begin=True)


def is_served(t, s, what):
    """A well-behaved client concurrent with hostile ones. Returns the seconds for its requests."""
    begin = time.monotonic()
    good = connect(s, "good")
    for n in range(20):
        data = t.random.randbytes(BLOCK)
        good.pwrite(data, n * BLOCK)
        equal(bytes(good.pread(BLOCK, n * BLOCK)), data, what)
    large = t.random.randbytes(2 * MIB)
    good.pwrite(large, 64 * MIB)
    good.flush()
    equal(bytes(good.pread(2 * MIB, 64 * MIB)), large, what)
    good.shutdown()
    return time.monotonic() - begin


def are_served(t, s, what, base, seconds=SECONDS):
    """Runs well-behaved clients for some time; `base` is the server's memory without hostile ones."""
    end, longest = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        longest = max(longest, is_served(t, s, what))
    used = peak(s) - base
    print(f"     {what}: {used >> 20} MiB more, others served in {longest:.1f} s", flush=True)
    check(used < BUDGET + MARGIN, f"{what}: the server uses {used >> 20} MiB more")
    check(longest < 60, f"{what}: another client is served in {longest:.1f} s")


@test
def nbd_clients_share_a_budget_of_memory(t):
    s, _, base = hostile_server(t)
    for what, make in HOSTILE.items():
        peak(s, begin=True)
        hostile = [chosen(s.nbd, "disk") for _ in range(500)]
        check(all(hostile), f"{what}: a client was not let in")
        push(dict.fromkeys(hostile, make()))
        are_served(t, s, what, base)
        for h in hostile:
            h.close()
    is_served(t, s, "after all")


@test
def what_waits_for_the_limit_of_a_volume_leaves_memory_to_others(t):
    s, _, base = hostile_server(t)
    s.cli("volume", "limit", "disk", "--iops", "1", "--iops-burst", "1")
    write = nbd_request(1, 0, 250 << 10, bytes(250 << 10))
    hostile = [chosen(s.nbd, "disk") for _ in range(500)]
    check(all(hostile), "a client was not let in")
    push(dict.fromkeys(hostile, write * 8))
    are_served(t, s, "writes to a slow volume", base)


def greedy_initiators(address, count):
    """Sessions that can send unsolicited data. An initiator can have at most 64."""
    keys = {"InitialR2T": "No", "ImmediateData": "Yes", "FirstBurstLength": "262144", "MaxBurstLength": "1048576"}
    name = "iqn.2026-01.org.example:h{}"
    return [
        Initiator(address, TARGET, name=name.format(n // 50), isid=n, keys=keys.items()).ready() for n in range(count)
    ]


def long_reads():
    """READ(16) of 16 MiB with an expected length of 0."""
    cdb = struct.pack(">BBQIBB", 0x88, 0, 0, 32768, 0, 0)
    return b"".join(command_header(0x80 | 0x40, cdb, 1000 + n, 0, n) for n in range(100))


def fill_disk(t, s):
    """Writes what verifications read; holes they skip."""
    disk = connect(s, "disk")
    for offset in range(0, 64 * MIB, MIB):
        disk.pwrite(t.random.randbytes(MIB), offset)
    disk.flush()
    disk.shutdown()


def verifications():
    """VERIFY(16) of 64 MiB, which compares nothing and transfers no data."""
    cdb = struct.pack(">BBQIBB", 0x8F, 0, 0, 131072, 0, 0)
    return b"".join(command_header(0x80, cdb, 1000 + n, 0, n) for n in range(100))


def unsolicited_writes():
    """WRITE(16) of 1 MiB with announced unsolicited data that is never sent."""
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 0, 2048, 0, 0)
    return b"".join(command_header(0x20, cdb, 2000 + n, MIB, n) for n in range(100))


@test
def initiators_share_a_budget_of_memory(t):
    s, address, base = hostile_server(t)
    fill_disk(t, s)
    hostile = greedy_initiators(address, 500)
    for what, pdus, group in (
        ("verifications", verifications(), hostile[:100]),
        ("long reads", long_reads(), hostile[100:300]),
        ("unsolicited data that does not come", unsolicited_writes(), hostile[300:]),
    ):
        push({i.socket: numbered(pdus, i.cmd_sn) for i in group})
        are_served(t, s, what, base)


@test
def hostile_clients_of_all_kinds_share_a_budget_of_memory(t):
    s, address, base = hostile_server(t)
    initiators = greedy_initiators(address, 250)
    pushed = {i.socket: numbered(long_reads(), i.cmd_sn) for i in initiators[:125]}
    pushed |= {i.socket: numbered(unsolicited_writes(), i.cmd_sn) for i in initiators[125:]}
    kinds = [make() for make in HOSTILE.values()]
    clients = [chosen(s.nbd, "disk") for _ in range(250)]
    check(all(clients), "a client was not let in")
    pushed |= {client: kinds[n % len(kinds)] for n, client in enumerate(clients)}
    push(pushed)
    good = Initiator(address, TARGET, name="iqn.2026-01.org.example:good").ready()
    equal(good.command(bytes(6)).status, 0, "TEST UNIT READY")
    are_served(t, s, "500 of all kinds", base, seconds=2 * SECONDS)
    equal(good.command(bytes(6)).status, 0, "TEST UNIT READY")


def numbered(pdus, first):
    """Numbers commands without data, starting with `first`."""
    pdus = bytearray(pdus)
    for n, at in enumerate(range(0, len(pdus), 48)):
        struct.pack_into(">I", pdus, at + 24, first + n)
    return bytes(pdus)


def command_header(flags, cdb, tag, expected, cmd_sn):
    """A SCSI command to LUN 0, as a header without data."""
    header = bytearray(48)
    header[0], header[1] = 0x01, flags
    struct.pack_into(">III", header, 16, tag, expected, cmd_sn)
    header[32:48] = cdb
    return bytes(header)
