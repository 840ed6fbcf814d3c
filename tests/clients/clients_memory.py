"""Retained memory that is unusable, too small, full or damaged.

The memory is a file on tmpfs for each pool. Whatever happens to it: the server neither crashes nor serves a
client with less than was acknowledged; it waits, refuses in one line, or refuses the client.
"""

import contextlib
import os
import shutil
import threading
import time

from clients_failures import one_line
from forebay import Failed
from harness import BLOCK, MIB, check, connect, equal, need_root, run, test, wait_for

# Far longer than writers need to continue when there is room.
CONTINUE_S = 60


def data_of(stamp, blocks=1):
    """Blocks that contain a number, and no other such blocks."""
    return b"".join((stamp << 16 | n).to_bytes(8, "big") * (BLOCK // 8) for n in range(blocks))


def memory_file(server):
    """The file with the server's memory: the only one in its directory."""
    (name,) = os.listdir(server.memory)
    return os.path.join(server.memory, name)


def small_tmpfs(t, name, size):
    """A separate tmpfs as directory of retained memory."""
    need_root("mounting a small tmpfs")
    where = t.path(name)
    os.mkdir(where)
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", where)
    t.defer(run, "umount", "-l", where)
    return where


def content(server, export, size=BLOCK):
    """What this process reads, which is a client from before any loss."""
    h = connect(server, export)
    data = bytes(h.pread(size, 0))
    h.shutdown()
    return data


def written(server, export, stamp, flush=False):
    """Writes a block as a client that stays alive, and flushes it on request."""
    h = connect(server, export)
    h.pwrite(data_of(stamp), 0)
    if flush:
        h.flush()
    h.shutdown()


def commits(server):
    return server.json("stats")["commits"]


def written_and_settled(server, export, stamp):
    """Writes a block durably, and waits until the pool has recorded, in the next commit, that no client of
    this disk has an answer that could be lost. No other client may write until then."""
    written(server, export, stamp, flush=True)
    before = commits(server)
    wait_for(lambda: commits(server) > before, f"the record that no answers of '{export}' can be lost")


@test
def unusable_memory_directories_are_refused_and_lose_nothing(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    written(s, "disk", 1, flush=True)
    h = connect(s, "disk")
    h.pwrite(data_of(2), 0)
    s.kill()
    good = s.memory
    name = os.path.basename(memory_file(s))

    def directory(what, mode=0o700):
        path = os.path.join(good, "..", f"{os.path.basename(good)}-{what}")
        os.mkdir(path, mode)
        t.defer(shutil.rmtree, path)
        return path

    a_file = t.path("file")
    open(a_file, "w").close()
    read_only = small_tmpfs(t, "read-only", "8M")
    run("mount", "-o", "remount,ro", read_only)
    linked, taken, shared = (directory(what) for what in ("linked", "taken", "shared"))
    os.symlink(os.path.join(good, name), os.path.join(linked, name))
    os.mkdir(os.path.join(taken, name))
    with open(os.path.join(shared, name), "w") as f:
        os.fchmod(f.fileno(), 0o644)
    cases = {
        t.path("missing"): "No such file",
        a_file: "Not a directory",
        read_only: "Read-only",
        t.dir: "tmpfs",
        linked: "symbolic link",
        taken: "directory",
        shared: "mode 644",
    }
    for path, words in cases.items():
        s.memory = path
        line = one_line(s, f"memory in {path}")
        check(words in line and path in line, f"memory in {path}: '{line}' does not contain '{words}' and the path")
    equal(os.listdir(t.path("data")) != [], True, "files of the pool are left")
    s.memory = good
    s.start()
    equal(content(s, "disk"), data_of(2), "the write that was acknowledged before the failed starts")


@test
def a_tmpfs_that_is_too_small_is_refused_or_makes_writers_wait(t):
    noise = t.noise_file("noise", 12 * MIB)
    outcomes = set()
    for size in ("4k", "512k", "1M", "2M", "4M", "8M"):
        s = t.server(data=f"data-{size}", start=False)
        s.memory = small_tmpfs(t, size, size)
        try:
            s.start()
        except Failed:
            s.process = None
            line = one_line(s, f"a tmpfs of {size}")
            check("No space" in line, f"a tmpfs of {size}: '{line}'")
            outcomes.add("refused")
            continue
        s.cli("volume", "create", "disk", "--size", "12M")
        run("nbdcopy", noise, s.uri("disk"), timeout=120)
        s.kill()
        s.start()
        run("nbdcopy", s.uri("disk"), t.path("copy"))
        equal(run("cmp", noise, t.path("copy"), check=False).returncode, 0, f"contents with a tmpfs of {size}")
        s.stop()
        outcomes.add("served")
    equal(outcomes, {"refused", "served"}, "what the servers did")


class Writers:
    """Clients that write stamped blocks until they are stopped. Each write has to succeed."""

    SPAN = 512

    def __init__(self, server, exports):
        self.server, self.over = server, threading.Event()
        self.acknowledged = {export: {} for export in exports}
        self.count = dict.fromkeys(exports, 0)
        self.errors = []
        self.threads = [threading.Thread(target=self.write, args=(export,), daemon=True) for export in exports]
        for thread in self.threads:
            thread.start()

    def write(self, export):
        import nbd

        stamp = time.monotonic_ns() >> 8
        try:
            h = connect(self.server, export)
            while not self.over.is_set():
                block = stamp % self.SPAN * 8
                h.pwrite(data_of(stamp, 8), block * BLOCK)
                self.acknowledged[export][block] = stamp
                self.count[export] += 1
                stamp += 1
        except nbd.Error as e:
            if not self.over.is_set():
                self.errors.append(f"{export}: {e}")

    def wait_beyond(self, before):
        """Waits until all of them have written more than `before`."""

        def have_written():
            equal(self.errors, [], "errors of writers")
            return all(self.count[export] > n for export, n in before.items())

        wait_for(have_written, f"more than {before} writes", CONTINUE_S)

    def wait_without_room(self, directory):
        """Waits until this tmpfs has no room, and the server has made some commits since: they free memory
        that it has, for writes that wait."""
        wait_for(lambda: os.statvfs(directory).f_bavail == 0, "no room is left")
        before = commits(self.server)
        wait_for(lambda: commits(self.server) > before + 2, "commits while there is no room")
        equal(self.errors, [], "errors of writers while there is no room")

    def end(self):
        """Ends them with the server. Every write has succeeded until then."""
        equal(self.errors, [], "errors of writers")
        self.over.set()
        self.server.kill()
        for thread in self.threads:
            thread.join(60)
            check(not thread.is_alive(), "a writer hangs")

    def verify(self):
        """Everything that was acknowledged, or was written later, is there."""
        for export, blocks in self.acknowledged.items():
            h = connect(self.server, export)
            for block, stamp in blocks.items():
                found = bytes(h.pread(8 * BLOCK, block * BLOCK))
                # The write in progress at the end may be there, which overwrites the oldest.
                got = int.from_bytes(found[:8], "big") >> 16
                check(got >= stamp, f"{export}: block {block} has stamp {got}, acknowledged was {stamp}")
                check(found == data_of(got, 8) or got > stamp, f"{export}: block {block} is torn")
            h.shutdown()


@contextlib.contextmanager
def no_room(directory):
    """Takes all room of a tmpfs, also what is given back while it lasts."""
    path, over = os.path.join(directory, "ballast"), threading.Event()

    def fill():
        with open(path, "wb", buffering=0) as f:
            while not over.is_set():
                try:
                    f.write(bytes(BLOCK))
                except OSError:
                    time.sleep(0.001)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.unlink(path)


@test
def writers_wait_while_the_tmpfs_is_full_and_lose_nothing(t):
    s = t.server(start=False)
    s.memory = small_tmpfs(t, "small", "40M")
    s.start()
    with open(t.path("blank"), "wb") as f:
        f.truncate(64 * MIB)
    s.cli("image", "import", "blank", t.path("blank"))
    s.cli("volume", "clone", "blank", "desk", "--desktop", "--write-cache", "24M")
    names = ["desk", "disk-1", "disk-2"]
    for name in names[1:]:
        s.cli("volume", "create", name, "--size", "64M")
    writers = Writers(s, names)
    writers.wait_beyond(dict.fromkeys(names, 200))
    for _ in range(2):
        with no_room(s.memory):
            writers.wait_without_room(s.memory)
        writers.wait_beyond(dict(writers.count))
    with open(s.log) as f:
        check("writes wait for room in the file system of the retained memory" in f.read(), "no write has waited")
    # The end, and the next start, while there is no room.
    with no_room(s.memory):
        writers.wait_without_room(s.memory)
        writers.end()
        s.start()
        writers.verify()
        s.kill()
    s.start()
    writers.verify()
    again = Writers(s, names)
    again.wait_beyond(dict.fromkeys(names, 100))
    again.end()
    s.start()
    again.verify()
    s.stop()
    run(s.bin, "check", "--data", s.data)


def flip_bit(path, offset, bit):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1 << bit]))


