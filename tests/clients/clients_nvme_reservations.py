"""Reservations of NVMe hosts: their commands, notifications, what survives, and one set of registrants
with iSCSI."""

import random
import struct

from clients_nvme import ANYWHERE, SUBSYSTEM, TARGET, portal, target
from harness import check, equal, test, wait_for
from hosts import free_port
from initiator import Initiator
from nvme_host import (
    BLOCK,
    CONFLICT,
    EVENT,
    FLUSH,
    GET,
    INVALID_FIELD,
    OK,
    PROTECTED,
    SET,
    WRITE,
    Host,
)

REGISTER, REPORT, ACQUIRE, RELEASE = 0x0D, 0x0E, 0x11, 0x15
IGNORE, PERSIST, FORGET = 8, 3 << 30, 2 << 30
NEW, REMOVE, REPLACE = 0, 1, 2
TAKE, PREEMPT, ABORT = 0, 1, 2
FORMAT, NOT_CHANGEABLE = (0, 0x18), (1, 0x0E)
# Types, and which of them are the same in SCSI.
WE, EA, WE_REGISTRANTS, EA_REGISTRANTS, WE_ALL, EA_ALL = 1, 2, 3, 4, 5, 6
SCSI_TYPES = {1: 1, 2: 3, 3: 5, 4: 6, 5: 7, 6: 8}
PREEMPTED, RELEASED, CLEARED = 1, 2, 3


