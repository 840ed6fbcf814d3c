"""The iSCSI target: libiscsi's test suite, logins, access control, sessions, and protocol violations of
initiators."""

import queue
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from datastore import TARGET, portal, refused, target, url
from forebay import Failed
from harness import MIB, check, equal, run, test, wait_for
from initiator import BLOCK, GOOD, Closed, Initiator, Refused

SECRET, OTHER_SECRET = "twelve bytes and more", "another one of the target"
ABORT_TASK = 1
# Servers on which the suite of libiscsi runs concurrently.
LIBISCSI_SERVERS = 3
# Tests of libiscsi that cannot pass, and tests that are skipped; docs/protocols.md states the reasons.
KNOWN_WRONG = {"GetLBAStatus.UnmapSingle"}
SKIPPED = re.compile(
    r"(PreventAllow|Sanitize|WriteAtomic16|ReadDefectData1[02])\.|ReadOnly.ReadOnlySBC|StartStopUnit.Simple|WriteSame1[06].ZeroBlocks"
)


def secret_file(t, name, secret):
    with open(t.path(name), "w") as f:
        f.write(secret)
    return t.path(name)


@test
def the_libiscsi_test_suite_passes(t):
    listed = run("iscsi-test-cu", "--list").stdout
    tests = re.findall(r"^(?:ALL)\.(\w+\.[\w-]+)$", listed.replace(" ", ""), re.M)
    check(len(tests) > 200, f"'iscsi-test-cu --list' names {len(tests)} tests")
    families = {}
    for name in tests:
        families.setdefault(name.split(".")[0], []).append(name)
    # The tests mostly wait, so several servers share them. They change the state of their unit: one run at a
    # time each.
    addresses = queue.SimpleQueue()
    for n in range(LIBISCSI_SERVERS):
        addresses.put(target(t, "disk", size="1G", data=f"data-{n}")[1])

    def run_family(item):
        address = addresses.get()
        try:
            family_passes(*item, address)
        finally:
            addresses.put(address)

    pool = ThreadPoolExecutor(LIBISCSI_SERVERS)
    try:
        list(pool.map(run_family, families.items()))
    finally:
        pool.shutdown(cancel_futures=True)


def family_passes(family, names, address):
    """Runs a family at once, because its tests depend on each other; tests of a family with exceptions
    separately."""
    skipped = {bool(SKIPPED.match(name)) for name in names}
    if len(skipped) == 1 and not KNOWN_WRONG.intersection(names):
        passes(family, len(names), skipped.pop(), address)
        return
    for name in names:
        if name not in KNOWN_WRONG:
            passes(name, 1, bool(SKIPPED.match(name)), address)


