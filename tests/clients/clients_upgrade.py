"""Upgrades: another process takes the place of the running server, and no client notices.

Clients load the server over NBD (UNIX socket and TCP) and iSCSI while it is replaced again and again. Each
keeps its connection from the first to the last request, gets no error, and finds what it wrote. Successors
that fail at each step leave the clients with the former process.
"""

import contextlib
import json
import os
import signal
import subprocess
import time

from forebay import disk_was_slow, run, spawn
from harness import BLOCK, MIB, alone, check, connect, equal, test, wait_for, wait_read, waited
from upgrade_load import block, loaded_server, wait_progress


def descriptors(server):
    """The number of open descriptors apart from regular files, of which the store keeps a varying number."""
    directory = f"/proc/{server.process.pid}/fd"
    found = []
    for fd in os.listdir(directory):
        # Some are open for a moment only.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(os.path.join(directory, fd)))
    return sum(not target.startswith(server.data) for target in found)


@alone
@test
def clients_do_not_notice_twenty_upgrades(t):
    s, loads = loaded_server(t)
    pauses, opened = [], []
    for _ in range(20):
        wait_progress(loads)
        report = s.upgrade()
        equal((report["connections"], report["closed"]), (4, 0), f"connections of {report}")
        pauses.append(report["pause_ms"])
        opened.append(descriptors(s))
    wait_progress(loads)
    for load in loads:
        load.finish()
    longest = max(load.longest for load in loads)
    print(f"     20 upgrades: pauses of {sorted(pauses)[10]} ms in the median and {max(pauses)} ms at most; ", end="")
    print(f"longest request {longest * 1000:.0f} ms; {sum(load.requests for load in loads)} requests", flush=True)
    check(sorted(pauses)[10] < 1000, f"pauses {pauses} ms")
    # A file may be open for a moment when they are counted. A leak of one would add ten by then.
    check(min(opened[10:]) <= max(opened[:10]), f"open descriptors after each upgrade: {opened}")
    s.stop()
    check(not os.path.exists(s.nbd) and not os.path.exists(s.control), "sockets exist after the server has stopped")
    s.start()
    h = connect(s, "a")
    for number, version in loads[0].versions.items():
        equal(bytes(h.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number} after a restart")


def script(t, name, text):
    path = t.path(name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


# What a test says in place of a successor: frames on standard input (see serve/upgrade/channel.rs).
FAKE = """#!/usr/bin/python3
import json, os, socket, struct, sys, time
channel = socket.socket(fileno=os.dup(0))
def receive():
    header = b""
    while len(header) < 28:
        header += channel.recv(28 - len(header))
    magic, version, fds, text, data = struct.unpack(">8sIIIQ", header)
    body = b""
    while len(body) < text + data:
        body += channel.recv(min(1 << 16, text + data - len(body)))
    for at in range(0, fds, 128):
        socket.recv_fds(channel, 1, 128)
    return json.loads(body[:text])
def send(message, version=1):
    text = json.dumps(message).encode()
    channel.sendall(struct.pack(">8sIIIQ", b"FBHANDOV", version, 0, len(text), 0) + text)
READY = {"message": "ready", "release": "9.9", "formats": [1, 99]}
"""


def failing_successors(t):
    """Binaries that cannot take over: a name, a script, a part of the message, and whether clients are
    disconnected."""
    sleeps = "#!/bin/sh\nexec sleep 60\n"
    return [
        ("false", None, "exit status: 1", False),
        ("sleeps", sleeps, "did not answer within 1s", False),
        ("reads", "#!/bin/sh\nhead -c 12 >/dev/null\nexit 3\n", "exit status: 3", False),
        ("speaks", "#!/bin/sh\necho forebay is ready >&0\n", "not a Forebay server", False),
        ("version", FAKE + "send(READY, version=7)\n", "version 7 of the hand-over protocol", False),
        ("format", FAKE + 'receive(); send({**READY, "formats": [1, 0]})\ntime.sleep(60)\n', "this pool has version", False),
        ("refuses", FAKE + 'receive(); send({"message": "refused", "reason": "no reason"})\n', "no reason", False),
        ("confused", FAKE + 'receive(); send({"message": "opened"})\ntime.sleep(60)\n', "out of order", False),
        ("ends", FAKE + "receive(); send(READY); receive()\n", "exit status: 0", False),
        ("hangs", FAKE + "receive(); send(READY); time.sleep(60)\n", "did not answer within 1s", False),
        # The real server, which cannot use its memory, and fails after the pool was handed over.
        ("memory", f"#!/bin/sh\nFOREBAY_MEMORY_DIR=/proc exec {os.path.abspath(t.bin)} \"$@\"\n", "retained memory", False),
        (
            "goes",
            FAKE + 'receive(); send(READY); receive(); send({"message": "opened"}); receive()\n',
            "its clients were disconnected",
            True,
        ),
    ]


def failed_upgrade(s, binary, timeout):
    """The reason why a successor failed, not that of a slow disk."""
    for _ in range(20):
        error = s.refused("upgrade", "--binary", binary, "--timeout", timeout)
        if not disk_was_slow(error):
            break
    return error


@alone
@test
def a_successor_that_fails_at_any_step_leaves_the_clients_to_the_former_process(t):
    s, loads = loaded_server(t)
    t.bin = s.bin
    pid = s.process.pid
    for name, text, why, disconnects in failing_successors(t):
        if disconnects:
            for load in loads:
                load.finish()
        binary = script(t, name, text) if text else "/bin/false"
        error = failed_upgrade(s, binary, "1" if "within" in why else "30")
        check(why in error and "upgrade failed" in error, f"{name}: {error}")
        equal(s.process.poll(), None, f"the server after {name}")
        equal(s.json("volume", "show", "a")["name"], "a", f"the API after {name}")
        if not disconnects:
            wait_progress(loads)
    check("No such file" in s.refused("upgrade", "--binary", t.path("none")), "a binary that does not exist")
    longest = max(load.longest for load in loads)
    print(f"     longest request during failed upgrades {longest * 1000:.0f} ms", flush=True)
    equal(s.process.pid, pid, "the process")
    h = connect(s, "a")
    for number, version in loads[0].versions.items():
        equal(bytes(h.pread(BLOCK, number * BLOCK)), block(number, version), f"block {number}")
    equal(s.upgrade()["connections"], 1, "connections of an upgrade that succeeds")
    h.pwrite(block(0, 1), 0)
    h.shutdown()


@test
def only_one_upgrade_runs_at_a_time(t):
    s = t.server()
    begun, goes = t.path("begun"), t.path("goes")
    wait = f"touch {begun}; while [ ! -e {goes} ]; do sleep 0.02; done"
    slow = script(t, "slow", f'#!/bin/sh\n{wait}\nexec {s.bin} "$@"\n')
    command = [s.bin, "--socket", s.control, "--json", "upgrade", "--binary", slow]
    first = spawn(command, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists(begun) or first.poll() is not None, "the first upgrade")
    check(first.poll() is None, "the first upgrade has ended")
    check("another upgrade or handover is running" in s.refused("upgrade"), "an upgrade during another one")
    with open(goes, "w"):
        pass
    out, _ = first.communicate(timeout=60)
    equal(first.returncode, 0, "exit status of the first one")
    s.succeed(int(out.split('"pid":')[1].split(",")[0]))
    s.upgrade("--binary", s.bin)
    # By a signal: the process is the same kind of child.
    former = s.process.pid
    s.process.send_signal(signal.SIGUSR2)
    s.process.wait(60)
    s.process = None
    pids = run("pgrep", "-f", f"serve --data {s.data} ").stdout.split()
    check(len(pids) == 1 and int(pids[0]) != former, f"processes after SIGUSR2: {pids}, before: {former}")
    s.process = type("Former", (), {"wait": lambda self, timeout: 0})()
    s.succeed(int(pids[0]))
    s.json("volume", "list")
    s.stop()
    check(not os.path.exists(s.control), "the control socket exists after the server has stopped")


@test
def a_configuration_with_other_addresses_is_refused(t):
    config = t.path("config")
    with open(config, "w") as f:
        f.write("")
    s = t.server("--config", config)
    with open(config, "w") as f:
        f.write('[iscsi]\nlisten = ["127.0.0.1:0"]\n')
    error = s.refused("upgrade")
    check("restart the server to change its addresses" in error, error)
    with open(config, "w") as f:
        f.write("[nothing]\n")
    check("upgrade failed" in s.refused("upgrade"), "a configuration that is invalid")
    with open(config, "w") as f:
        f.write('[boot]\nprofile = "off"\n')
    s.upgrade()


@test
def an_upgrade_does_not_wait_for_limits(t):
    """A client with more requests in flight than its limit admits in many seconds."""
    import nbd

    s = t.server()
    s.cli("volume", "create", "v", "--size", "64M")
    s.cli("volume", "limit", "v", "--iops", "1")
    h = connect(s, "v")
    # The limit admits them in a minute.
    for n in range(64):
        h.aio_pread(nbd.Buffer(BLOCK), n * BLOCK)
    wait_read(h.aio_get_fd())
    wait_for(lambda: waited(s, "v") > 0, "a request that has waited, and others behind it")
    report = s.upgrade()
    equal(report["closed"], 0, f"connections closed by {report}")
    begun = time.monotonic()
    while h.aio_in_flight() > 0:
        check(h.poll(60_000) > 0, f"{h.aio_in_flight()} requests are not answered")
    check(time.monotonic() - begun < 45, "requests that were accepted before the upgrade waited after it")
    begun = time.monotonic()
    for n in range(4):
        h.pread(BLOCK, n * BLOCK)
    check(time.monotonic() - begun > 1, "the limit has no effect after the upgrade")


@test
def an_upgrade_is_refused_during_an_import(t):
    s = t.server()
    source = t.noise_file("f", 512 * MIB)
    importing = spawn([s.bin, "--socket", s.control, "image", "import", "i", source], stdout=subprocess.DEVNULL)
    wait_for(lambda: s.json("job", "list"), "the import")
    answer = s.cli("--json", "upgrade", check=False)
    if answer.returncode == 0:
        s.succeed(json.loads(answer.stdout)["pid"])
        check(importing.poll() is not None, "an upgrade took place during an import")
    else:
        check("wait for its end" in answer.stderr, f"during an import: {answer.stderr}")
    equal(importing.wait(), 0, "exit status of the import")
    if answer.returncode != 0:
        s.upgrade()
    equal([i["name"] for i in s.json("image", "list")], ["i"], "images after an upgrade")
