#!/usr/bin/env python3
"""Upgrades from the last release to this one under connected clients, and back: run by `make soak-upgrade`.

    run.py [NAME...]      only tests whose name contains NAME

FOREBAY_OLD is the binary of the last release (scripts/last-release.sh builds it), FOREBAY_BIN the binary of
this release. Both are needed: without them nothing is tested, so the run fails.

    FOREBAY_SEED             seed of all random data (1)
    FOREBAY_RELEASE_ROUNDS   upgrades and downgrades under load (10), and kills of a server (40)
    FOREBAY_GUEST_KILLS      upgrades, downgrades and crashes of the server of a running guest (3)

A release that changes the format of a pool by a command adds a test to this file: after the command, this
release serves the pool, and the last one refuses it.
"""

import os
import shutil
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "clients"), os.path.join(HERE, "..", "..", "scripts", "pylib")]

from forebay import Failed, binary, run  # noqa: E402
from harness import BLOCK, TESTS, check, connect, equal, run_tests, test  # noqa: E402

# The tests of these modules are not run here, only their clients.
import clients_crash  # noqa: E402
import clients_kept  # noqa: E402
import clients_reconnect  # noqa: E402
import clients_upgrade_killed as killed  # noqa: E402
from clients_filesystems import need_fuse_and_loop  # noqa: E402
from upgrade_load import block, loaded_server, wait_progress  # noqa: E402

TESTS.clear()
ROUNDS = int(os.environ.get("FOREBAY_RELEASE_ROUNDS", "10"))
KILLS = int(os.environ.get("FOREBAY_RELEASE_ROUNDS", "40"))
# The version and the feature words of a superblock, of which there are two copies of a block: docs/format.md.
VERSION, READ_ONLY, INCOMPATIBLE, CHECK = 8, 3208, 3216, 4088


class Installed:
    """A path at which one of the two releases is installed, as a package does it."""

    def __init__(self, t):
        self.old, self.new = os.path.abspath(os.environ["FOREBAY_OLD"]), binary()
        self.path = t.path("forebay")
        self.install(self.old)
        # Servers of this test are started from this path.
        os.environ["FOREBAY_BIN"] = self.path

    def install(self, release):
        """Replaces the file, also while a server runs from it."""
        shutil.copy(release, self.path + ".dpkg-new")
        os.rename(self.path + ".dpkg-new", self.path)
        self.current = release

    def install_other(self):
        """Installs the new release if the old one is installed, and the other way round."""
        self.install(self.old if self.current == self.new else self.new)


def version_of(release):
    """The version of a binary."""
    return run(release, "--version").stdout.split()[1]


