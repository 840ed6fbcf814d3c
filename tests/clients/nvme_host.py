"""A small NVMe/TCP host for tests, which can also send invalid PDUs.

`Queue` is one connection: it is initialized and connects a queue. `Host` has an admin queue and I/O queues.
Commands are sent with `submit` and collected with `complete`, or both with `command`.
"""

import socket
import struct

from initiator import Connection, crc32c

HOST = "nqn.2026-01.org.example:host"
HOST_ID = b"a host of a test"
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
BLOCK = 512
ANY_CONTROLLER = 0xFFFF
# Types of PDUs.
IC_REQ, IC_RESP, H2C_TERM, C2H_TERM, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
# Fatal error statuses.
BAD_HEADER, SEQUENCE, HEADER_DIGEST, OUT_OF_RANGE, LIMIT, UNSUPPORTED = 1, 2, 3, 4, 5, 6
# Statuses: type and code.
INVALID_OPCODE, INVALID_FIELD, ID_CONFLICT, FAILED_FUSED = (0, 1), (0, 2), (0, 3), (0, 9)
MISSING_FUSED, INVALID_NAMESPACE, SEQUENCE_ERROR = (0, 10), (0, 11), (0, 12)
BAD_LENGTH, ATOMIC_EXCEEDED, PROTECTED, TRANSPORT_ERROR = (0, 0x0F), (0, 0x14), (0, 0x20), (0, 0x22)
OUT_OF_LBAS, CONFLICT, EVENT_LIMIT, BAD_LOG = (0, 0x80), (0, 0x83), (1, 5), (1, 9)
INVALID_CONNECT, INVALID_HOST, COMPARE_FAILURE = (1, 0x82), (1, 0x84), (2, 0x85)
OK = (0, 0)
# I/O commands.
FLUSH, WRITE, READ, COMPARE, ZEROES, DATASET, VERIFY = 0, 1, 2, 5, 8, 9, 12
# Admin commands.
LOG, IDENTIFY, ABORT, SET, GET, EVENT, KEEP_ALIVE, FABRICS = 2, 6, 8, 9, 10, 12, 0x18, 0x7F
FUA, DEALLOCATE = 1 << 30, 1 << 25
FIRST, SECOND = 1, 2


class Terminated(Exception):
    """The controller reported a fatal error; `status` is its status, `information` its information."""

    def __init__(self, status, information):
        super().__init__(f"fatal error status {status}, {information:#x}")
        self.status, self.information = status, information


class Failed(Exception):
    """A command that failed; `status` is the type and the code."""

    def __init__(self, status):
        super().__init__(f"status {status[0]}, {status[1]:#x}")
        self.status = status


class Result:
    """The result of a command."""

    def __init__(self, status, result, data, head):
        self.status, self.result, self.data, self.head = status, result, data, head


