#!/usr/bin/env python3
"""A disk with a volatile write cache, as an NBD server, for tests of power cuts.

    volatile_disk.py SOCKET IMAGE SEED [--ignore-flush]

Writes since the last flush are only in the cache. On SIGUSR1 the power fails: every connection ends, no
request is answered any more, and of each sector in the cache the image gets one of the versions since the
last flush, or keeps its old content, at random. Then the process ends.

With --ignore-flush a flush is answered without any effect, which a test must detect.

It supports the parts of the NBD protocol (fixed newstyle) that libnbd needs to open an export, read, write
and flush.
"""

import os
import random
import signal
import socket
import struct
import sys
import threading

NBDMAGIC, IHAVEOPT, REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
REQUEST_MAGIC, SIMPLE_MAGIC = 0x25609513, 0x67446698
OPT_EXPORT_NAME, OPT_ABORT, OPT_GO = 1, 2, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, 0x80000001
CMD_READ, CMD_WRITE, CMD_DISCONNECT, CMD_FLUSH = 0, 1, 2, 3
FUA = 1
# Has flags, flush, FUA.
FLAGS = 0b1101
EINVAL = 22
SECTOR = 512
# Beyond this size, the oldest cached writes are written back without a flush.
CACHE_BYTES = 64 << 20


class Disk:
    """The image, its current content for readers, and the cache."""

    def __init__(self, image, seed, ignores_flush):
        self.ignores_flush = ignores_flush
        self.random = random.Random(seed)
        self.durable = os.open(image, os.O_RDWR)
        self.size = os.fstat(self.durable).st_size
        # The image combined with the cache, for readers: a temporary copy that ends with this process.
        current = image + ".current"
        os.system(f"cp --sparse=always '{image}' '{current}'")
        self.current = os.open(current, os.O_RDWR)
        os.unlink(current)
        self.cache, self.cached = [], 0
        self.lock = threading.Lock()

    def read(self, offset, length):
        with self.lock:
            return os.pread(self.current, length, offset)

    def write(self, offset, data, fua):
        with self.lock:
            os.pwrite(self.current, data, offset)
            self.cache.append((offset, data))
            self.cached += len(data)
            if fua and not self.ignores_flush:
                self.write_back(0)
            elif self.cached > CACHE_BYTES:
                self.write_back(CACHE_BYTES // 2)

    def flush(self):
        with self.lock:
            if not self.ignores_flush:
                self.write_back(0)

    def write_back(self, keep):
        while self.cached > keep:
            offset, data = self.cache.pop(0)
            self.cached -= len(data)
            os.pwrite(self.durable, data, offset)

    def lose_power(self):
        """Writes the surviving part of the cache to the image. The lock is kept, so that no further requests
        are executed."""
        self.lock.acquire()
        # Sometimes all of it or none; and some writes completely, others partially.
        survive = self.random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for offset, data in self.cache:
            dice = self.random.random()
            if dice < 0.4:
                if self.random.random() < survive:
                    os.pwrite(self.durable, data, offset)
                continue
            for at in range(0, len(data), SECTOR):
                if self.random.random() < survive:
                    os.pwrite(self.durable, data[at : at + SECTOR], offset + at)


def receive(connection, length):
    data = bytearray()
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("the client left")
        data += more
    return bytes(data)


def negotiate(connection, disk):
    """The handshake; true if the client enters the transmission phase."""
    connection.sendall(struct.pack(">QQH", NBDMAGIC, IHAVEOPT, 1))
    receive(connection, 4)
    while True:
        _, option, length = struct.unpack(">QII", receive(connection, 16))
        receive(connection, length)

        def reply(kind, data=b""):
            connection.sendall(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)) + data)

        if option == OPT_GO:
            reply(REP_INFO, struct.pack(">HQH", 0, disk.size, FLAGS))
            reply(REP_ACK)
            return True
        if option == OPT_EXPORT_NAME:
            connection.sendall(struct.pack(">QH", disk.size, FLAGS) + bytes(124))
            return True
        if option == OPT_ABORT:
            reply(REP_ACK)
            return False
        reply(REP_UNSUPPORTED)


def serve(connection, disk):
    try:
        if not negotiate(connection, disk):
            return
        while True:
            _, flags, command, cookie, offset, length = struct.unpack(">IHHQQI", receive(connection, 28))
            error, data = 0, b""
            if command == CMD_WRITE:
                disk.write(offset, receive(connection, length), flags & FUA)
            elif command == CMD_READ:
                data = disk.read(offset, length)
            elif command == CMD_FLUSH:
                disk.flush()
            elif command == CMD_DISCONNECT:
                return
            else:
                error = EINVAL
            connection.sendall(struct.pack(">IIQ", SIMPLE_MAGIC, error, cookie) + data)
    except (ConnectionError, OSError):
        pass
    finally:
        connection.close()


def main(path, image, seed, *options):
    disk = Disk(image, seed, "--ignore-flush" in options)

    def power_cut(*_):
        # A separate thread: the handler may have interrupted a thread that holds the lock.
        threading.Thread(target=lambda: (disk.lose_power(), os._exit(0))).start()

    signal.signal(signal.SIGUSR1, power_cut)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, disk), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
