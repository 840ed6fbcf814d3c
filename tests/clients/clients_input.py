"""Invalid input: names, sizes, commands, configurations, and clients that do not follow the NBD protocol."""

import os
import signal
import socket
import struct
import subprocess
import time

from forebay import Failed, binary, spawn
from harness import (
    BLOCK, MIB, STOP_S, check, connect, equal, need_root, refused_by_server, run, test, wait_for,
)

NBD_MAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
REQUEST_MAGIC = 0x25609513
OPT_EXPORT_NAME = 1
CMD_READ, CMD_WRITE = 0, 1


@test
def bad_names_are_refused(t):
    s = t.server()
    names = ["a/b", "../a", " a", "a ", "..", ".", "a\nb", "a@b", "x" * 300, ""]
    for name in names:
        done = s.cli("volume", "create", "--size", "1M", "--", name, check=False)
        check(done.returncode in (1, 2), f"name {name!r}: exit status {done.returncode}")
        check(done.stderr.strip(), f"name {name!r}: nothing on standard error")
    equal(s.json("volume", "list"), [], "volumes")
    # These unusual names are valid.
    for name in ("a b", "ÄÖÜ-桌面", "x" * 255, "-leading", "100%"):
        s.cli("volume", "create", "--size", "1M", "--", name)
        s.cli("volume", "rm", "--", name)


@test
def bad_sizes_are_refused(t):
    s = t.server()
    for size in ("0", "1000", "513", "65T", "16E", "-1", "1.5.5", "", "lots", "99999999999999999999"):
        done = s.cli("volume", "create", "disk", f"--size={size}", check=False)
        check(done.returncode in (1, 2) and done.stderr.strip(), f"size {size!r}: {done.returncode} {done.stderr}")
    equal(s.json("volume", "list"), [], "volumes")
    s.cli("volume", "create", "huge", "--size", "64T")
    s.cli("volume", "create", "tiny", "--size", "512")
    h = connect(s, "huge")
    equal(h.get_size(), 64 << 40, "size")
    h.pwrite(b"e" * BLOCK, (64 << 40) - BLOCK)
    h.flush()
    equal(bytes(h.pread(2, (64 << 40) - 2)), b"ee", "the last bytes")
    tiny = connect(s, "tiny")
    tiny.pwrite(b"t" * 512, 0)
    equal(bytes(tiny.pread(512, 0)), b"t" * 512, "the only sector")


@test
def wrong_usage_has_its_own_status(t):
    s = t.server()
    for args in (["volume"], ["volume", "create", "x"], ["frobnicate"], ["stats", "--nonsense"]):
        equal(s.cli(*args, check=False).returncode, 2, f"status of {args}")
    for args in (
        ["volume", "show", "nobody"],
        ["volume", "rm", "nobody"],
        ["volume", "clone", "nobody", "x"],
        ["snapshot", "create", "nobody", "x"],
        ["snapshot", "rollback", "nobody", "x"],
        ["image", "rm", "nobody"],
        ["stats", "nobody"],
    ):
        check("nobody" in s.refused(*args), f"{args}: the error does not name the disk")
    s.cli("volume", "create", "x", "--size", "1M")
    check("exists" in s.refused("volume", "create", "x", "--size", "1M"), "a name taken twice")
    s.stop()
    check("serve" in s.refused("volume", "list"), "without a server, the error does not suggest 'serve'")

