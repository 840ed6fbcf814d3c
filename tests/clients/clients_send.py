"""Streams between pools: complete and incremental, interrupted, damaged, and refused."""

import json
import os
import signal
import subprocess

from ceph import RadosServer
from clients_rados import CLUSTER
from harness import BLOCK, MIB, check, connect, equal, needs, run, test, wait_for

SIZE = 48 * MIB


def command(s, *args):
    return [s.bin, "--socket", s.control, *args]


def send(s, path, *args):
    """Writes a stream to a file; returns its length."""
    with open(path, "wb") as f:
        subprocess.run(command(s, "volume", "send", *args), stdout=f, check=True, timeout=120)
    return os.stat(path).st_size


def receive(s, path, *args):
    """Receives a file; returns the finished process."""
    with open(path, "rb") as f:
        return subprocess.run(
            command(s, "volume", "receive", *args), stdin=f, capture_output=True, text=True, timeout=120, check=False
        )


def received(s, path, *args):
    done = receive(s, path, *args)
    equal(done.returncode, 0, f"receive: {done.stderr}")
    return done.stdout


def refused(s, path, message, *args):
    done = receive(s, path, *args)
    equal((done.returncode, done.stdout), (1, ""), f"receive of {path}")
    check(message in done.stderr, f"{message!r} is not in {done.stderr!r}")


def same(t, one, other, name):
    for number, s in enumerate((one, other)):
        run("nbdcopy", s.uri(name), t.path(f"copy-{number}"))
    run("cmp", t.path("copy-0"), t.path("copy-1"))


