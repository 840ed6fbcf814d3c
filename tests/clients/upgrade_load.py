"""Load on a server over NBD and iSCSI, for tests that replace the server: each client keeps its connection,
and checks what it reads.
"""

import struct
import threading
import time

from datastore import TARGET, target
from forebay import Failed
from harness import BLOCK, check, equal, wait_for
from initiator import BLOCK as SECTOR
from initiator import CHECK, GOOD, Initiator

DEPTH = 32
# Longest request: far longer than one on a busy test machine with a slow disk, but one that hangs takes
# longer.
LONGEST_S = 60.0
# Requests of a load between two upgrades.
PROGRESS = 20


def block(number, version):
    return struct.pack(">QQ", number, version) * (BLOCK // 16)


class Load(threading.Thread):
    """Writes versions of blocks and reads them back, until it is stopped."""

    longest_s = LONGEST_S

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
        check(self.longest < self.longest_s, f"{self.name}: a request took {self.longest:.1f} s")


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
        version = self.versions.get(run, 0)
        if version and self.random.random() < 0.5:
            self.issue(free, flying, run, version, None)
        else:
            self.versions[run] = version + 1
            self.issue(free, flying, run, None, self.data(run, version + 1))

    def issue(self, free, flying, run, version, out):
        """Sends a command: a read that must find `version`, or a write of `out`."""
        session = self.session
        cdb = struct.pack(">BBQIBB", 0x8A if out else 0x88, 0, run * self.SECTORS, self.SECTORS, 0, 0)
        header = session.command_pdu(cdb, expected=self.SECTORS * SECTOR, out=out, lun=self.lun)
        session.send(header, out[:8192] if out else b"")
        flying[session.tag] = [time.monotonic(), out, bytearray(), (run, version), free]

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
        if opcode == 0x21 and header[3] == CHECK and piece[4] & 15 == 6:
            # A unit attention, such as that of a disk that is low on room.
            del flying[tag]
            self.issue(free, flying, run, version, out)
            return
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


def wait_progress(loads):
    """Waits until each load has made some requests, or has failed."""
    before = [load.requests for load in loads]
    made = lambda load, n: load.error or load.requests >= n + PROGRESS  # noqa: E731
    wait_for(lambda: all(made(load, n) for load, n in zip(loads, before)), "requests of each load")


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
