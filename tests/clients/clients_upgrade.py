"""Upgrades: another process takes the place of the running server, and no client notices.

Clients load the server over NBD (UNIX socket and TCP) and iSCSI while it is replaced again and again. Each
keeps its connection from the first to the last request, gets no error, and finds what it wrote. Successors
that fail at each step leave the clients with the former process.
"""

import os
import signal
import socket
import struct
import subprocess
import threading
import time

from clients_tls import authorities, tls_server
from datastore import TARGET, portal, target
from forebay import Failed, run, spawn
from harness import BLOCK, MIB, alone, check, connect, equal, test
from initiator import BLOCK as SECTOR
from initiator import CHECK, CONFLICT, GOOD, Initiator

DEPTH = 32
# Longest request that a busy test machine may cause; the pause itself is printed.
LONGEST_S = 2.0
TESTER = "iqn.2026-01.org.example:tester"


def block(number, version):
    return struct.pack(">QQ", number, version) * (BLOCK // 16)


class Load(threading.Thread):
    """Writes versions of blocks and reads them back, until it is told to stop."""

    def __init__(self, name, random):
        super().__init__(name=name, daemon=True)
        self.random = random
        self.stopping = threading.Event()
        self.error = None
        self.requests, self.longest = 0, 0.0
        self.versions = {}

    def run(self):
        try:
            self.serve()
        except Exception as e:  # noqa: BLE001: reported by `finish`
            self.error = e

    def done(self, begun):
        self.requests += 1
        self.longest = max(self.longest, time.monotonic() - begun)

    def finish(self):
        self.stopping.set()
        self.join(60)
        if self.error:
            raise Failed(f"{self.name}: {self.error!r} after {self.requests} requests") from self.error
        check(not self.is_alive(), f"{self.name} does not end after {self.requests} requests")
        check(self.requests > 0, f"{self.name} made no requests")
        check(self.longest < LONGEST_S, f"{self.name}: a request took {self.longest:.1f} s")


class NbdLoad(Load):
    """Writes, reads and flushes at a queue depth, over one libnbd connection."""

    BLOCKS = 1024

    def __init__(self, name, random, uri):
        super().__init__(name, random)
        import nbd

        self.nbd = nbd
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)

    def serve(self):
        free = list(range(self.BLOCKS))
        flying = {}
        while not self.stopping.is_set() or flying:
            while len(flying) < DEPTH and not self.stopping.is_set():
                self.submit(free, flying)
            self.handle.poll(1000)
            for cookie, (finish, begun) in list(flying.items()):
                if self.handle.aio_command_completed(cookie):
                    del flying[cookie]
                    finish()
                    self.done(begun)
        self.handle.flush()
        for number, version in self.versions.items():
            equal(bytes(self.handle.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number}")

    def submit(self, free, flying):
        nbd, begun = self.nbd, time.monotonic()
        kind = self.random.random()
        if kind < 0.02:
            flying[self.handle.aio_flush()] = (lambda: None, begun)
            return
        number = free.pop(self.random.randrange(len(free)))
        version = self.versions.get(number, 0)
        if kind < 0.5 and version:
            buffer = nbd.Buffer(BLOCK)

            def finish():
                free.append(number)
                equal(bytes(buffer.to_bytearray()), block(number, version), f"block {number}")

            cookie = self.handle.aio_pread(buffer, number * BLOCK)
        else:
            buffer = nbd.Buffer.from_bytearray(bytearray(block(number, version + 1)))
            self.versions[number] = version + 1
            fua = nbd.CMD_FLAG_FUA if kind > 0.98 else 0

            def finish(_keep=buffer):
                free.append(number)

            cookie = self.handle.aio_pwrite(buffer, number * BLOCK, flags=fua)
        flying[cookie] = (finish, begun)


class IscsiLoad(Load):
    """Commands of one session at a queue depth: short ones with immediate data, and long ones whose data the
    target solicits."""

    RUNS, SECTORS = 64, 256

    def __init__(self, name, random, address, lun=0):
        super().__init__(name, random)
        self.session = Initiator(address, TARGET, isid=7).ready()
        self.lun = lun

    def data(self, run, version):
        return struct.pack(">QQ", run, version) * (self.SECTORS * SECTOR // 16)

    def serve(self):
        free, flying = list(range(self.RUNS)), {}
        while not self.stopping.is_set() or flying:
            while len(flying) < 8 and not self.stopping.is_set():
                self.submit(free, flying)
            self.complete(flying)
        for run, version in self.versions.items():
            got = b"".join(self.session.read_blocks(run * self.SECTORS + n, 64, self.lun).data for n in range(0, 256, 64))
            equal(got, self.data(run, version), f"run {run}")
        self.session.logout()

    def submit(self, free, flying):
        run = free.pop(self.random.randrange(len(free)))
        version, begun = self.versions.get(run, 0), time.monotonic()
        lba, session = run * self.SECTORS, self.session
        if version and self.random.random() < 0.5:
            cdb = struct.pack(">BBQIBB", 0x88, 0, lba, self.SECTORS, 0, 0)
            session.send(session.command_pdu(cdb, expected=self.SECTORS * SECTOR, lun=self.lun))
            flying[session.tag] = [begun, None, bytearray(), (run, version), free]
            return
        out = self.data(run, version + 1)
        self.versions[run] = version + 1
        cdb = struct.pack(">BBQIBB", 0x8A, 0, lba, self.SECTORS, 0, 0)
        session.send(session.command_pdu(cdb, out=out, lun=self.lun), out[:8192])
        flying[session.tag] = [begun, out, bytearray(), (run, None), free]

    def complete(self, flying):
        header, piece = self.session.receive()
        opcode, tag = header[0], struct.unpack_from(">I", header, 16)[0]
        if opcode == 0x20:
            self.pong(header)
            return
        begun, out, data, (run, version), free = flying[tag]
        if opcode == 0x31:
            self.session.data_out(header, out)
            return
        data += piece
        if opcode == 0x25 and not header[1] & 1:
            return
        check(opcode in (0x21, 0x25), f"an answer of type {opcode:#x}")
        equal(header[3], GOOD, f"status of a command to run {run}, sense {piece.hex() if opcode == 0x21 else ''}")
        if version is not None:
            equal(bytes(data), self.data(run, version), f"run {run}")
        del flying[tag]
        free.append(run)
        self.done(begun)

    def pong(self, ping):
        """Answers a ping (RFC 7143, 11.18)."""
        if ping[20:24] == b"\xff\xff\xff\xff":
            return
        header = bytearray(48)
        header[0], header[1] = 0x40, 0x80
        header[8:16] = ping[8:16]
        header[16:20], header[20:24] = b"\xff\xff\xff\xff", ping[20:24]
        struct.pack_into(">II", header, 24, self.session.cmd_sn, self.session.exp_stat_sn)
        self.session.send(header)


def descriptors(server):
    """The number of open descriptors apart from regular files, of which the store keeps a varying number."""
    directory = f"/proc/{server.process.pid}/fd"
    found = [os.readlink(os.path.join(directory, fd)) for fd in os.listdir(directory)]
    return sum(not target.startswith(server.data) for target in found)


def nbd_port(server):
    """The TCP address on which the server listens for NBD."""
    with open(server.log) as f:
        for line in f:
            if line.startswith("forebay is ready"):
                return next(a.split()[1] for a in line.split(", ") if a.startswith("nbd 127"))
    raise Failed("the server printed no address")


def loaded_server(t):
    """A server with a load over each protocol."""
    s, address = target(t, "disk", serve=("--nbd", "127.0.0.1:0"))
    for name in ("a", "b", "c"):
        s.cli("volume", "create", name, "--size", "16M")
    loads = [
        NbdLoad("unix 1", t.random, s.uri("a")),
        NbdLoad("unix 2", t.random, s.uri("b")),
        NbdLoad("tcp", t.random, f"nbd://{nbd_port(s)}/c"),
        IscsiLoad("iscsi", t.random, address),
    ]
    for load in loads:
        load.start()
    return s, loads


@alone
@test
def clients_do_not_notice_twenty_upgrades(t):
    s, loads = loaded_server(t)
    pauses, opened = [], []
    for _ in range(20):
        time.sleep(0.15)
        report = s.upgrade()
        equal((report["connections"], report["closed"]), (4, 0), f"connections of {report}")
        pauses.append(report["pause_ms"])
        opened.append(descriptors(s))
    time.sleep(0.2)
    for load in loads:
        load.finish()
    longest = max(load.longest for load in loads)
    print(f"     20 upgrades: pauses of {sorted(pauses)[10]} ms in the median and {max(pauses)} ms at most; ", end="")
    print(f"longest request {longest * 1000:.0f} ms; {sum(load.requests for load in loads)} requests", flush=True)
    check(max(opened[10:]) <= max(opened[:10]), f"open descriptors after each upgrade: {opened}")
    s.stop()
    check(not os.path.exists(s.nbd) and not os.path.exists(s.control), "sockets exist after the server has stopped")
    s.start()
    h = connect(s, "a")
    for number, version in loads[0].versions.items():
        equal(bytes(h.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number} after a restart")


def script(t, name, text):
    path = t.path(name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


# What a test says in place of a successor: frames on standard input (see serve/upgrade/channel.rs).
FAKE = """#!/usr/bin/python3
import json, os, socket, struct, sys, time
channel = socket.socket(fileno=os.dup(0))
def receive():
    header = b""
    while len(header) < 28:
        header += channel.recv(28 - len(header))
    magic, version, fds, text, data = struct.unpack(">8sIIIQ", header)
    body = b""
    while len(body) < text + data:
        body += channel.recv(min(1 << 16, text + data - len(body)))
    for at in range(0, fds, 128):
        socket.recv_fds(channel, 1, 128)
    return json.loads(body[:text])
def send(message, version=1):
    text = json.dumps(message).encode()
    channel.sendall(struct.pack(">8sIIIQ", b"FBHANDOV", version, 0, len(text), 0) + text)
READY = {"message": "ready", "release": "9.9", "formats": [1, 99]}
"""


def failing_successors(t):
    """Binaries that cannot take over: a name, a script, a part of the message, and whether clients are
    disconnected."""
    sleeps = "#!/bin/sh\nexec sleep 60\n"
    return [
        ("false", None, "exit status: 1", False),
        ("sleeps", sleeps, "did not answer within 1s", False),
        ("reads", "#!/bin/sh\nhead -c 12 >/dev/null\nexit 3\n", "exit status: 3", False),
        ("speaks", "#!/bin/sh\necho forebay is ready >&0\n", "not a Forebay server", False),
        ("version", FAKE + "send(READY, version=7)\n", "version 7 of the hand-over protocol", False),
        ("format", FAKE + 'receive(); send({**READY, "formats": [1, 0]})\ntime.sleep(60)\n', "this pool has version", False),
        ("refuses", FAKE + 'receive(); send({"message": "refused", "reason": "no reason"})\n', "no reason", False),
        ("confused", FAKE + 'receive(); send({"message": "opened"})\ntime.sleep(60)\n', "out of order", False),
        ("ends", FAKE + "receive(); send(READY); receive()\n", "exit status: 0", False),
        ("hangs", FAKE + "receive(); send(READY); time.sleep(60)\n", "did not answer within 1s", False),
        # The real server, which cannot use its memory, and fails after the pool was handed over.
        ("memory", f"#!/bin/sh\nFOREBAY_MEMORY_DIR=/proc exec {os.path.abspath(t.bin)} \"$@\"\n", "retained memory", False),
        (
            "goes",
            FAKE + 'receive(); send(READY); receive(); send({"message": "opened"}); receive()\n',
            "its clients were disconnected",
            True,
        ),
    ]


@alone
@test
def a_successor_that_fails_at_any_step_leaves_the_clients_to_the_former_process(t):
    s, loads = loaded_server(t)
    t.bin = s.bin
    pid = s.process.pid
    for name, text, why, disconnects in failing_successors(t):
        if disconnects:
            for load in loads:
                load.finish()
        binary = script(t, name, text) if text else "/bin/false"
        error = s.refused("upgrade", "--binary", binary, "--timeout", "1")
        check(why in error and "upgrade failed" in error, f"{name}: {error}")
        equal(s.process.poll(), None, f"the server after {name}")
        equal(s.json("volume", "show", "a")["name"], "a", f"the API after {name}")
        time.sleep(0.1)
    check("No such file" in s.refused("upgrade", "--binary", t.path("none")), "a binary that does not exist")
    longest = max(load.longest for load in loads)
    print(f"     longest request during failed upgrades {longest * 1000:.0f} ms", flush=True)
    equal(s.process.pid, pid, "the process")
    h = connect(s, "a")
    for number, version in loads[0].versions.items():
        equal(bytes(h.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number}")
    equal(s.upgrade()["connections"], 1, "connections of an upgrade that succeeds")
    h.pwrite(block(0, 1), 0)
    h.shutdown()


@test
def only_one_upgrade_runs_at_a_time(t):
    s = t.server()
    slow = script(t, "slow", f'#!/bin/sh\nsleep 1\nexec {s.bin} "$@"\n')
    command = [s.bin, "--socket", s.control, "--json", "upgrade", "--binary", slow]
    first = spawn(command, stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    check("another upgrade is running" in s.refused("upgrade"), "an upgrade during another one")
    out, _ = first.communicate(timeout=30)
    equal(first.returncode, 0, "exit status of the first one")
    s.succeed(int(out.split('"pid":')[1].split(",")[0]))
    s.upgrade("--binary", s.bin)
    # By a signal: the process is the same kind of child.
    former = s.process.pid
    s.process.send_signal(signal.SIGUSR2)
    s.process.wait(30)
    s.process = None
    pids = run("pgrep", "-f", f"serve --data {s.data} ").stdout.split()
    check(len(pids) == 1 and int(pids[0]) != former, f"processes after SIGUSR2: {pids}, before: {former}")
    s.process = type("Former", (), {"wait": lambda self, timeout: 0})()
    s.succeed(int(pids[0]))
    s.json("volume", "list")
    s.stop()
    check(not os.path.exists(s.control), "the control socket exists after the server has stopped")


@test
def a_configuration_with_other_addresses_is_refused(t):
    config = t.path("config")
    with open(config, "w") as f:
        f.write("")
    s = t.server("--config", config)
    with open(config, "w") as f:
        f.write('[iscsi]\nlisten = ["127.0.0.1:0"]\n')
    error = s.refused("upgrade")
    check("restart the server to change its addresses" in error, error)
    with open(config, "w") as f:
        f.write("[nothing]\n")
    check("upgrade failed" in s.refused("upgrade"), "a configuration that is invalid")
    with open(config, "w") as f:
        f.write('[boot]\nprofile = "off"\n')
    s.upgrade()


@test
def an_upgrade_is_refused_during_an_import(t):
    s = t.server()
    source = t.noise_file("f", 512 * MIB)
    importing = spawn([s.bin, "--socket", s.control, "image", "import", "i", source], stdout=subprocess.DEVNULL)
    time.sleep(0.1)
    refusal = s.cli("upgrade", check=False).stderr
    check(importing.poll() is not None or "wait for its end" in refusal, f"during an import: {refusal}")
    equal(importing.wait(), 0, "exit status of the import")
    if "wait for its end" not in refusal:
        return
    s.upgrade()
    equal([i["name"] for i in s.json("image", "list")], ["i"], "images after an upgrade")


@test
def scsi_state_continues(t):
    """Reservations that do not persist through power loss, RESERVE, mode parameters, pending unit
    attentions."""
    s, address = target(t, "disk", "other")
    one = Initiator(address, TARGET, isid=1).ready()
    two = Initiator(address, TARGET, isid=2).ready()
    for i in (one, two):
        while i.command(bytes(6), lun=1).status == CHECK:
            pass
    register = struct.pack(">BBBBBIB", 0x5F, 0, 0, 0, 0, 24, 0)
    equal(one.command(register, out=struct.pack(">QQQ", 0, 0x77, 0)).status, GOOD, "a registration")
    reserve = struct.pack(">BBBBBIB", 0x5F, 1, 3, 0, 0, 24, 0)
    equal(one.command(reserve, out=struct.pack(">QQQ", 0x77, 0, 0)).status, GOOD, "a reservation")
    equal(two.command(bytes([0x16, 0, 0, 0, 0, 0]), lun=1).status, GOOD, "RESERVE of the other unit")
    # SWP of the control mode page, whose change is noted for the other nexuses as a unit attention.
    mode = bytearray(one.command(struct.pack(">BBBBBB", 0x1A, 8, 0x0A, 0, 64, 0), expected=64).data)
    mode[0], mode[2], mode[4 + 4] = 0, 0, mode[4 + 4] | 8
    third = Initiator(address, TARGET, isid=3).ready()
    keys = struct.pack(">BBBBBBBHB", 0x5E, 0, 0, 0, 0, 0, 0, 64, 0)
    before = one.command(keys, expected=64).data
    equal(two.command(bytes(6)).status, GOOD, "the second session has nothing to report")
    select = one.command(struct.pack(">BBBBBB", 0x15, 0x10, 0, 0, len(mode), 0), out=bytes(mode))
    equal((select.status, select.code), (GOOD, None), "MODE SELECT")
    s.upgrade()
    equal(one.command(bytes(6)).status, GOOD, "the first session sees no unit attention")
    equal(one.command(keys, expected=64).data, before, "registrations")
    equal(two.command(bytes(6)).code, (6, 0x2A, 1), "the pending unit attention")
    equal(two.command(bytes(6)).status, GOOD, "the next command")
    equal(two.write_blocks(0, bytes(SECTOR)).status, CONFLICT, "a write despite the reservation")
    equal(one.write_blocks(0, bytes(SECTOR)).code, (7, 0x27, 2), "a write despite SWP")
    equal(one.command(bytes(6), lun=1).status, CONFLICT, "a command despite RESERVE")
    equal(two.command(bytes(6), lun=1).status, GOOD, "the holder of RESERVE")
    third.close()
    fourth = Initiator(address, TARGET, isid=4)
    equal(fourth.command(bytes(6)).code, (6, 0x29, 1), "a new session is told of power on")
    two.logout()
    equal(one.command(bytes(6), lun=1).status, GOOD, "RESERVE ends with its session")
    # A session with the same name and ISID replaces the one that was handed over.
    again = Initiator(address, TARGET, isid=1).ready()
    equal(again.command(keys, expected=64).data[8:16], struct.pack(">Q", 0x77), "the registration")


@test
def digests_chap_and_pings_continue(t):
    s, address = target(t, "disk")
    keys = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}
    i = Initiator(address, TARGET, isid=5, keys=keys).ready()
    data = t.random.randbytes(64 * SECTOR)
    equal(i.write_blocks(8, data).status, GOOD, "a write")
    for _ in range(3):
        s.upgrade()
        equal(i.read_blocks(8, 64).data, data, "what it reads")
        equal(i.write_blocks(8, data).status, GOOD, "a write")
    sessions = s.json("target", "show", TARGET)["sessions"]
    equal(len(sessions), 1, f"sessions {sessions}")
    equal(i.logout(), 0, "logout")


@test
def connections_that_cannot_be_handed_over_are_closed(t):
    ours, _ = authorities(t)
    s, uri = tls_server(t, ours)
    import nbd

    over_tls = nbd.NBD()
    over_tls.set_uri_allow_local_file(True)
    over_tls.connect_uri(uri(ours.dir))
    negotiating = socket.socket(socket.AF_UNIX)
    negotiating.connect(s.nbd)
    negotiating.recv(18)
    report = s.upgrade()
    equal((report["connections"], report["closed"]), (0, 2), f"connections of {report}")
    equal(negotiating.recv(1), b"", "what the negotiating client receives")
    try:
        over_tls.pread(BLOCK, 0)
    except nbd.Error as e:
        check(e.errno in ("ENOTCONN", "EPIPE", "ECONNRESET", "EINVAL", None), f"{e}")
    else:
        raise Failed("a connection over TLS was handed over")


@test
def desktops_keep_their_contents(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("f", 4 * MIB))
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--reset", "disconnect")
    h = connect(s, "desk")
    h.pwrite(block(1, 1), 0)
    s.upgrade()
    equal(bytes(h.pread(BLOCK, 0)), block(1, 1), "what it wrote before the upgrade")
    h.pwrite(block(2, 2), BLOCK)
    s.upgrade()
    equal(bytes(h.pread(2 * BLOCK, 0)), block(1, 1) + block(2, 2), "what it wrote before the next one")
    h.shutdown()
    s.wait_unused("desk")
    h = connect(s, "desk")
    check(bytes(h.pread(BLOCK, 0)) != block(1, 1), "a desktop was not reset after its client disconnected")


def raw_nbd(path, export):
    """A raw connection in transmission, with simple replies."""
    c = socket.socket(socket.AF_UNIX)
    c.settimeout(30)
    c.connect(path)
    receive(c, 18)
    c.sendall(struct.pack(">I", 3) + struct.pack(">8sII", b"IHAVEOPT", 1, len(export)) + export.encode())
    receive(c, 10)
    return c


def request(kind, cookie, offset, length, flags=0):
    return struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length)


def receive(c, length):
    """Receives so many bytes."""
    data = b""
    while len(data) < length:
        piece = c.recv(length - len(data))
        check(piece, f"the connection was closed after {len(data)} of {length} bytes")
        data += piece
    return data


def reply(c, length=0):
    """The cookie and the data of a simple reply."""
    magic, error, cookie = struct.unpack(">IIQ", receive(c, 16))
    equal((magic, error), (0x67446698, 0), f"reply {cookie}")
    return cookie, receive(c, length)


@test
def requests_that_are_half_sent_and_replies_that_are_not_read_continue(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "64M")
    data = t.random.randbytes(8 * MIB)
    # The parts in which a long and a short write are sent, each before an upgrade.
    for size, cuts in ((8 * MIB, (5, 28, 5 * MIB)), (4096, (3, 27, 28, 3000))):
        c = raw_nbd(s.nbd, "v")
        message = request(1, 7, 4096, size) + data[:size]
        at = 0
        for cut in (*cuts, len(message)):
            c.sendall(message[at:cut])
            at = cut
            if cut < len(message):
                time.sleep(0.02)
                equal(s.upgrade()["connections"], 1, "connections")
        equal(reply(c), (7, b""), "the reply")
        c.sendall(request(0, 8, 4096, size))
        check(reply(c, size) == (8, data[:size]), f"what was written in {len(cuts) + 1} parts")
        c.close()
    # Replies that the client does not read before the upgrade.
    c = raw_nbd(s.nbd, "v")
    for cookie in range(6):
        c.sendall(request(0, cookie, 4096, 4 * MIB))
    time.sleep(0.3)
    equal(s.upgrade()["connections"], 1, "connections")
    c.sendall(request(0, 6, 4096, MIB))
    found = [reply(c, 4 * MIB) for _ in range(6)]
    equal(sorted(cookie for cookie, _ in found), list(range(6)), "replies")
    for _, got in found:
        check(got == (data[:4096] + data[4096 : 4 * MIB]), "data of a reply that was sent later")
    equal(reply(c, MIB), (6, data[:MIB]), "the reply to a request after the upgrade")
    # A refused write whose data is skipped, which is answered with an error.
    c.sendall(request(1, 9, 64 * MIB, 4096) + bytes(4096))
    equal(struct.unpack(">IIQ", receive(c, 16))[1:], (28, 9), "a write beyond the end")


@test
def clients_that_connect_during_an_upgrade_wait(t):
    """A UNIX and a TCP client connect again and again; none of them is refused."""
    s = t.server("--nbd", "127.0.0.1:0")
    s.cli("volume", "create", "v", "--size", "16M")
    port = nbd_port(s)
    stop, errors, count = threading.Event(), [], [0]

    def connect_often(uri):
        import nbd

        while not stop.is_set():
            h = nbd.NBD()
            try:
                h.connect_uri(uri)
                h.pread(512, 0)
                h.shutdown()
                count[0] += 1
            except nbd.Error as e:
                # A client that is negotiating at the moment of the hand-over is disconnected.
                if e.errno == "ECONNREFUSED" or "refused" in e.string:
                    errors.append(e)
                count[0] += 1

    threads = [threading.Thread(target=connect_often, args=(uri,)) for uri in (s.uri("v"), f"nbd://{port}/v")]
    for thread in threads:
        thread.start()
    for _ in range(10):
        time.sleep(0.1)
        s.upgrade()
    stop.set()
    for thread in threads:
        thread.join()
    check(not errors and count[0] > 20, f"{count[0]} connections, refused: {errors[:3]}")


@test
def clients_connect_while_a_pool_is_recovered(t):
    """After a crash the addresses are bound before the pool is opened, which takes long on this store."""
    config = t.path("config")
    with open(config, "w") as f:
        f.write('[store.slow]\nspindles = 1\nseek_ms = 300\nrpm = 7200\nrate = "100M"\n')
    s = t.server()
    s.cli("volume", "create", "v", "--size", "16M")
    s.kill()
    os.unlink(s.control)
    s.args += ["--config", config]
    s.launch()
    t.defer(s.close)
    begun, client = time.monotonic(), None
    while client is None:
        check(time.monotonic() - begun < 30, "the server does not listen")
        client = socket.socket(socket.AF_UNIX)
        try:
            # The file of the killed server is replaced.
            client.connect(s.nbd)
        except OSError:
            client = None
            time.sleep(0.002)
    check(not os.path.exists(s.control), "the server is ready before a client could connect")
    client.settimeout(60)
    equal(client.recv(8, socket.MSG_WAITALL), b"NBDMAGIC", "the greeting")


@test
def a_service_manager_passes_sockets(t):
    s = t.server(start=False)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(s.nbd)
    listener.listen(16)
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    control = socket.socket(socket.AF_UNIX)
    control.bind(s.control)
    control.listen(16)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(s.nbd)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(t.path("n"))
    notify.settimeout(30)

    def start(names, args):
        """Starts a server with these sockets as descriptors 3 to 5."""
        import forebay

        passed = [listener, tcp, control]

        def prepare():
            forebay.die_with_parent()
            held = [os.dup(sock.fileno()) for sock in passed]
            held = [os.dup2(fd, 20 + n) for n, fd in enumerate(held)]
            for n, fd in enumerate(held):
                os.dup2(fd, 3 + n)

        argv = [s.bin, "serve", "--data", s.data, "--socket", s.control, "--nbd", f"unix:{s.nbd}", *args]
        shell = 'LISTEN_PID=$$ exec "$@"'
        env = {**os.environ, "FOREBAY_MEMORY_DIR": s.memory, "NOTIFY_SOCKET": t.path("n")}
        env |= {"LISTEN_FDS": "3", "LISTEN_FDNAMES": names}
        with open(s.log, "ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", shell, "sh", *argv],
                preexec_fn=prepare,
                pass_fds=(3, 4, 5),
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    # The TCP address is not configured.
    equal(start("nbd:nbd:control", []).wait(30), 1, "exit status with a socket that is not configured")
    check("not configured" in s.log_tail(), s.log_tail())
    s.process = start("nbd:forebay.socket:control", ["--nbd", f"127.0.0.1:{port}"])
    equal(notify.recv(100), b"READY=1", "the first notification")
    equal(client.recv(8, socket.MSG_WAITALL), b"NBDMAGIC", "the greeting")
    s.cli("volume", "create", "v", "--size", "1M")
    h = connect(s, "v")
    check(notify_upgrade(s, notify) == s.process.pid, "the process that was reported")
    h.pwrite(block(1, 1), 0)
    connect(s, "v").shutdown()
    s.stop()
    equal(notify.recv(100), b"STOPPING=1", "the last notification")
    check(os.path.exists(s.nbd) and os.path.exists(s.control), "the sockets of the service manager were removed")


def notify_upgrade(s, notify):
    """Upgrades a server; returns the process id that the service manager is told."""
    s.upgrade()
    check(notify.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC="), "the beginning of an upgrade")
    told = {notify.recv(100) for _ in range(2)}
    equal(len(told), 1, f"what both processes say: {told}")
    first, second = told.pop().split(b"\n")
    equal(second, b"READY=1", "the end of an upgrade")
    return int(first.removeprefix(b"MAINPID="))
