"""What is handed over in an upgrade: the state of each kind of connection, and the sockets."""

import contextlib
import os
import socket
import struct
import subprocess
import threading

from clients_tls import authorities, tls_server
from clients_upgrade import FAKE, script
from datastore import TARGET, target
from forebay import Failed, spawn
from harness import BLOCK, MIB, check, connect, equal, held, test, wait_for, wait_read
from initiator import BLOCK as SECTOR
from initiator import CHECK, CONFLICT, GOOD, Initiator
from upgrade_load import block, nbd_port


@test
def scsi_state_continues(t):
    """Reservations that do not persist through power loss, RESERVE, mode parameters, pending unit
    attentions."""
    s, address = target(t, "disk", "other")
    one = Initiator(address, TARGET, isid=1).ready()
    two = Initiator(address, TARGET, isid=2).ready()
    for i in (one, two):
        while i.command(bytes(6), lun=1).status == CHECK:
            pass
    register = struct.pack(">BBBBBIB", 0x5F, 0, 0, 0, 0, 24, 0)
    equal(one.command(register, out=struct.pack(">QQQ", 0, 0x77, 0)).status, GOOD, "a registration")
    reserve = struct.pack(">BBBBBIB", 0x5F, 1, 3, 0, 0, 24, 0)
    equal(one.command(reserve, out=struct.pack(">QQQ", 0x77, 0, 0)).status, GOOD, "a reservation")
    equal(two.command(bytes([0x16, 0, 0, 0, 0, 0]), lun=1).status, GOOD, "RESERVE of the other unit")
    # SWP of the control mode page, whose change is noted for the other nexuses as a unit attention.
    mode = bytearray(one.command(struct.pack(">BBBBBB", 0x1A, 8, 0x0A, 0, 64, 0), expected=64).data)
    mode[0], mode[2], mode[4 + 4] = 0, 0, mode[4 + 4] | 8
    third = Initiator(address, TARGET, isid=3).ready()
    keys = struct.pack(">BBBBBBBHB", 0x5E, 0, 0, 0, 0, 0, 0, 64, 0)
    before = one.command(keys, expected=64).data
    equal(two.command(bytes(6)).status, GOOD, "the second session has nothing to report")
    select = one.command(struct.pack(">BBBBBB", 0x15, 0x10, 0, 0, len(mode), 0), out=bytes(mode))
    equal((select.status, select.code), (GOOD, None), "MODE SELECT")
    s.upgrade()
    equal(one.command(bytes(6)).status, GOOD, "the first session sees no unit attention")
    equal(one.command(keys, expected=64).data, before, "registrations")
    equal(two.command(bytes(6)).code, (6, 0x2A, 1), "the pending unit attention")
    equal(two.command(bytes(6)).status, GOOD, "the next command")
    equal(two.write_blocks(0, bytes(SECTOR)).status, CONFLICT, "a write despite the reservation")
    equal(one.write_blocks(0, bytes(SECTOR)).code, (7, 0x27, 2), "a write despite SWP")
    equal(one.command(bytes(6), lun=1).status, CONFLICT, "a command despite RESERVE")
    equal(two.command(bytes(6), lun=1).status, GOOD, "the holder of RESERVE")
    third.close()
    fourth = Initiator(address, TARGET, isid=4)
    equal(fourth.command(bytes(6)).code, (6, 0x29, 1), "a new session is told of power on")
    two.logout()
    equal(one.command(bytes(6), lun=1).status, GOOD, "RESERVE ends with its session")
    # A session with the same name and ISID replaces the one that was handed over.
    again = Initiator(address, TARGET, isid=1).ready()
    equal(again.command(keys, expected=64).data[8:16], struct.pack(">Q", 0x77), "the registration")


@test
def digests_chap_and_pings_continue(t):
    s, address = target(t, "disk")
    keys = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}
    i = Initiator(address, TARGET, isid=5, keys=keys).ready()
    data = t.random.randbytes(64 * SECTOR)
    equal(i.write_blocks(8, data).status, GOOD, "a write")
    for _ in range(3):
        s.upgrade()
        equal(i.read_blocks(8, 64).data, data, "what it reads")
        equal(i.write_blocks(8, data).status, GOOD, "a write")
    sessions = s.json("target", "show", TARGET)["sessions"]
    equal(len(sessions), 1, f"sessions {sessions}")
    equal(i.logout(), 0, "logout")


