"""Guarantees for the disks of a target that hosts share: durability, locks, reservations, copies, growth."""

import struct
import threading
import time

from datastore import TARGET, portal, target
from harness import MIB, check, equal, test, wait_for
from initiator import BLOCK, CHECK, CONFLICT, GOOD, LOW, Closed, Initiator, Refused

CLEAR_TASK_SET, LUN_RESET = 4, 5


@test
def commands_of_other_sessions_end_before_a_reset(t):
    _, address = target(t, "disk")
    writer = Initiator(address, TARGET, isid=1, keys={"ImmediateData": "No"}).ready()
    other = Initiator(address, TARGET, isid=2).ready()
    out = b"late" * 128
    for function, told in ((LUN_RESET, (6, 0x29, 3)), (CLEAR_TASK_SET, (6, 0x2F, 0))):
        writer.send(writer.command_pdu(struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0), out=out))
        r2t, _ = writer.receive()
        equal(r2t[0], 0x31, "what asks for data")
        other.manage(function)
        answer, _ = other.receive()
        equal((answer[0], answer[2]), (0x22, 0), "answer to the function")
        # Data that arrives after the reset has no effect.
        writer.data_out(r2t, out)
        equal(writer.command(bytes(6)).code, told, "what the other one is told")
        equal(other.ready().read_blocks(0, 1).data, bytes(BLOCK), "a block whose write was aborted")


@test
def writes_are_durable_when_they_are_acknowledged(t):
    s, _ = target(t, "disk", "cached")
    s.cli("lun", "unmap", TARGET, "1")
    s.cli("lun", "map", TARGET, "cached", "--lun", "1", "--write-back")
    s.stop()
    s.args += ["--remote-answers", "memory"]
    s.start()
    i = Initiator(portal(s), TARGET).ready()
    caching = struct.pack(">BBBBBB", 0x1A, 8, 8, 0, 64, 0)
    equal(i.command(caching, expected=64).data[4 + 2] & 4, 0, "WCE of a unit")
    i.command(bytes(6), lun=1)
    equal(i.command(caching, expected=64, lun=1).data[4 + 2] & 4, 4, "WCE of a unit that is mapped with --write-back")
    data = t.random.randbytes(MIB)
    for at in range(0, 4 * 2048, 2048):
        equal(i.write_blocks(at, data).status, GOOD, "a write")
    s.kill()
    s.args[s.args.index("--remote-answers") + 1] = "durable"
    s.start()
    i = Initiator(portal(s), TARGET).ready()
    i.command(bytes(6), lun=1)
    equal(i.command(caching, expected=64, lun=1).data[4 + 2] & 4, 0, "WCE of that unit without --remote-answers memory")
    for at in range(0, 4 * 2048, 2048):
        equal(b"".join(i.read_blocks(at + n, 128).data for n in range(0, 2048, 128)), data, "what a crash left")


