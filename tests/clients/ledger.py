"""The permitted states of a volume after a crash, derived from the operations of its only client.

Every written block contains its volume, block number and version, repeated over all its 4096 bytes, so that a
torn or misplaced block is detected. For each block the ledger keeps every version since the last certain one,
and when each was submitted and acknowledged, on one clock.

After a crash, a volume must have:

1. in each block, a version that was written to it, whole (rule 7 of the write path: blocks are atomic);
2. no version older than the one that a flush or FUA made durable;
3. a prefix of history: if a write is visible, so is every write that was acknowledged before that one was
   submitted (rule 3), or a later version of its block.

At most one operation at a time is in progress on a block, so versions of a block are in order.

A ledger may have smaller units than blocks: sectors, or parts of sectors. The same rules hold for these.
"""

import struct

BLOCK = 4096
HEADER = struct.Struct(">8sIIQQ")
MAGIC = b"forebay\x01"


class Violation(Exception):
    """A violated guarantee; the text names it, with the block and the state found."""


def block_bytes(volume, block, version, size=BLOCK):
    """The content of a block of `size` bytes."""
    header = HEADER.pack(MAGIC, volume, block, version, version * 0x9E3779B97F4A7C15 % (1 << 64))
    return header * (size // HEADER.size)


class Write:
    """One operation on a run of blocks: data, or zeroes (by discard or write-zeroes)."""

    __slots__ = ("version", "zero", "submitted", "acknowledged")

    def __init__(self, version, zero, submitted):
        self.version, self.zero, self.submitted = version, zero, submitted
        self.acknowledged = None


class Ledger:
    """The history of one volume of `blocks` blocks of `size` bytes. Version 0 of each block is zeroes."""

    def __init__(self, volume, blocks, size=BLOCK):
        self.volume, self.blocks, self.size = volume, blocks, size
        self.zero = bytes(size)
        self.clock = 0
        self.version = 0
        begin = Write(0, True, 0)
        begin.acknowledged = 0
        self.history = [[begin] for _ in range(blocks)]
        self.durable = [0] * blocks
        # Blocks with writes since the last verification, so that a flush need not scan all blocks.
        self.touched = set()

    def tick(self):
        self.clock += 1
        return self.clock

    def submit(self, blocks, zero):
        """Records an operation that is about to be sent."""
        self.version += 1
        write = Write(self.version, zero, self.tick())
        for b in blocks:
            self.history[b].append(write)
            self.touched.add(b)
        return write

    def acknowledge(self, write):
        """Records the reply to it."""
        write.acknowledged = self.tick()

    def make_durable(self, blocks, until):
        """Writes acknowledged by `until` on the clock are durable on these blocks."""
        for b in blocks:
            latest = last_acknowledged(self.history[b], until)
            self.durable[b] = max(self.durable[b], latest)

    def floor(self, until):
        """For each block, the latest version that was acknowledged by `until`."""
        floor = list(self.durable)
        for b in self.touched:
            floor[b] = max(floor[b], last_acknowledged(self.history[b], until))
        return floor

    def freeze(self):
        """A copy of the current histories, for a snapshot."""
        return [list(h) for h in self.history]

    def check(self, data, history=None, floor=None):
        """Checks contents against the history; returns the visible write of each block."""
        history = history or self.history
        floor = list(floor or self.durable)
        seen = [self.identify(data, b, history[b], floor[b]) for b in range(self.blocks)]
        # Zeroes may originate from several operations; only data proves that its write was executed.
        last = max((w.submitted for w in seen if not w.zero), default=0)
        for b, write in enumerate(seen):
            required = last_acknowledged(history[b], last - 1)
            if write.version < required:
                raise Violation(
                    f"block {b} shows version {write.version}, although version {required} of it was acknowledged "
                    f"before a write was submitted that has survived: not a prefix of history"
                )
        return seen

    def identify(self, data, b, history, floor):
        content = data[b * self.size : (b + 1) * self.size]
        if content == self.zero:
            zero = max((w for w in history if w.zero), key=lambda w: w.version, default=None)
            if zero is None or zero.version < floor:
                raise Violation(f"block {b} is zero, although version {floor} of it is durable")
            return zero
        if content != content[: HEADER.size] * (self.size // HEADER.size):
            raise Violation(f"block {b} is torn: {describe(content)}")
        magic, volume, block, version, _ = HEADER.unpack_from(content)
        if content != block_bytes(volume, block, version, self.size):
            raise Violation(f"block {b} contains bytes of no write ({magic!r})")
        if (volume, block) != (self.volume, b):
            raise Violation(f"block {b} of volume {self.volume} contains block {block} of volume {volume}")
        if version < floor:
            raise Violation(f"block {b} shows version {version}, although version {floor} of it is durable")
        for write in reversed(history):
            if write.version == version and not write.zero:
                return write
        raise Violation(f"block {b} shows version {version}, which was never written to it")

    def bytes_of(self, block, version):
        """The content of a block of this volume."""
        return block_bytes(self.volume, block, version, self.size)

    def clear(self):
        """All blocks are zeroes now, after an operation outside the history."""
        self.version += 1
        self.settle([Write(self.version, True, 0)] * self.blocks)

    def settle(self, seen):
        """After a check: the state found is the only possible one now."""
        self.touched.clear()
        for b, write in enumerate(seen):
            base = Write(write.version, write.zero, 0)
            base.acknowledged = 0
            self.history[b] = [base]
            self.durable[b] = write.version

    def busy_until(self, b):
        """Whether an operation on this block is in progress."""
        return self.history[b][-1].acknowledged is None


def last_acknowledged(history, until):
    """The latest version in a block's history that was acknowledged by `until`."""
    for write in reversed(history):
        if write.acknowledged is not None and write.acknowledged <= until:
            return write.version
    return 0


def describe(content):
    """The versions in a torn block, by sector."""
    versions = []
    for offset in range(0, len(content), min(512, len(content))):
        magic, volume, block, version, _ = HEADER.unpack_from(content, offset)
        versions.append(f"{volume}/{block}/{version}" if magic == MAGIC else "?")
    return " ".join(versions)
