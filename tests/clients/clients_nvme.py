"""The NVMe/TCP target: each command, access by host, protocol violations, fused operations, and what a host
finds after its server was killed or replaced."""

import os
import random
import re
import struct
import threading

from forebay import Failed as Wrong
from forebay import binary
from harness import MIB, check, equal, run, test, wait_for
from initiator import Closed, Initiator, Refused
from hosts import free_port
from nvme_host import *  # noqa: F403
from nvme_host import BLOCK, DISCOVERY, HOST, OK, Failed, Host, Queue, Terminated

TARGET = "iqn.2026-01.org.example:t"
SUBSYSTEM = "nqn.2026-01.org.example:t"
ANYWHERE = ("--nvme", "127.0.0.1:0")


def portal(s, protocol="nvme"):
    """The address of the running server, from its last line about being ready."""

    def ready():
        return [line for line in s.log_tail(1000).splitlines() if "forebay is ready" in line]

    wait_for(lambda: len(ready()) == s.starts, "the address in the server's log")
    host, port = re.search(rf", {protocol} ([\d.]+):(\d+)", ready()[-1]).groups()
    return host, int(port)


def target(t, *volumes, size="64M", lun=(), serve=ANYWHERE):
    """A server with one open target that has these volumes; and its address."""
    s = t.server(*serve)
    s.cli("target", "create", TARGET, "--open")
    for volume in volumes:
        s.cli("volume", "create", volume, "--size", size)
        s.cli("lun", "map", TARGET, volume, *lun)
    return s, portal(s)