def passes(name, count, skipped, address):
    if name.startswith("MultipathIO"):
        # Its COMPARE AND WRITE expects zeroes in blocks 0 to 256, and writes them to 0 to 255 only.
        i = Initiator(address, TARGET).ready()
        equal(i.write_blocks(256, bytes(512)).status, GOOD, "a write before the tests")
        i.logout()
    done = run("iscsi-test-cu", "--dataloss", "--normal", f"--test=ALL.{name}", url(address), url(address), check=False)
    summary = re.search(r"tests\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", done.stdout)
    check(summary, f"{name} printed no summary:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    right = (str(count), str(count), str(count), "0")
    equal(summary.groups(), right, f"{name}: tests in all, run, passed and failed:\n{done.stdout[-1500:]}\n")
    equal("SKIPPED" in done.stdout, skipped, f"whether {name} is skipped")


@test
def initiators_must_authenticate(t):
    first, second = secret_file(t, "first", SECRET), secret_file(t, "second", OTHER_SECRET)
    create = ["--chap-user", "all", "--chap-secret-file", first, "--mutual-user", "target", "--mutual-secret-file", second]
    s, address = target(t, "disk", create=["--open", *create])
    for algorithm in (5, 6, 7, 8):
        i = Initiator(address, TARGET, chap=("all", SECRET), mutual=OTHER_SECRET, algorithm=algorithm)
        equal(i.ready().read_blocks(0, 1).status, GOOD, f"a read after CHAP with algorithm {algorithm}")
        i.logout()
    refused(0x0201, Initiator, address, TARGET, chap=("all", "not the secret"))
    refused(0x0201, Initiator, address, TARGET, chap=("nobody", SECRET))
    refused(0x0201, Initiator, address, TARGET)
    refused(0x0201, Initiator, address, TARGET, chap=("all", SECRET), algorithm=4)
    began = time.monotonic()
    for _ in range(4):
        refused(0x0201, Initiator, address, TARGET, chap=("all", "guess after guess"))
    check(time.monotonic() - began > 2, "failed logins are not delayed")
    refusals = [line for line in s.log_tail(200).splitlines() if "login was refused" in line]
    for reason in ("CHAP failed: wrong user or secret", "the target requires CHAP", "no CHAP algorithm in common"):
        line = next((line for line in refusals if reason in line), "")
        check(all(word in line for word in (TARGET, "iqn.", f"{address[0]}:")), f"{reason}: {refusals}")
    check(SECRET not in s.log_tail(500), "the secret is in the log")
    listed = run("iscsi-inq", f"iscsi://all%{SECRET}@{address[0]}:{address[1]}/{TARGET}/0").stdout
    check("FOREBAY" in listed, listed)


@test
def guesses_do_not_lock_a_host_out(t):
    create = ["--open", "--chap-user", "all", "--chap-secret-file", secret_file(t, "s", SECRET)]
    s, address = target(t, "disk", create=create)
    done, tried = threading.Event(), threading.Semaphore(0)

    def guess():
        while not done.is_set():
            try:
                Initiator(address, TARGET, chap=("all", "guess after guess"), source="127.0.0.2")
            except (Refused, Closed, OSError):
                tried.release()

    guessers = [threading.Thread(target=guess, daemon=True) for _ in range(16)]
    for guesser in guessers:
        guesser.start()
    # From here on, guesses wait for each other.
    for _ in range(4):
        check(tried.acquire(timeout=60), "no guess was answered")
    try:
        for isid in range(3):
            i = Initiator(address, TARGET, isid=isid, chap=("all", SECRET), timeout=60)
            equal(i.ready().read_blocks(0, 1).status, GOOD, "a read beside guesses")
    finally:
        done.set()


@test
def initiators_without_access_get_no_information(t):
    s, address = target(t, "a", "b", create=["--chap-user", "u", "--chap-secret-file", secret_file(t, "s", SECRET)])
    friend, stranger = "iqn.2026-01.org.example:friend", "iqn.2026-01.org.example:stranger"
    s.cli("target", "allow", TARGET, friend, "--lun", "1")
    refused(0x0203, Initiator, address, TARGET, name=stranger)
    refused(0x0203, Initiator, address, TARGET + "x", name=stranger)
    log = s.log_tail(100)
    check("the target does not admit this initiator" in log and "the target does not exist" in log, log)
    check(stranger in log and TARGET + "x" in log, log)
    equal(Initiator(address, name=stranger).text({"SendTargets": "All"}), [], "what a stranger discovers")
    equal(Initiator(address, name=stranger).text({"SendTargets": TARGET}), [], "what a stranger discovers by name")
    for pieces in (1, 3):
        found = Initiator(address, name=friend).text({"SendTargets": "All"}, pieces)
        equal(found, [f"TargetName={TARGET}", f"TargetAddress={address[0]}:{address[1]},1"], "what a friend discovers")
    i = Initiator(address, TARGET, name=friend, chap=("u", SECRET))
    luns = i.command(struct.pack(">BBBBBBIBB", 0xA0, 0, 0, 0, 0, 0, 256, 0, 0), expected=256).data
    equal(luns[:8] + luns[8:16], struct.pack(">IIBBHI", 8, 0, 0, 1, 0, 0), "the units that it sees")
    equal(i.read_blocks(0, 1, lun=0).code, (5, 0x25, 0), "a read of a unit that is masked")
    # Changes by administrators take effect immediately.
    i.command(bytes(6), lun=1)
    s.cli("target", "allow", TARGET, friend)
    wait_for(lambda: i.command(bytes(6), lun=0).code != (5, 0x25, 0), "a unit that was allowed")
    s.cli("lun", "unmap", TARGET, "1")
    wait_for(lambda: i.command(bytes(6), lun=1).code == (5, 0x25, 0), "a unit that was unmapped")
    equal(len(s.json("target", "show", TARGET)["sessions"]), 1, "sessions")
    s.cli("target", "deny", TARGET, friend)
    try:
        wait_for(lambda: i.command(bytes(6), lun=0) is None, "a session of an initiator that was denied")
    except Closed:
        pass


@test
def several_portals_and_ipv6_are_supported(t):
    s = t.server("--iscsi", "127.0.0.1:0", "--iscsi", "[::1]:0")
    s.cli("target", "create", TARGET, "--open")
    s.cli("volume", "create", "disk", "--size", "8M")
    s.cli("lun", "map", TARGET, "disk")
    four = portal(s)
    found = Initiator(four).text({"SendTargets": "All"})
    equal([line.split("=")[0] for line in found], ["TargetName", "TargetAddress", "TargetAddress"], "what is discovered")
    six = re.fullmatch(r"TargetAddress=\[::1\]:(\d+),1", found[2])
    check(six, f"no IPv6 portal: {found}")
    i = Initiator(("::1", int(six[1])), TARGET).ready()
    equal(i.write_blocks(5, b"six!" * 128).status, GOOD, "a write over IPv6")
    equal(Initiator(four, TARGET, isid=2).ready().read_blocks(5, 1).data, b"six!" * 128, "what IPv4 reads of it")


@test
def a_new_session_replaces_the_old_one_with_its_identifier(t):
    s, address = target(t, "disk")
    old = Initiator(address, TARGET).ready()
    new = Initiator(address, TARGET).ready()
    equal(new.write_blocks(0, b"n" * BLOCK).status, GOOD, "a write of the new session")
    try:
        old.read_blocks(0, 1)
        raise Failed("the old session still exists")
    except Closed:
        pass
    other = Initiator(address, TARGET, isid=2).ready()
    equal(other.read_blocks(0, 1).data, b"n" * BLOCK, "what another session reads")
    equal(len(s.json("target", "show", TARGET)["sessions"]), 2, "sessions")


@test
def a_thousand_sessions_at_once(t):
    with open(t.path("config"), "w") as f:
        f.write("[iscsi]\nmax_sessions = 1000\nmax_sessions_per_initiator = 500\nmax_sessions_per_address = 2000\n")
    s, address = target(t, "disk", serve=["--config", t.path("config")])
    names = [f"iqn.2026-01.org.example:{n}" for n in range(2)]
    sessions = [Initiator(address, TARGET, name=name, isid=i) for name in names for i in range(500)]
    refused(0x0302, Initiator, address, TARGET, name=names[0], isid=501)
    refused(0x0302, Initiator, address, TARGET, name="iqn.2026-01.org.example:more")
    for n, i in enumerate(sessions):
        equal(i.ready().write_blocks(n, bytes([n % 251]) * BLOCK).status, GOOD, f"a write of session {n}")
    equal(sessions[0].read_blocks(999, 1).data, bytes([999 % 251]) * BLOCK, "what the last one wrote")
    for i in sessions:
        i.close()
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "sessions that were cut off")