# Content of a configuration file, and what the message names.
MISTAKES = (
    ("read_cahe = 1", "line 2", "unknown key"),
    ("data = 5", "line 2", "'data' is set more than once"),
    ("cores = 'four'", "line 2", "invalid value 'four' for cores: use a whole number"),
    ("cores = four", "line 2", "invalid value four for cores", "quotes"),
    ("cores = 0", "line 2", "cores", "use 1 to"),
    ("[commit]\ncoalesce = 'maybe'", "line 3", "'maybe' for commit.coalesce", '"adaptive", "always" or "off"'),
    ("read_cache = '2G'", "line 2", "it belongs in [memory]"),
    ("[memory", "line 2", "]"),
    ("[memory]\nread_cache = '8Q'", "line 3", "not a size"),
    ("[nbd]\nlisten = 'unix:/x'", "line 3", "nbd.listen", "a list in brackets"),
    ("[nbd]\nlisten = ['0.0.0.0:1']", "line 3: nbd.listen: ", "in clear", "--nbd-allow-remote"),
    ("[nbd.tls]\ncertificates = '/nonexistent'", "line 3: nbd.tls.certificates: /nonexistent", "No such file"),
    ("[http]\nlisten = '0.0.0.0:80'", "0.0.0.0:80", "--http-certificate"),
    (
        "[http]\nlisten = '127.0.0.1:80'\ncertificate = 'none.pem'\nkey = 'none.pem'",
        "line 4: http.certificate: ", "none.pem", "PEM",
    ),
    ("[[iscsi.target]]\nname = 'x y'", "line 3", "x y", "not an iSCSI or NVMe name"),
    ("[logging]\nfilter = 'loud'", "line 3", "loud", "use a level"),
)


@test
def commands_find_the_server_in_its_default_places(t):
    need_root("mounting empty directories over the default places")
    servers = {name: t.server(data=name) for name in ("service", "default")}
    for name, s in servers.items():
        s.cli("volume", "create", name, "--size", "1M")
    environment = {k: v for k, v in os.environ.items() if k not in ("FOREBAY_SOCKET", "FOREBAY_DATA")}
    places = {"service": "/run/forebay/control.sock", "default": "/var/lib/forebay/forebay.sock"}

    def list_volumes(*there, **variables):
        """The list, with sockets of these servers in their places."""
        script = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib\nmkdir /run/forebay /var/lib/forebay\n"
        script += "".join(f"ln -s {servers[name].control} {places[name]}\n" for name in there)
        script += f"exec {binary()} volume list"
        return run("unshare", "--mount", "sh", "-ec", script, env={**environment, **variables}, check=False)

    for there, found in ((("service",), "service"), (("default",), "default"), (("service", "default"), "default")):
        done = list_volumes(*there)
        check(done.returncode == 0 and found in done.stdout, f"sockets of {there}: {done.stdout}{done.stderr}")
    done = list_volumes()
    equal((done.returncode, len(done.stderr.splitlines())), (1, 1), f"without a server: {done.stderr}")
    for words in (*places.values(), "systemctl start forebay", "forebay serve", "--socket"):
        check(words in done.stderr, f"without a server: '{done.stderr}' does not contain '{words}'")
    # What is given is used alone.
    done = list_volumes("service", FOREBAY_DATA="/var/lib/forebay")
    check(done.returncode == 1 and places["default"] in done.stderr, f"with FOREBAY_DATA: {done.stdout}{done.stderr}")


@test
def mistakes_of_the_configuration_are_named(t):
    """Each is one line, the same from `config check` and from a server, which has touched nothing then."""
    pool, file = t.path("pool"), t.path("forebay.toml")
    for number, (text, *words) in enumerate(MISTAKES):
        with open(file, "w") as f:
            f.write(f'data = "{pool}"\n{text}\n')
        said = set()
        for command in (("config", "check", file), ("serve", "--config", file)):
            done = run(binary(), *command, check=False, timeout=60)
            lines = done.stderr.strip().splitlines()
            check(done.returncode == 1 and len(lines) == 1, f"{command} of {text!r}: {done}")
            said.add(lines[0])
        check(len(said) == 1 and all(word in lines[0] for word in words), f"{text!r}: {said} without {words}")
        check(not os.path.exists(pool), f"mistake {number} made a pool")
    for path in (t.path("absent"), t.dir, t.noise_file("noise", BLOCK)):
        done = run(binary(), "serve", "--config", path, check=False, timeout=60)
        check(done.returncode == 1 and path in done.stderr, f"the configuration {path}: {done}")


# In place of systemctl, with one unit.
SYSTEMCTL = """#!/bin/sh
case "$*" in
*forebay.service) printf 'LoadState=loaded\\nMemoryMax=%s\\n' "$MEMORY_MAX" ;;
*) printf 'LoadState=not-found\\nMemoryMax=infinity\\n' ;;
esac
"""


