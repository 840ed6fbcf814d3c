#!/usr/bin/env python3
"""Installs, upgrades, removes and purges the Debian package on clean roots of Debian 12 and 13.

    FOREBAY_BIN=target/release/forebay tests/package/run.py [bookworm] [trixie]

Needs root, debootstrap, and python3-libnbd; with systemd-nspawn, the units run under systemd. The roots are
made once, in .cache/roots or FOREBAY_ROOTS. A client of this machine writes to a volume over the server's
socket while the package is upgraded; it must keep its connection. The package is installed and upgraded by
dpkg, and by apt from a signed repository.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "scripts", "pylib"), os.path.join(ROOT, "tests", "clients")]

import nbd  # noqa: E402
from clients_package import build_package  # noqa: E402
from clients_packages import REPOSITORY, make_key  # noqa: E402
from forebay import run  # noqa: E402
from harness import ControlSocket, check, equal  # noqa: E402

SUITES = ("bookworm", "trixie")
MIRROR = os.environ.get("FOREBAY_MIRROR", "http://deb.debian.org/debian")
ROOTS = os.environ.get("FOREBAY_ROOTS", os.path.join(ROOT, ".cache", "roots"))
PACKAGES = "systemd,systemd-sysv,dbus,init-system-helpers,procps"
BLOCK = 4096


def clean_root(suite):
    """A root of this release without our package."""
    path = os.path.join(ROOTS, suite)
    if not os.path.exists(f"{path}.done"):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(ROOTS, exist_ok=True)
        argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, path, MIRROR]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        open(f"{path}.done", "w").close()
    return path


class Machine:
    """A copy of a clean root: booted with systemd in a container, or without systemd if it cannot be."""

    def __init__(self, suite, scratch):
        self.suite, self.root = suite, os.path.join(scratch, suite)
        subprocess.run(["cp", "-a", "--reflink=auto", clean_root(suite), self.root], check=True)
        self.container, self.leader, self.mounts = None, None, []
        if shutil.which("systemd-nspawn") and self.boot():
            return
        self.mount("proc", "proc", "proc")
        self.mount("tmpfs", "tmpfs", "dev/shm")

    def boot(self):
        """Boots systemd; false if it does not work on this machine."""
        argv = ["systemd-nspawn", "--quiet", "--directory", self.root, "--register=no", "--keep-unit", "--private-network"]
        log = open(f"{self.root}.log", "wb")
        argv += ["--console=pipe", "--boot"]
        self.container = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 120
        while self.container.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
            with open(f"/proc/{self.container.pid}/task/{self.container.pid}/children") as f:
                children = f.read().split()
            if not children:
                continue
            self.leader = children[-1]
            state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            if state in ("running", "degraded"):
                return True
        self.close()
        self.container, self.leader = None, None
        return False

    def mount(self, kind, source, target):
        path = self.path(target)
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", kind, source, path], check=True)
        self.mounts.append(path)

    def close(self):
        if self.container:
            self.container.terminate()
            try:
                self.container.wait(30)
            except subprocess.TimeoutExpired:
                self.container.kill()
                self.container.wait()
        elif os.path.exists(self.path("/run/forebay/control.sock")):
            with contextlib.suppress(OSError):
                self.stop()
        for path in reversed(self.mounts):
            subprocess.run(["umount", "-l", path], check=False)

    def path(self, name):
        root = f"/proc/{self.leader}/root" if self.leader else self.root
        return os.path.join(root, name.lstrip("/"))

    def run(self, *argv, check=True):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        enter = ["chroot", self.root]
        if self.leader:
            spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
            enter = ["nsenter", "--target", self.leader, *spaces, "--root", "--wd=/"]
        done = subprocess.run([*enter, *argv], env=env, capture_output=True, text=True, cwd="/")
        if check and done.returncode != 0:
            raise AssertionError(f"{argv}: {done.stdout}{done.stderr}")
        return done

    def install(self, package):
        shutil.copy(package, self.path("/var/cache/forebay.deb"))
        done = self.run("dpkg", "--force-confdef", "--install", "/var/cache/forebay.deb")
        return done.stdout + done.stderr

    def cli(self, *args):
        """A command, which finds the socket of the service."""
        return self.run("forebay", *args).stdout

    def start(self):
        """Waits for the server that the package has started; without systemd, starts it as the unit does."""
        process = None
        if not self.leader:
            self.run("install", "-d", "-o", "forebay", "-g", "forebay", "/run/forebay")
            log = open(self.path("/tmp/server.log"), "ab")
            argv = ["chroot", "--userspec=forebay:forebay", self.root, "/usr/bin/forebay", "serve", "--config"]
            env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/var/lib/forebay"}
            process = subprocess.Popen([*argv, "/etc/forebay/forebay.toml"], stdout=log, stderr=log, env=env)
            log.close()
        deadline = time.monotonic() + 60
        while self.run("forebay", "--socket", "/run/forebay/control.sock", "stats", check=False).returncode != 0:
            gone = process is not None and process.poll() is not None
            check(not gone and time.monotonic() < deadline, f"no server: {self.log()}")
            time.sleep(0.1)

    def log(self):
        if self.leader:
            return self.run("journalctl", "-u", "forebay", "-n", "40", "--no-pager", check=False).stdout
        with open(self.path("/tmp/server.log"), errors="replace") as f:
            return f.read()[-2000:]

    def pid(self):
        """The process of the server, which an upgrade changes."""
        connection = ControlSocket(self.path("/run/forebay/control.sock"))
        connection.request("GET", "/api/v1/pool")
        pid = json.loads(connection.getresponse().read())["pid"]
        connection.close()
        return pid

    def stop(self):
        if self.leader:
            self.run("systemctl", "stop", "forebay.service")
            return
        pid = self.pid()
        os.kill(pid, 15)
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
            check(time.monotonic() < deadline, "the server does not stop")
            time.sleep(0.05)

    def unit(self, name):
        """A property of the unit; None without systemd."""
        if not self.leader:
            return None
        return self.run("systemctl", "show", "--value", "-p", name, "forebay.service").stdout.strip()


class Writer(threading.Thread):
    """A client that writes and flushes until it is stopped, on one connection."""

    def __init__(self, socket):
        super().__init__(daemon=True)
        self.handle = nbd.NBD()
        self.handle.connect_uri(f"nbd+unix:///v?socket={socket}")
        self.count, self.error, self.stopped = 0, None, threading.Event()

    def run(self):
        try:
            while not self.stopped.is_set():
                self.handle.pwrite(self.count.to_bytes(8, "little") * (BLOCK // 8), self.count % 1024 * BLOCK)
                if self.count % 16 == 0:
                    self.handle.flush()
                self.count += 1
        except nbd.Error as error:
            self.error = error

    def check(self, what):
        """It has continued, without an error."""
        before, deadline = self.count, time.monotonic() + 30
        while self.count < before + 32 and self.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        check(self.error is None and self.count >= before + 32, f"{what}: {self.error}, {self.count} writes")


def unit_links(machine):
    found = []
    for directory in ("multi-user.target.wants", "sockets.target.wants"):
        with contextlib.suppress(FileNotFoundError):
            found += os.listdir(machine.path(f"/etc/systemd/system/{directory}"))
    return sorted(name for name in found if name.startswith("forebay"))


INSTANCE = """
data = "/var/lib/forebay-second"
socket = "/run/forebay-second/control.sock"

