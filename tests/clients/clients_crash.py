"""kill -9 at random moments under load: no flushed write is ever lost, and the remaining state is a prefix of
history.

Several clients, each a process with a separate volume and ledger, write, zero, discard, flush, use FUA,
create snapshots and roll back. The server is killed and started again, and each client compares the state
with its ledger (see `ledger`), including snapshots.
"""

import collections
import faulthandler
import multiprocessing
import os
import random
import select
import signal
import time
import traceback

from forebay import Failed, die_with_parent
from harness import check, connect, test
from ledger import BLOCK, Ledger, Violation, block_bytes

CLIENTS = 3
BLOCKS = 1024
# Connections of each client to its volume: a flush on one covers the writes of both.
CONNECTIONS = 2
DEPTH = 12
MAX_RUN = 12
SNAPSHOTS = 3
# Far longer than a round takes on a busy machine with a busy disk.
HANG_S = 300

# Small segments and frequent checkpoints, so that kills also hit sealing and checkpoints.
CONFIG = """
[log]
segment = "4M"
checkpoint = "12M"
[memory]
map_cache = "1M"
"""


class Snapshot:
    """The possible contents of a snapshot and, after the first check, its content."""

    def __init__(self, name, history, floor):
        self.name, self.history, self.floor = name, history, floor
        self.seen = self.content = None