@test
def clients_do_not_notice_upgrades_from_the_last_release_and_back(t):
    installed = Installed(t)
    s, loads = loaded_server(t)
    s.cli("image", "create", "image", "c")
    s.cli("volume", "clone", "image", "desktop", "--desktop")
    desktop = connect(s, "desktop")
    pauses = []
    # An odd number of replacements: the last one is an upgrade.
    for n in range(2 * ROUNDS - 1):
        wait_progress(loads)
        desktop.pwrite(block(n, 1), n % 100 * BLOCK)
        installed.install_other()
        report = s.upgrade()
        equal(report["version"], version_of(installed.current), "the release that runs")
        running, file = os.stat(f"/proc/{s.process.pid}/exe"), os.stat(installed.path)
        equal(os.path.samestat(running, file), True, "the installed binary runs")
        equal((report["connections"], report["closed"]), (5, 0), f"connections of {report}")
        equal(bytes(desktop.pread(BLOCK, n % 100 * BLOCK)), block(n, 1), "a desktop, over the same connection")
        pauses.append(report["pause_ms"])
    equal(installed.current, installed.new, "the release after the last upgrade")
    wait_progress(loads)
    for load in loads:
        load.finish()
    print(f"     {len(pauses)} upgrades and downgrades: pauses of at most {max(pauses)} ms", flush=True)
    s.stop()
    s.offline("check")
    s.start()
    h = connect(s, "a")
    for number, version in loads[0].versions.items():
        equal(bytes(h.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number} after a restart")


@test
def no_acknowledged_write_is_lost_when_the_release_changes_after_a_crash(t):
    """The server is killed, and the other release recovers its pool and its memory."""
    installed = Installed(t)
    server = t.server(config=clients_crash.CONFIG)

    def recover():
        installed.install_other()
        server.start()

    clients = clients_kept.kept_clients(t, server)
    clients_crash.crash_rounds(t, server, KILLS, server.kill, recover, 0.2, clients)


@test
def no_acknowledged_write_is_lost_when_an_upgrade_from_the_last_release_is_killed(t):
    installed = Installed(t)
    server = t.server(config=clients_crash.CONFIG)
    clients = killed.kept_clients(t, server, killed.Volume, killed.Never, killed.Desktop)
    killer = killed.Killer(t, server)

    def crash():
        installed.install_other()
        killer.crash()

    clients_crash.crash_rounds(t, server, KILLS, crash, server.start, 0.1, clients)
    print(f"     {killer.seen}", flush=True)


@test
def a_guest_lives_on_when_the_release_changes(t):
    need_fuse_and_loop()
    installed = Installed(t)
    server = t.server()

    def upgrade():
        installed.install_other()
        server.upgrade()

    def crash():
        server.kill()
        installed.install_other()
        server.start()

    clients_reconnect.guest_lives_on(t, server, {"another release": upgrade, "a crash": crash}, clients_reconnect.KILLS)


def crc64_nvme(data):
    """The checksum of a superblock."""
    crc = ~0 & (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ (1 << 64) - 1


def of_the_future(superblock, at, value, size):
    """A superblock file of whose copies each has this value in the field at `at`."""
    copies = []
    for start in (0, BLOCK):
        copy = bytearray(superblock[start : start + BLOCK])
        equal(int.from_bytes(copy[CHECK:], "little"), crc64_nvme(copy[:CHECK]), "the checksum of a superblock")
        copy[at : at + size] = value.to_bytes(size, "little")
        copy[CHECK:] = crc64_nvme(copy[:CHECK]).to_bytes(8, "little")
        copies.append(bytes(copy))
    return b"".join(copies)


def future_pools(superblock):
    """Pools that a later release may have: a name, the superblock, the words of the refusal, and the commands
    that are refused."""
    version = int.from_bytes(superblock[VERSION : VERSION + 4], "little")
    feature = lambda at: of_the_future(superblock, at, 1 << 63, 8)  # noqa: E731
    newer = of_the_future(superblock, VERSION, version + 1, 4)
    every = ("serve", "check", "inspect")
    return (
        ("version", newer, f"format version {version + 1} is newer", every),
        ("incompatible", feature(INCOMPATIBLE), "incompatible features that this release does not know (bit 63)", every),
        ("read-only", feature(READ_ONLY), "read-only compatible features that this release does not know (bit 63)", every[:1]),
    )


@test
def a_downgrade_is_refused_that_could_not_read_the_pool(t):
    """The pool is served by this release. A directory with a changed superblock stands for the pool after a
    command of a later release: the last release gets this directory, when it is started, and as the successor
    of the running server."""
    installed = Installed(t)
    installed.install(installed.new)
    s, loads = loaded_server(t)
    pid = s.process.pid
    with open(os.path.join(s.data, "superblock"), "rb") as f:
        superblock = f.read()
    for name, changed, words, commands in future_pools(superblock):
        copy = t.path(f"future-{name}")
        os.makedirs(os.path.join(copy, "segments"))
        file = os.path.join(copy, "superblock")
        with open(file, "wb") as f:
            f.write(changed)
        for command in commands:
            more = ["--socket", t.path("socket")] if command == "serve" else []
            done = run(installed.old, command, "--data", copy, *more, check=False, timeout=60)
            check(done.returncode == 1 and words in done.stderr, f"{command} of {name}: {done.returncode} {done.stderr}")
        successor = t.path(f"successor-{name}")
        with open(successor, "w") as f:
            f.write(f'#!/bin/bash\nfrom={s.data} to={copy}\nexec {installed.old} "${{@/#"$from"/"$to"}}"\n')
        os.chmod(successor, 0o755)
        refusal = s.refused("upgrade", "--binary", successor)
        check("the upgrade failed" in refusal and words in refusal, f"{name}: {refusal}")
        with open(file, "rb") as f:
            equal(f.read() == changed, True, f"the superblock of the pool after the refusals: {name}")
        equal((s.process.poll(), s.process.pid), (None, pid), f"the server after {name}")
        wait_progress(loads)
    installed.install_other()
    equal(s.upgrade()["closed"], 0, "connections closed by a downgrade to which nothing is opposed")
    wait_progress(loads)
    for load in loads:
        load.finish()


def main():
    for variable in ("FOREBAY_OLD", "FOREBAY_BIN"):
        if not os.access(os.environ.get(variable, ""), os.X_OK):
            sys.exit(f"{variable} is not a binary: nothing would be tested. See scripts/last-release.sh")
    try:
        old, new = (run(os.environ[v], "--version").stdout.strip() for v in ("FOREBAY_OLD", "FOREBAY_BIN"))
    except Failed as e:
        sys.exit(str(e))
    print(f"from {old} ({os.environ['FOREBAY_OLD']}) to {new} ({os.environ['FOREBAY_BIN']})", flush=True)
    return run_tests(sys.argv[1:], int(os.environ.get("FOREBAY_SEED", "1")))


if __name__ == "__main__":
    # SIGTERM ends the servers of a test run too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
