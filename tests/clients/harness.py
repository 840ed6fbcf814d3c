"""A small test harness: tests are functions marked `@test`, each with a scratch directory and separate
servers. A failed check raises `Failed`; any other exception fails the test as well.

Each test runs in a process forked for it, three at a time, because most of them wait more than they compute.
Tests marked `@alone` limit times tightly, or need a minimum of work per time; they run one after the other,
with no other. Tests marked `@needs(fixture)` share what is too expensive for each of them.
"""

import contextlib
import fcntl
import http.client
import os
import random
import shutil
import signal
import socket
import struct
import sys
import tempfile
import termios
import time
import traceback

from forebay import Failed, Server, die_with_parent, memory_directory, run

TESTS = []
MIB = 1 << 20
BLOCK = 4096
PASSED, FAILED, SKIPPED = 0, 1, 2
LABELS = {PASSED: "ok", FAILED: "FAIL", SKIPPED: "skip"}
# Tests in the list of the slowest ones.
SLOWEST = 10
# Time for tests to clean up when the run is interrupted.
GRACE_S = 15


class Skipped(Exception):
    """The machine lacks something that this test needs; the text names it."""


def test(function):
    """Marks a test. It gets one argument, a `Context`."""
    TESTS.append(function)
    return function


def alone(function):
    """Marks a test (above `@test`) with which no other test may run."""
    function.alone = True
    return function


def needs(fixture):
    """Marks a test (above `@test`) that uses `fixture`, an object with the methods `start` and `close`, which
    several tests share. It is started before the first of them, and closed after the last."""

    def mark(function):
        function.fixture = fixture
        return function

    return mark


def check(condition, what):
    """Fails the test unless `condition` holds."""
    if not condition:
        raise Failed(what)


def equal(found, expected, what):
    """Fails the test unless both are the same."""
    if found != expected:
        raise Failed(f"{what}: found {shortened(found)}, expected {shortened(expected)}")


