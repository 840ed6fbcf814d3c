"""Clients that an administrator disconnects: NBD connections and iSCSI sessions."""

import socket
import struct
import time

import nbd
from forebay import Failed
from harness import BLOCK, MIB, check, connect, equal, held, test, wait_for
from hosts import free_port
from initiator import CONFLICT, GOOD, Closed, Initiator

TARGET = "iqn.2026-01.org.example:disks"
HOSTS = [f"iqn.2026-01.org.example:host-{n}" for n in (1, 2)]
RESERVE = bytes([0x16, 0, 0, 0, 0, 0])
# A client that does not cooperate has 5 seconds; the rest is for a slow machine.
FORCED_S = 30


def clients(s, disk):
    return s.json("volume", "clients", disk)


def is_dead(handle):
    try:
        handle.pread(512, 0)
    except nbd.Error:
        return True
    return False


@test
def one_nbd_client_is_disconnected(t):
    s = t.server()
    for name in ("v", "w"):
        s.cli("volume", "create", name, "--size", "8M")
    one = connect(s, "v")
    (first,) = clients(s, "v")
    two, other = connect(s, "v"), connect(s, "w")
    one.pwrite(b"a" * BLOCK, 0)
    before = clients(s, "v")
    ids = [client["id"] for client in before]
    check(len(set(ids)) == 2 and first["id"] == ids[0] != "0", f"numbers of the clients: {ids}")
    # The number, and the time of the connection, stay when another process serves the connection.
    s.upgrade()
    equal(clients(s, "v"), before, "clients after an upgrade")

    check("no client" in s.refused("volume", "disconnect", "v", clients(s, "w")[0]["id"]), "a client of another disk")
    for nonsense in ("0", "-1", "abc", "9" * 30):
        check("no client" in s.refused("volume", "disconnect", "v", "--", nonsense), f"the client {nonsense}")
    check("'nosuch'" in s.refused("volume", "disconnect", "nosuch", first["id"]), "a volume that does not exist")
    check(first["id"] in s.cli("volume", "disconnect", "v", first["id"]).stdout, "the text")
    equal([client["id"] for client in clients(s, "v")], ids[1:], "clients that are left")
    check(is_dead(one), "the client is still served")
    equal(bytes(two.pread(BLOCK, 0)), b"a" * BLOCK, "another client of the same disk")
    check(not is_dead(other), "a client of another disk was disconnected")
    check("no client" in s.refused("volume", "disconnect", "v", first["id"]), "a client that is gone")
    # It may return, and is another client then.
    again = connect(s, "v")
    again.pwrite(b"b" * BLOCK, BLOCK)
    equal(bytes(two.pread(2 * BLOCK, 0)), b"a" * BLOCK + b"b" * BLOCK, "what both have written")
    check(first["id"] not in [client["id"] for client in clients(s, "v")], "the number was used again")


@test
def requests_in_progress_are_answered_before_a_disconnect(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "64M")
    s.cli("volume", "limit", "v", "--iops", "20", "--iops-burst", "20")
    h = connect(s, "v")
    (client,) = clients(s, "v")
    done = []
    # More than the burst: the rest waits for the limit, a second in all.
    buffers = [nbd.Buffer.from_bytearray(bytearray([n + 1]) * BLOCK) for n in range(40)]
    for n, buffer in enumerate(buffers):
        h.aio_pwrite(buffer, n * BLOCK, completion=lambda error, n=n: done.append((n, error.value)) or 1)
    while len(done) < 5:
        h.poll(100)
    s.cli("volume", "disconnect", "v", client["id"])
    while not (h.aio_is_dead() or h.aio_is_closed()):
        h.poll(1000)
    answered = [n for n, error in done if error == 0]
    check(len(answered) > 20, f"{len(answered)} of 40 writes were answered")
    reader = connect(s, "v")
    for n in answered:
        equal(bytes(reader.pread(BLOCK, n * BLOCK)), bytes([n + 1]) * BLOCK, f"the acknowledged write {n}")