@test
def connections_that_cannot_be_handed_over_are_closed(t):
    ours, _ = authorities(t)
    s, uri = tls_server(t, ours)
    import nbd

    over_tls = nbd.NBD()
    over_tls.set_uri_allow_local_file(True)
    over_tls.connect_uri(uri(ours.dir))
    negotiating = socket.socket(socket.AF_UNIX)
    negotiating.connect(s.nbd)
    negotiating.recv(18)
    report = s.upgrade()
    equal((report["connections"], report["closed"]), (0, 2), f"connections of {report}")
    equal(negotiating.recv(1), b"", "what the negotiating client receives")
    try:
        over_tls.pread(BLOCK, 0)
    except nbd.Error as e:
        check(e.errno in ("ENOTCONN", "EPIPE", "ECONNRESET", "EINVAL", None), f"{e}")
    else:
        raise Failed("a connection over TLS was handed over")


@test
def a_client_that_does_not_finish_its_request_does_not_prevent_an_upgrade(t):
    s, address = target(t, "disk")
    silent = Initiator(address, TARGET, isid=1).ready()
    out = bytes(64 * SECTOR)
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 0, 64, 0, 0)
    silent.send(silent.command_pdu(cdb, out=out))
    header, _ = silent.receive()
    equal(header[0], 0x31, "the answer to a command without data")
    other = Initiator(address, TARGET, isid=2).ready()
    report = s.upgrade()
    equal((report["connections"], report["closed"]), (1, 1), f"connections of {report}")
    equal(silent.socket.recv(1), b"", "what the silent initiator receives")
    equal(other.write_blocks(0, out).status, GOOD, "a write of the other session")


@test
def desktops_keep_their_contents(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("f", 4 * MIB))
    s.cli("volume", "clone", "golden", "desk", "--desktop", "--reset", "disconnect")
    h = connect(s, "desk")
    h.pwrite(block(1, 1), 0)
    s.upgrade()
    equal(bytes(h.pread(BLOCK, 0)), block(1, 1), "what it wrote before the upgrade")
    h.pwrite(block(2, 2), BLOCK)
    s.upgrade()
    equal(bytes(h.pread(2 * BLOCK, 0)), block(1, 1) + block(2, 2), "what it wrote before the next one")
    h.shutdown()
    s.wait_unused("desk")
    h = connect(s, "desk")
    check(bytes(h.pread(BLOCK, 0)) != block(1, 1), "a desktop was not reset after its client disconnected")


def raw_nbd(path, export):
    """A raw connection in transmission, with simple replies."""
    c = socket.socket(socket.AF_UNIX)
    c.settimeout(60)
    c.connect(path)
    receive(c, 18)
    c.sendall(struct.pack(">I", 3) + struct.pack(">8sII", b"IHAVEOPT", 1, len(export)) + export.encode())
    receive(c, 10)
    return c


def request(kind, cookie, offset, length, flags=0):
    return struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length)


def receive(c, length):
    """Receives `length` bytes."""
    data = b""
    while len(data) < length:
        piece = c.recv(length - len(data))
        check(piece, f"the connection was closed after {len(data)} of {length} bytes")
        data += piece
    return data


def reply(c, length=0):
    """The cookie and the data of a simple reply."""
    magic, error, cookie = struct.unpack(">IIQ", receive(c, 16))
    equal((magic, error), (0x67446698, 0), f"reply {cookie}")
    return cookie, receive(c, length)