class Registrar:
    """A host that uses reservations of its first namespace."""

    def __init__(self, address, n, **more):
        self.id = bytes([n]) * 16
        self.host = Host(address, SUBSYSTEM, host_id=self.id, host=f"nqn.2026-01.org.example:h{n}", **more)
        self.q = self.host.queues[0]

    def register(self, key, current=0, action=NEW, flags=0):
        data = struct.pack("<QQ", current, key)
        return self.q.command(REGISTER, words=(action | flags,), data=data).status

    def acquire(self, key, kind, other=0, action=TAKE, flags=0):
        data = struct.pack("<QQ", key, other)
        return self.q.command(ACQUIRE, words=(action | kind << 8 | flags,), data=data).status

    def release(self, key, kind, flags=0):
        return self.q.command(RELEASE, words=(kind << 8 | flags,), data=struct.pack("<Q", key)).status

    def clear(self, key, flags=0):
        return self.q.command(RELEASE, words=(1 | flags,), data=struct.pack("<Q", key)).status

    def report(self):
        """The generation, the type, whether it persists, and for each registrant: identifier, key, holder."""
        done = self.q.command(REPORT, words=(4096 // 4 - 1, 1), expects=4096)
        equal(done.status, OK, "a report")
        generation, kind, count = struct.unpack_from("<IBH", done.data)
        found = {}
        for at in range(64, 64 + 64 * count, 64):
            controller, holds, key = struct.unpack_from("<HB5xQ", done.data, at)
            equal(controller, 0xFFFF, "the controller of a registrant")
            found[done.data[at + 16 : at + 32]] = (key, bool(holds))
        return generation, kind, bool(done.data[9]), found

    def write(self, block=0):
        return self.q.write(block, b"w" * BLOCK).status

    def read(self, block=0):
        return self.q.blocks(block).status


@test
def nvme_reservations_follow_the_specification(t):
    s, address = target(t, "v")
    a, b, c = (Registrar(address, n) for n in (1, 2, 3))
    equal(a.report(), (0, 0, False, {}), "the report without registrants")
    for status in (a.acquire(1, WE), a.release(1, WE), a.clear(1), a.register(1, 0, REMOVE), a.register(1, 0, REPLACE)):
        equal(status, CONFLICT, "a command of a host that is not registered")
    equal(a.register(0), INVALID_FIELD, "a registration with the key 0")
    equal([a.register(10), a.register(10), a.register(11)], [OK, OK, CONFLICT], "registrations")
    equal(a.register(11, 99, REPLACE), CONFLICT, "a replacement with a wrong key")
    equal([a.register(11, 10, REPLACE), a.register(12, 99, REPLACE, IGNORE)], [OK, OK], "replacements")
    equal(a.q.command(REGISTER, words=(3,), data=bytes(16)).status, INVALID_FIELD, "a reserved action")
    equal(a.q.command(REGISTER, words=(1 << 30,), data=bytes(16)).status, INVALID_FIELD, "a reserved persistence")
    equal(a.acquire(12, 7), INVALID_FIELD, "a reserved type")
    equal(a.q.command(REPORT, words=(1023, 0), expects=4096).status, FORMAT, "a report without long identifiers")
    equal(b.register(20), OK, "a second registration")
    for kind in range(1, 7):
        equal(a.acquire(12, kind), OK, f"an acquisition with type {kind}")
        equal([a.acquire(12, kind), a.acquire(12, kind % 6 + 1)], [OK, CONFLICT], "the same, and another type")
        equal(b.acquire(20, kind), OK if kind >= WE_ALL else CONFLICT, "an acquisition of another host")
        _, held, _, found = c.report()
        equal((held, found), (kind, {a.id: (12, True), b.id: (20, kind >= WE_ALL)}), "the report")
        registrants, readable = kind >= WE_REGISTRANTS, kind in (WE, WE_REGISTRANTS, WE_ALL)
        equal([a.write(), a.read()], [OK, OK], "the holder")
        expected = [OK if registrants else CONFLICT, OK if registrants or readable else CONFLICT]
        equal([b.write(), b.read()], expected, f"a registrant with type {kind}")
        equal([c.write(), c.read()], [CONFLICT, OK if readable else CONFLICT], f"another host with type {kind}")
        equal(c.q.command(FLUSH).status, CONFLICT, "a flush of another host")
        equal(a.release(12, kind % 6 + 1), INVALID_FIELD, "a release of another type")
        equal(a.release(12, kind), OK, "a release")
        equal([c.write(), c.read(), a.release(12, kind)], [OK, OK, OK], "after the release")
    # A holder that is preempted, one that unregisters, and a clear.
    equal(a.acquire(12, WE), OK, "a reservation to be preempted")
    equal([b.acquire(20, EA, 99, PREEMPT), b.acquire(99, EA, 12, PREEMPT)], [CONFLICT, CONFLICT], "wrong keys")
    equal(b.acquire(20, EA, 0, PREEMPT), INVALID_FIELD, "a preemption of the key 0")
    equal(b.acquire(99, EA, 12, ABORT, IGNORE), OK, "a preemption")
    equal([a.write(), a.acquire(12, WE), b.write()], [CONFLICT, CONFLICT, OK], "after the preemption")
    equal(c.report()[1:], (EA, False, {b.id: (20, True)}), "the report after the preemption")
    equal(b.register(0, 20, REMOVE), OK, "the holder is removed")
    equal((a.write(), c.report()[1:]), (OK, (0, False, {})), "after the holder is removed")
    equal([a.register(1), b.register(2), c.register(3), b.acquire(2, WE_ALL)], [OK] * 4, "three registrants")
    equal(a.acquire(1, EA, 0, PREEMPT), OK, "all others are preempted")
    equal(a.report()[1:], (EA, False, {a.id: (1, True)}), "after all others are preempted")
    equal([a.clear(7), a.clear(1)], [CONFLICT, OK], "clears")
    equal(a.report()[1:], (0, False, {}), "after the clear")
    # Through a read-only namespace, reservations cannot be changed.
    s.cli("snapshot", "create", "v", "s")
    s.cli("lun", "map", TARGET, "v@s")
    again = Registrar(address, 4)
    status = again.q.command(REGISTER, namespace=2, words=(0,), data=struct.pack("<QQ", 0, 5)).status
    equal(status, PROTECTED, "a registration through a snapshot")


@test
def nvme_hosts_are_notified_of_reservations(t):
    _, address = target(t, "v")
    a, b, c = (Registrar(address, n) for n in (1, 2, 3))
    # A second controller of the same host.
    twin = Registrar(address, 2)

    def notice(registrar):
        page = registrar.host.admin.log(0x80, 64).data
        count, kind, more, namespace = struct.unpack_from("<QBBxxI", page)
        return kind, more, namespace

    events = {}
    for r in (a, b, twin, c):
        events[r] = r.host.admin.submit(EVENT)
        equal(notice(r), (0, 0, 0), "the log page without notices")

    def notified(registrar, kind, more=0):
        equal(registrar.host.admin.complete(events[registrar]).result, 0x800006, "the event")
        equal(notice(registrar), (kind, more, 1), "the notice")
        events[registrar] = registrar.host.admin.submit(EVENT)

    for r, key in ((a, 1), (b, 2), (c, 3)):
        equal(r.register(key), OK, "a registration")
    equal([a.acquire(1, WE_REGISTRANTS), a.release(1, WE_REGISTRANTS)], [OK, OK], "a reservation that is released")
    for r in (b, twin, c):
        notified(r, RELEASED)
    equal([a.acquire(1, WE), a.release(1, WE)], [OK, OK], "a reservation of the holder alone")
    equal(a.acquire(1, WE, 2, PREEMPT), OK, "a preemption")
    for r in (b, twin):
        notified(r, PREEMPTED)
    equal(a.clear(1), OK, "a clear")
    notified(c, CLEARED)
    for r in (a, b, twin, c):
        equal(notice(r), (0, 0, 0), "the log page after all notices")
    # Notices that are masked, and several of them.
    equal(c.host.admin.command(SET, words=(0x82, 1 << RELEASED)).status, OK, "a mask")
    equal(c.host.admin.command(GET, words=(0x82,)).result, 1 << RELEASED, "the mask")
    equal(a.host.admin.command(GET, words=(0x82,)).result, 0, "the mask of another host")
    for _ in range(3):
        equal([a.register(1), c.register(3), a.acquire(1, EA_REGISTRANTS)], [OK] * 3, "registrations")
        equal([a.release(1, EA_REGISTRANTS), a.acquire(1, EA, 3, ABORT), a.clear(1)], [OK] * 3, "changes")
    equal(c.host.admin.complete(events[c]).result, 0x800006, "the event")
    events[c] = c.host.admin.submit(EVENT)
    equal(notice(c), (PREEMPTED, 2, 1), "the first notice")
    # The next event follows when the page of the former one was read.
    equal(c.host.admin.complete(events[c]).result, 0x800006, "the next event")
    equal([notice(c), notice(c), notice(c)], [(PREEMPTED, 1, 1), (PREEMPTED, 0, 1), (0, 0, 0)], "all notices")


@test
def nvme_reservations_survive(t):
    port = free_port()
    s, address = target(t, "v", serve=("--nvme", f"127.0.0.1:{port}"))
    a, b = Registrar(address, 1), Registrar(address, 2)
    equal(a.host.admin.command(GET, words=(0x83,)).result, 0, "persistence")
    equal(a.host.admin.command(SET, words=(0x83, 1)).status, NOT_CHANGEABLE, "persistence is no feature to set")
    equal([a.register(1), b.register(2, flags=PERSIST), a.acquire(1, WE)], [OK] * 3, "a reservation")
    equal(a.host.admin.command(GET, words=(0x83,)).result, 1, "persistence")
    for n in range(4):
        (s.upgrade, s.kill)[n % 2]()
        if n % 2:
            s.start()
        a, b = Registrar(address, 1, queues=2), Registrar(address, 2)
        equal(b.report()[1:], (WE, True, {a.id: (1, True), b.id: (2, False)}), "the report afterwards")
        equal([a.write(), a.host.queues[1].write(1, b"w" * BLOCK).status, b.write()], [OK, OK, CONFLICT], "writes")
    # What does not persist survives an upgrade, and no kill.
    equal(b.register(2, 2, REPLACE, FORGET), OK, "persistence is disabled")
    s.upgrade()
    a, b = Registrar(address, 1), Registrar(address, 2)
    equal(b.report()[1:], (WE, False, {a.id: (1, True), b.id: (2, False)}), "the report after an upgrade")
    s.kill()
    s.start()
    equal(Registrar(address, 2).report()[1:], (0, False, {}), "the report after a kill")


def reserve_out(initiator, action, kind=0, key=0, other=0, keep=False):
    data = struct.pack(">QQ4xB3x", key, other, keep)
    cdb = bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0])
    return initiator.command(cdb, out=data).status


