"""Commands of initiators that are aborted, or whose connection or unit is gone."""

import socket
import struct
import time

from datastore import TARGET, target
from harness import MIB, check, connect, equal, held, test, wait_for
from initiator import BLOCK, CHECK, GOOD, NAME, Initiator

ABORT_TASK, LOGICAL_UNIT_RESET = 1, 5
# The time within which what does not wait for other commands is answered, also by a busy machine. The other
# commands take minutes.
PROMPT_S = 60
# A limit at which a command of a few MiB takes minutes.
SLOW = ("--bandwidth", "64K", "--bandwidth-burst", "64K")


def write16(lba, out):
    return struct.pack(">BBQIBB", 0x8A, 0, lba, len(out) // BLOCK, 0, 0)


def cut(i):
    """Ends a connection with a reset."""
    i.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    i.close()


def begin_write(i, lun=0):
    """Sends a WRITE whose data is requested, and never sent; returns the R2T."""
    out = bytes(64 << 10)
    i.send(i.command_pdu(write16(0, out), out=out, lun=lun))
    r2t, _ = i.receive()
    equal(r2t[0], 0x31, "what asks for data")
    return r2t


def begin_command(s, idle, i, cdb, expected=0):
    """Sends a command, and waits until its execution has begun. `idle` is what the server holds without
    commands."""
    wait_for(lambda: held(s) == idle, "the end of the command before")
    i.send(i.command_pdu(cdb, expected=expected))
    wait_for(lambda: held(s) > idle, "the beginning of a command")


def answer_to(i, function, **which):
    """The response to a task management function, and how long it took."""
    begun = time.monotonic()
    i.manage(function, **which)
    header, _ = i.receive()
    equal(header[0], 0x22, "what a task management function is answered with")
    return header[2], time.monotonic() - begun


@test
def a_host_that_is_gone_does_not_delay_its_fencing(t):
    s, address = target(t, "shared", "slow")
    gone = Initiator(address, TARGET, isid=1).ready()
    gone.ready(lun=1)
    begin_write(gone)
    begun = held(s)
    s.cli("volume", "limit", "slow", *SLOW)
    # A command of the session that continues for minutes, on another unit: the write before it uses up the
    # limit.
    equal(gone.write_blocks(0, bytes(8 * MIB), lun=1).status, GOOD, "a write")
    wait_for(lambda: held(s) == begun, "the end of the write")
    data = bytes(16 * BLOCK)
    gone.send(gone.command_pdu(write16(0, data), out=data, lun=1), data)
    wait_for(lambda: held(s) > begun, "the beginning of the next one")
    both = held(s)
    cut(gone)
    # The first command, whose data is missing, ends with its connection.
    wait_for(lambda: held(s) < both, "the end of the connection")
    equal(len(s.json("target", "show", TARGET)["sessions"]), 1, "sessions whose last command still runs")
    other = Initiator(address, TARGET, isid=2).ready()
    status, took = answer_to(other, LOGICAL_UNIT_RESET)
    equal(status, 0, "LOGICAL UNIT RESET")
    check(took < PROMPT_S, f"it took {took:.1f} s")
    s.cli("volume", "limit", "slow", "--clear")


@test
def commands_that_only_read_are_given_up(t):
    s, address = target(t, "disk")
    i = Initiator(address, TARGET, isid=1).ready()
    idle = held(s)
    for at in range(8):
        equal(i.write_blocks(at * 2048, t.random.randbytes(MIB)).status, GOOD, "a write")
    s.cli("volume", "limit", "disk", *SLOW)
    blocks = 8 * MIB // BLOCK
    verify = struct.pack(">BBQIBB", 0x8F, 0, 0, blocks, 0, 0)
    read = struct.pack(">BBQIBB", 0x88, 0, 0, blocks, 0, 0)
    prefetch = struct.pack(">BBQIBB", 0x90, 0, 0, blocks, 0, 0)
    for name, cdb, expected in (("VERIFY", verify, 0), ("READ", read, 8 * MIB), ("PRE-FETCH", prefetch, 0)):
        for function in (ABORT_TASK, LOGICAL_UNIT_RESET):
            begin_command(s, idle, i, cdb, expected)
            status, took = answer_to(i, function, **({"tag": i.tag} if function == ABORT_TASK else {}))
            equal(status, 0, f"function {function} on a {name}")
            check(took < PROMPT_S, f"function {function} on a {name} took {took:.1f} s")
        i.ready()
    # A session that replaces another one does not wait for them.
    begin_command(s, idle, i, verify)
    begun = time.monotonic()
    again = Initiator(address, TARGET, isid=1).ready()
    took = time.monotonic() - begun
    check(took < PROMPT_S, f"the session was replaced after {took:.1f} s")
    begin_command(s, idle, again, verify)
    cut(again)
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of a session whose connection was cut", PROMPT_S)


@test
def a_logout_is_answered_after_the_commands_in_progress(t):
    s, address = target(t, "disk")
    new = t.random.randbytes(BLOCK)
    i = Initiator(address, TARGET, isid=1).ready()
    s.cli("volume", "limit", "disk", "--bandwidth", "1M", "--bandwidth-burst", "1M")
    # The first write uses up the limit for two seconds.
    begun = time.monotonic()
    equal(i.write_blocks(8, bytes(3 * MIB)).status, GOOD, "a write")
    i.send(i.command_pdu(write16(0, new), out=new), new)
    equal(i.logout(), 0, "logout")
    took = time.monotonic() - begun
    check(1.5 < took < PROMPT_S, f"the logout was answered after {took:.1f} s")
    other = Initiator(address, TARGET, isid=2).ready()
    equal(other.read_blocks(0, 1).data, new, "what was written before the logout")
    other.close()
    # A command whose data has not arrived does not delay it.
    i = Initiator(address, TARGET, isid=1).ready()
    begin_write(i)
    begun = time.monotonic()
    equal(i.logout(), 0, "logout")
    check(time.monotonic() - begun < PROMPT_S, "it was answered late")


@test
def a_write_does_not_reach_a_unit_whose_access_was_revoked(t):
    s, address = target(t, "disk", "other")
    s.cli("target", "allow", TARGET, NAME)
    old, new = b"old-" * 128, b"new!" * (64 << 8)
    changes = (
        ("lun", "unmap", TARGET, "0"),
        ("lun", "map", TARGET, "disk", "--lun", "0", "--read-only"),
        ("target", "allow", TARGET, NAME, "--lun", "1"),
    )
    for n, change in enumerate(changes):
        i = Initiator(address, TARGET, isid=n).ready()
        equal(i.write_blocks(0, old).status, GOOD, "a write")
        r2t = begin_write(i)
        s.cli(*change)
        begun = time.monotonic()
        equal(i.result().code, (0xB, 0x2F, 2), f"the write that was begun before {change}")
        check(time.monotonic() - begun < PROMPT_S, "it ended late")
        i.data_out(r2t, new)
        check(i.command(bytes(6)).status == CHECK, "no unit attention, and no missing unit")
        if n == 0:
            # The write that was ended does not hold the disk.
            s.cli("volume", "rm", "disk")
            s.cli("volume", "create", "disk", "--size", "64M")
        s.cli("target", "allow", TARGET, NAME)
        if n != 2:
            s.cli("lun", "map", TARGET, "disk", "--lun", "0")
        other = Initiator(address, TARGET, isid=100 + n).ready()
        equal(other.read_blocks(0, 1).data, bytes(BLOCK) if n == 0 else old, f"the blocks after {change}")
        i.close()
        other.close()


@test
def writes_have_ended_when_a_revocation_returns(t):
    s, address = target(t, "disk")
    for change in (("lun", "unmap", TARGET, "0"), ("target", "rm", TARGET, "--force")):
        i = Initiator(address, TARGET, isid=1).ready()
        # The first write uses up the limit for two seconds.
        s.cli("volume", "limit", "disk", "--bandwidth", "1M", "--bandwidth-burst", "1M")
        equal(i.write_blocks(8, bytes(3 * MIB)).status, GOOD, "a write")
        writes = s.json("stats", "disk")["write"]["ops"]
        i.send(i.command_pdu(write16(0, bytes(BLOCK)), out=bytes(BLOCK)), bytes(BLOCK))
        s.cli(*change)
        equal(s.json("stats", "disk")["write"]["ops"], writes + 1, f"writes when {change} returns")
        # A write that still waited for the limit would precede this one.
        h = connect(s, "disk")
        h.pwrite(bytes(4096), 32 * MIB)
        h.flush()
        equal(s.json("stats", "disk")["write"]["ops"], writes + 2, f"writes after {change}")
        h.shutdown()
        s.cli("volume", "limit", "disk", "--clear")
        s.wait_unused("disk")
        i.close()
        if change[0] == "lun":
            s.cli("lun", "map", TARGET, "disk", "--lun", "0")


@test
def a_write_with_the_tag_of_another_command_changes_nothing(t):
    s, address = target(t, "disk")
    i = Initiator(address, TARGET, isid=1).ready()
    old, new = b"old-" * 128, b"new!" * (64 << 8)
    equal(i.write_blocks(1000, old).status, GOOD, "a write")
    r2t = begin_write(i)
    i.tag -= 1
    i.send(i.command_pdu(write16(1000, new[:BLOCK]), out=new[:BLOCK]), new[:BLOCK])
    equal(i.result().code, (0xB, 0x4E, 0), "a write with a tag that is in use")
    # The first one continues.
    i.data_out(r2t, new)
    equal(i.result().status, GOOD, "the first write")
    equal(i.read_blocks(0, 128).data, new, "its blocks")
    equal(i.read_blocks(1000, 1).data, old, "the blocks of the other one")