@test
def requests_that_are_half_sent_and_replies_that_are_not_read_continue(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "64M")
    data = t.random.randbytes(8 * MIB)
    # The parts in which a long and a short write are sent, each before an upgrade.
    for size, cuts in ((8 * MIB, (5, 28, 5 * MIB)), (4096, (3, 27, 28, 3000))):
        c = raw_nbd(s.nbd, "v")
        message = request(1, 7, 4096, size) + data[:size]
        at = 0
        for cut in (*cuts, len(message)):
            c.sendall(message[at:cut])
            at = cut
            if cut < len(message):
                wait_read(c)
                equal(s.upgrade()["connections"], 1, "connections")
        equal(reply(c), (7, b""), "the reply")
        c.sendall(request(0, 8, 4096, size))
        check(reply(c, size) == (8, data[:size]), f"what was written in {len(cuts) + 1} parts")
        c.close()
    # Replies that the client does not read before the upgrade.
    c = raw_nbd(s.nbd, "v")
    for cookie in range(6):
        c.sendall(request(0, cookie, 4096, 4 * MIB))
    wait_read(c)
    wait_for(lambda: held(s) >= 4 * MIB, "replies that are not read")
    equal(s.upgrade()["connections"], 1, "connections")
    c.sendall(request(0, 6, 4096, MIB))
    found = [reply(c, 4 * MIB) for _ in range(6)]
    equal(sorted(cookie for cookie, _ in found), list(range(6)), "replies")
    for _, got in found:
        check(got == (data[:4096] + data[4096 : 4 * MIB]), "data of a reply that was sent later")
    equal(reply(c, MIB), (6, data[:MIB]), "the reply to a request after the upgrade")
    # A refused write whose data is skipped, which is answered with an error.
    c.sendall(request(1, 9, 64 * MIB, 4096) + bytes(4096))
    equal(struct.unpack(">IIQ", receive(c, 16))[1:], (28, 9), "a write beyond the end")


@test
def clients_that_connect_during_an_upgrade_wait(t):
    """A UNIX and a TCP client connect again and again; none of them is refused."""
    s = t.server("--nbd", "127.0.0.1:0")
    s.cli("volume", "create", "v", "--size", "16M")
    port = nbd_port(s)
    stop, errors, count = threading.Event(), [], [0]

    def connect_often(uri):
        import nbd

        while not stop.is_set():
            h = nbd.NBD()
            try:
                h.connect_uri(uri)
                h.pread(512, 0)
                h.shutdown()
                count[0] += 1
            except nbd.Error as e:
                # A client that is negotiating at the moment of the hand-over is disconnected.
                if e.errno == "ECONNREFUSED" or "refused" in e.string:
                    errors.append(e)
                count[0] += 1

    threads = [threading.Thread(target=connect_often, args=(uri,)) for uri in (s.uri("v"), f"nbd://{port}/v")]
    for thread in threads:
        thread.start()
    for _ in range(10):
        before = count[0]
        wait_for(lambda least=before + 3: count[0] >= least, "connections")
        s.upgrade()
    stop.set()
    for thread in threads:
        thread.join()
    check(not errors and count[0] > 20, f"{count[0]} connections, refused: {errors[:3]}")


def connected(path):
    """A connection to this UNIX socket; `None` if nothing listens."""
    client = socket.socket(socket.AF_UNIX)
    try:
        # The file of a server that was killed is replaced.
        client.connect(path)
    except OSError:
        client.close()
        return None
    return client


@test
def clients_connect_while_a_pool_is_recovered(t):
    """After a crash the addresses are bound before the pool is opened, which takes long on this store."""
    config = t.path("config")
    with open(config, "w") as f:
        f.write('[store.slow]\nspindles = 1\nseek_ms = 300\nrpm = 7200\nrate = "100M"\n')
    s = t.server()
    s.cli("volume", "create", "v", "--size", "16M")
    s.kill()
    os.unlink(s.control)
    s.args += ["--config", config]
    s.launch()
    t.defer(s.close)
    client = wait_for(lambda: connected(s.nbd), "the server listens")
    check(not os.path.exists(s.control), "the server is ready before a client could connect")
    client.settimeout(60)
    equal(client.recv(8, socket.MSG_WAITALL), b"NBDMAGIC", "the greeting")