[nbd]
listen = ["unix:/run/forebay-second/nbd.sock"]
"""


def second_pool(m, package):
    """A server for another pool, which an upgrade of the package upgrades as well."""
    with open(m.path("/etc/forebay/second.toml"), "w") as f:
        f.write(INSTANCE)
    unit = "forebay@second.service"
    m.run("systemctl", "enable", "--now", unit)
    before = m.run("systemctl", "show", "--value", "-p", "MainPID", unit).stdout
    text = m.install(package)
    equal(text.count("connections continue"), 2, f"upgraded servers: {text}")
    check(before != m.run("systemctl", "show", "--value", "-p", "MainPID", unit).stdout, "another process serves the second pool")
    m.run("systemctl", "disable", "--now", unit)
    os.remove(m.path("/etc/forebay/second.toml"))


def life_of_a_package(m, packages):
    """From the installation to the purge."""
    conffile = m.path("/etc/forebay/forebay.toml")
    m.install(packages[0])
    entry = m.run("getent", "passwd", "forebay").stdout.strip().split(":")
    equal(entry[5:], ["/var/lib/forebay", "/usr/sbin/nologin"], "the user")
    found = m.run("stat", "-c", "%U:%G %a", "/var/lib/forebay").stdout.strip()
    equal(found, "forebay:forebay 750", "the data directory")
    equal(unit_links(m), ["forebay-control.socket", "forebay.service", "forebay.socket"], "enabled units")
    m.run("forebay", "config", "check")
    verified = m.run("systemd-analyze", "verify", "/usr/lib/systemd/system/forebay.service", check=False)
    lines = [line for line in verified.stderr.splitlines() if "forebay" in line and "'man forebay" not in line]
    equal(lines, [], "systemd-analyze verify")

    m.start()
    if m.leader:
        equal((m.unit("ActiveState"), m.unit("NRestarts")), ("active", "0"), f"the unit: {m.log()}")
    first = m.pid()
    m.cli("volume", "create", "v", "--size", "64M")
    writer = Writer(m.path("/run/forebay/nbd.sock"))
    writer.start()
    writer.check("after the start")
    with open(conffile, "a") as f:
        f.write("\n[logging]\nfilter = \"info\"\n")
    text = m.install(packages[1])
    check("connections continue" in text, f"no upgrade of the running server: {text}")
    check(m.pid() != first, "another process serves the clients")
    writer.check("after the upgrade")
    if m.leader:
        equal((m.unit("MainPID"), m.unit("ActiveState")), (str(m.pid()), "active"), "the unit after the upgrade")
        m.run("systemctl", "reload", "forebay")
        deadline = time.monotonic() + 30
        while "configuration reloaded" not in m.log():
            check(time.monotonic() < deadline, f"no reload: {m.log()}")
            time.sleep(0.2)
        writer.check("after a reload")
    check("[logging]" in open(conffile).read(), "a changed configuration file is kept")
    if m.leader:
        second_pool(m, packages[1])
        writer.check("after an upgrade of another server")

    pid, good = m.pid(), open(conffile).read()
    with open(conffile, "a") as f:
        f.write("fliter = \"info\"\n")
    text = m.install(packages[2])
    check("continues with the former release" in text, f"failed upgrade: {text}")
    check("did you mean 'filter'" in m.log(), f"the reason in the log: {m.log()}")
    equal(m.pid(), pid, "the process after an upgrade that failed")
    writer.check("after an upgrade that failed")
    with open(conffile, "w") as f:
        f.write(good)
    m.cli("upgrade")
    writer.check("after the correction")
    writer.stopped.set()
    writer.join(30)
    equal(writer.error, None, "the client")
    last = writer.count - 1
    writer.handle.shutdown()
    if m.leader:
        m.run("dpkg", "--remove", "forebay")
        # In a container on cgroup v1, systemd does not wait for a main process that it did not start.
        state = m.run("systemctl", "is-active", "forebay.service", check=False).stdout.strip()
        check(state in ("inactive", "failed"), f"the unit after the removal: {state}")
    else:
        m.stop()
        m.run("dpkg", "--remove", "forebay")
    check(not os.path.exists(m.path("/usr/bin/forebay")) and os.path.exists(conffile), "remove keeps the configuration")
    check(os.path.exists(m.path("/var/lib/forebay/superblock")), "remove keeps the pool")
    text = m.run("dpkg", "--purge", "forebay")
    check(not os.path.exists(m.path("/etc/forebay")), "purge removes the configuration")
    equal(unit_links(m), [], "enabled units after the purge")
    check(os.path.exists(m.path("/var/lib/forebay/superblock")), "purge keeps the pool")
    check("is kept" in text.stdout + text.stderr, "purge says that it keeps the pool")
    m.run("getent", "passwd", "forebay")

    m.install(packages[2])
    m.start()
    handle = nbd.NBD()
    handle.connect_uri(f"nbd+unix:///v?socket={m.path('/run/forebay/nbd.sock')}")
    equal(bytes(handle.pread(8, last % 1024 * BLOCK)), last.to_bytes(8, "little"), "data after a purge and a new installation")
    handle.shutdown()
    return writer.count


def from_the_repository(m, packages, scratch):
    """apt installs the package from a signed repository, and upgrades it under a client, as the documentation
    describes it."""
    directory, sources = m.path("/srv/forebay-apt"), m.path("/etc/apt/sources.list.d/forebay.list")
    add = lambda package: run(REPOSITORY, directory, scratch.key, package, env=scratch.env)  # noqa: E731
    add(packages[0])
    keyring = "/etc/apt/keyrings/forebay-archive-keyring.gpg"
    os.makedirs(os.path.dirname(m.path(keyring)), exist_ok=True)
    shutil.copy(f"{directory}/forebay-archive-keyring.gpg", m.path(keyring))
    with open(sources, "w") as f:
        f.write(f"deb [signed-by={keyring}] file:/srv/forebay-apt {m.suite} main\n")
    # Only this source: the root has all packages on which it depends, and no network.
    apt = ["apt-get", "-o", "Dir::Etc::sourcelist=/etc/apt/sources.list.d/forebay.list", "-o", "Dir::Etc::sourceparts=-"]
    m.run(*apt, "-o", "APT::Update::Error-Mode=any", "update")
    m.run(*apt, "install", "-y", "--no-install-recommends", "forebay")
    m.start()
    first = m.pid()
    m.cli("volume", "create", "v", "--size", "64M")
    writer = Writer(m.path("/run/forebay/nbd.sock"))
    writer.start()
    writer.check("after the start")
    add(packages[1])
    m.run(*apt, "-o", "APT::Update::Error-Mode=any", "update")
    text = m.run(*apt, "upgrade", "-y").stdout
    check("connections continue" in text, f"no upgrade of the running server: {text}")
    check(m.pid() != first, "another process serves the clients")
    writer.check("after the upgrade by apt")
    writer.stopped.set()
    writer.join(30)
    equal(writer.error, None, "the client")
    writer.handle.shutdown()
    return writer.count


class Scratch:
    """What the tests of all suites share: a directory, and a key that is thrown away."""

    def __init__(self, directory):
        self.dir = directory
        self.stack = contextlib.ExitStack()
        self.key, self.env = make_key(self, "key")

    def path(self, name):
        return os.path.join(self.dir, name)

    def defer(self, function, *args, **kwargs):
        self.stack.callback(function, *args, **kwargs)


def main():
    suites = sys.argv[1:] or SUITES
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("this test needs root and debootstrap")
    with tempfile.TemporaryDirectory(prefix="forebay-package-") as directory:
        scratch = Scratch(directory)
        with scratch.stack:
            packages = [build_package(directory, f"-{n}") for n in (1, 2, 3)]
            for suite in suites:
                live(suite, "dpkg", directory, lambda m: life_of_a_package(m, packages))
                live(suite, "apt", directory, lambda m: from_the_repository(m, packages, scratch))


def live(suite, tool, directory, life):
    """Runs one life of the package on a new root."""
    begun = time.monotonic()
    machine = Machine(suite, directory)
    try:
        writes = life(machine)
    finally:
        machine.close()
        shutil.rmtree(machine.root, ignore_errors=True)
    kind = "systemd" if machine.leader else "no systemd"
    print(f"ok   {suite}, {tool} ({kind}): {writes} writes on one connection, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