def wait_for(condition, what, timeout=60):
    """Waits until `condition` holds, and returns its value. Fails after `timeout` seconds, which only a hang
    should take."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        check(time.monotonic() < deadline, f"{what}: not within {timeout} s")
        time.sleep(0.02)
    return found


def wait_read(sock):
    """Waits until the other process has read everything that was sent over this UNIX socket."""
    unread = lambda: struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]  # noqa: E731
    wait_for(lambda: unread() == 0, "what was sent is read")


def held(server):
    """The bytes of memory that a server holds for its clients: requests and replies in progress."""
    return server.json("stats")["clients"]["memory_bytes"]


def waited(server, volume):
    """The number of requests of a volume that have waited for its limit."""
    return server.json("stats", volume)["limited"]["requests"]


def wait_signal_taken(pid, number):
    """Waits until a process has taken a signal that was sent to it."""

    def is_pending():
        # A process that has ended has no such file.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/status") as f:
            pending = next(line.split()[1] for line in f if line.startswith("ShdPnd:"))
            return int(pending, 16) >> (number - 1) & 1
        return False

    wait_for(lambda: not is_pending(), f"signal {number} is taken")


def shortened(value):
    """A value for a message."""
    text = repr(value)
    return text if len(text) < 2000 else f"{text[:1000]}... ({len(text)} characters)"


class Context:
    """The scratch directory, servers and random data of a test. The same seed gives the same data.

    `memory` is a directory for the retained memory of its servers.
    """

    def __init__(self, name, base, memory, seed):
        self.dir = os.path.join(base, name)
        self.memory = os.path.join(memory, name)
        for made in (self.dir, self.memory):
            os.mkdir(made, 0o700)
        self.random = random.Random(f"{name}-{seed}")
        self.stack = contextlib.ExitStack()

    def path(self, name):
        """A path in the scratch directory."""
        return os.path.join(self.dir, name)

    def server(self, *args, data="data", start=True, config=None):
        """A server on a directory of this test; it ends with the test. `config` is the content of its
        configuration file."""
        if config is not None:
            file = self.path(f"{os.path.basename(data)}.toml")
            with open(file, "w") as f:
                f.write(config)
            args = ("--config", file, *args)
        log = "server.log" if data == "data" or data.startswith("/") else f"{data}.log"
        data = data if data.startswith("/") else self.path(data)
        server = Server(data, log=self.path(log), args=args, memory=self.memory)
        self.stack.callback(server.close)
        return server.start() if start else server

    def defer(self, function, *args, **kwargs):
        """Calls `function` when the test has ended, even if it failed."""
        self.stack.callback(function, *args, **kwargs)

    def noise_file(self, name, size, holes=False):
        """A file of random bytes; with `holes`, every second MiB of it is a hole."""
        path = self.path(name)
        with open(path, "wb") as f:
            f.truncate(size)
            for offset in range(0, size, MIB):
                if holes and (offset // MIB) % 2:
                    continue
                f.seek(offset)
                f.write(self.random.randbytes(min(MIB, size - offset)))
        return path


class ControlSocket(http.client.HTTPConnection):
    """HTTP over the control socket of a server."""

    def __init__(self, path, timeout=None):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


# An orderly stop takes less, also on a slow disk.
STOP_S = 30


def connect(server, export, **settings):
    """A libnbd handle on an export. Imported late: only these tests need the module."""
    import nbd

    handle = nbd.NBD()
    handle.set_handshake_flags(nbd.HANDSHAKE_FLAG_MASK)
    handle.add_meta_context("base:allocation")
    for name, value in settings.items():
        getattr(handle, f"set_{name}")(value)
    handle.connect_uri(server.uri(export))
    return handle


def refused_by_server(errno_name, function, *args):
    """Calls a libnbd function, which must fail with this errno, such as "ENOSPC"."""
    import nbd

    try:
        function(*args)
    except nbd.Error as e:
        equal(e.errno, errno_name, f"error of {function.__name__}")
        return
    raise Failed(f"{function.__name__} succeeded; it should fail with {errno_name}")


def need_root(what):
    """Skips the test without root."""
    if os.geteuid() != 0:
        raise Skipped(f"needs root for {what}")


def run_tests(wanted, seed, modules=""):
    """Runs the tests whose name contains one of `wanted` (all tests if it is empty), and whose module has a
    name that begins with `modules`: a module that another one imports for its helpers may have tests as well.
    Returns the exit status."""
    tests = [f for f in TESTS if f.__module__.startswith(modules)]
    tests = [f for f in tests if not wanted or any(w in f.__name__ for w in wanted)]
    # A complete name selects this test only.
    tests = [f for f in tests if f.__name__ in wanted] or tests
    if not tests:
        print(f"no test has a name with {' or '.join(wanted)}", file=sys.stderr)
        return 1
    here = os.path.dirname(os.path.abspath(__file__))
    cache = os.path.join(here, "..", "..", ".cache")
    os.makedirs(cache, exist_ok=True)
    base = os.path.realpath(tempfile.mkdtemp(prefix="tests-", dir=cache))
    memory = memory_directory()
    runner = Runner(base, memory, seed)
    begin = time.monotonic()
    try:
        jobs = int(os.environ.get("FOREBAY_TEST_JOBS", "3"))
        runner.run([f for f in tests if not hasattr(f, "alone")], jobs)
        last = [f for f in tests if hasattr(f, "alone")]
        if last:
            runner.wait_for_quiet()
        runner.run([f for f in last if hasattr(f, "fixture")], 1)
        runner.close_fixtures()
        runner.run([f for f in last if not hasattr(f, "fixture")], 1)
    finally:
        runner.stop()
        shutil.rmtree(memory, ignore_errors=True)
    results = runner.results
    failed = [name for name, status, _ in results if status == FAILED]
    if not failed:
        shutil.rmtree(base, ignore_errors=True)
    if len(results) > 1:
        slowest = sorted(results, key=lambda r: -r[2])[:SLOWEST]
        print("slowest: " + ", ".join(f"{name} {took:.1f} s" for name, _, took in slowest))
    passed = sum(status == PASSED for _, status, _ in results)
    print(f"{passed} passed, {len(failed)} failed in {time.monotonic() - begin:.0f} s", flush=True)
    for name in failed:
        print(f"rerun: {rerun_command(name, seed)}", flush=True)
    return 0 if not failed and passed > 0 else 1


def rerun_command(name, seed):
    """A command line that runs one test again, in the current directory."""
    binary = os.environ.get("FOREBAY_BIN", "target/debug/forebay")
    old = f"FOREBAY_OLD={os.environ['FOREBAY_OLD']} " if "FOREBAY_OLD" in os.environ else ""
    return f"{old}FOREBAY_BIN={binary} FOREBAY_SEED={seed} {sys.executable} {sys.argv[0]} {name}"


class Runner:
    """Runs tests in forked processes, and collects (name, status, seconds) of each."""

    def __init__(self, base, memory, seed):
        self.base, self.memory, self.seed = base, memory, seed
        self.results = []
        # By process number: the test's name, the file of its output, and when it began.
        self.running = {}
        # The fixtures that were started, and the error of each that failed.
        self.fixtures = {}

    def run(self, tests, jobs):
        """Runs tests in this order, `jobs` at a time."""
        for function in tests:
            while len(self.running) >= max(jobs, 1):
                self.wait()
            self.start(function)
        while self.running:
            self.wait()

    def wait_for_quiet(self):
        """Waits until the Rust tests and the browser, which run concurrently, have ended: they hold a lock
        until then. The lock is kept until this process ends."""
        path = os.environ.get("FOREBAY_TEST_LOCK")
        if path:
            self.lock = open(path)  # noqa: SIM115
            fcntl.flock(self.lock, fcntl.LOCK_SH)

    def start(self, function):
        name = function.__name__
        output = os.path.join(self.base, f"{name}.output")
        error = self.fixture_error(getattr(function, "fixture", None))
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            self.running[pid] = (name, output, time.monotonic())
            return
        status = FAILED
        try:
            die_with_parent()
            with open(output, "w") as f:
                os.dup2(f.fileno(), 1)
                os.dup2(f.fileno(), 2)
            status = self.execute(function, error)
            sys.stdout.flush()
        finally:
            os._exit(status)

    def fixture_error(self, fixture):
        """Starts a fixture, if it is not started yet; the error if it cannot be used."""
        if fixture is None:
            return None
        if fixture not in self.fixtures:
            self.fixtures[fixture] = None
            try:
                fixture.start()
            except Failed as e:
                self.fixtures[fixture] = str(e)
        return self.fixtures[fixture]

    def close_fixtures(self):
        while self.fixtures:
            self.fixtures.popitem()[0].close()

    def execute(self, function, error=None):
        """Runs one test in this process, unless its fixture has failed; its status."""
        context = Context(function.__name__, self.base, self.memory, self.seed)
        # For servers that a test starts without `Server`.
        os.environ["FOREBAY_MEMORY_DIR"] = context.memory
        try:
            check(error is None, error)
            with context.stack:
                function(context)
        except Skipped as e:
            print(e)
            return SKIPPED
        except Failed as e:
            print(e)
        except BaseException:  # a defect of the test, an unforeseen error or an interrupt
            print(traceback.format_exc())
        else:
            shutil.rmtree(context.dir, ignore_errors=True)
            shutil.rmtree(context.memory, ignore_errors=True)
            return PASSED
        # Its retained memory is evidence as well, and nothing may be left in shared memory.
        run("cp", "-a", "--sparse=always", context.memory, context.path("memory"), check=False)
        print(f"its files are in {context.dir}; seed {self.seed}")
        return FAILED

    def wait(self, options=0):
        """Waits for a test to end, and prints its result and output."""
        pid, code, usage = os.wait4(-1, options)
        if pid not in self.running:
            return
        name, output, begin = self.running.pop(pid)
        status = os.waitstatus_to_exitcode(code)
        if status not in LABELS:
            status = FAILED
        took, cpu = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
        with open(output, errors="replace") as f:
            text = f.read().rstrip()
        os.unlink(output)
        print(f"{LABELS[status]:<4} {name} ({took:.1f} s, {cpu:.1f} s of CPU)")
        if text:
            print("\n".join(f"     {line}" for line in text.splitlines()))
        sys.stdout.flush()
        self.results.append((name, status, took))

    def stop(self):
        """Ends the tests that still run, if the run is interrupted; their servers end with them."""
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self.running and time.monotonic() < deadline:
            self.wait(os.WNOHANG)
            time.sleep(0.05)
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        while self.running:
            self.wait()
        self.close_fixtures()


__all__ = [
    *("BLOCK", "MIB", "STOP_S", "ControlSocket", "Failed", "Skipped", "alone", "check", "connect", "equal"),
    *("held", "need_root", "needs", "refused_by_server", "run", "run_tests", "test", "wait_for", "wait_read"),
    *("wait_signal_taken", "waited"),
]
