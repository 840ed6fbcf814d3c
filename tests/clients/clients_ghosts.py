"""Clients that are cut while the server holds writes of theirs, and come back: no write of a connection that
was cut lands after one of the next. And a server that has lost its pool to another answers nothing.
"""

import concurrent.futures
import os
import shutil
import socket
import statistics
import struct
import threading
import time

from forebay import Server
from harness import Failed, check, test, wait_for

IHAVEOPT = 0x49484156454F5054
OPT_EXPORT_NAME = 1
REQUEST, REPLY = 0x25609513, 0x67446698
READ, WRITE, DISC, FLUSH = 0, 1, 2, 3

CUTS = int(os.environ.get("FOREBAY_GHOST_CUTS", "400"))
# Each has its own volume; all fill the same write buffer.
CLIENTS = 8
PIECES, PIECE = 16, 16 << 10
# How often A writes all pieces.
REPEATS = 6

# The smallest write buffer, and a store with the latency of one hard disk.
CONFIG = """
[memory]
write_buffer = "1M"
[log]
segment = "4M"
[store.slow]
spindles = 1
seek_ms = 4
rpm = 15000
rate = "40M"
"""


class Connection:
    """An NBD connection with simple replies."""

    def __init__(self, address, export):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(60)
        self.socket.connect(address)
        self.is_tcp = family == socket.AF_INET
        name = export.encode()
        self.socket.sendall(struct.pack(">IQII", 3, IHAVEOPT, OPT_EXPORT_NAME, len(name)) + name)
        self.receive(18 + 10)

    def receive(self, size):
        received = bytearray()
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                raise ConnectionError("the server closed the connection")
            received += piece
        return bytes(received)

    def send(self, kind, piece=0, length=0, data=b""):
        header = struct.pack(">IHHQQI", REQUEST, 0, kind, piece, piece * PIECE, length)
        self.socket.sendall(header + data)

    def reply(self, length=0):
        magic, error, _ = struct.unpack(">IIQ", self.receive(16))
        check(magic == REPLY and error == 0, f"reply {magic:#x}, error {error}")
        return self.receive(length)

    def flood(self, version):
        """Sends writes until the server accepts no more for a moment; reads no reply."""
        self.socket.settimeout(0.05)
        try:
            for _ in range(REPEATS):
                for piece in range(PIECES):
                    self.send(WRITE, piece, PIECE, bytes([version]) * PIECE)
        except TimeoutError:
            pass

    def write_all(self, version):
        for piece in range(PIECES):
            self.send(WRITE, piece, PIECE, bytes([version]) * PIECE)
        for _ in range(PIECES):
            self.reply()
        self.send(FLUSH)
        self.reply()

    def expect(self, version, what):
        for piece in range(PIECES):
            self.send(READ, piece, PIECE)
            data = self.reply(PIECE)
            if data != bytes([version]) * PIECE:
                found = sorted(set(data))
                raise Failed(f"{what}: piece {piece} holds {found} instead of {version}, which was flushed")

    def cut(self, how):
        if how == "reset" and self.is_tcp:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "reset":
            self.socket.shutdown(socket.SHUT_RDWR)
        elif self.is_tcp:
            # Replies that were not received would make the kernel reset the connection.
            self.socket.setblocking(False)
            try:
                while self.socket.recv(1 << 16):
                    pass
            except OSError:
                pass
        self.socket.close()


def client(addresses, export, cuts):
    for n in range(cuts):
        address, how = addresses[n % 2], ("reset", "close")[n // 2 % 2]
        version = n * 2 % 250 + 1
        old = Connection(address, export)
        old.flood(version)
        old.cut(how)
        new = Connection(addresses[n // 4 % 2], export)
        new.write_all(version + 1)
        what = f"cut {n} of {export} ({how}, {'TCP' if old.is_tcp else 'UNIX'})"
        new.expect(version + 1, what)
        # The server has forgotten the old connection: no event would show a write that lands late.
        time.sleep(0.1)
        new.expect(version + 1, f"{what}, later")
        new.send(DISC)
        new.socket.close()


@test
def no_write_of_a_cut_connection_lands_after_one_of_the_next(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}", config=CONFIG)
    volumes = [f"volume-{n}" for n in range(CLIENTS)]
    for volume in volumes:
        s.cli("volume", "create", volume, "--size", "1M")
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        cuts = max(1, CUTS // CLIENTS)
        clients = [pool.submit(client, (s.nbd, ("127.0.0.1", port)), v, cuts) for v in volumes]
        for done in clients:
            done.result()
    s.stop()


@test
def a_connection_next_to_a_busy_one_is_served(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}")
    s.cli("volume", "create", "v", "--size", "1M")
    done, requests = threading.Event(), [0]

    def load(busy):
        while not done.is_set():
            busy.send(WRITE, 0, PIECE, bytes(PIECE))
            busy.reply()
            requests[0] += 1
            time.sleep(0.002)

    waits = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # It sends steadily, for ever, and less in ten seconds than the buffers of a connection may hold.
        busy = pool.submit(load, Connection(("127.0.0.1", port), "v"))
        try:
            for _ in range(5):
                before = requests[0]
                wait_for(lambda least=before + 20: requests[0] >= least, "requests of the busy client")
                begun = time.monotonic()
                other = Connection(("127.0.0.1", port), "v")
                other.send(READ, 1, PIECE)
                other.reply(PIECE)
                waits.append(time.monotonic() - begun)
                other.socket.close()
        finally:
            done.set()
        busy.result()
    # Each is half a second and more; it grows with each burst unless the replies show that the busy client is
    # connected. The server refuses the connection after ten seconds.
    check(statistics.median(waits) < 8, f"the waits were {waits} s")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@test
def a_server_that_lost_its_pool_answers_nothing_and_exits(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "16M")
    first = Connection(s.nbd, "disk")
    first.write_all(7)
    # Another server opens the pool: a copy of its directory, whose superblock then replaces the one in use.
    # The lock of the directory prevents this as long as both use the same file system.
    other = t.path("other")
    shutil.copytree(s.data, other)
    with Server(other, log=t.path("other.log")) as second:
        second.stop()
    with open(os.path.join(other, "superblock"), "rb") as newer:
        content = newer.read()
    with open(os.path.join(s.data, "superblock"), "r+b") as superblock:
        superblock.write(content)
        os.fsync(superblock.fileno())
    # A reclaim makes a checkpoint, which finds the other server's superblock.
    s.cli("gc", check=False)
    try:
        first.send(WRITE, 0, PIECE, bytes(PIECE))
        first.reply()
        raise Failed("a server without a pool answered a write")
    except (ConnectionError, OSError):
        pass
    status = s.wait(60)
    check(status == 69, f"exit status {status}")
    check("another server has opened the pool" in s.log_tail(), f"no reason in the log:\n{s.log_tail()}")
