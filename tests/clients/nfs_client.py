"""A small NFS client for tests, which can also send invalid messages, and the same message twice.

Handles are bytes. A call that fails raises `Failed` with the status of NFS.
"""

import random
import socket
import struct

NFS, MOUNT, PORTMAP = 100003, 100005, 100000
OK, PERM, NOENT, IO, ACCES, EXIST, NOTDIR, ISDIR, INVAL = 0, 1, 2, 5, 13, 17, 20, 21, 22
FBIG, NOSPC, ROFS, NAMETOOLONG, NOTEMPTY, STALE = 27, 28, 30, 63, 66, 70
BADHANDLE, NOT_SYNC, NOTSUPP, TOOSMALL, BADTYPE = 10001, 10002, 10004, 10005, 10007
UNSTABLE, DATA_SYNC, FILE_SYNC = 0, 1, 2
UNCHECKED, GUARDED, EXCLUSIVE = 0, 1, 2
REG, DIR, LNK = 1, 2, 5
(NULL, GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
 RENAME, LINK, READDIR, READDIRPLUS, FSSTAT, FSINFO, PATHCONF, COMMIT) = range(22)
ATTRIBUTES = ("kind", "mode", "nlink", "uid", "gid", "size", "used", "rdev", "fsid", "fileid", "atime", "mtime", "ctime")


class Failed(Exception):
    """A call that failed with a status of NFS or MOUNT."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class Refused(Exception):
    """A call that RPC refused: ('accepted', status) or ('denied', ...)."""

    def __init__(self, *why):
        super().__init__(str(why))
        self.why = why


class Gone(Exception):
    """The server has closed the connection."""


def opaque(data):
    """Variable-length opaque data."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def words(*numbers):
    """Unsigned integers."""
    return struct.pack(f">{len(numbers)}I", *numbers)


def sattr(mode=None, uid=None, gid=None, size=None, atime=None, mtime=None):
    """Attributes to be set; times are pairs, or `True` for the time of the server."""
    out = b""
    for value, form in ((mode, ">I"), (uid, ">I"), (gid, ">I"), (size, ">Q")):
        out += words(0) if value is None else words(1) + struct.pack(form, value)
    for time in (atime, mtime):
        out += words(0) if time is None else words(1) if time is True else words(2, *time)
    return out


