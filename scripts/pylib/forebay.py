"""Running a Forebay server from Python, for the demo and the client tests.

The server is the real binary, controlled through its command line only. Sockets are in a separate short
directory, because a UNIX socket path has at most 107 bytes.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG = 1
# A tmpfs on every Linux machine: the server's default place for its retained memory, too.
SHARED_MEMORY = "/dev/shm"
MEMORY_PREFIX = "forebay-test-"
# Age of a directory from which on its owner has surely locked it, if it lives.
ABANDONED_S = 60
_locks = []
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A check failed; the text explains it to the reader of the test's output."""


def die_with_parent():
    """For `preexec_fn`: the child is killed when this process ends, however it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(argv, **kwargs):
    """Starts a process that ends with this one, and does not receive a Ctrl-C at the terminal."""
    return subprocess.Popen(
        [str(a) for a in argv], preexec_fn=die_with_parent, start_new_session=True, stdin=subprocess.DEVNULL, **kwargs
    )


def run(*argv, check=True, timeout=300, **kwargs):
    """Runs a command and captures its output, unless `kwargs` redirect it.

    Raises `Failed` with the output if the command fails.
    """
    for stream, to in (("stdin", subprocess.DEVNULL), ("stdout", subprocess.PIPE), ("stderr", subprocess.PIPE)):
        kwargs.setdefault(stream, to)
    argv = [str(a) for a in argv]
    try:
        done = subprocess.run(argv, text=True, timeout=timeout, **kwargs)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"{' '.join(argv)}: not done after {timeout} s") from e
    if check and done.returncode != 0:
        output = (done.stdout or "") + (done.stderr or "")
        raise Failed(f"{' '.join(argv)}: exit status {done.returncode}\n{output}".rstrip())
    return done


def binary():
    """Path of the server to test."""
    path = os.environ.get("FOREBAY_BIN", "target/debug/forebay")
    if not os.access(path, os.X_OK):
        raise Failed(f"{path} does not exist: run 'cargo build', or set FOREBAY_BIN")
    return os.path.abspath(path)


def memory_directory():
    """A new directory for the retained memory of servers. The caller removes it, or the next call does in
    another process if this one is killed."""
    remove_abandoned()
    path = tempfile.mkdtemp(prefix=MEMORY_PREFIX, dir=SHARED_MEMORY)
    # The lock ends with this process and those that it forks.
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _locks.append(descriptor)
    return path


def remove_abandoned():
    """Removes directories of retained memory whose owners have ended."""
    for name in os.listdir(SHARED_MEMORY):
        if not name.startswith(MEMORY_PREFIX):
            continue
        path = os.path.join(SHARED_MEMORY, name)
        with contextlib.suppress(OSError):  # in use, or removed by its owner
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A new one may not be locked yet.
                if time.time() - os.fstat(descriptor).st_mtime > ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


# Of the reasons for which a server continues instead of its successor, those of a slow disk.
SLOW_UPGRADE = ("were not finished within", "did not become durable within")


def disk_was_slow(error):
    """Whether the message of an upgrade states that the server continues because of a slow disk."""
    return any(words in error for words in SLOW_UPGRADE)


class Successor:
    """A server process that is not a child of this one: it took the place of one that was."""

    def __init__(self, pid):
        self.pid = pid
        self.fd = os.pidfd_open(pid)
        self.returncode = None

    def wait(self, timeout=None):
        """Waits for the end of the process. Its exit status is unknown, and counts as 0."""
        if not select.select([self.fd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.returncode = 0
        return 0

    def poll(self):
        if select.select([self.fd], [], [], 0)[0]:
            self.returncode = 0
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            signal.pidfd_send_signal(self.fd, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


class Server:
    """A `forebay serve` on one data directory, which can be started, stopped and killed repeatedly.

    `memory` is the directory of its retained memory, which outlives the process. By default it is a separate
    one, which is removed with the sockets.
    """

    def __init__(self, data, log=None, args=(), memory=None):
        self.bin = binary()
        self.data = str(data)
        self.own_memory = memory is None
        self.memory = memory or memory_directory()
        self.sockets = tempfile.mkdtemp(prefix="forebay-", dir="/tmp")
        self.control = os.path.join(self.sockets, "control")
        self.nbd = os.path.join(self.sockets, "nbd")
        self.log = log or self.data.rstrip("/") + ".log"
        self.args = list(args)
        # A command that executes its arguments, such as `unshare`.
        self.prefix = []
        self.process = None
        # Number of starts so far.
        self.starts = 0

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the server, whatever its state, and removes its sockets and its own memory."""
        if self.process:
            self.kill()
        shutil.rmtree(self.sockets, ignore_errors=True)
        if self.own_memory:
            shutil.rmtree(self.memory, ignore_errors=True)

    def launch(self):
        """Starts the process without waiting for it."""
        argv = [self.bin, "serve", "--data", self.data, "--socket", self.control, "--nbd", f"unix:{self.nbd}"]
        environment = {**os.environ, "FOREBAY_MEMORY_DIR": self.memory}
        # The tests may run in a service, but the server is not started by it.
        environment.pop("SYSTEMD_EXEC_PID", None)
        with open(self.log, "ab") as log:
            self.process = spawn(self.prefix + argv + self.args, stdout=log, stderr=log, env=environment)
        self.starts += 1
        return self.process

    def start(self, timeout=60):
        """Starts the server and waits until it answers."""
        self.remove_sockets()
        self.launch()
        return self.wait_ready(timeout)

    def remove_sockets(self):
        """Removes stale sockets of a killed server. A new control socket means that the server is ready."""
        for path in (self.control, self.nbd):
            if os.path.exists(path):
                os.unlink(path)

    def is_ready(self):
        """Whether the server answers, after `remove_sockets` and `launch`."""
        return os.path.exists(self.control) and os.path.exists(self.nbd)

    def wait_ready(self, timeout=60):
        """Waits until a server that was launched answers."""
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if self.process.poll() is not None:
                raise Failed(f"the server ended with status {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise Failed(f"the server is not ready after {timeout} s:\n{self.log_tail()}")
            time.sleep(0.002)
        return self

    def log_tail(self, lines=15):
        with open(self.log, errors="replace") as f:
            return "".join(f.readlines()[-lines:]).rstrip()

    def wait(self, timeout):
        """Waits for the process to exit; returns its exit status."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired as e:
            raise Failed(f"the server still runs after {timeout} s") from e
        self.process = None
        return status

    def stop(self, timeout=60):
        """Sends SIGTERM and expects exit status 0. Returns the duration in seconds."""
        begin = time.monotonic()
        self.process.terminate()
        status = self.wait(timeout)
        if status != 0:
            raise Failed(f"the server ended with status {status} after SIGTERM:\n{self.log_tail()}")
        return time.monotonic() - begin

    def upgrade(self, *args):
        """Replaces the running process by another one; returns the report. On a disk that is slow for a
        moment, the server refuses: then it is asked again."""
        deadline = time.monotonic() + 60
        while True:
            done = self.cli("--json", "upgrade", *args, check=False)
            if done.returncode == 0:
                report = json.loads(done.stdout)
                self.succeed(report["pid"])
                return report
            if not disk_was_slow(done.stderr) or time.monotonic() > deadline:
                raise Failed(f"the upgrade ended with status {done.returncode}\n{done.stderr}")

    def succeed(self, pid, timeout=60):
        """Continues with the process that has taken over, after the former one has ended."""
        former, self.process = self.process, Successor(pid)
        try:
            status = former.wait(timeout)
        except subprocess.TimeoutExpired as e:
            former.kill()
            raise Failed(f"the former process still runs after {timeout} s") from e
        if status != 0:
            raise Failed(f"the former process ended with status {status}:\n{self.log_tail()}")

    def kill(self):
        """SIGKILL: a crash of the process."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def cli(self, *args, check=True, **kwargs):
        """Runs a `forebay` command on this server."""
        return run(self.bin, "--socket", self.control, *args, check=check, **kwargs)

    def json(self, *args, **kwargs):
        """Runs a command with `--json`; returns the parsed output."""
        return json.loads(self.cli("--json", *args, **kwargs).stdout)

    def refused(self, *args):
        """Runs a command that must fail with status 1 and one line on standard error; returns that line."""
        done = self.cli(*args, check=False)
        lines = done.stderr.strip().splitlines()
        if done.returncode != 1 or len(lines) != 1:
            raise Failed(
                f"'forebay {' '.join(args)}' should be refused in one line; status {done.returncode}\n{done.stderr}"
            )
        return lines[0]

    def offline(self, *args, check=True, **kwargs):
        """Runs a `forebay` command that opens the pool itself, while no server runs."""
        return run(self.bin, *args, *self.location(), check=check, **kwargs)

    def location(self):
        """The arguments by which a command finds the pool."""
        return ["--data", self.data]

    def wait_unused(self, volume, timeout=60):
        """Waits until the server reports that no client has the volume open."""
        deadline = time.monotonic() + timeout
        while self.json("volume", "show", volume)["clients"]:
            if time.monotonic() > deadline:
                raise Failed(f"{volume} still has clients after {timeout} s")
            time.sleep(0.01)

    def uri(self, export):
        """The NBD URI of an export."""
        return f"nbd+unix:///{export}?socket={self.nbd}"