@test
def the_memory_is_compared_with_the_limit_of_the_unit(t):
    file, program = t.path("forebay.toml"), t.path("systemctl")
    with open(file, "w") as f:
        f.write(f'data = "{t.path("pool")}"\n[memory]\ndesktops = "400M"\n')
    with open(program, "w") as f:
        f.write(SYSTEMCTL)
    os.chmod(program, 0o755)

    def said(memory_max):
        environment = {**os.environ, "PATH": f"{t.dir}:{os.environ['PATH']}", "MEMORY_MAX": memory_max}
        return run(binary(), "config", "check", file, env=environment, timeout=60)

    # The defaults of the other budgets are reduced, but that is not enough.
    done = said(str(300 * MIB))
    check("the MemoryMax of forebay.service is 300 MiB: reduce [memory] read_cache" in done.stderr, f"{done}")
    check(done.stdout.endswith("compared with 300 MiB, the MemoryMax of forebay.service\n"), f"{done}")
    # Without a limit, with the RAM.
    done = said("infinity")
    check("MemoryMax" not in done.stderr and done.stdout.endswith(" is valid\n"), f"{done}")


@test
def failed_imports_leave_no_image(t):
    s = t.server()
    with open(t.path("short.qcow2"), "wb") as f:
        f.write(b"QFI\xfb" + bytes(3))
    s.refused("image", "import", "bad", t.path("absent"))
    s.refused("image", "import", "bad", t.path("short.qcow2"))
    s.refused("image", "import", "bad", t.dir)
    # A qcow2 whose tables point beyond its end.
    run("qemu-img", "convert", "-O", "qcow2", t.noise_file("raw", 4 * MIB), t.path("cut.qcow2"))
    os.truncate(t.path("cut.qcow2"), MIB)
    s.refused("image", "import", "bad", t.path("cut.qcow2"))
    equal(s.json("image", "list"), [], "images")
    s.stop()
    s.start()
    equal(s.json("image", "list"), [], "images after a restart")


@test
def interrupted_imports_leave_no_image(t):
    s = t.server()
    # Long enough that the shorter delays end well before the import does.
    source = t.noise_file("source.raw", 384 * MIB)
    argv = [s.bin, "--socket", s.control, "image", "import", "golden", source]
    for end in ("client gets SIGINT", "client gets SIGKILL", "server gets SIGTERM", "server gets SIGKILL"):
        # An import that ends before the interruption is repeated with an earlier interruption.
        for delay in (0.2, 0.1, 0.05, 0.02, 0.0):
            client = spawn(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # The moment of the interruption.
            time.sleep(delay)
            done = s.json("image", "list")
            equal([i["name"] for i in done if client.poll() is None], [], "images during an import")
            interrupt(s, client, end)
            if client.wait(60) != 0:
                break
            s.cli("image", "rm", "golden")
        else:
            raise Failed(f"{end}: the import always ended before the interruption")
        wait_for(lambda: s.json("image", "list") == [], f"the end of the import after: {end}")
    s.cli("image", "import", "golden", source)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.uri("golden"))


def interrupt(server, client, how):
    """Ends client or server during an import; the server runs again afterwards."""
    who, _, signal_name = how.split()
    if who == "client":
        client.send_signal(getattr(signal, signal_name))
    elif signal_name == "SIGTERM":
        check(server.stop() < STOP_S, "stopping during an import takes too long")
        server.start()
    else:
        server.kill()
        server.start()


