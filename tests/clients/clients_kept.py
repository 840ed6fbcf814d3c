"""The end of the server's process at random moments under load: no acknowledged write is ever lost.

The second form of `clients_crash`: every write that a client received an answer to is there after the server
was killed, aborted or stopped and has started again, flushed or not. For each block the content is that of
the last acknowledged write, or of a later one that was in progress. Several clients on the UNIX socket do
this at once: with whole blocks, sectors and parts of sectors, with zeroes, discards, FUA, few flushes,
snapshots, rollbacks and resets, on volumes of different kinds.
"""

import os
import signal
import time

from clients_crash import BLOCKS, CONFIG, Client, crash_rounds
from clients_desktops import MemoryGroups
from forebay import Failed
from harness import BLOCK, MIB, Skipped, check, connect, equal, test

# What ends the process, and how often: kill -9, a panic, a defect, an orderly stop. Not SIGSEGV: the handler
# of Rust's runtime ignores it once if it was sent by a process.
ENDS = {signal.SIGKILL: 6, signal.SIGABRT: 1, signal.SIGILL: 1, signal.SIGTERM: 2}
# Long enough that some commits begin by themselves, which they do half a second after a write.
LONG_LOAD_S, SHORT_LOAD_S = 1.2, 0.2


class KeptClient(Client):
    """A client to which each acknowledged write has to stay visible."""

    # Few, so that nearly all writes are acknowledged before they are durable.
    flushes = 0.005
    sync = "flush"

    def create(self):
        size = str(self.blocks * self.size)
        self.server.cli("volume", "create", self.name, "--size", size, "--sync", self.sync)

    def written(self, error, write, blocks, fua):
        if error.value == 0:
            self.count["writes"] += 1
            self.ledger.acknowledge(write)
            self.ledger.make_durable(blocks, write.acknowledged)
        return 1


class NeverClient(KeptClient):
    """The same on a volume whose flushes promise nothing: its writes survive a process as well."""

    sync = "never"


class DesktopClient(KeptClient):
    """The same on a desktop, most of whose blocks overflow to the store."""

    def create(self):
        self.server.cli("volume", "clone", "blank", self.name, "--desktop", "--write-cache", "1M")

    def make_snapshot(self):
        """Desktops have none."""

    def verify(self):
        super().verify()
        if self.random.random() < 0.1:
            self.server.wait_unused(self.name)
            self.server.cli("volume", "reset", self.name)
            self.ledger.clear()
            self.count["resets"] += 1


def kept_clients(t, server, volume=KeptClient, never=NeverClient, desktop=DesktopClient):
    """One client of each kind, and one more of a volume. Creates the image of the desktop."""
    blank = t.path("blank")
    with open(blank, "wb") as f:
        f.truncate(BLOCKS * BLOCK)
    server.cli("image", "import", "blank", blank)
    kinds = (
        (volume, BLOCKS, BLOCK),
        (volume, 2048, 512),
        (never, 1024, 256),
        (desktop, BLOCKS, BLOCK),
    )
    return [kind(n, server, t.random.random(), blocks, size) for n, (kind, blocks, size) in enumerate(kinds)]


@test
def no_acknowledged_write_is_lost_with_the_process(t):
    rounds = int(os.environ.get("FOREBAY_KEPT_ROUNDS", "30"))
    server = t.server(config=CONFIG)
    ends = list(ENDS)

    def crash():
        # Clients have been writing for a moment: sometimes for longer.
        if t.random.random() < 0.15:
            time.sleep(t.random.uniform(0.0, LONG_LOAD_S))
        end = t.random.choices(ends, ENDS.values())[0]
        if end == signal.SIGTERM:
            server.stop()
        else:
            server.process.send_signal(end)
            equal(server.wait(60), -end, "exit status of the server")

    def recover():
        # Sometimes the recovery is killed as well: it must not lose what it has taken over.
        while t.random.random() < 0.15:
            server.launch()
            time.sleep(t.random.uniform(0.0, 0.1))
            server.kill()
        server.start()

    crash_rounds(t, server, rounds, crash, recover, SHORT_LOAD_S, kept_clients(t, server))


@test
def the_oom_killer_loses_no_acknowledged_write(t):
    groups = MemoryGroups()
    t.defer(groups.remove)  # after the server has ended
    server = t.server()
    blank = t.path("blank")
    with open(blank, "wb") as f:
        f.truncate(256 * MIB)
    server.cli("image", "import", "blank", blank)
    server.cli("volume", "clone", "blank", "desk", "--desktop", "--write-cache", "256M")
    groups.bound(server.process.pid, 1 << 30)
    h = connect(server, "desk")
    pieces = [t.random.randbytes(MIB) for _ in range(16)]
    # From here on the group has room for some MiB more only, and a desktop's memory cannot be given back.
    groups.tighten(8 * MIB)
    written = write_until_gone(h, pieces)
    try:
        status = server.wait(30)
    except Failed as e:
        raise Skipped(f"no OOM killer in a control group that is full: {e}") from e
    equal(status, -signal.SIGKILL, "exit status of the server")
    check(written > 0, "nothing was written before the process was killed")
    server.start()
    h = connect(server, "desk")
    for n in range(written):
        equal(bytes(h.pread(MIB, n * MIB)) == pieces[n % len(pieces)], True, f"MiB {n} of {written}")


def write_until_gone(h, pieces):
    """Writes MiB by MiB until the connection ends; returns how many were acknowledged."""
    import nbd

    for n in range(240):
        try:
            h.pwrite(pieces[n % len(pieces)], n * MIB)
        except nbd.Error:
            return n
    return 240