@test
def a_client_that_does_not_read_replies_is_disconnected(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}")
    s.cli("volume", "create", "v", "--size", "64M")
    connect(s, "v").pwrite(b"x" * 32 * MIB, 0)
    sock = socket.create_connection(("127.0.0.1", port))
    sock.recv(18, socket.MSG_WAITALL)
    sock.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 1) + b"v")
    sock.recv(10, socket.MSG_WAITALL)
    for n in range(64):
        sock.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, n, 0, 16 * MIB))
    wait_for(lambda: held(s) >= 16 * MIB, "replies that are not read")
    (client,) = [client for client in clients(s, "v") if client["client"].startswith("127.")]
    begun = time.monotonic()
    s.cli("volume", "disconnect", "v", client["id"])
    check(time.monotonic() - begun < FORCED_S, f"it took {time.monotonic() - begun:.1f} s")
    equal([one["id"] for one in clients(s, "v") if one["id"] == client["id"]], [], "clients")
    sock.close()


@test
def a_desktop_is_not_reset_by_a_disconnect(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("noise", MIB))
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--reset", "disconnect")
    h = connect(s, "desk")
    h.pwrite(b"d" * BLOCK, 0)
    s.cli("volume", "disconnect", "desk", clients(s, "desk")[0]["id"])
    equal(bytes(connect(s, "desk").pread(BLOCK, 0)), b"d" * BLOCK, "the desktop of a client that reconnects")


@test
def one_iscsi_session_is_disconnected(t):
    port = free_port()
    s = t.server("--iscsi", f"127.0.0.1:{port}")
    s.cli("volume", "create", "v", "--size", "8M")
    s.cli("target", "create", TARGET)
    s.cli("lun", "map", TARGET, "v")
    for host in HOSTS:
        s.cli("target", "allow", TARGET, host)
    first, second = (Initiator(("127.0.0.1", port), TARGET, name=host).ready() for host in HOSTS)
    # A registration, which outlives the session, and RESERVE, which ends with it.
    register = bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0])
    equal(second.command(register, out=struct.pack(">QQ8x", 0, 0x77)).status, GOOD, "REGISTER")
    equal(second.command(register, out=struct.pack(">QQ8x", 0x77, 0)).status, GOOD, "REGISTER with key 0")
    equal(first.write_blocks(0, b"i" * 512).status, GOOD, "WRITE")
    equal(first.command(RESERVE).status, GOOD, "RESERVE")
    equal(second.write_blocks(0, b"j" * 512).status, CONFLICT, "WRITE of another initiator")

    sessions = {one["initiator"]: one["id"] for one in s.json("target", "show", TARGET)["sessions"]}
    listed = {one["initiator"]: one["id"] for one in clients(s, "v")}
    equal(listed, sessions, "numbers in both lists")
    number = sessions[HOSTS[0]]
    line = s.refused("volume", "disconnect", "v", number)
    check(f"forebay target disconnect {TARGET} {number}" in line, f"as a client of the disk: {line}")
    check("no session" in s.refused("target", "disconnect", TARGET, "12345678901"), "an unknown session")
    s.cli("target", "disconnect", TARGET, number)
    header, _ = first.receive()
    equal((header[0], header[36]), (0x32, 3), "an asynchronous message: the session ends")
    try:
        first.receive()
        raise Failed("the connection of the session is open")
    except Closed:
        pass
    equal([one["initiator"] for one in s.json("target", "show", TARGET)["sessions"]], HOSTS[1:], "sessions")
    equal(second.ready().write_blocks(0, b"j" * 512).status, GOOD, "WRITE after the reservation has ended")
    again = Initiator(("127.0.0.1", port), TARGET, name=HOSTS[0]).ready()
    equal(again.read_blocks(0, 1).data, b"j" * 512, "the initiator has logged in again")
    again.logout()
    second.logout()