@test
def requests_beyond_the_end_of_a_disk_fail(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    h = connect(s, "disk")
    h.set_strict_mode(0)
    refused_by_server("EINVAL", h.pread, 512, MIB)
    refused_by_server("EINVAL", h.pread, 1024, MIB - 512)
    refused_by_server("ENOSPC", h.pwrite, bytes(1024), MIB - 512)
    refused_by_server("EINVAL", h.pread, 512, 1 << 62)
    # The connection can still be used.
    equal(bytes(h.pread(4, 0)), bytes(4), "a read afterwards")


@test
def invalid_data_does_not_affect_other_clients(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    good = connect(s, "disk")
    for i in range(60):
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(60)
        raw.connect(s.nbd)
        try:
            if i % 3:
                raw.recv(18)
                raw.sendall(struct.pack(">I", 3))
            if i % 3 == 2:
                raw.sendall(struct.pack(">QII", IHAVEOPT, t.random.randrange(1, 12), t.random.choice([5, 1 << 31])))
            raw.sendall(t.random.randbytes(t.random.randrange(1, 70000)))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server closes the connection, as it should
        raw.close()
        good.pwrite(bytes([i]) * 512, 0)
    equal(bytes(good.pread(1, 0)), b"\x3b", "the last write")


def enter_transmission(server, export):
    """A raw connection in the transmission phase, entered by NBD_OPT_EXPORT_NAME; its replies are simple
    ones."""
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(60)
    raw.connect(server.nbd)
    greeting = raw.recv(18, socket.MSG_WAITALL)
    equal(struct.unpack(">QQ", greeting[:16]), (NBD_MAGIC, IHAVEOPT), "greeting")
    raw.sendall(struct.pack(">I", 3))
    raw.sendall(struct.pack(">QII", IHAVEOPT, OPT_EXPORT_NAME, len(export)) + export.encode())
    equal(len(raw.recv(10, socket.MSG_WAITALL)), 10, "reply to the export name")
    return raw


@test
def clients_that_disconnect_within_a_request_leave_no_trace(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    for _ in range(20):
        raw = enter_transmission(s, "disk")
        # A write of a block of which only a part is sent.
        raw.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, CMD_WRITE, 1, 0, BLOCK) + b"x" * 100)
        raw.close()
    h = connect(s, "disk")
    equal(bytes(h.pread(BLOCK, 0)), bytes(BLOCK), "an incomplete write")
    h.shutdown()
    s.cli("volume", "rm", "disk")


@test
def a_client_that_never_reads_uses_bounded_memory(t):
    # Clients that do not read do not give way during the test.
    s = t.server("--cache", "64M", config="[limits]\nstall_timeout_s = 600\n")
    s.cli("volume", "create", "disk", "--size", "64M")
    run("nbdcopy", t.noise_file("noise", 64 * MIB), s.uri("disk"))
    before = resident(s.process.pid)
    deaf = []
    for _ in range(8):
        raw = enter_transmission(s, "disk")
        raw.setblocking(False)
        deaf.append(raw)
        try:
            for i in range(20000):
                raw.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, CMD_READ, i, (i % 32) * MIB, MIB))
        except BlockingIOError:
            pass
    h = connect(s, "disk")
    begin = time.monotonic()
    for i in range(200):
        h.pread(BLOCK, i * BLOCK)
    check(time.monotonic() - begin < 60, "it blocks another client")
    grown = resident(s.process.pid) - before
    check(grown < 400 * MIB, f"memory grew by {grown // MIB} MiB")
    for raw in deaf:
        raw.close()


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def on_a_terminal(s, answer, *args):
    """Runs a command whose input and error are a terminal; returns its status and what it wrote there."""
    import pty

    near, far = pty.openpty()
    process = subprocess.Popen([s.bin, "--socket", s.control, *args], stdin=far, stderr=far, stdout=subprocess.DEVNULL)
    os.close(far)
    os.write(near, f"{answer}\n".encode())
    status = process.wait(60)
    said = b""
    while True:
        try:
            said += os.read(near, 4096)
        except OSError:  # all of it was read
            break
    os.close(near)
    return status, said.decode()


@test
def snapshots_are_removed_only_after_a_question(t):
    s = t.server()
    for name in ("v", "plain"):
        s.cli("volume", "create", name, "--size", "1M")
    s.cli("snapshot", "create", "v", "a")
    status, said = on_a_terminal(s, "n", "volume", "rm", "v", "--snapshots")
    check("Remove 'v' with its 1 snapshot?" in said, said)
    equal((status, len(s.json("snapshot", "list", "v"))), (1, 1), "after a refusal")
    equal(on_a_terminal(s, "y", "volume", "rm", "v", "--snapshots")[0], 0, "after a confirmation")
    # Nothing is asked if there are no snapshots.
    status, said = on_a_terminal(s, "n", "volume", "rm", "plain", "--snapshots")
    equal((status, "Remove" in said), (0, False), f"a volume without snapshots: {said}")
    equal(s.json("volume", "list"), [], "volumes")