class Reader:
    """Decodes results."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def u32(self):
        (value,) = struct.unpack_from(">I", self.data, self.at)
        self.at += 4
        return value

    def u64(self):
        return self.u32() << 32 | self.u32()

    def fixed(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def opaque(self):
        data = self.fixed(length := self.u32())
        self.at += -length % 4
        return data

    def time(self):
        return (self.u32(), self.u32())

    def attributes(self):
        values = [self.u32() for _ in range(5)] + [self.u64(), self.u64(), self.u64(), self.u64(), self.u64()]
        return dict(zip(ATTRIBUTES, values + [self.time(), self.time(), self.time()]))

    def post_op(self):
        return self.attributes() if self.u32() else None

    def wcc(self):
        before = {"size": self.u64(), "mtime": self.time(), "ctime": self.time()} if self.u32() else None
        return {"before": before, "after": self.post_op()}

    def end(self):
        if self.at != len(self.data):
            raise AssertionError(f"{len(self.data) - self.at} bytes after the results")


class Client:
    """A connection to an NFS server."""

    def __init__(self, port, host="127.0.0.1", uid=0, gid=0, groups=()):
        self.address, self.credential = (host, port), (uid, gid, tuple(groups))
        self.xid = random.getrandbits(31)
        self.connect()

    def connect(self):
        """Connects, or connects again."""
        self.sock = socket.create_connection(self.address, timeout=120)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self):
        self.sock.close()

    def message(self, program, procedure, args, version=3, xid=None, flavor=1):
        """The message of a call, and its number."""
        if xid is None:
            self.xid = xid = (self.xid + 1) & 0xFFFFFFFF
        uid, gid, groups = self.credential
        body = words(0) + opaque(b"test") + words(uid, gid, len(groups), *groups) if flavor == 1 else b""
        call = words(xid, 0, 2, program, version, procedure, flavor) + opaque(body) + words(0, 0) + args
        return xid, call

    def send(self, message, fragments=1):
        """Sends a message as a record."""
        size = -(-len(message) // fragments)
        parts = [message[i : i + size] for i in range(0, len(message), size)]
        for n, part in enumerate(parts):
            self.sock.sendall(words(len(part) | (n + 1 == len(parts)) << 31) + part)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                part = self.sock.recv(count - len(data))
            except ConnectionError as error:
                raise Gone from error
            if not part:
                raise Gone
            data += part
        return data

    def receive(self):
        """Receives a reply: its number, and a reader of its results."""
        (mark,) = struct.unpack(">I", self.exactly(4))
        assert mark >> 31, "a reply has several fragments"
        reader = Reader(self.exactly(mark & 0x7FFFFFFF))
        xid = reader.u32()
        assert reader.u32() == 1, "not a reply"
        if reader.u32():
            raise Refused("denied", *struct.unpack(f">{(len(reader.data) - 12) // 4}I", reader.data[12:]))
        assert (reader.u32(), reader.opaque()) == (0, b""), "a verifier"
        if status := reader.u32():
            raise Refused("accepted", status)
        return xid, reader

    def call(self, program, procedure, args=b"", **options):
        """Makes a call, and returns a reader of its results."""
        xid, message = self.message(program, procedure, args, **options)
        self.send(message)
        found, reader = self.receive()
        assert found == xid, "a reply with another number"
        return reader

    def nfs(self, procedure, args=b"", **options):
        """Makes a call of NFS that succeeds, and returns a reader after its status."""
        reader = self.call(NFS, procedure, args, **options)
        if status := reader.u32():
            failed = Failed(status)
            failed.reader = reader
            raise failed
        return reader

    def mount(self, path=b"/"):
        """The handle of a directory."""
        reader = self.call(MOUNT, 1, opaque(path))
        if status := reader.u32():
            raise Failed(status)
        return reader.opaque()

    def getattr(self, file):
        return self.nfs(GETATTR, opaque(file)).attributes()

    def setattr(self, file, guard=None, **attributes):
        guarded = words(0) if guard is None else words(1, *guard)
        return self.nfs(SETATTR, opaque(file) + sattr(**attributes) + guarded).wcc()

    def lookup(self, directory, name):
        return self.nfs(LOOKUP, opaque(directory) + opaque(name)).opaque()

    def access(self, file, wanted=0x3F):
        reader = self.nfs(ACCESS, opaque(file) + words(wanted))
        reader.post_op()
        return reader.u32()

    def read(self, file, offset, count):
        """The data, and whether it ends the file."""
        reader = self.nfs(READ, opaque(file) + struct.pack(">QI", offset, count))
        reader.post_op()
        found, eof = reader.u32(), reader.u32()
        data = reader.opaque()
        assert len(data) == found
        reader.end()
        return data, bool(eof)

    def write(self, file, offset, data, stable=UNSTABLE):
        """The stability of the data, and the verifier; `self.wcc` has the attributes."""
        args = opaque(file) + struct.pack(">QII", offset, len(data), stable) + opaque(data)
        reader = self.nfs(WRITE, args)
        self.wcc = reader.wcc()
        count, committed, verifier = reader.u32(), reader.u32(), reader.fixed(8)
        assert count == len(data)
        reader.end()
        return committed, verifier

    def commit(self, file):
        reader = self.nfs(COMMIT, opaque(file) + struct.pack(">QI", 0, 0))
        self.wcc = reader.wcc()
        return reader.fixed(8)

    def made(self, reader):
        assert reader.u32() == 1, "no handle"
        handle = reader.opaque()
        self.attributes = reader.post_op()
        self.wcc = reader.wcc()
        reader.end()
        return handle

    def create(self, directory, name, how=GUARDED, verifier=None, **attributes):
        tail = verifier if how == EXCLUSIVE else sattr(**attributes)
        return self.made(self.nfs(CREATE, opaque(directory) + opaque(name) + words(how) + tail))

    def mkdir(self, directory, name, **attributes):
        return self.made(self.nfs(MKDIR, opaque(directory) + opaque(name) + sattr(**attributes)))

    def symlink(self, directory, name, target, **attributes):
        return self.made(
            self.nfs(SYMLINK, opaque(directory) + opaque(name) + sattr(**attributes) + opaque(target))
        )

    def readlink(self, link):
        reader = self.nfs(READLINK, opaque(link))
        reader.post_op()
        return reader.opaque()

    def remove(self, directory, name):
        return self.nfs(REMOVE, opaque(directory) + opaque(name)).wcc()

    def rmdir(self, directory, name):
        return self.nfs(RMDIR, opaque(directory) + opaque(name)).wcc()

    def rename(self, source, name, target, other):
        reader = self.nfs(RENAME, opaque(source) + opaque(name) + opaque(target) + opaque(other))
        return reader.wcc(), reader.wcc()

    def link(self, file, directory, name):
        reader = self.nfs(LINK, opaque(file) + opaque(directory) + opaque(name))
        return reader.post_op(), reader.wcc()

    def page(self, directory, cookie=0, count=4096, plus=False):
        """A page of a listing: entries with their fileid, name and cookie, and whether it is the last one."""
        counts = words(count, count) if plus else words(count)
        args = opaque(directory) + struct.pack(">Q", cookie) + bytes(8) + counts
        reader = self.nfs(READDIRPLUS if plus else READDIR, args)
        assert len(reader.data) - 24 <= count, "a longer listing than was asked for"
        reader.post_op()
        reader.fixed(8)
        entries = []
        while reader.u32():
            entry = {"fileid": reader.u64(), "name": reader.opaque(), "cookie": reader.u64()}
            if plus:
                entry["attributes"] = reader.post_op()
                entry["handle"] = reader.opaque() if reader.u32() else None
            entries.append(entry)
        eof = bool(reader.u32())
        reader.end()
        return entries, eof

    def names(self, directory, count=4096):
        """All names of a directory, without those of itself and its parent."""
        found, cookie, eof = [], 0, False
        while not eof:
            entries, eof = self.page(directory, cookie, count)
            found += [entry["name"] for entry in entries]
            cookie = entries[-1]["cookie"] if entries else cookie
        return [name for name in found if name not in (b".", b"..")]