class Client:
    """One client and its volume of `blocks` blocks, or smaller units, of `size` bytes."""

    # The share of flushes among its operations.
    flushes = 0.06

    def __init__(self, number, server, seed, blocks=BLOCKS, size=BLOCK):
        self.name = f"volume-{number}"
        self.server = server
        self.random = random.Random(f"{seed}-{number}")
        self.blocks, self.size = blocks, size
        self.ledger = Ledger(number, blocks, size)
        self.snapshots = collections.deque()
        self.count = collections.Counter()

    def create(self):
        """Creates its volume."""
        self.server.cli("volume", "create", self.name, "--size", str(self.blocks * self.size))

    def read_all(self, export):
        handle = connect(self.server, export)
        data = bytes(handle.pread(self.blocks * self.size, 0))
        handle.shutdown()
        return data

    def verify(self):
        """Verifies the volume and one of its snapshots after a restart."""
        seen = self.ledger.check(self.read_all(self.name))
        self.ledger.settle(seen)
        if self.snapshots:
            self.verify_snapshot(self.random.choice(self.snapshots))
        while len(self.snapshots) > SNAPSHOTS:
            self.server.cli("snapshot", "rm", self.name, self.snapshots.popleft().name)
        if self.snapshots and self.random.random() < 0.1:
            self.roll_back(self.random.choice(self.snapshots))

    def verify_snapshot(self, snapshot):
        data = self.read_all(f"{self.name}@{snapshot.name}")
        self.count["snapshots checked"] += 1
        try:
            if snapshot.content is None:
                snapshot.seen = self.ledger.check(data, snapshot.history, snapshot.floor)
                snapshot.content, snapshot.history = data, None
            elif snapshot.content != data:
                raise Violation("its content has changed")
        except Violation as e:
            raise Violation(f"snapshot {snapshot.name}: {e}") from e

    def roll_back(self, snapshot):
        self.verify_snapshot(snapshot)
        self.server.cli("snapshot", "rollback", self.name, snapshot.name)
        self.ledger.settle(snapshot.seen)
        self.count["rollbacks"] += 1

    def load(self):
        """Sends operations until the server has ended."""
        import nbd

        try:
            handles = [connect(self.server, self.name) for _ in range(CONNECTIONS)]
        except nbd.Error:
            return
        poll = select.poll()
        by_fd = {h.aio_get_fd(): h for h in handles}
        for fd in by_fd:
            poll.register(fd)
        try:
            while True:
                for h in handles:
                    while h.aio_in_flight() < DEPTH:
                        self.submit(nbd, h)
                for fd, h in by_fd.items():
                    direction = h.aio_get_direction()
                    readable = select.POLLIN if direction & nbd.AIO_DIRECTION_READ else 0
                    poll.modify(fd, readable | (select.POLLOUT if direction & nbd.AIO_DIRECTION_WRITE else 0))
                for fd, event in poll.poll(1000):
                    h = by_fd[fd]
                    if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                        h.aio_notify_read()
                    elif event & select.POLLOUT:
                        h.aio_notify_write()
                    if h.aio_is_dead() or h.aio_is_closed():
                        return
                if self.random.random() < 0.004:
                    self.make_snapshot()
        except nbd.Error:
            return

    def submit(self, nbd, handle):
        """Sends one random operation."""
        if self.random.random() < self.flushes:
            sent = self.ledger.tick()
            handle.aio_flush(completion=lambda error: self.flushed(error, sent))
            return
        first = self.random.randrange(self.blocks)
        blocks = range(first, min(self.blocks, first + self.random.randint(1, MAX_RUN)))
        # The order of concurrent operations on one block would be undefined.
        if any(self.ledger.busy_until(b) for b in blocks):
            return
        dice = self.random.random()
        zero = dice < 0.1
        fua = self.random.random() < 0.05
        flags = nbd.CMD_FLAG_FUA if fua else 0
        write = self.ledger.submit(blocks, zero)
        done = lambda error: self.written(error, write, blocks, fua)  # noqa: E731
        offset, length = first * self.size, len(blocks) * self.size
        if not zero:
            data = b"".join(self.ledger.bytes_of(b, write.version) for b in blocks)
            handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset, completion=done, flags=flags)
        elif dice < 0.05 and self.size == BLOCK:  # a discard of a part of a block changes nothing
            handle.aio_trim(length, offset, completion=done, flags=flags)
        else:
            handle.aio_zero(length, offset, completion=done, flags=flags)

    def written(self, error, write, blocks, fua):
        if error.value == 0:
            self.count["writes"] += 1
            self.ledger.acknowledge(write)
            if fua:
                self.ledger.make_durable(blocks, write.acknowledged)
        return 1

    def flushed(self, error, sent):
        if error.value == 0:
            self.count["flushes"] += 1
            self.ledger.make_durable(self.ledger.touched, sent)
        return 1

    def make_snapshot(self):
        """Creates a snapshot during operations: it contains at least the writes acknowledged now."""
        name = f"s{self.count['snapshots']}"
        floor = self.ledger.floor(self.ledger.clock)
        done = self.server.cli("snapshot", "create", self.name, name, check=False)
        self.count["snapshots"] += 1
        if done.returncode == 0:
            self.snapshots.append(Snapshot(name, self.ledger.freeze(), floor))


