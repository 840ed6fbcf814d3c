"""Corners of an upgrade: clients that are cut and come back, sessions that are replaced, requests of every
kind in progress, descriptors, and processes that only claim to be involved.
"""

import concurrent.futures
import os
import signal
import socket
import struct
import subprocess
import threading
import time

from clients_ghosts import DISC, Connection, free_port
from clients_handover import raw_nbd, request
from clients_upgrade import FAKE, script
from datastore import TARGET, target
from forebay import Failed, run, spawn
from harness import MIB, Skipped, check, connect, equal, test, wait_for, wait_read, wait_signal_taken
from initiator import BLOCK as SECTOR
from initiator import GOOD, Closed, Initiator

CUTS = int(os.environ.get("FOREBAY_UPGRADE_CUTS", "60"))
GHOSTS = 4
BUSY = 8


def reconnect(make, *args):
    """A connection to a server that is upgraded: a client that is negotiating is disconnected."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return make(*args)
        except (Closed, OSError):
            check(time.monotonic() < deadline, "no connection within 60 s")
            time.sleep(0.002)


def come_back(addresses, export, cuts, random):
    """Cuts a connection with writes in all places, and writes other data over the next one."""
    for n in range(cuts):
        old = reconnect(Connection, addresses[n % 2], export)
        version = n * 2 % 250 + 1
        old.flood(version)
        time.sleep(random.uniform(0, 0.05))
        old.cut(("reset", "close")[n // 2 % 2])
        new = reconnect(Connection, addresses[n // 4 % 2], export)
        new.write_all(version + 1)
        new.expect(version + 1, f"cut {n} of {export}")
        time.sleep(random.uniform(0, 0.1))
        new.expect(version + 1, f"cut {n} of {export}, later")
        new.send(DISC)
        new.socket.close()


@test
def no_write_of_a_cut_connection_lands_after_an_upgrade(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}", config='[memory]\nwrite_buffer = "1M"\n[log]\nsegment = "4M"\n')
    volumes = [f"volume-{n}" for n in range(GHOSTS)]
    for volume in volumes:
        s.cli("volume", "create", volume, "--size", "1M")
    # Many others, which a new process resumes first.
    s.cli("volume", "create", "other", "--size", "1M")
    others = [Connection(s.nbd, "other") for _ in range(200)]
    upgrades = 0
    with concurrent.futures.ThreadPoolExecutor(GHOSTS) as pool:
        addresses = (s.nbd, ("127.0.0.1", port))
        jobs = [pool.submit(come_back, addresses, v, CUTS // GHOSTS, t.random) for v in volumes]
        while not all(job.done() for job in jobs):
            s.upgrade()
            upgrades += 1
            time.sleep(t.random.uniform(0, 0.1))
        for job in jobs:
            job.result()
    for other in others:
        other.expect(0, "the volume of the others")
    print(f"     {CUTS} cuts, {upgrades} upgrades", flush=True)
    s.stop()


def during_upgrades(s, count, pause=0.03):
    """Upgrades a server in a thread. Returns a function that waits for the end and returns the reports."""
    reports, errors = [], []

    def work():
        try:
            for _ in range(count):
                time.sleep(pause)
                reports.append(s.upgrade())
        except Exception as e:  # noqa: BLE001: raised by `finish`
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()

    def finish():
        thread.join(120)
        if errors:
            raise errors[0]
        return reports

    finish.is_running = thread.is_alive
    return finish


def unsolicited_write(i, lba, data, wait):
    """Writes with immediate and unsolicited data, which is sent in pieces with a pause before each."""
    cdb = struct.pack(">BBQIBB", 0x8A, 0, lba, len(data) // SECTOR, 0, 0)
    header = i.command_pdu(cdb, out=data, final=False)
    i.send(header, data[:4096])
    sent, number = 4096, 0
    while sent < len(data):
        time.sleep(wait())
        piece = data[sent : sent + 8192]
        out = bytearray(48)
        out[0], out[1] = 0x05, 0x80 if sent + len(piece) == len(data) else 0
        out[16:20] = header[16:20]
        struct.pack_into(">I", out, 20, 0xFFFFFFFF)
        struct.pack_into(">I", out, 28, i.exp_stat_sn)
        struct.pack_into(">II", out, 36, number, sent)
        i.send(out, piece)
        sent, number = sent + len(piece), number + 1
    return i.result(data)


@test
def numbers_of_a_session_continue(t):
    """Unsolicited data, immediate commands and task management during upgrades: each command is answered
    once, status numbers have no gap, and the command window never shrinks."""
    s, address = target(t, "disk")
    keys = {"InitialR2T": "No", "HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}
    i = Initiator(address, TARGET, isid=1, keys=keys).ready()
    most, numbers = [0], []
    receive_pdu = i.receive

    def checked():
        header, data = receive_pdu()
        stat, expected, window = struct.unpack_from(">III", header, 24)
        check(window >= most[0], f"MaxCmdSN went from {most[0]} to {window}")
        check(expected <= i.cmd_sn, f"ExpCmdSN {expected} is beyond {i.cmd_sn}")
        most[0] = window
        if header[0] in (0x21, 0x22, 0x20) or (header[0] == 0x25 and header[1] & 1):
            numbers.append(stat)
        return header, data

    i.receive = checked
    finish = during_upgrades(s, 8)
    written, n = {}, 0
    while finish.is_running():
        lba, data = n % 8 * 256, t.random.randbytes(t.random.randrange(16, 60) * SECTOR)
        result = i.not_low(lambda: unsolicited_write(i, lba, data, lambda: t.random.uniform(0, 0.01)))
        equal((result.status, result.code), (GOOD, None), f"write {n}")
        written[lba] = data
        for at, expected in written.items():
            equal(i.read_blocks(at, len(expected) // SECTOR).data == expected, True, f"what is at {at} after write {n}")
        # A command that is pending is aborted; the function itself is answered.
        if n % 3 == 0:
            i.manage(t.random.choice((2, 5)))
            header, _ = i.receive()
            equal((header[0], header[2]), (0x22, 0), "the answer to a task management function")
            i.ready()
        n += 1
    reports = finish()
    equal([(r["connections"], r["closed"]) for r in reports], [(1, 0)] * 8, "connections")
    equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))), "status numbers")
    equal(i.logout(), 0, "logout")


@test
def a_session_that_is_replaced_during_an_upgrade_changes_nothing_later(t):
    s, address = target(t, "disk")
    for n in range(16):
        finish = during_upgrades(s, 1, pause=t.random.uniform(0, 0.03))
        old = Initiator(address, TARGET, isid=1).ready()
        stop, cdb = time.monotonic() + t.random.uniform(0, 0.1), struct.pack(">BBQIBB", 0x8A, 0, 0, 16, 0, 0)
        data, sent = bytes([n]) * (16 * SECTOR), 0
        while time.monotonic() < stop and sent < 100:
            old.send(old.command_pdu(cdb, out=data), data)
            sent += 1
        new = reconnect(lambda: Initiator(address, TARGET, isid=1).ready())
        mine = bytes([200 + n]) * (16 * SECTOR)
        result = new.write_blocks(0, mine)
        equal((result.status, result.code), (GOOD, None), "a write of the new session")
        finish()
        # A write of the old session that was still on its way would precede this one.
        equal(new.write_blocks(1000, mine).status, GOOD, "another write of the new session")
        check(new.read_blocks(0, 16).data == mine, f"round {n}: a write of the old session landed later")
        new.logout()
        old.close()


@test
def requests_of_every_kind_continue(t):
    """Reads, writes, zeroes, trims, cache, flushes and block status, at a queue depth, each answered once."""
    s = t.server()
    s.cli("volume", "create", "v", "--size", "64M")
    import nbd

    h = connect(s, "v")
    finish = during_upgrades(s, 8)
    done, issued = [], 0
    while finish.is_running():
        while h.aio_in_flight() < 64:
            issued += 1
            at = t.random.randrange(60) * MIB
            count = lambda error, n=issued: done.append((n, error.value)) or 1  # noqa: E731
            ignore = lambda *_: 0  # noqa: E731
            {
                0: lambda: h.aio_pread(nbd.Buffer(MIB), at, completion=count),
                1: lambda: h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(MIB)), at, completion=count),
                2: lambda: h.aio_zero(4 * MIB, at, completion=count),
                3: lambda: h.aio_trim(4 * MIB, at, completion=count),
                4: lambda: h.aio_flush(completion=count),
                5: lambda: h.aio_block_status(4 * MIB, at, ignore, completion=count),
            }[t.random.randrange(6)]()
        h.poll(1000)
    while h.aio_in_flight():
        h.poll(1000)
    for report in finish():
        equal((report["connections"], report["closed"]), (1, 0), f"connections of {report}")
    equal(sorted(done), [(n, 0) for n in range(1, issued + 1)], "answers")
    h.shutdown()
    # A disconnect just before an upgrade: its writes are executed.
    c = raw_nbd(s.nbd, "v")
    data = t.random.randbytes(8 * MIB)
    c.sendall(b"".join(request(1, n, n * MIB, MIB) + data[n * MIB : (n + 1) * MIB] for n in range(8)))
    c.sendall(request(2, 9, 0, 0))
    s.upgrade()
    h = connect(s, "v")
    check(bytes(h.pread(8 * MIB, 0)) == data, "writes that preceded a disconnect were not executed")


def has_ended(pid):
    """Whether a process, which need not be a child, has ended."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def upgraded_with_former(s):
    """Upgrades a server, of which the former process still runs: a request that was begun keeps it for a
    second."""
    for _ in range(10):
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(s.control)
        waiting.sendall(b"GET /v1/volumes HTTP/1.1\r\nHost: x\r\n")
        wait_read(waiting)
        former = s.process
        pid = s.json("upgrade")["pid"]
        if former.poll() is None:
            return former, pid, waiting
        # This process was paused for longer.
        s.succeed(pid)
        waiting.close()
    raise Failed("the former process has always ended already")