class Queue(Connection):
    """A connection. `controller` is set for an I/O queue; `connect` False leaves the queue unconnected.
    `authenticate` is called with the queue, the host and the subsystem after the Connect."""

    def __init__(
        self,
        address,
        subsystem,
        host=HOST,
        number=0,
        controller=ANY_CONTROLLER,
        digests=0,
        entries=32,
        kato=0,
        host_id=HOST_ID,
        attributes=0,
        connect=True,
        timeout=60,
        authenticate=None,
        source=None,
    ):
        super().__init__(address, timeout, source)
        self.next_id, self.digests = 0, 0
        self.sent, self.data, self.done = {}, {}, {}
        self.damage = None
        self.holds = set()
        self.send(IC_REQ, struct.pack("<HBBI", 0, 0, digests, 0) + bytes(112))
        header, _ = self.receive()
        if header[0] != IC_RESP:
            raise Failed((7, header[0]))
        self.max_data = struct.unpack_from("<I", header, 12)[0]
        self.digests = digests
        if connect:
            data = host_id.ljust(16, b"\0") + struct.pack("<H", controller) + bytes(238)
            data += subsystem.encode().ljust(256, b"\0") + host.encode().ljust(256, b"\0") + bytes(256)
            words = struct.pack("<HHHBBI", 0, number, entries - 1, attributes, 0, kato)
            done = self.command(FABRICS, tail=words, data=data, namespace=1)
            if done.status != OK:
                self.close()
                raise Failed(done.status)
            self.controller, self.requires = done.result & 0xFFFF, done.result >> 16
            if authenticate:
                authenticate(self, host, subsystem)

    def close(self):
        self.socket.close()

    def send(self, kind, header, data=b"", flags=0, damage=None, total=None):
        """Sends a PDU. `damage` is "header" or "data" for a wrong digest."""
        digests = self.digests if kind in (COMMAND, H2C_DATA) else 0
        flags |= (digests & 1) | (digests & 2 if data else 0)
        length = 8 + len(header)
        offset = length + (4 if digests & 1 else 0)
        size = offset + len(data) + (4 if data and digests & 2 else 0)
        out = struct.pack("<BBBBI", kind, flags, length, offset if data else 0, total or size) + header
        if digests & 1:
            out += crc32c(out) if damage != "header" else b"oops"
        out += data
        if data and digests & 2:
            out += crc32c(data) if damage != "data" else b"oops"
        self.socket.sendall(out)

    def receive(self):
        """The header and the data of the next PDU, whose digests are checked."""
        head = self.read(8)
        kind, flags, length, offset, total = struct.unpack("<BBBBI", head)
        rest = self.read(total - 8)
        header = head + rest[: length - 8]
        if flags & 1 and rest[length - 8 : length - 4] != crc32c(header):
            raise AssertionError("a header digest of the controller is wrong")
        if kind == C2H_TERM:
            raise Terminated(*struct.unpack_from("<HI", header, 8))
        data = b""
        if kind == C2H_DATA:
            data = rest[offset - 8 :]
            if flags & 2:
                data, digest = data[:-4], data[-4:]
                if digest != crc32c(data):
                    raise AssertionError("a data digest of the controller is wrong")
        return header, data

    def submit(
        self,
        opcode,
        namespace=1,
        words=(),
        data=b"",
        expects=0,
        fuse=0,
        tail=None,
        in_capsule=None,
        command=None,
        damage=None,
        sgl_len=None,
    ):
        """Sends a command; returns its identifier. `words` are the command dwords from 10 on, or `tail`
        their bytes."""
        if command is None:
            command = self.next_id
            self.next_id = (self.next_id + 1) % 0xFF00
        if in_capsule is None:
            in_capsule = len(data) <= 8192
        length = len(data) or expects
        kind = 0x01 if data and in_capsule else 0x5A
        if sgl_len is not None:
            length = sgl_len
        sqe = struct.pack("<BBH", opcode, 0x40 | fuse, command)
        # The type of a fabrics command is in the place of the namespace.
        sqe += struct.pack("<I", namespace) + bytes(16) + struct.pack("<QI3xB", 0, length, kind)
        sqe += tail if tail is not None else struct.pack(f"<{len(words)}I", *words)
        self.sent[command] = data
        self.send(COMMAND, sqe.ljust(64, b"\0"), data if in_capsule else b"", damage=damage)
        return command

    def step(self):
        """Receives a PDU, and answers it if it requests data."""
        header, data = self.receive()
        kind = header[0]
        if kind == RESPONSE:
            result, head, _, command, status = struct.unpack_from("<QHHHH", header, 8)
            status = (status >> 9 & 7, status >> 1 & 0xFF)
            self.done[command] = Result(status, result, self.data.pop(command, b""), head)
        elif kind == C2H_DATA:
            command, _, offset, length = struct.unpack_from("<HHII", header, 8)
            self.data[command] = self.data.get(command, b"") + data
            if header[1] & 8:
                self.done[command] = Result(OK, 0, self.data.pop(command), None)
        elif kind == R2T:
            command, tag, offset, length = struct.unpack_from("<HHII", header, 8)
            if command in self.holds:
                self.held = (command, tag, offset, length)
            else:
                self.answer(command, tag, offset, length)

    def answer(self, command, tag, offset, length, damage=None):
        """Sends the data that an R2T requests."""
        data = self.sent[command][offset : offset + length]
        for at in range(0, length, self.max_data):
            piece = data[at : at + self.max_data]
            last = at + len(piece) == length
            header = struct.pack("<HHII4x", command, tag, offset + at, len(piece))
            self.send(H2C_DATA, header, piece, flags=4 if last else 0, damage=damage)

    def complete(self, command):
        """Waits for the completion of a command."""
        while command not in self.done:
            self.step()
        self.sent.pop(command, None)
        return self.done.pop(command)

    def command(self, opcode, **parameters):
        return self.complete(self.submit(opcode, **parameters))

    # I/O commands.

    def range(self, block, data_or_count, controls=0):
        count = data_or_count if isinstance(data_or_count, int) else len(data_or_count) // BLOCK
        return (block & 0xFFFFFFFF, block >> 32, count - 1 | controls)

    def write(self, block, data, controls=0, namespace=1, **more):
        return self.command(WRITE, namespace=namespace, words=self.range(block, data, controls), data=data, **more)

    def blocks(self, block, count=1, namespace=1, **more):
        return self.command(READ, namespace=namespace, words=self.range(block, count), expects=count * BLOCK, **more)

    def compare(self, block, data, **more):
        return self.command(COMPARE, words=self.range(block, data), data=data, **more)

    def deallocate(self, ranges, namespace=1, page=False):
        """Deallocates ranges of block and count; with `page` the data has as many bytes as Linux sends."""
        data = b"".join(struct.pack("<IIQ", 0, count, block) for block, count in ranges)
        data = data.ljust(4096, b"\xff") if page else data
        return self.command(DATASET, namespace=namespace, words=(len(ranges) - 1, 4), data=data)

    def fused(self, block, expected, new, in_capsule=None, controls=0):
        """Submits both commands of a Compare and Write; returns both results."""
        words = self.range(block, expected)
        first = self.submit(COMPARE, words=words, data=expected, fuse=FIRST, in_capsule=in_capsule)
        second = self.submit(
            WRITE, words=self.range(block, new, controls), data=new, fuse=SECOND, in_capsule=in_capsule
        )
        return self.complete(first), self.complete(second)

    # Fabrics and admin commands.

    def property(self, offset, value=None, long=False):
        if value is None:
            return self.command(FABRICS, namespace=4, tail=struct.pack("<B3xI", int(long), offset))
        return self.command(FABRICS, namespace=0, tail=struct.pack("<B3xIQ", int(long), offset, value))

    def identify(self, structure, namespace=0):
        return self.command(IDENTIFY, namespace=namespace, words=(structure,), expects=4096)

    def log(self, page, length, offset=0):
        dwords = length // 4 - 1
        words = (page | (dwords & 0xFFFF) << 16, dwords >> 16, offset & 0xFFFFFFFF, offset >> 32)
        return self.command(LOG, namespace=0xFFFFFFFF, words=words, expects=length)


class Host:
    """A controller with an admin queue, and I/O queues."""

    def __init__(self, address, subsystem, queues=1, kato=0, **settings):
        self.address, self.subsystem, self.settings = address, subsystem, settings
        self.admin = Queue(address, subsystem, kato=kato, **settings)
        done = self.admin.property(0x14, 0x00460001)
        if done.status != OK:
            raise Failed(done.status)
        while not self.admin.property(0x1C).result & 1:
            pass
        self.queues = [self.queue(n + 1) for n in range(queues)]

    def queue(self, number, **more):
        settings = {**self.settings, **more}
        return Queue(self.address, self.subsystem, number=number, controller=self.admin.controller, **settings)

    def close(self):
        for queue in (*self.queues, self.admin):
            queue.close()