@test
def compare_and_write_is_linearizable_across_kill_9(t):
    """Initiators increment shared counters with COMPARE AND WRITE, and count successful and unknown
    results."""
    s, address = target(t, "disk")
    clients, rounds = 4, 3
    told, unsure, addresses = [0] * clients, [0] * clients, [address]
    stop = threading.Event()

    def count(n):
        i, random = None, t.random.__class__(n)
        while not stop.is_set():
            try:
                if i is None:
                    i = Initiator(addresses[-1], TARGET, name=f"iqn.2026-01.org.example:{n}", isid=n, timeout=5).ready()
                lba = random.randrange(3)
                now = i.read_blocks(lba, 1)
                if now.status != GOOD:
                    continue
                value = struct.unpack_from(">Q", now.data)[0]
                new = struct.pack(">QQ", value + 1, n) * (BLOCK // 16)
                unsure[n] += 1
                done = i.compare_and_write(lba, now.data, new)
                unsure[n] -= 1
                told[n] += done.status == GOOD
                check(done.status == GOOD or done.code == (0xE, 0x1D, 0), f"COMPARE AND WRITE: {done}")
            except (Closed, Refused, OSError):
                # Until it tries again.
                i = None
                time.sleep(0.05)

    threads = [threading.Thread(target=count, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    for n in range(rounds + 1):
        wait_for(lambda least=sum(told) + 100: sum(told) > least, "increments")
        # The moment of the crash.
        time.sleep(t.random.uniform(0, 0.2))
        if n < rounds:
            s.kill()
            s.start()
            addresses.append(portal(s))
    stop.set()
    for thread in threads:
        thread.join(60)
    i = Initiator(addresses[-1], TARGET, isid=50).ready()
    total = sum(struct.unpack_from(">Q", i.read_blocks(lba, 1).data)[0] for lba in range(3))
    check(sum(told) <= total <= sum(told) + sum(unsure), f"{total} counted, {sum(told)} told and {sum(unsure)} unsure")


@test
def reservations_persist_after_a_restart(t):
    s, address = target(t, "disk")
    a, b = (Initiator(address, TARGET, isid=n).ready() for n in (1, 2))

    def out(i, action, key=0, new=0, kind=5, aptpl=1):
        data = struct.pack(">QQIBBH", key, new, 0, aptpl, 0, 0)
        return i.command(struct.pack(">BBBHIB", 0x5F, action, kind, 0, len(data), 0), out=data).status

    equal(out(a, 0, new=0xA), GOOD, "REGISTER")
    equal(out(a, 1, key=0xA), GOOD, "RESERVE")
    equal(b.write_blocks(0, b"b" * BLOCK).status, CONFLICT, "a write without registration")
    s.kill()
    s.start()
    a, b = (Initiator(portal(s), TARGET, isid=n).ready() for n in (1, 2))
    equal(b.write_blocks(0, b"b" * BLOCK).status, CONFLICT, "the same after kill -9")
    equal(a.write_blocks(0, b"a" * BLOCK).status, GOOD, "a write of the holder")
    equal(out(b, 0, new=0xB), GOOD, "REGISTER")
    equal(out(b, 4, key=0xB, new=0xA), GOOD, "PREEMPT")
    equal(a.command(bytes(6)).code, (6, 0x2A, 5), "what the preempted one is told")
    equal(a.write_blocks(0, b"a" * BLOCK).status, CONFLICT, "its write")
    equal(b.write_blocks(0, b"b" * BLOCK).status, GOOD, "that of its successor")


@test
def a_full_store_is_reported_and_recovers(t):
    with open(t.path("config"), "w") as f:
        f.write('[store]\nlimit = "96M"\n')
    s, address = target(t, "disk", size="512M", serve=["--config", t.path("config")])
    i = Initiator(address, TARGET).ready()
    full, warned, i.hears_room = None, False, True
    for at in range(0, 512):
        done = i.write_blocks(at * 1024, t.random.randbytes(1024 * BLOCK))
        if done.code == LOW:
            warned = True
        elif done.status == CHECK:
            full = done
            break
    check(full, "the store is never full")
    check(warned, "no unit attention for low space before the store is full")
    equal(full.code, (7, 0x27, 7), "sense of a write to a full store")
    equal(i.read_blocks(0, 8).status, GOOD, "a read while the store is full")
    unmap = struct.pack(">HHIQII", 22, 16, 0, 0, 512 * 2048 - 1, 0)
    equal(i.command(struct.pack(">BBIBHB", 0x42, 0, 0, 0, len(unmap), 0), out=unmap).status, GOOD, "UNMAP")
    wait_for(lambda: i.write_blocks(0, b"again..." * 64).status == GOOD, "room")


@test
def a_copy_moves_no_data(t):
    """EXTENDED COPY of a complete volume: its blocks are shared, not written."""
    s, address = target(t, "from", "to", size="64M")
    i = Initiator(address, TARGET).ready()
    i.command(bytes(6), lun=1)
    data = t.random.randbytes(MIB)
    for at in range(64):
        equal(i.write_blocks(at * 2048, data[at:] + data[:at]).status, GOOD, "a write")
    before = s.json("stats")["store"]["write"]["bytes"]

    def naa(lun):
        page = i.command(struct.pack(">BBBHB", 0x12, 1, 0x83, 1024, 0), expected=1024, lun=lun).data
        at = 4
        while page[at + 1] & 0xF != 3:
            at += 4 + page[at + 3]
        return page[at : at + 4 + page[at + 3]]

    targets = b"".join((b"\xe4\x00\x00\x00" + naa(lun)).ljust(28, b"\0") + b"\x00\x00\x02\x00" for lun in (0, 1))
    segments = b"".join(
        struct.pack(">BBHHHHHQQ", 2, 0, 24, 0, 1, 0, 8192 * 2, at, at) for at in range(0, 64 * 2048, 8192 * 2)
    )
    header = struct.pack(">BBHIII", 0, 0, len(targets), 0, len(segments), 0)
    parameters = header + targets + segments
    done = i.command(struct.pack(">BB8xIBB", 0x83, 0, len(parameters), 0, 0), out=parameters)
    equal(done.status, GOOD, f"EXTENDED COPY ({done.code})")
    for at in range(0, 64, 7):
        found = b"".join(i.read_blocks(at * 2048 + n, 128, lun=1).data for n in range(0, 2048, 128))
        equal(found, data[at:] + data[:at], f"MiB {at} of the copy")
    written = s.json("stats")["store"]["write"]["bytes"] - before
    check(written < MIB, f"{written} bytes were written to the store")


@test
def a_unit_is_resized_and_unmapped_under_load(t):
    s, address = target(t, "disk", "other")
    i = Initiator(address, TARGET).ready()
    i.command(bytes(6), lun=1)
    s.cli("volume", "resize", "disk", "128M")
    equal(i.command(bytes(6)).code, (6, 0x2A, 9), "what an initiator is told of a unit that grew")
    size = i.command(struct.pack(">BB8xIBB", 0x9E, 0x10, 32, 0, 0), expected=32).data
    equal(struct.unpack_from(">Q", size)[0], 128 * 2048 - 1, "its last block")
    check("is LUN 0 of target" in s.refused("volume", "rm", "disk"), "a disk that is mapped is removed")
    gone, failures = threading.Event(), []

    def load():
        while not gone.is_set():
            done = i.write_blocks(0, b"x" * 64 * BLOCK)
            if done.status == CHECK and done.code == (5, 0x25, 0):
                return
            if done.status not in (GOOD, CHECK):
                failures.append(done)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    before = s.json("stats", "disk")["write"]["ops"]
    wait_for(lambda: s.json("stats", "disk")["write"]["ops"] > before + 20, "the load")
    s.cli("lun", "unmap", TARGET, "0")
    thread.join(60)
    check(not thread.is_alive(), "the unit is still there")
    equal(failures, [], "other errors")
    equal(i.command(bytes(6), lun=1).code, (6, 0x3F, 0x0E), "what the initiator is told at another unit")
    equal(i.write_blocks(0, b"y" * BLOCK, lun=1).status, GOOD, "a write to the other unit")
    s.cli("volume", "rm", "disk")


@test
def a_number_that_gets_another_disk_is_identified_before_it_is_written(t):
    s, address = target(t, "one", "two")
    i = Initiator(address, TARGET).ready()
    equal(i.write_blocks(0, b"1" * BLOCK).status, GOOD, "a write")
    s.cli("lun", "unmap", TARGET, "0")
    s.cli("lun", "unmap", TARGET, "1")
    s.cli("lun", "map", TARGET, "two", "--lun", "0")

    def told():
        """The unit attentions, and then the failure, of writes."""
        codes = []
        while not codes or codes[-1][0] == 6:
            codes.append(i.write_blocks(0, b"1" * BLOCK).code)
        return set(codes)

    wait_for(lambda: i.command(bytes(6)).code != (5, 0x25, 0), "the other disk")
    check({(6, 0x3F, 3), (6, 0x3F, 0x0E), (5, 0x25, 0)} <= told(), "what the initiator is told")
    # An upgrade does not forget what the initiator knows.
    s.upgrade()
    check({(6, 0x3F, 3), (5, 0x25, 0)} <= told(), "what it is told after an upgrade")
    identification = struct.pack(">BBBHB", 0x12, 1, 0x83, 1024, 0)
    equal(i.command(identification, expected=1024).status, GOOD, "INQUIRY for the identification")
    equal(i.write_blocks(0, b"2" * BLOCK).status, GOOD, "a write after it")
    s.upgrade()
    equal(i.write_blocks(0, b"2" * BLOCK).status, GOOD, "a write after another upgrade")
    s.cli("lun", "map", TARGET, "one")
    equal(Initiator(address, TARGET, isid=2).ready().read_blocks(0, 1).data, b"2" * BLOCK, "the blocks of the other disk")


@test
def an_upgrade_to_volatile_answers_is_reported(t):
    def answer_from(where):
        with open(t.path("config"), "w") as f:
            f.write(f'[durability]\nremote_answers = "{where}"\n')

    answer_from("durable")
    s, address = target(t, "disk", lun=["--write-back"], serve=["--config", t.path("config")])
    i = Initiator(address, TARGET).ready()
    caching = struct.pack(">BBBBBB", 0x1A, 8, 8, 0, 64, 0)
    equal(i.command(caching, expected=64).data[4 + 2] & 4, 0, "WCE")
    answer_from("memory")
    s.upgrade()
    equal(i.write_blocks(0, b"1" * BLOCK).code, (6, 0x2A, 1), "what an initiator is told")
    equal(i.command(caching, expected=64).data[4 + 2] & 4, 4, "WCE after the upgrade")
    s.upgrade()
    equal(i.write_blocks(0, b"1" * BLOCK).status, GOOD, "a write after an upgrade that changes nothing")