@test
def a_signal_to_the_former_process_stops_the_new_one(t):
    """The sender may not have learnt yet that another process serves the clients."""
    s = t.server()
    for number in (signal.SIGTERM, signal.SIGINT):
        former, pid, waiting = upgraded_with_former(s)
        former.send_signal(number)
        wait_for(lambda: has_ended(pid), f"the end of the new process after {number} to the former one")
        former.wait(60)
        s.process = None
        check(not os.path.exists(s.control), "the control socket exists after the server was stopped")
        waiting.close()
        s.start()


@test
def a_signal_to_stop_ends_an_upgrade_that_has_begun(t):
    s = t.server()
    begun, goes = t.path("pid"), t.path("goes")
    wait = f"echo $$ >{begun}; while [ ! -e {goes} ]; do sleep 0.02; done"
    slow = script(t, "slow", f'#!/bin/sh\n{wait}\nexec {s.bin} "$@"\n')
    command = spawn([s.bin, "--socket", s.control, "upgrade", "--binary", slow], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists(begun), "the new process")
    s.process.terminate()
    wait_signal_taken(s.process.pid, signal.SIGTERM)
    with open(goes, "w"):
        pass
    equal(s.wait(60), 0, "exit status of the server")
    check("a signal to stop has arrived" in command.communicate(timeout=60)[1], "the reason of the command")
    with open(begun) as f:
        new = int(f.read())
    wait_for(lambda: has_ended(new), "the end of the new process")
    s.start()