def client_process(client, pipe):
    """Executes the test's commands, round by round; never raises."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Prints the stack if it hangs: see `Clients.answers`.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        while True:
            word = pipe.recv()
            if word == "verify":
                client.verify()
            elif word == "load":
                client.load()
            else:
                pipe.send(("ok", dict(client.count)))
                return
            pipe.send(("ok", None))
    except Violation as e:
        pipe.send(("violation", f"{client.name}: {e}"))
    except Exception:  # a defect in the test is reported to the main process, too
        pipe.send(("failed", f"{client.name}: {traceback.format_exc()}"))


class Clients:
    """All client processes."""

    def __init__(self, clients):
        fork = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for client in clients:
            ours, theirs = fork.Pipe()
            process = fork.Process(target=client_process, args=(client, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def tell(self, word):
        for pipe in self.pipes:
            pipe.send(word)

    def answers(self, round_):
        """One answer of each client; a violation fails the test."""
        out = []
        for pipe, process in zip(self.pipes, self.processes):
            if not pipe.poll(HANG_S):
                # It prints its stack, and continues to hang: no event shows when it has.
                os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.5)
                raise Failed(f"round {round_}: a client hangs; its stack is on standard error")
            kind, text = pipe.recv()
            if kind != "ok":
                raise Failed(f"round {round_}: {text}")
            out.append(text)
        return out

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


@test
def the_ledger_detects_violations(t):
    """The ledger rejects wrong states and accepts right ones."""

    def judge(history, change):
        ledger = Ledger(7, 4)
        data = bytearray(4 * BLOCK)
        for block, zero in history:
            write = ledger.submit([block], zero)
            ledger.acknowledge(write)
            content = bytes(BLOCK) if zero else block_bytes(7, block, write.version)
            data[block * BLOCK : (block + 1) * BLOCK] = content
        change(ledger, data)
        try:
            ledger.check(bytes(data))
        except Violation as e:
            return str(e)
        return None

    def put(block, content):
        def change(ledger, data):
            data[block * BLOCK : (block + 1) * BLOCK] = content

        return change

    def flushed_then(change):
        def both(ledger, data):
            ledger.make_durable(ledger.touched, ledger.clock)
            change(ledger, data)

        return both

    history = [(0, False), (1, False), (1, True), (0, False), (2, False)]
    old, torn = block_bytes(7, 0, 1), block_bytes(7, 0, 1)[:512] + block_bytes(7, 0, 4)[512:]
    lost = put(2, bytes(BLOCK))
    bad = {
        "torn": put(0, torn),
        "no write": put(0, b"x" * BLOCK),
        "contains block 1": put(0, block_bytes(7, 1, 2)),
        "of volume 8": put(0, block_bytes(8, 0, 4)),
        "never written": put(2, block_bytes(7, 2, 99)),
        "version 4 of it is durable": flushed_then(put(0, old)),
        "is zero, although": flushed_then(lost),
        "version 3 of it is durable": flushed_then(put(1, block_bytes(7, 1, 2))),
        # Not flushed, but a later write has survived.
        "not a prefix": put(0, old),
    }
    for words, change in bad.items():
        found = judge(history, change)
        check(found and words in found, f"'{words}' was judged as {found!r}")
    for change in (put(2, block_bytes(7, 2, 5)), flushed_then(lambda ledger, data: None), lost):
        check(judge(history, change) is None, f"a good state was judged as {judge(history, change)!r}")


def crash_rounds(t, server, rounds, crash, recover, longest_load=0.25, clients=None):
    """Runs clients on a running server, crashes it within `longest_load` seconds, recovers it, and has the
    clients verify; `rounds` times."""
    clients = clients or [Client(n, server, t.random.random()) for n in range(CLIENTS)]
    for client in clients:
        client.create()
    clients = Clients(clients)
    t.defer(clients.close)
    slowest = 0.0
    for round_ in range(rounds):
        clients.tell("load")
        time.sleep(t.random.uniform(0.0, longest_load))
        crash()
        clients.answers(round_)
        begin = time.monotonic()
        recover()
        slowest = max(slowest, time.monotonic() - begin)
        clients.tell("verify")
        clients.answers(round_)
    clients.tell("count")
    total = sum((collections.Counter(c) for c in clients.answers(rounds)), collections.Counter())
    check(total["flushes"] > rounds and total["writes"] > 20 * rounds, f"too little happened: {dict(total)}")
    server.stop()
    server.offline("check")
    done = ", ".join(f"{n} {what}" for what, n in sorted(total.items()))
    print(f"     {rounds} crashes: {done}; slowest recovery {slowest * 1000:.0f} ms", flush=True)


@test
def kill_9_loses_no_flushed_write(t):
    rounds = int(os.environ.get("FOREBAY_CRASH_ROUNDS", "60"))
    server = t.server(config=CONFIG)

    def recover():
        # Sometimes the recovery is killed as well.
        while t.random.random() < 0.1:
            server.launch()
            time.sleep(t.random.uniform(0.0, 0.05))
            server.kill()
        server.start()

    crash_rounds(t, server, rounds, server.kill, recover)