@test
def nvme_and_iscsi_have_one_set_of_registrants(t):
    """Random commands of hosts of both protocols, against a model of the registrants."""
    s, address = target(t, "v", serve=(*ANYWHERE, "--iscsi", "127.0.0.1:0"))
    hosts = [Registrar(address, n) for n in (1, 2)]
    initiators = [
        Initiator(portal(s, "iscsi"), TARGET, name=f"iqn.2026-01.org.example:i{n}", isid=n).ready() for n in (3, 4)
    ]
    everyone = hosts + initiators
    keys, held, seen = {}, None, set()

    def may(who, writes):
        if held is None:
            return True
        kind, holder = held
        if who in keys if kind >= WE_REGISTRANTS else who == holder:
            return True
        return not writes and kind in (WE, WE_REGISTRANTS, WE_ALL)

    def holds(who):
        return held is not None and who in keys and (held[1] == who or held[0] >= WE_ALL)

    def ready(initiator):
        # Unit attentions are taken before the next command.
        while initiator.command(bytes(6)).status not in (0, 0x18):
            pass

    rng, rounds = random.Random(11), 700
    for _ in range(rounds):
        n = rng.randrange(4)
        who, is_host = everyone[n], n < 2
        key = rng.choice((keys.get(n, 5), rng.randrange(1, 6)))
        other, kind = rng.choice((0, 1, 2, 3, 4, 5)), rng.randrange(1, 7)
        action = rng.choice(("register", "remove", "acquire", "acquire", "release", "preempt", "clear"))
        registered, right = n in keys, keys.get(n) == key
        # What the model expects, and does.
        expected = "ok"
        if action == "register":
            new = rng.randrange(1, 6)
            if is_host and not registered:
                keys[n] = new
            elif right or not registered and not is_host and key == 0:
                keys[n] = new
            elif not registered and not is_host:
                key = 0
                keys[n] = new
            else:
                expected = "conflict"
        elif not registered or not right:
            expected = "conflict"
        elif action == "remove":
            if holds(n) and (held[0] < WE_ALL or len(keys) == 1):
                held = None
            del keys[n]
        elif action == "acquire":
            if held is None:
                held = (kind, n)
            elif not (holds(n) and held[0] == kind):
                expected = "conflict"
        elif action == "release":
            if holds(n) and held[0] != kind:
                expected = "invalid"
            elif holds(n):
                held = None
        elif action == "clear":
            keys, held = {}, None
        elif action == "preempt":
            of_all = held is not None and held[0] >= WE_ALL
            takes = held is not None and (other == 0 if of_all else other != 0 and keys.get(held[1]) == other)
            gone = {m for m in keys if (not takes or m != n) and (other == 0 or keys[m] == other)}
            if other == 0 and not takes:
                expected = "invalid"
            elif not gone and not takes:
                expected = "conflict"
            else:
                keys = {m: k for m, k in keys.items() if m not in gone}
                if takes:
                    held = (kind, n)
                elif not keys:
                    held = None
        # What the server does.
        if is_host:
            status = {
                "register": lambda: who.register(new, key, REPLACE if registered else NEW),
                "remove": lambda: who.register(0, key, REMOVE),
                "acquire": lambda: who.acquire(key, kind),
                "release": lambda: who.release(key, kind),
                "preempt": lambda: who.acquire(key, kind, other, rng.choice((PREEMPT, ABORT))),
                "clear": lambda: who.clear(key),
            }[action]()
            found = {OK: "ok", CONFLICT: "conflict", INVALID_FIELD: "invalid"}[status]
        else:
            ready(who)
            code = SCSI_TYPES[kind]
            status = {
                "register": lambda: reserve_out(who, 0, 0, key, new),
                "remove": lambda: reserve_out(who, 0, 0, key, 0) if registered else 0x18,
                "acquire": lambda: reserve_out(who, 1, code, key),
                "release": lambda: reserve_out(who, 2, code, key),
                "preempt": lambda: reserve_out(who, rng.choice((4, 5)), code, key, other),
                "clear": lambda: reserve_out(who, 3, 0, key),
            }[action]()
            found = {0: "ok", 0x18: "conflict", 2: "invalid"}[status]
        equal((n, action, found), (n, action, expected), f"the status with {keys}, {held}")
        seen.add((is_host, action, found))
        # What everybody observes.
        _, kind_now, _, report = hosts[0].report()
        equal(kind_now, held[0] if held else 0, "the type")
        equal(sorted(report.values()), sorted((k, holds(m)) for m, k in keys.items()), "the registrants")
        m = rng.randrange(4)
        if m < 2:
            equal([everyone[m].write() == OK, everyone[m].read() == OK], [may(m, True), may(m, False)], "access")
        else:
            ready(everyone[m])
            done = everyone[m].command(bytes([0x2A] + [0] * 7 + [1, 0]), out=b"w" * BLOCK)
            equal(done.status, 0 if may(m, True) else 0x18, f"the write of initiator {m} with {keys}, {held}")
    check(len(seen) >= 25, f"only {len(seen)} outcomes were seen")


@test
def nvme_preempt_and_abort_ends_commands(t):
    """A write that still waits for its data ends when its host is preempted, and changes nothing."""
    _, address = target(t, "v")
    a, b = Registrar(address, 1), Registrar(address, 2)
    equal([a.register(1), b.register(2), a.acquire(1, WE_REGISTRANTS)], [OK] * 3, "a reservation")
    b.q.holds.add(500)
    b.q.submit(WRITE, words=b.q.range(0, 64), data=b"b" * 64 * BLOCK, command=500)
    while not hasattr(b.q, "held"):
        b.q.step()
    equal(a.acquire(1, WE_REGISTRANTS, 2, ABORT), OK, "a preemption with abort")
    b.q.answer(*b.q.held)
    equal(b.q.complete(500).status, (0, 7), "the write of the preempted host")
    equal(a.q.blocks(0, 64).data, bytes(64 * BLOCK), "what the write wrote")
    wait_for(lambda: b.write() == CONFLICT, "the conflict of a later write")