def refused(status, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Failed as e:
        equal(e.status, status, "status of the Connect")
        return
    raise Wrong(f"the Connect succeeded; it should fail with {status}")


def terminated(status, function):
    """A fatal error is reported, and the connection is closed."""
    try:
        function()
    except Terminated as e:
        equal(e.status, status, "fatal error status")
        return
    raise Wrong(f"no fatal error was reported, expected {status}")


def text(bytes_of):
    return bytes_of.rstrip(b"\0 ").decode()


@test
def nvme_commands_do_what_they_say(t):
    s, address = target(t, "v", "w")
    for digests in (0, 1, 2, 3):
        h = Host(address, SUBSYSTEM, digests=digests)
        q = h.queues[0]
        # In the capsule, with one data PDU, and with several of them.
        for count in (1, 16, 17, 256, 600, 2048):
            data = os.urandom(count * BLOCK)
            equal(q.write(100, data).status, OK, f"a write of {count} blocks")
            check(q.blocks(100, count).data == data, f"{count} blocks are not what was written")
        equal(q.write(7, b"a" * BLOCK, controls=FUA).status, OK, "a write with FUA")
        equal(q.command(FLUSH).status, OK, "a flush")
        equal(q.compare(7, b"a" * BLOCK).status, OK, "a comparison")
        equal(q.compare(7, b"b" * BLOCK).status, COMPARE_FAILURE, "a comparison with other data")
        equal(q.command(VERIFY, words=q.range(0, 65536)).status, OK, "a verification")
        equal(q.command(ZEROES, words=q.range(100, 100, DEALLOCATE)).status, OK, "zeroes")
        check(q.blocks(90, 200).data[10 * BLOCK : 110 * BLOCK] == bytes(100 * BLOCK), "zeroes were not written")
        q.write(100, b"c" * 40 * BLOCK)
        equal(q.deallocate([(100, 10)]).status, OK, "a deallocation")
        equal(q.deallocate([(120, 10)], page=True).status, OK, "a deallocation of Linux")
        expected = bytes(10 * BLOCK) + b"c" * 10 * BLOCK + bytes(10 * BLOCK) + b"c" * 10 * BLOCK
        check(q.blocks(100, 40).data == expected, "other blocks were deallocated")
        # Both commands in capsules, and with requested data.
        for count in (1, 16, 17, 255):
            old, new = (os.urandom(count * BLOCK) for _ in range(2))
            q.write(500, old)
            equal([r.status for r in q.fused(500, old, new)], [OK, OK], "a Compare and Write")
            equal([r.status for r in q.fused(500, old, new)], [COMPARE_FAILURE, FAILED_FUSED], "the same again")
            check(q.blocks(500, count).data == new, "a Compare and Write did not write")
        # Both namespaces are separate.
        q.write(0, b"x" * BLOCK, namespace=2)
        check(q.blocks(0).data != b"x" * BLOCK, "a write went to another namespace")
        # Many commands at once, completed in any order.
        ids = [q.submit(WRITE, words=q.range(n * 64, 64), data=bytes([n]) * 64 * BLOCK) for n in range(20)]
        check(all(q.complete(n).status == OK for n in ids), "a write of many failed")
        check(q.blocks(19 * 64, 64).data == b"\x13" * 64 * BLOCK, "a write of many is lost")
        h.close()
    s.cli("gc")


@test
def nvme_commands_that_are_invalid_fail_alone(t):
    s, address = target(t, "v")
    s.cli("snapshot", "create", "v", "s")
    s.cli("lun", "map", TARGET, "v@s")
    h = Host(address, SUBSYSTEM)
    q, one = h.queues[0], b"1" * BLOCK
    last = 64 * MIB // BLOCK
    for status, result in (
        (OUT_OF_LBAS, q.write(last, one)),
        (OUT_OF_LBAS, q.blocks(last - 1, 2)),
        (OUT_OF_LBAS, q.blocks(2**64 - 1, 1)),
        (OUT_OF_LBAS, q.deallocate([(last, 1)])),
        (INVALID_NAMESPACE, q.write(0, one, namespace=3)),
        (INVALID_NAMESPACE, q.command(FLUSH, namespace=0xFFFFFFFF)),
        (PROTECTED, q.write(0, one, namespace=2)),
        (PROTECTED, q.deallocate([(0, 1)], namespace=2)),
        (INVALID_OPCODE, q.command(0x04)),
        (INVALID_FIELD, q.command(READ, words=(0, 0, 4095), expects=4096 * BLOCK)),
        (BAD_LENGTH, q.blocks(0, 2, sgl_len=BLOCK)),
        (BAD_LENGTH, q.write(0, one, sgl_len=2 * BLOCK)),
        (MISSING_FUSED, q.write(0, one, fuse=SECOND)),
    ):
        equal(result.status, status, "status")
    # Between both commands of a fused operation there was another one.
    first = q.submit(COMPARE, words=q.range(0, 1), data=one, fuse=FIRST)
    between = q.submit(FLUSH)
    second = q.submit(WRITE, words=q.range(0, 1), data=one, fuse=SECOND)
    statuses = [q.complete(n).status for n in (first, between, second)]
    equal(statuses, [MISSING_FUSED, OK, MISSING_FUSED], "commands that are not adjacent")
    # Other ranges, and longer than an atomic write.
    first = q.submit(COMPARE, words=q.range(0, 1), data=one, fuse=FIRST)
    second = q.submit(WRITE, words=q.range(1, 1), data=one, fuse=SECOND)
    equal([q.complete(n).status for n in (first, second)], [FAILED_FUSED, INVALID_FIELD], "other ranges")
    equal([r.status for r in q.fused(0, one * 256, one * 256)], [ATOMIC_EXCEEDED] * 2, "a long fused operation")
    equal(q.blocks(0).data, bytes(BLOCK), "what all of these commands wrote")
    # The identifier of a command in progress.
    q.holds.add(5)
    q.submit(WRITE, words=q.range(0, 32), data=one * 32, command=5)
    q.submit(FLUSH, command=5)
    equal(q.complete(5).status, ID_CONFLICT, "a second command with an identifier")
    errors = h.admin.log(1, 64 * 16).data
    equal(struct.unpack_from("<QHH", errors, 0)[1:], (1, 5), "queue and command of the last error")


@test
def nvme_hosts_learn_what_a_subsystem_is(t):
    s, address = target(t, "v")
    s.cli("volume", "create", "w", "--size", "32M")
    s.cli("lun", "map", TARGET, "w", "--lun", "7", "--read-only")
    h = Host(address, SUBSYSTEM, queues=0)
    a = h.admin
    about = a.identify(1).data
    equal((len(about), text(about[768:1024])), (4096, SUBSYSTEM), "the controller structure")
    equal(struct.unpack_from("<H", about, 78)[0], a.controller, "the identifier of the controller")
    serial = text(about[4:24])
    other = Host(address, SUBSYSTEM, queues=0)
    equal(serial, text(other.admin.identify(1).data[4:24]), "serial numbers")
    equal(about[525] & 1, 0, "volatile write cache")
    equal(struct.unpack_from("<4I", a.identify(2).data), (1, 8, 0, 0), "namespaces")
    equal(struct.unpack_from("<2I", a.identify(2, 1).data), (8, 0), "namespaces after the first")
    for namespace, name, blocks, read_only in ((1, "v", 131072, 0), (8, "w", 65536, 1)):
        uuid = bytes.fromhex(s.json("volume", "show", name)["uuid"].replace("-", ""))
        of = a.identify(0, namespace).data
        equal((struct.unpack_from("<Q", of)[0], of[99], of[130]), (blocks, read_only, 9), f"namespace {namespace}")
        equal(of[104:120], uuid, "NGUID")
        ids = a.identify(3, namespace).data
        equal((ids[:2], ids[4:20], ids[20:22], ids[24:40]), (b"\2\x10", uuid, b"\3\x10", uuid), "descriptors")
    equal(a.identify(0, 2).data, bytes(4096), "an inactive namespace")
    equal(a.identify(0, 257).status, INVALID_NAMESPACE, "a namespace that cannot exist")
    equal(a.identify(0x42).status, INVALID_FIELD, "an unknown structure")
    for page, length in ((1, 64), (2, 512), (3, 512), (4, 4096), (5, 4096)):
        equal(a.log(page, length).status, OK, f"log page {page}")
    effects = a.log(5, 4096).data
    equal([effects[1024 + 4 * n] for n in (WRITE, READ, 4)], [3, 1, 0], "effects of commands")
    for page in (0x0C, 0x70):
        equal(a.log(page, 512).status, BAD_LOG, f"log page {page}")
    equal(a.command(SET, words=(7, 0x00030003)).result, 0x001F001F, "queues")
    equal(a.command(GET, words=(0x81, 1), expects=16).data, b"a host of a test", "the host identifier")
    equal(a.command(ABORT, words=(1 | 5 << 16,)).result, 1, "an Abort of a command that does not exist")
    equal(a.property(0, long=True).result & 0xFFFF, 127, "maximum entries of a queue")
    equal(a.command(0x01).status, INVALID_OPCODE, "Create I/O Submission Queue, which fabrics do not have")
    # A controller that is not enabled serves no other commands.
    raw = Queue(address, SUBSYSTEM)
    equal(raw.identify(1).status, SEQUENCE_ERROR, "Identify before the controller is enabled")
    refused(SEQUENCE_ERROR, Queue, address, SUBSYSTEM, number=1, controller=raw.controller)


@test
def nvme_hosts_are_informed_of_changes(t):
    s, address = target(t, "v", "w")
    h = Host(address, SUBSYSTEM)
    a, q = h.admin, h.queues[0]
    a.command(SET, words=(0x0B, 1 << 8))

    def changes(event, expected):
        result = a.complete(event).result
        equal(result, 0x00040002, "the event: namespace attribute changed")
        changed = struct.unpack_from("<3I", a.log(4, 4096).data)
        equal([n for n in changed if n], expected, "changed namespaces")

    event = a.submit(EVENT)
    s.cli("volume", "resize", "v", "128M")
    changes(event, [1])
    equal(struct.unpack_from("<Q", a.identify(0, 1).data)[0], 262144, "blocks of the resized volume")
    equal(q.write(262143, b"e" * BLOCK).status, OK, "a write at the new end")
    event = a.submit(EVENT)
    s.cli("lun", "unmap", TARGET, "1")
    changes(event, [2])
    equal(q.write(0, b"e" * BLOCK, namespace=2).status, INVALID_NAMESPACE, "a write to a removed namespace")
    events = [a.submit(EVENT) for _ in range(5)]
    equal(a.complete(events[4]).status, EVENT_LIMIT, "the fifth Asynchronous Event Request")
    s.cli("lun", "map", TARGET, "w")
    changes(events[0], [2])
    clients = s.json("volume", "clients", "v")
    equal([(c["protocol"], c["initiator"]) for c in clients], [("nvme", HOST)], "clients of the volume")
    # The host loses its access, and its queues end.
    s.cli("target", "rm", TARGET, "--force")
    for queue in (q, a):
        try:
            while True:
                queue.command(KEEP_ALIVE if queue is a else FLUSH)
        except (Closed, BrokenPipeError, ConnectionError):
            pass


@test
def nvme_discovery_lists_what_a_host_can_use(t):
    s = t.server("--nvme", "127.0.0.1:0", "--iscsi", "127.0.0.1:0")
    address = portal(s)
    secret = t.path("secret")
    with open(secret, "w") as f:
        f.write("twelve bytes and more")
    s.cli("target", "create", TARGET)
    s.cli("target", "create", "iqn.2026-01.org.example:chap", "--open", "--chap-user", "u", "--chap-secret-file", secret)
    s.cli("target", "create", "nqn.2026-01.org.example:Own", "--open")
    s.cli("target", "create", "iqn.2026-01.org.example:all", "--open")

    def found(host):
        h = Host(address, DISCOVERY, queues=0, host=host)
        records = struct.unpack_from("<QQ", h.admin.log(0x70, 1024).data)[1]
        data = h.admin.log(0x70, 1024 * records, 1024).data if records else b""
        entries = [data[n : n + 1024] for n in range(0, len(data), 1024)]
        ports = {(e[0], e[1], e[2], text(e[32:64]), text(e[512:768])) for e in entries}
        equal(ports, {(3, 1, 2, str(address[1]), "127.0.0.1")}, "ports")
        h.close()
        return [text(e[256:512]) for e in entries]

    everywhere = ["nqn.2026-01.org.example:Own", "nqn.2026-01.org.example:all"]
    equal(found(HOST), everywhere, "subsystems of a host without an entry")
    s.cli("target", "allow", TARGET, HOST)
    equal(found(HOST), [*everywhere, SUBSYSTEM], "subsystems of the host")
    equal(found(HOST + "2"), everywhere, "subsystems of another host")
    Host(address, SUBSYSTEM, queues=0).close()
    refused(INVALID_HOST, Queue, address, SUBSYSTEM, host=HOST + "2")
    refused(INVALID_HOST, Queue, address, SUBSYSTEM, host=HOST.upper())
    refused(INVALID_HOST, Queue, address, SUBSYSTEM, host="iqn.2026-01.org.example:host")
    refused(INVALID_HOST, Queue, address, "nqn.2026-01.org.example:none")
    refused(INVALID_HOST, Queue, address, "nqn.2026-01.org.example:chap")
    refused(INVALID_CONNECT, Queue, address, SUBSYSTEM, controller=1)
    refused(INVALID_CONNECT, Queue, address, SUBSYSTEM, entries=129)
    # A discovery controller is informed of changes, and has neither namespaces nor I/O queues.
    h = Host(address, DISCOVERY, queues=0)
    h.admin.command(SET, words=(0x0B, 1 << 31))
    event = h.admin.submit(EVENT)
    s.cli("target", "create", "iqn.2026-01.org.example:more", "--open")
    equal(h.admin.complete(event).result, 0x0070F002, "the event: discovery log page changed")
    equal(h.admin.identify(2).status, INVALID_FIELD, "namespaces of a discovery controller")
    refused(INVALID_CONNECT, h.queue, 1)
    # Initiators of iSCSI cannot have NVMe names, nor use targets that have such names.
    for name, initiator in ((TARGET, HOST), ("nqn.2026-01.org.example:Own", "iqn.2026-01.org.example:i")):
        try:
            Initiator(portal(s, "iscsi"), name, name=initiator)
            raise Wrong(f"{initiator} logged in to {name}")
        except Refused:
            pass


@test
def nvme_discovery_has_addresses_of_its_own(t):
    own = free_port()
    s, address = target(t, "v", serve=(*ANYWHERE, "--nvme-discovery", f"127.0.0.1:{own}"))
    page = Host(("127.0.0.1", own), DISCOVERY, queues=0).admin.log(0x70, 4096).data
    equal(struct.unpack_from("<Q", page, 8)[0], 1, "entries: the address of discovery is none")
    check(text(page[1024 + 32 : 1024 + 64]) == str(address[1]), "the port of the subsystem")
    refused(INVALID_HOST, Queue, ("127.0.0.1", own), SUBSYSTEM)
    h = Host(address, SUBSYSTEM)
    equal(h.queues[0].blocks(0).status, OK, "a read at the address of the subsystem")
    shown = s.cli("volume", "connect", "v", "--for", "nvme").stdout
    check(f"nvme connect -t tcp -a 127.0.0.1 -s {address[1]} -n {SUBSYSTEM} " in shown, shown)
    clients = s.json("volume", "clients", "v")
    equal([c["protocol"] for c in clients], ["nvme"], "clients of the volume")
    equal(s.json("stats")["clients"]["nvme_controllers"], 1, "controllers in the statistics")
    done = run(binary(), "--data", t.path("data"), "serve", "--nvme-discovery", "127.0.0.1:0", check=False)
    check(done.returncode != 0 and "nothing to discover" in done.stderr, done.stderr)


@test
def nvme_needs_a_flag_for_other_machines(t):
    done = run(binary(), "--data", t.path("data"), "serve", "--nvme", "0.0.0.0:0", check=False)
    check(done.returncode != 0 and "--nvme-allow-remote" in done.stderr, done.stderr)


@test
def nvme_violations_end_the_connection_only(t):
    s, address = target(t, "v", serve=(*ANYWHERE, "--cores", "2"))
    other = Host(address, SUBSYSTEM)

    def fresh(**more):
        h = Host(address, SUBSYSTEM, **more)
        return h, h.queues[0]

    def held(q, blocks=32):
        """A write whose data was requested."""
        q.holds.add(9)
        q.submit(WRITE, words=q.range(0, blocks), data=b"h" * blocks * BLOCK, command=9)
        q.held = None
        while q.held is None:
            q.step()
        return q.held

    def sends(q, kind, header, data=b"", **more):
        def function():
            q.send(kind, header, data, **more)
            while True:
                q.step()

        return function

    command, plain = bytes(64), bytes(16)
    for status, kind, header, more in (
        (BAD_HEADER, 5, plain, {}),
        (BAD_HEADER, 0x55, plain, {}),
        (BAD_HEADER, COMMAND, bytes(60), {}),
        (BAD_HEADER, COMMAND, command, {"total": 10}),
        (BAD_HEADER, COMMAND, command, {"total": 0xFFFFFFF0}),
        (BAD_HEADER, COMMAND, command, {"data": bytes(8193)}),
        (BAD_HEADER, COMMAND, command, {"flags": 1}),
        (LIMIT, H2C_DATA, plain, {"data": b"data", "total": 0x7FFFFFFF}),
        (BAD_HEADER, H2C_DATA, struct.pack("<HHII4x", 1, 1, 0, 4), {"data": b"data"}),
        (SEQUENCE, IC_REQ, bytes(120), {}),
    ):
        h, q = fresh()
        terminated(status, sends(q, kind, header, **more))
        h.close()
    for status, change in (
        (OUT_OF_RANGE, lambda c, tag, at, n: (c, tag, n, BLOCK)),
        (SEQUENCE, lambda c, tag, at, n: (c, tag, BLOCK, BLOCK)),
        (BAD_HEADER, lambda c, tag, at, n: (c, tag + 1, 0, BLOCK)),
        (BAD_HEADER, lambda c, tag, at, n: (c + 1, tag, 0, BLOCK)),
    ):
        h, q = fresh()
        header = struct.pack("<HHII4x", *change(*held(q)))
        terminated(status, sends(q, H2C_DATA, header, bytes(BLOCK)))
        h.close()
    # The first PDU, and what follows it.
    q = Queue(address, SUBSYSTEM, connect=False)
    equal(q.command(READ, expects=BLOCK, words=(0, 0, 0)).status, SEQUENCE_ERROR, "a read before Connect")
    # Digests: a header's is fatal, that of data fails the command.
    h, q = fresh(digests=3)
    equal(q.write(0, b"d" * BLOCK, damage="data").status, TRANSPORT_ERROR, "damaged data in a capsule")
    q.answer(*held(q), damage="data")
    equal(q.complete(9).status, TRANSPORT_ERROR, "damaged data")
    equal(q.blocks(0, 32).data, bytes(32 * BLOCK), "what damaged writes wrote")
    terminated(HEADER_DIGEST, sends(q, COMMAND, command, damage="header"))
    h.close()
    # More commands than the queue has entries.
    h = Host(address, SUBSYSTEM, entries=4)
    q = h.queues[0]
    q.holds.update(range(8))

    def too_many():
        for n in range(8):
            q.submit(WRITE, words=q.range(0, 64), data=bytes(64 * BLOCK), command=n)
        while True:
            q.step()

    try:
        terminated(SEQUENCE, too_many)
    except (Closed, ConnectionError):
        pass
    h.close()
    equal(other.queues[0].write(0, b"o" * BLOCK).status, OK, "a write of another host")
    # Bytes at random, and connections that are cut anywhere.
    rng = random.Random(7)
    for n in range(300):
        q = Queue(address, SUBSYSTEM, connect=n % 3 > 0)
        try:
            for _ in range(rng.randrange(1, 6)):
                q.socket.sendall(rng.randbytes(rng.choice((1, 8, 72, 200, 5000))))
        except OSError:
            pass
        q.close()
    equal(other.queues[0].blocks(0).data, b"o" * BLOCK, "data of another host")
    wait_for(lambda: len(s.json("target", "show", TARGET)["sessions"]) == 1, "the end of all other controllers")


@test
def nvme_hosts_that_hold_memory_do_not_starve_others(t):
    s, address = target(t, "v", size="256M")
    hosts = []
    for n in range(12):
        h = Host(address, SUBSYSTEM, entries=128, host=f"{HOST}-{n}", host_id=bytes([n + 1]) * 16)
        q = h.queues[0]
        q.holds.update(range(100))
        # 100 MiB of data are announced, and none is sent.
        for command in range(100):
            q.submit(WRITE, words=q.range(0, 2048), data=bytes(MIB), command=command)
        hosts.append(h)
    h = Host(address, SUBSYSTEM)
    q = h.queues[0]
    for n in range(50):
        equal(q.write(n, bytes([n]) * BLOCK).status, OK, "a write of a host that behaves")
        equal(q.blocks(n).data, bytes([n]) * BLOCK, "what it reads")
    rss = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{s.process.pid}/status").read()).group(1))
    check(rss < 1200 * 1024, f"the server uses {rss} KiB")
    for one in hosts:
        one.close()


@test
def nvme_fused_operations_are_atomic(t):
    """Threads increment counters by Compare and Write; each success is one increment."""
    s, address = target(t, "v")
    threads, rounds, counters = 4, int(os.environ.get("FOREBAY_FUSED_RACES", "400")), 3
    won, failures = [0] * threads, []

    def race(n):
        try:
            h = Host(address, SUBSYSTEM, host_id=bytes([n + 1]) * 16)
            q, rng = h.queues[0], random.Random(n)
            known = [bytes(BLOCK)] * counters
            for _ in range(rounds):
                at = rng.randrange(counters)
                old = known[at]
                new = struct.pack("<QQ", struct.unpack_from("<Q", old)[0] + 1, n).ljust(BLOCK, b"\0")
                first, second = q.fused(at, old, new, in_capsule=rng.random() < 0.5)
                if (first.status, second.status) == (OK, OK):
                    won[n] += 1
                    known[at] = new
                else:
                    equal((first.status, second.status), (COMPARE_FAILURE, FAILED_FUSED), "statuses")
                    known[at] = q.blocks(at).data
            h.close()
        except Exception as e:
            failures.append(e)

    running = [threading.Thread(target=race, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    h = Host(address, SUBSYSTEM)
    q = h.queues[0]
    total = sum(struct.unpack_from("<Q", q.blocks(n).data)[0] for n in range(counters))
    equal(total, sum(won), "increments that were counted and that succeeded")
    check(min(won) > 0 and total < threads * rounds, f"{won} of {rounds} races were won: there were none")


@test
def nvme_writes_survive_kills_and_upgrades(t):
    s, address = target(t, "v", serve=("--nvme", f"127.0.0.1:{free_port()}"))
    known, rng = {}, random.Random(3)
    for n in range(6):
        h = Host(address, SUBSYSTEM)
        q = h.queues[0]
        for block, data in known.items():
            check(q.blocks(block).data == data, f"block {block} is not what was acknowledged before round {n}")
        unanswered = []
        for _ in range(50):
            block, data = rng.randrange(1000), rng.randbytes(BLOCK)
            if block not in known or rng.random() < 0.5:
                equal(q.write(block, data).status, OK, "a write")
                known[block] = data
        for block in rng.sample(sorted(known), 10):
            unanswered.append(block)
            q.submit(WRITE, words=q.range(block, 1), data=b"?" * BLOCK)
        if n % 2:
            s.kill()
            s.start()
            wait_for(lambda: portal(s) == address, "the server")
        else:
            s.upgrade()
        # A write without an answer is made, or not.
        try:
            while True:
                q.step()
        except (Closed, ConnectionError):
            pass
        h.close()
        h = Host(address, SUBSYSTEM)
        q = h.queues[0]
        for block in unanswered:
            found = q.blocks(block).data
            check(found in (known[block], b"?" * BLOCK), f"block {block} has neither content")
            known[block] = found


@test
def nvme_hosts_that_are_silent_lose_their_controller(t):
    s, address = target(t, "v")
    silent = Host(address, SUBSYSTEM, kato=1000)
    lively = Host(address, SUBSYSTEM, kato=1000, host_id=b"another".ljust(16))
    wait_for(
        lambda: lively.queues[0].blocks(0).status == OK and len(s.json("target", "show", TARGET)["sessions"]) == 1,
        "the end of the silent controller",
    )
    try:
        while True:
            silent.admin.step()
    except (Closed, ConnectionError):
        pass
    # A host that closed its connections connects again, while the former controller may still exist.
    for _ in range(30):
        h = Host(address, SUBSYSTEM)
        h.queues[0].submit(WRITE, words=h.queues[0].range(0, 2048), data=bytes(MIB))
        h.close()
    h = Host(address, SUBSYSTEM)
    equal(h.queues[0].blocks(0).status, OK, "a read")
    # A reset of the controller ends its I/O queues; it can be enabled again.
    lively.admin.property(0x14, 0x00460000)
    try:
        lively.queues[0].command(FLUSH)
        raise Wrong("an I/O queue is served by a controller that is not enabled")
    except (Closed, ConnectionError):
        pass
    lively.admin.property(0x14, 0x00460001)
    wait_for(lambda: lively.admin.property(0x1C).result & 1, "the controller is ready")
    equal(lively.queue(1).blocks(0).status, OK, "a read after the reset")
    # A shutdown.
    lively.admin.property(0x14, 0x00464001)
    wait_for(lambda: lively.admin.property(0x1C).result >> 2 & 3 == 2, "the shutdown is complete")


@test
def nvme_and_iscsi_share_volumes_and_reservations(t):
    s, address = target(t, "v", serve=(*ANYWHERE, "--iscsi", "127.0.0.1:0"))
    h = Host(address, SUBSYSTEM)
    q = h.queues[0]
    i = Initiator(portal(s, "iscsi"), TARGET).ready()
    equal(q.write(3, b"n" * BLOCK).status, OK, "a write over NVMe")
    read = i.command(bytes([0x28, 0, 0, 0, 0, 3, 0, 0, 1, 0]), BLOCK)
    check(read.data == b"n" * BLOCK, "what iSCSI reads is not what NVMe wrote")
    # The initiator reserves the volume: write exclusive.
    register = struct.pack(">QQ8x", 0, 77)
    reserve = struct.pack(">QQ8x", 77, 0)
    for action, kind, data in ((0, 0, register), (1, 1, reserve)):
        done = i.command(bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]), out=data)
        equal(done.status, 0, "PERSISTENT RESERVE OUT")
    equal(q.write(3, b"x" * BLOCK).status, CONFLICT, "a write against the reservation")
    equal(q.blocks(3).data, b"n" * BLOCK, "a read that the reservation allows")
    i.command(bytes([0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0]), out=reserve)
    equal(q.write(3, b"y" * BLOCK).status, OK, "a write after the reservation is cleared")
