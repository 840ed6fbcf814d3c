"""A small iSCSI initiator (RFC 7143) for tests, which can also send invalid requests.

One connection, one command at a time. `Initiator` logs in, `command` sends a CDB and returns a `Result`; the
PDUs themselves can be sent and received with `send` and `receive`.
"""

import hashlib
import socket
import struct
from dataclasses import dataclass

NAME = "iqn.2026-01.org.example:tester"
BLOCK = 512
GOOD, CHECK, BUSY, CONFLICT = 0x00, 0x02, 0x08, 0x18
HASHES = {5: hashlib.md5, 6: hashlib.sha1, 7: hashlib.sha256, 8: hashlib.sha3_256}


class Refused(Exception):
    """A login that was rejected; `status` is its class and detail."""

    def __init__(self, status):
        super().__init__(f"login status {status:#06x}")
        self.status = status


class Closed(Exception):
    """The target closed the connection."""


@dataclass
class Result:
    """The result of a command."""

    status: int
    data: bytes = b""
    sense: bytes = b""
    residual: int = 0

    @property
    def code(self):
        """Sense key, additional sense code and qualifier, of sense data in fixed format."""
        return (self.sense[2] & 15, self.sense[12], self.sense[13]) if len(self.sense) > 13 else None


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def pairs(text):
    return dict(pair.split("=", 1) for pair in text.decode().split("\0") if pair)


def text_of(keys):
    return b"".join(f"{key}={value}\0".encode() for key, value in keys.items())


# Thin provisioning soft threshold reached.
LOW = (6, 0x38, 7)