@test
def a_successor_whose_predecessor_was_killed_before_serves_nobody(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "1M")
    orphan = t.path("orphan")
    # The fourth field is the parent, which is another one when the former parent has ended.
    adopted = '[ "$(cut -d " " -f 4 /proc/$$/stat)" != $PPID ]'
    wait = f"kill -9 $PPID; until {adopted}; do sleep 0.01; done"
    killer = script(t, "killer", f'#!/bin/sh\necho $$ >{orphan}\n{wait}\nexec {s.bin} "$@"\n')
    check(s.cli("upgrade", "--binary", killer, check=False).returncode != 0, "the upgrade of a server that was killed")
    s.process.wait(60)
    s.process = None
    with open(orphan) as f:
        pid = int(f.read())
    wait_for(lambda: has_ended(pid), "the end of a server whose predecessor was killed")
    check("cannot take over from another process" in s.log_tail(), s.log_tail())
    s.start()
    # A process that has inherited the variable, and not the channel, is a separate server.
    s.stop()
    os.environ["FOREBAY_PREDECESSOR"] = str(os.getpid())
    try:
        s.start()
    finally:
        del os.environ["FOREBAY_PREDECESSOR"]
    equal([v["name"] for v in s.json("volume", "list")], ["v"], "volumes")
    # Nor does a child of a child take over, which could not be killed.
    wrapper = script(t, "wrapper", f'#!/bin/sh\n{s.bin} "$@"\nexit 7\n')
    error = s.refused("upgrade", "--binary", wrapper)
    check("is not its child" in error or "exit status: 7" in error, error)


