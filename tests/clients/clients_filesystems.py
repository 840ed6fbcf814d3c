"""File systems that are created, filled, checked and mounted on a volume, through nbdfuse and a loop
device."""

import os

from forebay import spawn
from harness import MIB, Skipped, check, need_root, run, test, wait_for


class Fs:
    """Commands that create, mount and check a file system."""

    def __init__(self, name, make, check_command, mount_type=None):
        self.name, self.make, self.check_command = name, make, check_command
        self.mount_type = mount_type or name


EXT4 = Fs("ext4", ["mkfs.ext4", "-q", "-F"], ["e2fsck", "-fn"])
XFS = Fs("xfs", ["mkfs.xfs", "-q", "-f"], ["xfs_repair", "-n", "-f"])
# `ntfsresize --info` reads and verifies all metadata; ntfsfix does not.
NTFS = Fs("ntfs", ["mkfs.ntfs", "-q", "-F", "-Q"], ["ntfsresize", "--info", "--force"], "ntfs-3g")


class Fuse:
    """An export as a file, through nbdfuse."""

    def __init__(self, t, server, export):
        self.dir = t.path("fuse")
        os.makedirs(self.dir, exist_ok=True)
        self.file = os.path.join(self.dir, "disk")
        self.process = spawn(["nbdfuse", self.file, server.uri(export)])
        t.defer(self.close)
        wait_for(lambda: self.process.poll() is not None or os.path.exists(self.file), "nbdfuse starts")
        check(self.process.poll() is None, "nbdfuse does not start")

    def close(self):
        if self.process is None:
            return
        # A loop device lets its file go some time after the file system on it was unmounted: until then the
        # file is in use.
        wait_for(
            lambda: self.process.poll() is not None
            or run("fusermount3", "-u", self.dir, check=False).returncode == 0,
            "the file of nbdfuse is unmounted",
        )
        self.process.wait(60)
        self.process = None


class Mount:
    """The file system in this file, mounted."""

    def __init__(self, t, fs, file, *options):
        self.dir = t.path("mnt")
        os.makedirs(self.dir, exist_ok=True)
        run("mount", "-t", fs.mount_type, "-o", ",".join(["loop", *options]), file, self.dir)
        self.mounted = True
        t.defer(self.close)

    def close(self):
        if self.mounted:
            run("umount", self.dir)
            self.mounted = False


def need_fuse_and_loop():
    need_root("mounting file systems")
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            raise Skipped(f"needs {device}")


def need_kernel_support(fs):
    with open("/proc/filesystems") as f:
        if fs.mount_type != "ntfs-3g" and fs.mount_type not in f.read().split():
            if run("modprobe", fs.mount_type, check=False).returncode != 0:
                raise Skipped(f"this kernel has no {fs.mount_type}")


def fill(t, root):
    """Creates many small files and some large ones, deletes some of them, and writes a list of checksums."""
    for d in range(8):
        os.makedirs(os.path.join(root, f"d{d}"))
        for i in range(120):
            with open(os.path.join(root, f"d{d}", f"f{i}"), "wb") as f:
                f.write(t.random.randbytes(t.random.randrange(0, 30000)))
    for i in range(4):
        with open(os.path.join(root, f"big{i}"), "wb") as f:
            for _ in range(12):
                f.write(t.random.randbytes(MIB))
            f.flush()
            os.fsync(f.fileno())
    for i in range(0, 120, 3):
        os.unlink(os.path.join(root, "d0", f"f{i}"))
    files = run("find", ".", "-type", "f", cwd=root).stdout.split()
    sums = run("sha256sum", *sorted(files), cwd=root).stdout
    with open(t.path("sums"), "w") as f:
        f.write(sums)


def verify(t, root):
    run("sha256sum", "--quiet", "--check", t.path("sums"), cwd=root)


def exercise(t, fs):
    need_fuse_and_loop()
    need_kernel_support(fs)
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "512M")
    fuse = Fuse(t, s, "disk")
    run(*fs.make, fuse.file)
    mount = Mount(t, fs, fuse.file)
    fill(t, mount.dir)
    mount.close()
    run(*fs.check_command, fuse.file)
    # Mount again: the data is read from the server's memory.
    mount = Mount(t, fs, fuse.file)
    verify(t, mount.dir)
    run("sync", "-f", mount.dir)
    s.cli("snapshot", "create", "disk", "filled")
    for d in range(4):
        run("rm", "-r", os.path.join(mount.dir, f"d{d}"))
    mount.close()
    fuse.close()
    # After a crash of the server, the data is read from the store: unmounting has flushed it.
    s.kill()
    s.start()
    fuse = Fuse(t, s, "disk")
    run(*fs.check_command, fuse.file)
    mount = Mount(t, fs, fuse.file)
    check(not os.path.exists(os.path.join(mount.dir, "d0")), "a deleted directory is back")
    check(os.path.exists(os.path.join(mount.dir, "d7", "f0")), "a file is gone")
    mount.close()
    fuse.close()
    # A clone of the snapshot is in the state of a power cut while mounted: the journal is replayed, and all
    # data is present.
    s.cli("volume", "clone", "disk@filled", "copy")
    fuse = Fuse(t, s, "copy")
    mount = Mount(t, fs, fuse.file)
    verify(t, mount.dir)
    mount.close()
    run(*fs.check_command, fuse.file)
    fuse.close()


@test
def ext4_on_a_volume(t):
    exercise(t, EXT4)


@test
def xfs_on_a_volume(t):
    exercise(t, XFS)


@test
def ntfs_on_a_volume(t):
    exercise(t, NTFS)