class Connection:
    """A connection with a target, whose bytes are read in pieces of a wanted length."""

    def __init__(self, address, timeout, source=None):
        self.socket = socket.create_connection(address, timeout, source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def read(self, count):
        while len(self.buffer) < count:
            try:
                more = self.socket.recv(1 << 18)
            except ConnectionError as e:
                raise Closed from e
            if not more:
                raise Closed
            self.buffer += more
        out, self.buffer = self.buffer[:count], self.buffer[count:]
        return out


class Initiator(Connection):
    """A session. `chap` is (user, secret), `mutual` the secret that the target must prove, `algorithm` one
    algorithm or a list with commas; the attribute `algorithm` is the one that the target selected."""

    def __init__(self, address, target=None, name=NAME, isid=1, chap=None, mutual=None, algorithm=5, keys=(), timeout=60, source=None):
        super().__init__(address, timeout, source and (source, 0))
        self.isid = struct.pack(">BHBH", 0x80, 0, 0, isid)
        self.tag, self.cmd_sn, self.exp_stat_sn = 0, 1, 0
        self.hears_room = False
        self.header_digest = self.data_digest = False
        first = {"InitiatorName": name, "SessionType": "Normal" if target else "Discovery"}
        if target:
            first["TargetName"] = target
        if chap:
            self.authenticate(first, chap, mutual, algorithm)
            first = {}
        wanted = {"HeaderDigest": "None", "DataDigest": "None", "MaxRecvDataSegmentLength": "65536", **dict(keys)}
        if target:
            wanted = {"InitialR2T": "Yes", "ImmediateData": "Yes", **wanted}
        agreed = self.login(0x87, {**first, **wanted})
        self.header_digest = agreed.get("HeaderDigest") == "CRC32C"
        self.data_digest = agreed.get("DataDigest") == "CRC32C"
        self.agreed = agreed

    def authenticate(self, first, chap, mutual, algorithm):
        self.login(0x00, {**first, "AuthMethod": "CHAP"})
        asked = self.login(0x00, {"CHAP_A": algorithm})
        self.algorithm = int(asked["CHAP_A"])
        hash_of = HASHES[self.algorithm]
        challenge = bytes.fromhex(asked["CHAP_C"][2:])
        user, secret = chap
        answer = hash_of(bytes([int(asked["CHAP_I"])]) + secret.encode() + challenge).hexdigest()
        proof = {"CHAP_N": user, "CHAP_R": "0x" + answer}
        if mutual:
            proof |= {"CHAP_I": "77", "CHAP_C": "0x" + "5a" * 20}
        said = self.login(0x81, proof)
        if mutual:
            right = hash_of(bytes([77]) + mutual.encode() + b"\x5a" * 20).hexdigest()
            if said.get("CHAP_R") != "0x" + right:
                raise Refused(0)

    def login(self, flags, keys):
        """Sends one request of the login phase; returns the keys of its answer."""
        header = bytearray(48)
        header[0], header[1] = 0x43, flags
        header[8:14] = self.isid
        struct.pack_into(">IHHII", header, 16, 0x1000, 0, 0, self.cmd_sn, self.exp_stat_sn)
        self.send(header, text_of(keys))
        answer, data = self.receive()
        status = struct.unpack_from(">H", answer, 36)[0]
        if answer[0] != 0x23 or status:
            raise Refused(status)
        return pairs(data)

    def send(self, header, data=b"", damage=None):
        """Sends a PDU. `damage` is "header" or "data" for a wrong digest."""
        header = bytearray(header)
        header[5:8] = len(data).to_bytes(3, "big")
        out = bytes(header)
        if self.header_digest:
            out += crc32c(header) if damage != "header" else b"oops"
        padded = data + bytes(-len(data) % 4)
        out += padded
        if data and self.data_digest:
            out += crc32c(padded) if damage != "data" else b"oops"
        self.socket.sendall(out)

    def receive(self):
        """Receives the next PDU: its header and its data."""
        header = self.read(48)
        if self.header_digest and self.read(4) != crc32c(header):
            raise Refused(1)
        length = int.from_bytes(header[5:8], "big")
        data = self.read(length + -length % 4)
        if length and self.data_digest and self.read(4) != crc32c(data):
            raise Refused(2)
        if header[0] in (0x20, 0x21, 0x22, 0x23, 0x24, 0x26, 0x32, 0x3F) or (header[0] == 0x25 and header[1] & 1):
            self.exp_stat_sn = struct.unpack_from(">I", header, 24)[0] + 1 & 0xFFFFFFFF
        return header, data[:length]

    def command_pdu(self, cdb, expected=0, out=None, lun=0, final=True):
        """The header of a command with the next number."""
        self.tag += 1
        header = bytearray(48)
        header[0] = 0x01
        header[1] = (0x80 if final else 0) | (0x20 if out is not None else 0x40 if expected else 0)
        header[9] = lun
        length = len(out) if out is not None else expected
        struct.pack_into(">IIII", header, 16, self.tag, length, self.cmd_sn, self.exp_stat_sn)
        header[32 : 32 + len(cdb)] = cdb
        self.cmd_sn = self.cmd_sn + 1 & 0xFFFFFFFF
        return header

    def command(self, cdb, expected=0, out=None, lun=0):
        """Executes a command, as `not_low` does."""

        def execute():
            self.send(self.command_pdu(cdb, expected, out, lun), out[:8192] if out else b"")
            return self.result(out)

        return self.not_low(execute)

    def not_low(self, execute):
        """Calls `execute`, which returns the result of a command, again after a unit attention that states
        that the store is low on room, unless `hears_room` is set: that depends on the machine's disk."""
        while (result := execute()).code == LOW and not self.hears_room:
            pass
        return result

    def result(self, out=None):
        """The result of the last command; sends its data when requested."""
        data = bytearray()
        while True:
            header, piece = self.receive()
            opcode = header[0]
            if opcode == 0x31:
                self.data_out(header, out)
            elif opcode == 0x25:
                data += piece
                if header[1] & 1:
                    return Result(header[3], bytes(data), b"", struct.unpack_from(">I", header, 44)[0])
            elif opcode == 0x21:
                return Result(header[3], bytes(data), piece[2:], struct.unpack_from(">I", header, 44)[0])
            elif opcode == 0x3F:
                return Result(-header[2])

    def data_out(self, r2t, out):
        transfer_tag, offset, length = (struct.unpack_from(">I", r2t, at)[0] for at in (20, 40, 44))
        sent = 0
        while sent < length:
            piece = out[offset + sent : offset + min(length, sent + 8192)]
            header = bytearray(48)
            header[0], header[1] = 0x05, 0x80 if sent + len(piece) == length else 0
            header[16:20] = r2t[16:20]
            struct.pack_into(">I", header, 20, transfer_tag)
            struct.pack_into(">I", header, 28, self.exp_stat_sn)
            struct.pack_into(">II", header, 36, sent // 8192, offset + sent)
            self.send(header, piece)
            sent += len(piece)

    def ready(self, lun=0):
        """Executes commands until no unit attention is pending."""
        while self.command(bytes(6), lun=lun).status == CHECK:
            pass
        # The first good one notes that the store is low on room.
        self.command(bytes(6), lun=lun)
        return self

    def read_blocks(self, lba, count, lun=0):
        return self.command(struct.pack(">BBQIBB", 0x88, 0, lba, count, 0, 0), expected=count * BLOCK, lun=lun)

    def write_blocks(self, lba, data, lun=0):
        return self.command(struct.pack(">BBQIBB", 0x8A, 0, lba, len(data) // BLOCK, 0, 0), out=data, lun=lun)

    def compare_and_write(self, lba, expected, new, lun=0):
        cdb = struct.pack(">BBQBBBBBB", 0x89, 0, lba, 0, 0, 0, len(new) // BLOCK, 0, 0)
        return self.command(cdb, out=expected + new, lun=lun)

    def text(self, keys, pieces=1):
        """The lines of the answer to a text request, which is sent in `pieces`."""
        self.tag += 1
        asked = text_of(keys)
        size = -(-len(asked) // pieces)
        for at in range(0, len(asked), size):
            piece = asked[at : at + size]
            last = at + size >= len(asked)
            answer, said = self.text_pdu(0x80 if last else 0x40, piece, answer if at else None)
            if not last and (answer[1], said) != (0, b""):
                raise ValueError(f"an incomplete text request was answered: {answer.hex()} {said}")
        while answer[1] & 0x40:
            answer, more = self.text_pdu(0x80, b"", answer)
            said += more
        return [line for line in said.decode().split("\0") if line]

    def text_pdu(self, flags, data, before):
        header = bytearray(48)
        header[0], header[1] = 0x04, flags
        transfer_tag = before[20:24] if before else b"\xff\xff\xff\xff"
        struct.pack_into(">I4sII", header, 16, self.tag, transfer_tag, self.cmd_sn, self.exp_stat_sn)
        self.cmd_sn = self.cmd_sn + 1 & 0xFFFFFFFF
        self.send(header, data)
        return self.receive()

    def manage(self, function, tag=0xFFFFFFFF, lun=0):
        """Sends a task management function, which the window does not limit."""
        header = bytearray(48)
        header[0], header[1], header[9] = 0x42, 0x80 | function, lun
        struct.pack_into(">IIIII", header, 16, 0x3000, tag, self.cmd_sn, self.exp_stat_sn, self.cmd_sn)
        self.send(header)

    def logout(self):
        header = bytearray(48)
        header[0], header[1] = 0x46, 0x80
        struct.pack_into(">IIII", header, 16, 0x2000, 0, self.cmd_sn, self.exp_stat_sn)
        self.send(header)
        answer, _ = self.receive()
        self.close()
        return answer[2]

    def close(self):
        self.socket.close()