def source(t, s, name="db"):
    """A volume with data, holes and a snapshot `monday`."""
    s.cli("volume", "create", name, "--size", str(SIZE))
    h = connect(s, name)
    for at in range(0, SIZE // 2, 2 * MIB):
        h.pwrite(t.random.randbytes(MIB), at)
    h.pwrite(b"text " * 100_000, SIZE - 512_000)
    s.cli("snapshot", "create", name, "monday")
    return h


def change(t, s, h, snapshot):
    for _ in range(10):
        h.pwrite(t.random.randbytes(BLOCK), t.random.randrange(SIZE // BLOCK) * BLOCK)
    h.trim(MIB, t.random.randrange(20) * MIB)
    s.cli("snapshot", "create", "db", snapshot)


def names(s):
    return sorted(d["name"] for d in s.json("volume", "list") + s.json("snapshot", "list"))


def pools(t):
    return t.server(data="one"), t.server(data="two")


def chain(t, one, two):
    """Sends a snapshot, and then the changes of two more, through pipes."""
    h = source(t, one)
    before = None
    for snapshot in ("monday", "tuesday", "wednesday"):
        if before:
            change(t, one, h, snapshot)
        options = ["--from", before] if before else []
        sender = subprocess.Popen(
            command(one, "volume", "send", f"db@{snapshot}", *options), stdout=subprocess.PIPE
        )
        done = subprocess.run(
            command(two, "volume", "receive", "db"), stdin=sender.stdout, capture_output=True, text=True, timeout=120
        )
        sender.stdout.close()
        equal((sender.wait(60), done.returncode), (0, 0), f"{snapshot}: {done.stderr}")
        check(f"received 'db@{snapshot}'" in done.stdout, done.stdout)
        before = snapshot
    for name in ("db@monday", "db@tuesday", "db@wednesday"):
        same(t, one, two, name)
    # The volume has the contents of the last snapshot, and can be written.
    run("nbdcopy", two.uri("db"), t.path("copy-0"))
    run("cmp", t.path("copy-0"), t.path("copy-1"))
    connect(two, "db").pwrite(b"x" * BLOCK, 0)


@test
def snapshots_are_sent_to_another_pool_one_after_the_other(t):
    one, two = pools(t)
    chain(t, one, two)
    equal(names(two), ["db", "db@monday", "db@tuesday", "db@wednesday"], "disks of the receiver")
    two.stop()
    two.offline("check")


@needs(CLUSTER)
@test
def snapshots_are_sent_between_a_directory_and_ceph(t):
    chain(t, t.server(data="one"), RadosServer(t, CLUSTER, "two").start())


@test
def a_stream_of_changes_is_as_long_as_the_changes(t):
    one, two = pools(t)
    size = 256 * MIB
    one.cli("volume", "create", "db", "--size", str(size))
    h = connect(one, "db")
    for at in range(0, size, MIB):
        h.pwrite(t.random.randbytes(MIB), at)
    one.cli("snapshot", "create", "db", "a")
    send(one, t.path("full"), "db@a")
    received(two, t.path("full"), "db")
    changed = size // 100 // BLOCK
    for block in t.random.sample(range(size // BLOCK), changed):
        h.pwrite(t.random.randbytes(BLOCK), block * BLOCK)
    one.cli("snapshot", "create", "db", "b")
    h.flush()
    before = one.json("stats")["store"]["read"]["bytes"]
    length = send(one, t.path("changes"), "db@b", "--from", "a")
    read = one.json("stats")["store"]["read"]["bytes"] - before
    check(length <= 1.1 * changed * BLOCK, f"{length} bytes for {changed} changed blocks")
    check(read <= 1.1 * changed * BLOCK, f"{read} bytes were read for {changed} changed blocks")
    received(two, t.path("changes"), "db")
    same(t, one, two, "db@b")


@test
def an_interrupted_receive_continues(t):
    one, two = pools(t)
    source(t, one)
    length = send(one, t.path("whole"), "db@monday")
    with open(t.path("whole"), "rb") as f, open(t.path("cut"), "wb") as cut:
        cut.write(f.read(length // 2))
    done = receive(two, t.path("cut"), "db")
    equal(done.returncode, 1, "a stream without an end")
    check("the stream ends before its end" in done.stderr, done.stderr)
    words = done.stderr.split("'")
    options = [w.split("--resume ")[1] for w in words if "--resume " in w]
    equal(len(options), 2, done.stderr)
    equal(names(two), [], "disks before the end")
    # A stream that continues elsewhere is refused, and so is the first one.
    rest = send(one, t.path("rest"), "db@monday", "--resume", options[0])
    check(rest < length * 0.6, f"{rest} of {length} bytes are sent again")
    out = received(two, t.path("rest"), "db", "--resume", options[1])
    check("received 'db@monday'" in out, out)
    same(t, one, two, "db@monday")


@test
def a_receive_that_is_killed_continues_and_one_elsewhere_does_not(t):
    one, two = pools(t)
    source(t, one)
    length = send(one, t.path("whole"), "db@monday")
    client = subprocess.Popen(command(two, "volume", "receive", "db"), stdin=subprocess.PIPE)
    with open(t.path("whole"), "rb") as f:
        client.stdin.write(f.read(length // 2))
        client.stdin.flush()
    url = "http://localhost/api/v1/receives"

    def view():
        return json.loads(run("curl", "-sS", "--unix-socket", two.control, url).stdout)

    wait_for(lambda: view() and view()[0]["records"] > 4, "records")
    client.send_signal(signal.SIGKILL)
    client.wait()
    left = view()[0]
    position = f"{left['offset_bytes']}:{left['records']}:{left['data_bytes']}"
    wrong = f"{left['offset_bytes'] + BLOCK}:{left['records']}:{left['data_bytes']}"
    send(one, t.path("rest"), "db@monday", "--resume", position)
    send(one, t.path("wrong"), "db@monday", "--resume", wrong)
    received(two, t.path("rest"), "db", "--resume", str(left["id"]))
    same(t, one, two, "db@monday")
    refused(two, t.path("rest"), "continues another one", "other")
    two.cli("volume", "rm", "db", "--snapshots", "--yes")
    with open(t.path("whole"), "rb") as f, open(t.path("cut"), "wb") as cut:
        cut.write(f.read(length // 2))
    options = [w.split("--resume ")[1] for w in receive(two, t.path("cut"), "db").stderr.split("'") if "--resume " in w]
    refused(two, t.path("wrong"), "does not continue what was received", "db", "--resume", options[1])
    equal((names(two), view()), ([], []), "what is left")


@test
def damaged_streams_change_nothing(t):
    one, two = pools(t)
    h = source(t, one)
    send(one, t.path("full"), "db@monday")
    received(two, t.path("full"), "db")
    change(t, one, h, "tuesday")
    send(one, t.path("good"), "db@tuesday", "--from", "monday")
    with open(t.path("good"), "rb") as f:
        good = f.read()
    one.cli("volume", "clone", "db@monday", "other")
    one.cli("snapshot", "create", "other", "x")
    send(one, t.path("foreign"), "other@x", "--from", "db@monday")
    with open(t.path("foreign"), "rb") as f:
        foreign = f.read()
    run("nbdcopy", two.uri("db"), t.path("before"))

    def flipped(at):
        return good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]

    middle = len(good) // 2
    streams = {
        "foreign": (b"QFI\xfb" + bytes(5000), "not a stream of"),
        "empty": (b"", "ends before its end"),
        "header": (flipped(40), "header of the stream is damaged"),
        "version": (flipped(8), "version 5"),
        "record": (flipped(middle), "is damaged, missing, or not in order"),
        "missing": (good[:middle] + good[middle + 100 :], "is damaged, missing, or not in order"),
        "repeated": (good[:middle] + good[middle - 100 :], "is damaged, missing, or not in order"),
        "mixed": (good[:97] + foreign[97:], "damaged"),
        "last": (flipped(len(good) - 1), "is damaged, missing, or not in order"),
    }
    for name, (stream, message) in streams.items():
        with open(t.path(name), "wb") as f:
            f.write(stream)
        refused(two, t.path(name), message, "db")
        equal(names(two), ["db", "db@monday"], f"disks after {name}")
    run("nbdcopy", two.uri("db"), t.path("after"))
    run("cmp", t.path("before"), t.path("after"))
    received(two, t.path("good"), "db")
    same(t, one, two, "db@tuesday")


@test
def a_stream_is_refused_where_it_does_not_belong(t):
    one, two = pools(t)
    h = source(t, one)
    refused_send = one.cli("volume", "send", "db", check=False)
    check("create a snapshot" in refused_send.stderr, refused_send.stderr)
    change(t, one, h, "tuesday")
    send(one, t.path("full"), "db@monday")
    send(one, t.path("changes"), "db@tuesday", "--from", "monday")
    refused(two, t.path("changes"), "does not have the snapshot or image", "db")
    received(two, t.path("full"), "db")
    refused(two, t.path("full"), "already, as 'db@monday'", "again")
    two.cli("volume", "create", "busy", "--size", "1M")
    refused(two, t.path("changes"), "is not a snapshot of the volume 'busy'", "busy")
    # A write to the destination is not rolled back silently.
    g = connect(two, "db")
    refused(two, t.path("changes"), "in use", "db")
    g.pwrite(b"x" * BLOCK, 0)
    g.shutdown()
    wait_for(lambda: two.json("volume", "show", "db")["clients"] == 0, "no client")
    refused(two, t.path("changes"), "has changed since 'db@monday'", "db")
    two.cli("snapshot", "rollback", "db", "monday")
    received(two, t.path("changes"), "db")
    same(t, one, two, "db@tuesday")
    refused(two, t.path("changes"), "already, as 'db@tuesday'", "db")


@test
def an_image_and_the_changes_of_its_clones_are_sent(t):
    one, two = pools(t)
    one.cli("image", "import", "golden", t.noise_file("golden.raw", 24 * MIB))
    one.cli("volume", "clone", "golden", "pc")
    connect(one, "pc").pwrite(b"own" * 4096, 4 * MIB)
    one.cli("snapshot", "create", "pc", "s")
    send(one, t.path("image"), "golden")
    length = send(one, t.path("clone"), "pc@s", "--from", "golden")
    check(length < 100_000, f"{length} bytes for a clone that wrote 12 KiB")
    refused(two, t.path("clone"), "does not have the snapshot or image", "pc")
    received(two, t.path("image"), "gold")
    equal([i["name"] for i in two.json("image", "list")], ["gold"], "images")
    received(two, t.path("clone"), "pc")
    same(t, one, two, "pc@s")
    equal(two.json("volume", "show", "pc")["origin"], "gold", "origin of the clone")


@test
def a_volume_that_grew_is_received(t):
    one, two = pools(t)
    h = source(t, one)
    send(one, t.path("full"), "db@monday")
    received(two, t.path("full"), "db")
    h.shutdown()
    one.cli("volume", "resize", "db", str(SIZE + 8 * MIB))
    connect(one, "db").pwrite(b"end" * 4096, SIZE + 4 * MIB)
    one.cli("snapshot", "create", "db", "larger")
    send(one, t.path("changes"), "db@larger", "--from", "monday")
    received(two, t.path("changes"), "db")
    equal(two.json("volume", "show", "db")["size_bytes"], SIZE + 8 * MIB, "size")
    same(t, one, two, "db@larger")


@test
def a_receive_that_the_server_loses_leaves_nothing(t):
    one, two = pools(t)
    source(t, one)
    length = send(one, t.path("whole"), "db@monday")
    with open(t.path("whole"), "rb") as f, open(t.path("cut"), "wb") as cut:
        cut.write(f.read(length // 2))
    equal(receive(two, t.path("cut"), "db").returncode, 1, "a stream without an end")
    two.kill()
    two.start()
    equal(names(two), [], "disks after the restart")
    received(two, t.path("whole"), "db")
    same(t, one, two, "db@monday")


@test
def a_full_pool_receives_nothing_and_stays_as_it_was(t):
    one = t.server(data="one")
    two = t.server(data="two", config='[store]\nlimit = "320M"\n[memory]\nwrite_buffer = "16M"\n')
    size = 480 * MIB
    one.cli("volume", "create", "db", "--size", str(size))
    h = connect(one, "db")
    for at in range(0, size, MIB):
        h.pwrite(t.random.randbytes(MIB), at)
    one.cli("snapshot", "create", "db", "monday")
    two.cli("volume", "create", "kept", "--size", "1M")
    send(one, t.path("full"), "db@monday")
    refused(two, t.path("full"), "the store is full", "db")
    equal(names(two), ["kept"], "disks of the full pool")
    two.cli("gc")
    wait_for(lambda: two.json("stats")["room"] != "full", "room after the receive was discarded")