@test
def a_service_manager_passes_sockets(t):
    s = t.server(start=False)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(s.nbd)
    listener.listen(16)
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    control = socket.socket(socket.AF_UNIX)
    control.bind(s.control)
    control.listen(16)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(s.nbd)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(t.path("n"))
    notify.settimeout(60)

    def start(names, args):
        """Starts a server with these sockets as descriptors 3 to 5."""
        import forebay

        passed = [listener, tcp, control]

        def prepare():
            forebay.die_with_parent()
            held = [os.dup(sock.fileno()) for sock in passed]
            held = [os.dup2(fd, 20 + n) for n, fd in enumerate(held)]
            for n, fd in enumerate(held):
                os.dup2(fd, 3 + n)

        argv = [s.bin, "serve", "--data", s.data, "--socket", s.control, "--nbd", f"unix:{s.nbd}", *args]
        shell = 'LISTEN_PID=$$ exec "$@"'
        env = {**os.environ, "FOREBAY_MEMORY_DIR": s.memory, "NOTIFY_SOCKET": t.path("n")}
        env |= {"LISTEN_FDS": "3", "LISTEN_FDNAMES": names}
        with open(s.log, "ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", shell, "sh", *argv],
                preexec_fn=prepare,
                pass_fds=(3, 4, 5),
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    # The TCP address is not configured.
    equal(start("nbd:nbd:control", []).wait(60), 1, "exit status with a socket that is not configured")
    check("not configured" in s.log_tail(), s.log_tail())
    s.process = start("nbd:forebay.socket:control", ["--nbd", f"127.0.0.1:{port}"])
    equal(notify.recv(100), b"READY=1", "the first notification")
    equal(client.recv(8, socket.MSG_WAITALL), b"NBDMAGIC", "the greeting")
    s.cli("volume", "create", "v", "--size", "1M")
    h = connect(s, "v")
    check(notify_upgrade(s, notify) == s.process.pid, "the process that was reported")
    h.pwrite(block(1, 1), 0)
    connect(s, "v").shutdown()
    s.stop()
    equal(notify.recv(100), b"STOPPING=1", "the last notification")
    check(os.path.exists(s.nbd) and os.path.exists(s.control), "the sockets of the service manager were removed")


def notify_upgrade(s, notify):
    """Upgrades a server; returns the process id that the service manager receives."""
    s.upgrade()
    check(notify.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC="), "the beginning of an upgrade")
    told = {notify.recv(100) for _ in range(2)}
    equal(len(told), 1, f"what both processes say: {told}")
    first, second = told.pop().split(b"\n")
    equal(second, b"READY=1", "the end of an upgrade")
    return int(first.removeprefix(b"MAINPID="))


@test
def the_watchdog_is_fed_while_no_process_serves(t):
    """The new process may take longer than the service manager waits for a sign of life."""
    watchdog_s = 0.6
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(t.path("n"))
    notify.settimeout(60)
    s = t.server(start=False)
    s.prefix = ["env", f"NOTIFY_SOCKET={t.path('n')}", f"WATCHDOG_USEC={watchdog_s * 1e6:.0f}"]
    s.start()
    begun = t.path("begun")
    hangs = script(t, "hangs", FAKE + f"receive(); send(READY); receive(); open({begun!r}, 'w'); time.sleep(60)\n")
    argv = [s.bin, "--socket", s.control, "upgrade", "--binary", hangs, "--timeout", "10"]
    command = spawn(argv, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists(begun) or command.poll() is not None, "the hand-over")
    check(command.poll() is None, "the upgrade has ended")
    # Those of before.
    notify.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while notify.recv(100):
            pass
    notify.settimeout(60)
    fed = 0
    while fed < 5:
        fed += notify.recv(100) == b"WATCHDOG=1"
    check(command.poll() is None, "the watchdog was not fed before the end of the upgrade")
    # The server waits for room in this socket.
    while command.poll() is None:
        notify.recv(100)
    check("did not answer within 10s" in command.communicate()[1], "the upgrade")
    s.stop()


@test
def the_read_cache_is_handed_over(t):
    s = t.server()
    s.cli("image", "import", "golden", t.noise_file("f", 32 * MIB))
    s.cli("volume", "clone", "golden", "v")
    h = connect(s, "v")

    def read_all():
        before = s.json("stats")["store"]["read"]["bytes"]
        content = b"".join(bytes(h.pread(MIB, n * MIB)) for n in range(32))
        return content, s.json("stats")["store"]["read"]["bytes"] - before

    content, _ = read_all()
    s.upgrade()
    wait_for(lambda: "read cache filled" in s.log_tail(100), "the read cache is filled")
    again, read = read_all()
    check(again == content, "the content after an upgrade differs")
    check(read < MIB, f"{read} bytes were read from the store after an upgrade")
