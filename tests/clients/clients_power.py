"""Power cuts: the pool on a real file system, on a disk whose volatile cache loses unflushed writes.

The disk is `volatile_disk`, which nbdfuse and a loop mount turn into a block device. In a power cut the disk
ends first, then the server is killed and everything is unmounted; then the disk starts with the surviving
writes, the file system replays its journal, and the clients of `clients_crash` compare the state with their
ledgers.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from clients_crash import CONFIG, crash_rounds
from clients_filesystems import EXT4, XFS
from forebay import Failed, run, spawn
from harness import alone, need_root, test, wait_for

SIZE = 512 << 20
# A killed server closes its files with a delay.
UMOUNT_TIMEOUT = 30


class Machine:
    """A disk, its file system and a server on it; power can be cut and restored."""

    def __init__(self, t, fs, *disk_options):
        self.t, self.fs, self.disk_options = t, fs, disk_options
        self.image = t.path("image")
        with open(self.image, "wb") as f:
            f.truncate(SIZE)
        run(*fs.make, self.image)
        self.sockets = tempfile.mkdtemp(prefix="power-", dir="/tmp")
        t.defer(shutil.rmtree, self.sockets, ignore_errors=True)
        self.fuse, self.mount = t.path("fuse"), t.path("mnt")
        os.mkdir(self.fuse)
        os.mkdir(self.mount)
        self.disk = self.fuse_process = None
        self.boots = 0
        t.defer(self.take_down)
        self.power_on()
        self.server = t.server(data=os.path.join(self.mount, "data"), config=CONFIG)

    def power_on(self):
        """Starts the disk and mounts the file system, which replays its journal."""
        self.boots += 1
        socket = os.path.join(self.sockets, f"disk-{self.boots}")
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "volatile_disk.py")
        self.disk = spawn([sys.executable, program, socket, self.image, str(self.t.random.random()), *self.disk_options])
        wait_for(lambda: os.path.exists(socket), "the disk")
        file = os.path.join(self.fuse, "disk")
        self.fuse_process = spawn(["nbdfuse", file, "--unix", socket], stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(file), "nbdfuse")
        run("mount", "-t", self.fs.mount_type, "-o", "loop", file, self.mount)

    def cut_power(self):
        self.disk.send_signal(signal.SIGUSR1)
        self.disk.wait(60)
        # Requests that wait for the disk fail now; nbdfuse could block them forever.
        self.fuse_process.kill()
        self.fuse_process.wait()
        self.server.kill()

    def take_down(self):
        """Unmounts the file system and the disk."""
        if self.disk is None:
            return
        for process in (self.disk, self.fuse_process):
            process.kill()
            process.wait()
        self.disk = None
        until = time.monotonic() + UMOUNT_TIMEOUT
        for directory in (self.mount, self.fuse):
            while is_mounted(directory):
                done = run("umount", directory, check=False)
                if done.returncode != 0 and time.monotonic() > until:
                    raise Failed(f"cannot unmount: {done.stderr}")
                time.sleep(0.01)

    def recover(self):
        self.take_down()
        self.power_on()
        self.server.start()


def is_mounted(directory):
    """Whether a directory is a mount point; `os.path.ismount` returns false if the file system has failed."""
    with open("/proc/self/mounts") as mounts:
        return any(line.split()[1] == directory for line in mounts)


def power_cuts(t, fs):
    need_root("loop mounts")
    rounds = int(os.environ.get("FOREBAY_POWER_CUTS", "4"))
    machine = Machine(t, fs)
    crash_rounds(t, machine.server, rounds, machine.cut_power, machine.recover, longest_load=1.5)


@alone
@test
def power_cuts_on_ext4_lose_no_flushed_write(t):
    power_cuts(t, EXT4)


@alone
@test
def power_cuts_on_xfs_lose_no_flushed_write(t):
    power_cuts(t, XFS)


@alone
@test
def a_disk_that_ignores_flushes_is_detected(t):
    """The test itself detects lost writes."""
    need_root("loop mounts")
    machine = Machine(t, EXT4, "--ignore-flush")
    try:
        crash_rounds(t, machine.server, 10, machine.cut_power, machine.recover, longest_load=1.5)
    except Failed:
        return
    raise Failed("10 power cuts of a disk that ignores flushes, and no write was lost")
