"""Upgrades that are killed: the former process, the new one or both end at a random moment of an upgrade
under load.

The third form of `clients_crash`: clients keep reading and writing, over connections that continue or end,
and every write that was acknowledged is there afterwards. No client is refused.
"""

import os
import signal
import subprocess
import time

from clients_crash import CONFIG, crash_rounds
from clients_kept import DesktopClient, KeptClient, NeverClient, kept_clients
from forebay import spawn
from harness import Failed, check, test
from ledger import Violation, last_acknowledged

# What happens during the upgrade, and how often.
FORMER, NEW, BOTH, STOP, INTERRUPT, AGAIN, NOTHING = "former new both stop interrupt again nothing".split()
EVENTS = {FORMER: 4, NEW: 4, BOTH: 3, STOP: 1, INTERRUPT: 1, AGAIN: 1, NOTHING: 3}
LATEST_S = 0.2
# How long a process that survives serves its clients afterwards.
AFTERWARDS_S = 0.15


class Reads:
    """Reads among the operations of a client: a block has the last acknowledged version, or a later one."""

    def submit(self, nbd, handle):
        if self.random.random() < 0.7:
            super().submit(nbd, handle)
            return
        block = self.random.randrange(self.blocks)
        history = self.ledger.history[block]
        floor = max(self.ledger.durable[block], last_acknowledged(history, self.ledger.clock))
        buffer = nbd.Buffer(self.size)

        def done(error):
            if error.value == 0:
                self.count["reads"] += 1
                self.read(block, bytes(buffer.to_bytearray()), floor)
            return 1

        handle.aio_pread(buffer, block * self.size, completion=done)

    def read(self, block, content, floor):
        try:
            at = {block: content}
            self.ledger.identify(Sparse(at, self.size), block, self.ledger.history[block], floor)
        except Violation as e:
            # An exception in a callback does not reach the caller.
            self.violation = self.violation or Violation(f"a read: {e}")

    violation = None

    def load(self):
        super().load()
        if self.violation:
            raise self.violation


class Sparse:
    """The bytes of a disk of which one block is known."""

    def __init__(self, blocks, size):
        self.blocks, self.size = blocks, size

    def __getitem__(self, part):
        return self.blocks[part.start // self.size]


class Volume(Reads, KeptClient):
    """A volume."""


class Never(Reads, NeverClient):
    """A volume whose flushes promise nothing."""


class Desktop(Reads, DesktopClient):
    """A desktop, most of whose blocks overflow to the store."""


def processes(server):
    """The process ids of the servers on this data directory."""
    found = []
    mark = f"serve\0--data\0{server.data}\0".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                if mark in f.read():
                    found.append(int(name))
        except OSError:
            pass
    return found


class Killer:
    """Begins an upgrade, and ends it."""

    def __init__(self, t, server):
        self.t, self.server, self.random = t, server, t.random
        self.seen = dict.fromkeys(EVENTS, 0)

    def send(self, pids, number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def begin(self):
        server = self.server
        if self.random.random() < 0.2:
            server.process.send_signal(signal.SIGUSR2)
            return None
        return spawn([server.bin, "--socket", server.control, "upgrade"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def crash(self):
        event = self.random.choices(list(EVENTS), EVENTS.values())[0]
        self.seen[event] += 1
        server, former = self.server, self.server.process.pid
        command = self.begin()
        time.sleep(self.random.uniform(0.0, LATEST_S))
        new = [pid for pid in processes(server) if pid != former]
        if event == FORMER:
            server.process.kill()
        elif event == NEW:
            self.send(new, signal.SIGKILL)
        elif event == BOTH:
            server.process.kill()
            self.send(new, signal.SIGKILL)
        elif event == STOP:
            server.process.terminate()
        elif event == INTERRUPT:
            self.send([former, *new], signal.SIGINT)
        elif event == AGAIN:
            for _ in range(2):
                self.send([former], signal.SIGUSR2)
                time.sleep(0.01)
        if command:
            try:
                command.wait(60)
            except subprocess.TimeoutExpired as e:
                raise Failed(f"the command hangs after {event}") from e
        time.sleep(self.random.uniform(0.0, AFTERWARDS_S))
        self.end(event)

    def end(self, event):
        """Ends what is left. After a signal to stop, nothing is left."""
        server = self.server
        deadline = time.monotonic() + 60
        if event in (STOP, INTERRUPT):
            # The former process may have ended before the signal, which a zombie does not pass on.
            again = time.monotonic() + 3
            while left := processes(server):
                server.process.poll()
                if time.monotonic() > again:
                    self.send(left, signal.SIGTERM)
                    again = deadline
                if time.monotonic() > deadline:
                    raise Failed(f"a process is left after {event}: {processes(server)}")
                time.sleep(0.01)
        while left := processes(server):
            self.send(left, signal.SIGKILL)
            server.process.poll()
            check(time.monotonic() < deadline, f"processes {left} cannot be killed")
            time.sleep(0.005)
        server.process.wait(60)
        server.process = None


@test
def an_upgrade_that_is_killed_loses_no_acknowledged_write(t):
    rounds = int(os.environ.get("FOREBAY_UPGRADE_KILLS", "20"))
    server = t.server(config=CONFIG)
    clients = kept_clients(t, server, Volume, Never, Desktop)
    killer = Killer(t, server)
    crash_rounds(t, server, rounds, killer.crash, server.start, 0.1, clients)
    print(f"     {killer.seen}", flush=True)