def data_ranges(path):
    """The parts of a sparse file that have memory."""
    ranges, size = [], os.path.getsize(path)
    with open(path, "rb") as f:
        at = 0
        while True:
            try:
                begin = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                return ranges
            at = os.lseek(f.fileno(), begin, os.SEEK_HOLE)
            ranges.append((begin, min(at, size)))


@test
def damaged_memory_never_leads_to_wrong_data(t):
    import nbd

    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    outcomes = {"served": 0, "refused": 0}
    for round_ in range(12):
        h = connect(s, "disk")
        h.pwrite(data_of(2 * round_, 64), 0)
        h.flush()
        h.pwrite(data_of(2 * round_ + 1, 64), 0)
        s.kill()
        path = memory_file(s)
        if round_ == 0:
            os.truncate(path, os.path.getsize(path) // 2 + 5)
        ranges = data_ranges(path)
        # The last round damages nothing, so that its data is served whatever the seed is.
        for _ in range(1 << (round_ % 6) * 2 if round_ < 11 else 0):
            begin, end = t.random.choice(ranges)
            flip_bit(path, t.random.randrange(begin, end), t.random.randrange(8))
        s.start()
        try:
            found = content(s, "disk", 64 * BLOCK)
            equal(found == data_of(2 * round_ + 1, 64), True, f"round {round_}: what was acknowledged is served")
            outcomes["served"] += 1
        except nbd.Error:
            s.cli("volume", "resume", "disk")
            outcomes["refused"] += 1
    check(all(outcomes.values()), f"what the servers did: {outcomes}")