@test
def digests_are_generated_and_verified(t):
    _, address = target(t, "disk")
    digests = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}
    i = Initiator(address, TARGET, keys=digests).ready()
    data = t.random.randbytes(100 * BLOCK)
    equal(i.write_blocks(3, data).status, GOOD, "a write with digests")
    equal(i.read_blocks(3, 100).data, data, "what is read with digests")
    # A damaged data segment fails only its command; a damaged header ends the connection.
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 3, 1, 0, 0)
    i.send(i.command_pdu(cdb, out=b"x" * BLOCK), b"x" * BLOCK, damage="data")
    equal(i.result().status, -2, "a PDU with damaged data is rejected")
    equal(i.result().code, (0xB, 0x47, 5), "its command")
    equal(i.read_blocks(3, 100).data, data, "what a damaged write left")
    i.send(i.command_pdu(bytes(6)), damage="header")
    try:
        i.receive()
        raise Failed("a damaged header did not end its connection")
    except Closed:
        pass


@test
def protocol_violations_of_initiators_have_no_side_effects(t):
    with open(t.path("config"), "w") as f:
        f.write("[limits]\nnegotiation_timeout_s = 3\n")
    s, address = target(t, "disk", serve=["--config", t.path("config")])
    other = Initiator(address, TARGET, isid=99).ready()
    equal(other.write_blocks(0, b"good" * 128).status, GOOD, "a write")

    # A command beyond the window is not answered; a gap in the window ends the connection.
    i = Initiator(address, TARGET).ready()
    i.cmd_sn += 1000
    i.send(i.command_pdu(bytes(6)))
    i.cmd_sn -= 1001
    equal(i.command(bytes(6)).status, GOOD, "a command after one that was out of the window")
    i.cmd_sn += 1
    i.send(i.command_pdu(bytes(6)))
    closed(i, "a command is missing")

    # More data than requested, and data at another offset than requested.
    for damage in (lambda h: struct.pack_into(">I", h, 40, 4096), lambda h: struct.pack_into(">I", h, 36, 7)):
        i = Initiator(address, TARGET, keys={"ImmediateData": "No"}).ready()
        out = b"bad!" * 4096
        i.send(i.command_pdu(struct.pack(">BBQIBB", 0x8A, 0, 0, len(out) // BLOCK, 0, 0), out=out))
        r2t, _ = i.receive()
        equal(r2t[0], 0x31, "what asks for data")
        header = bytearray(48)
        header[0], header[1] = 0x05, 0x80
        header[16:24] = r2t[16:24]
        damage(header)
        i.send(header, out[:8192])
        equal(i.result().code, (0xB, 0x4B, 0), "a write whose data is out of order")
        equal(other.read_blocks(0, 1).data, b"good" * 128, "what it left")
        i.close()

    # PDUs of excessive length, of unknown type, and noise.
    i = Initiator(address, TARGET).ready()
    i.send(bytes([0x1E]) + bytes(47))
    equal(i.result().status, -5, "a PDU of no kind is rejected")
    equal(i.command(bytes(6)).status, GOOD, "a command after it")
    i.send(i.command_pdu(bytes(6)), bytes(100_000))
    closed(i, "a data segment that is too long")
    for _ in range(50):
        noise = socket.create_connection(address)
        try:
            noise.sendall(t.random.randbytes(t.random.randrange(1, 5000)))
        except ConnectionError:
            pass
        noise.close()
    for cut in (1, 47, 60):
        half = socket.create_connection(address)
        half.sendall((b"\x43\x87" + bytes(3) + b"\x00\x01\x00" + bytes(40) + b"InitiatorName=iqn")[:cut])
        half.close()
    equal(other.read_blocks(0, 1).data, b"good" * 128, "what all that left")

    # An unfinished login ends after a timeout, and does not block other logins.
    slow = [socket.create_connection(address) for _ in range(100)]
    for half in slow:
        half.sendall(b"\x43\x87")
    Initiator(address, TARGET, isid=7).ready().logout()
    slow[0].settimeout(60)
    equal(slow[0].recv(1), b"", "the answer to an unfinished login")


def closed(i, why):
    try:
        while True:
            i.receive()
    except Closed:
        return
    except TimeoutError:
        raise Failed(f"the connection is still open although {why}") from None


@test
def unfinished_commands_of_an_initiator_are_bounded(t):
    """Missing data neither fills the memory nor prevents R2Ts of other writes."""
    _, address = target(t, "disk")
    keys = {"ImmediateData": "No", "MaxBurstLength": "262144"}
    i = Initiator(address, TARGET, keys=keys).ready()
    window, room, out = 128, 64, bytes(262144)
    write = struct.pack(">BBQIBB", 0x8A, 0, 0, len(out) // BLOCK, 0, 0)
    for _ in range(window):
        i.send(i.command_pdu(write, out=out))
    asked = [i.receive()[0] for _ in range(room)]
    equal({pdu[0] for pdu in asked}, {0x31}, "what asks for data")
    # Immediate commands are neither numbered nor limited by the window.
    for n in range(window + 10):
        i.send(bytes([0x41]) + i.command_pdu(write, out=out)[1:])
        i.cmd_sn -= 1
    rejected = [i.receive()[0] for _ in range(10)]
    equal({(pdu[0], pdu[2]) for pdu in rejected}, {(0x3F, 6)}, "immediate commands that are too many")
    # Aborted writes free their share of the memory for the others.
    tags = [struct.unpack_from(">I", pdu, 16)[0] for pdu in asked]
    for tag in tags:
        i.manage(ABORT_TASK, tag)
    pdus = [i.receive()[0] for _ in range(2 * room)]
    equal(sum((pdu[0], pdu[2]) == (0x22, 0) for pdu in pdus), room, "tasks that were aborted")
    more = {struct.unpack_from(">I", pdu, 16)[0] for pdu in pdus if pdu[0] == 0x31}
    equal(len(more - {*tags}), room, "others whose data is asked for")
    # A write gets its R2T once there is memory for all of its data.
    i = Initiator(address, TARGET, keys=keys).ready()
    big = bytes(12 * MIB)
    write = struct.pack(">BBQIBB", 0x8A, 0, 0, len(big) // BLOCK, 0, 0)
    for _ in range(3):
        i.send(i.command_pdu(write, out=big))
    asked, done = [], 0
    while done < 3:
        pdu, _ = i.receive()
        if pdu[0] == 0x31:
            asked.append(struct.unpack_from(">I", pdu, 16)[0])
            i.data_out(pdu, big)
        else:
            equal((pdu[0], pdu[3]), (0x21, GOOD), "a long write")
            done += 1
    equal((len({*asked}), asked), (3, sorted(asked)), "writes in the order in which their data was asked for")


@test
def repeated_discovery_requests_have_bounded_answers(t):
    """Without authentication: many requests at once, from an initiator that accepts long PDUs."""
    s, address = target(t, "disk")
    for n in range(20):
        s.cli("target", "create", f"{TARGET}-{n:03}-{'x' * 40}", "--open")
    i = Initiator(address, keys={"MaxRecvDataSegmentLength": "16777215"})
    asked = b""
    for count in (100, 128):
        text = b"SendTargets=All\0" * count
        header = bytearray(48)
        header[0], header[1] = 0x04, 0x80
        i.tag += 1
        struct.pack_into(">IIII", header, 16, i.tag, 0xFFFFFFFF, i.cmd_sn, i.exp_stat_sn)
        header[5:8] = len(text).to_bytes(3, "big")
        i.cmd_sn += 1
        asked += bytes(header) + text
    i.socket.sendall(asked)
    for count in (100, 128):
        header, said = i.receive()
        equal((header[0], header[1], said.count(b"TargetName=")), (0x24, 0x80, 21), "what a discovery is answered")
        equal(said.count(b"SendTargets=Reject"), count - 1, "questions that were asked before")
    equal(Initiator(address, TARGET).ready().read_blocks(0, 1).status, GOOD, "a read by another initiator")


@test
def a_server_that_stops_sends_an_asynchronous_message(t):
    s, address = target(t, "disk")
    i = Initiator(address, TARGET).ready()
    equal(i.write_blocks(0, b"z" * BLOCK).status, GOOD, "a write")
    s.stop()
    header, _ = i.receive()
    equal((header[0], header[36]), (0x32, 3), "an asynchronous message that connections end")
    closed(i, "the server stopped")