@test
def the_first_process_of_a_container_is_not_replaced(t):
    """The kernel ends a container with its first process."""
    s = t.server(start=False)
    s.prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*s.prefix, "true"], capture_output=True).returncode:
        raise Skipped("this machine does not allow namespaces to be made")
    s.start()
    check("first one of its container" in s.refused("upgrade"), "an upgrade of the first process")
    s.json("volume", "list")


@test
def a_new_process_inherits_nothing_but_the_channel(t):
    s = t.server("--http", "127.0.0.1:0", "--nbd", "127.0.0.1:0")
    s.cli("volume", "create", "v", "--size", "16M")
    clients = [connect(s, "v") for _ in range(8)]
    found = t.path("found")
    lister = script(t, "lister", f"""#!/usr/bin/python3
import os
own = os.open("/proc/self/fd", os.O_RDONLY)
names = [n for n in os.listdir(own) if int(n) != own and os.path.exists("/proc/self/fd/" + n)]
open({found!r}, "w").write(" ".join(names))
""")
    s.refused("upgrade", "--binary", lister)
    with open(found) as f:
        equal(sorted(f.read().split()), ["0", "1", "2"], "descriptors of the new process")
    pid = s.process.pid
    children = run("ps", "--ppid", pid, "-o", "pid=", check=False).stdout
    equal(children.split(), [], "children after an upgrade that failed")
    # A program that sends more than a successor reports is refused before memory is taken for it.
    send = 'receive(); channel.sendall(struct.pack(">8sIIIQ", b"FBHANDOV", 1, 0, 2, 8 << 30))'
    flood = script(t, "flood", f"{FAKE}{send}\ntime.sleep(60)\n")
    check("too long" in s.refused("upgrade", "--binary", flood), "a message of 8 GiB")
    equal(s.upgrade()["connections"], 8, "connections")
    for h in clients:
        h.shutdown()


@test
def commands_wait_for_the_new_process(t):
    s = t.server()
    finish = during_upgrades(s, 6)
    made, n = [], 0
    while finish.is_running():
        s.cli("volume", "create", f"v{n}", "--size", "1M")
        made.append(f"v{n}")
        n += 1
    finish()
    equal(sorted(v["name"] for v in s.json("volume", "list")), sorted(made), "volumes")


@test
def long_verifications_do_not_prevent_an_upgrade(t):
    s, address = target(t, "disk", size="1G")
    disk = connect(s, "disk")
    for offset in range(0, 256 * MIB, MIB):
        disk.pwrite(t.random.randbytes(MIB), offset)
    disk.flush()
    disk.shutdown()
    i = Initiator(address, TARGET).ready()
    verify = struct.pack(">BBQIBB", 0x8F, 0, 0, 256 * MIB // SECTOR, 0, 0)
    for _ in range(8):
        i.send(i.command_pdu(verify))
    s.upgrade()
    ended = [i.result().status for _ in range(8)]
    check(set(ended) <= {GOOD, BUSY}, f"the verifications ended with {ended}")
    check(BUSY in ended, "no verification was under way")
    equal(i.command(verify).status, GOOD, "a verification by the new process")
