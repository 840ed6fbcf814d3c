"""Pools in Ceph that change hands on purpose: handovers to standbys, and upgrades while one waits."""

import os
import signal
import subprocess
import threading
import time

from ceph import Nodes, RadosServer
from clients_crash import CONFIG, crash_rounds
from clients_kept import KeptClient
from clients_rados import CLUSTER, FENCED, TAKEOVER_S, TcpClient, show, wait_loaded, wait_standby
from clients_rados_outages import RadosLoad
from clients_upgrade import FAKE, script
from forebay import Failed, spawn
from harness import BLOCK, alone, check, connect, equal, needs, test, wait_for

HANDOVERS = int(os.environ.get("FOREBAY_RADOS_HANDOVERS", "5"))
UPGRADES = int(os.environ.get("FOREBAY_RADOS_UPGRADES", "3"))
# Longest time without an answer in a handover, on a busy test machine. The goal is 1 s; the figures are
# printed.
PAUSE_S = 3.0


class Probe(threading.Thread):
    """A client that writes durably and reads, one request at a time. When it loses its connection, it looks
    at once for the server that has the pool. Records the longest time without an answer."""

    def __init__(self, nodes, export):
        super().__init__(daemon=True)
        self.uris = [server.tcp_uri(export) for server in nodes.servers]
        self.stopping = threading.Event()
        self.version, self.answers, self.longest, self.last, self.error = 0, 0, 0.0, None, None

    def run(self):
        try:
            while not self.stopping.is_set():
                for uri in self.uris:
                    self.serve(uri)
        except Exception as e:  # noqa: BLE001: reported by `finish`
            self.error = e

    def serve(self, uri):
        """Sends requests while this server answers."""
        import nbd

        h = nbd.NBD()
        try:
            h.connect_uri(uri)
            found = int.from_bytes(bytes(h.pread(8, 0)))
        except nbd.Error:
            return
        # The last write may have been executed without an answer.
        if found not in (self.version, self.version + 1):
            raise Failed(f"version {found} after the acknowledgement of version {self.version}")
        self.version = found
        try:
            while not self.stopping.is_set():
                h.pwrite((self.version + 1).to_bytes(8) * (BLOCK // 8), 0, flags=nbd.CMD_FLAG_FUA)
                self.version += 1
                equal(int.from_bytes(bytes(h.pread(8, 0))), self.version, "the version just written")
                now = time.monotonic()
                self.longest = max(self.longest, now - (self.last or now))
                self.last = now
                self.answers += 1
        except nbd.Error:
            return

    def take_longest(self):
        longest, self.longest = self.longest, 0.0
        return longest

    def finish(self):
        self.stopping.set()
        self.join(60)
        if self.error:
            raise Failed(f"probe: {self.error}") from self.error
        check(not self.is_alive() and self.version > 0, "the probe made no progress")


def named(server):
    """What `--to` expects for the process of a server on this host."""
    return f"{os.uname().nodename}:{server.process.pid}"


def after_handover(nodes):
    """Waits until the new owner answers commands; the former one is its standby."""
    former = nodes.serving
    nodes.take_over(TAKEOVER_S)
    wait_for(lambda: not former.is_ready(), "the former server stands by")
    return former


@needs(CLUSTER)
@alone
@test
def rados_handover_loses_no_acknowledged_write(t):
    nodes = Nodes(t, CLUSTER, "handover", config=CONFIG)
    nodes.write_serving(0)
    # Both are standbys: the first one finds a pool without an owner.
    nodes.serving.stand_by()
    nodes.serving.wait_ready(TAKEOVER_S)
    nodes.waiting.stand_by()
    nodes.cli("volume", "create", "probe", "--size", "1M")
    probe = Probe(nodes, "probe")
    probe.start()
    reported, seen = [], []

    def hand_over():
        wait_loaded(nodes)
        nodes.check_waiting()
        probe.take_longest()
        heir = nodes.waiting
        to = ["--to", named(heir)] if len(reported) % 2 else []
        done = nodes.serving.json("pool", "handover", *to)
        reported.append(done["pause_ms"])
        check(str(heir.process.pid) in done["owner"] and done["serving"], f"the new owner: {done}")

    def take_over():
        after_handover(nodes)
        answers = probe.answers
        wait_for(lambda: probe.error or probe.answers > answers, "the probe continues")
        seen.append(round(probe.take_longest() * 1000))

    clients = [kind(n, nodes, t.random.random()) for n, kind in enumerate((TcpClient, TcpClient, KeptClient))]

    class Ends:
        """The servers at the end of the test."""

        cli, offline = nodes.cli, nodes.offline

        def stop(self):
            probe.finish()
            nodes.stop()

    crash_rounds(t, Ends(), HANDOVERS, hand_over, take_over, 1.0, clients)
    print(f"{HANDOVERS} handovers: pauses as reported {reported} ms, as a client saw them {seen} ms")
    check(max(seen) < PAUSE_S * 1000, f"a pause took {max(seen)} ms")


@needs(CLUSTER)
@alone
@test
def rados_handover_ends_a_service_of_systemd(t):
    """Its sockets are those of systemd, which passes them to the next process of the unit."""
    nodes = Nodes(t, CLUSTER, "unit")
    former = nodes.serving
    former.prefix = ["sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh"]
    former.stand_by()
    former.wait_ready(TAKEOVER_S)
    nodes.waiting.stand_by()
    nodes.cli("volume", "create", "probe", "--size", "1M")
    wait_standby(nodes)
    nodes.serving.json("pool", "handover")
    equal(former.process.wait(TAKEOVER_S), 1, "the exit status of the former owner")
    check("starts it again as a standby" in former.log_tail(), former.log_tail())
    equal(os.listdir(former.memory), [], "the memory of the former owner, after everything was made durable")
    nodes.take_over(TAKEOVER_S)
    former.stand_by()
    wait_standby(nodes)
    nodes.serving.json("pool", "handover", "--to", named(former))
    nodes.take_over(TAKEOVER_S)
    connect(nodes, "probe").pread(BLOCK, 0)


@needs(CLUSTER)
@alone
@test
def rados_handover_that_fails_disconnects_no_client(t):
    nodes = Nodes(t, CLUSTER, "failing").start()
    nodes.cli("volume", "create", "tcp", "--size", "8M")
    refused = RadosServer(t, CLUSTER, "lonely").start()
    why = refused.refused("pool", "handover")
    check("no standby waits" in why, why)
    # It ends with a documented status, since it is not started as a standby.
    other = RadosServer(t, CLUSTER, "lonely", node="b")
    other.stand_by()
    why = refused.refused("pool", "handover", "--to", "nosuch")
    check("no standby 'nosuch' waits" in why, why)
    refused.cli("pool", "handover")
    equal(refused.wait(60), FENCED, "exit status of a server that is no standby")
    other.wait_ready(TAKEOVER_S)
    other.stop()

    load = RadosLoad("tcp", t.random, nodes.tcp_uri("tcp"))
    load.start()
    wait_standby(nodes)
    serving, heir = nodes.serving, nodes.waiting
    for end in (signal.SIGSTOP, signal.SIGKILL):
        open(serving.log, "w").close()
        watching = threading.Thread(target=end_when_chosen, args=(serving, heir, end), daemon=True)
        watching.start()
        why = serving.refused("pool", "handover")
        watching.join()
        check("the handover failed" in why and "this server" in why, why)
        before = load.requests
        wait_for(lambda: load.error or load.requests > before + 500, "the load continues")
        check(load.error is None, f"{load.error!r}")
        if end == signal.SIGSTOP:
            heir.process.send_signal(signal.SIGCONT)
            wait_standby(nodes)
    heir.process.wait()
    found = show(serving)
    check(found["alive"] and found["serving"] and str(serving.process.pid) in found["owner"], f"{found}")
    load.finish()
    nodes.waiting.process = None
    nodes.stop()
    print(f"handovers to standbys that hang or die: the longest request took {load.longest:.2f} s")


def wait_logged(server, text):
    """Waits until the server has logged a text."""
    # In shorter steps than `wait_for`: the logged operation may end soon.
    deadline = time.monotonic() + 60
    with open(server.log) as log:
        while text not in log.readline():
            check(time.monotonic() < deadline, f"'{text}' is not in {server.log}")
            time.sleep(0.0005)


def end_when_chosen(serving, heir, number):
    """Ends or pauses the heir when the owner has chosen it."""
    wait_logged(serving, "handover begins")
    heir.process.send_signal(number)


# A successor to which the pool is released, and which does not take it.
HANGS = f"""{FAKE}
def first_line(path):
    return open(path).read().strip()
boot, namespace = first_line("/proc/sys/kernel/random/boot_id"), os.readlink("/proc/self/ns/pid")
started = first_line("/proc/self/stat").rsplit(")", 1)[1].split()[19]
host = first_line("/proc/sys/kernel/hostname")
receive()
send({{**READY, "heir": f"{{host}} {{os.getpid()}} {{boot}} {{namespace}} {{started}}"}})
receive()
time.sleep(60)
"""


@needs(CLUSTER)
@alone
@test
def rados_upgrades_leave_nothing_to_a_standby(t):
    t.defer(CLUSTER.heal)
    nodes = Nodes(t, CLUSTER, "upgrade").start()
    nodes.cli("volume", "create", "tcp", "--size", "8M")
    load = RadosLoad("tcp", t.random, nodes.tcp_uri("tcp"))
    load.start()
    wait_standby(nodes)
    pauses = []
    for _ in range(UPGRADES):
        wait_for(lambda: load.requests > 200, "the load")
        pauses.append(nodes.serving.upgrade()["pause_ms"])
        nodes.check_waiting()
        check(load.error is None, f"{load.error!r}")
    # A binary that ends when it has the connections: the former process takes the pool back.
    why = nodes.serving.refused("upgrade", "--binary", "/bin/false")
    check("this process continues" in why, why)
    # One that hangs is ended before the standby takes the pool, although the upgrade has time.
    why = nodes.serving.refused("upgrade", "--binary", script(t, "hangs", HANGS), "--timeout", "30")
    check("gave no sign of life" in why and "this process continues" in why, why)
    nodes.check_waiting()
    check(load.error is None, f"{load.error!r}")
    CLUSTER.kill_mon()
    why = nodes.serving.refused("upgrade")
    check("monitors" in why and "this process continues" in why, why)
    before = load.requests
    wait_for(lambda: load.error or load.requests > before + 500, "the load continues")
    CLUSTER.start_mon()
    CLUSTER.wait_up()
    nodes.check_waiting()
    load.finish()
    nodes.stop()
    nodes.offline("check")
    print(f"{UPGRADES} upgrades next to a standby: pauses {pauses} ms, longest request {load.longest:.2f} s")


@needs(CLUSTER)
@alone
@test
def rados_signals_end_an_upgrade_while_the_cluster_hangs(t):
    t.defer(CLUSTER.heal)
    s = RadosServer(t, CLUSTER, "stuck").start()
    s.cli("volume", "create", "v", "--size", "1M")
    h = connect(s, "v")
    h.pwrite(b"w" * BLOCK, 0)
    for number in range(CLUSTER.OSDS):
        CLUSTER.pause_osd(number)
    spawn([s.bin, "--socket", s.control, "upgrade"], stderr=subprocess.DEVNULL)
    wait_logged(s, "upgrade begins")
    # The moment of the signals.
    time.sleep(t.random.uniform(0.0, 1.0))
    check(s.process.poll() is None, "the upgrade has ended already")
    s.process.terminate()
    # Two signals count as one before the server has noticed the first one.
    wait_logged(s, "stopping")
    check(s.process.poll() is None, "the server does not wait for the cluster")
    s.process.terminate()
    s.process.wait(60)
    s.process = None
    for number in range(CLUSTER.OSDS):
        CLUSTER.resume_osd(number)
    s.start()
    equal(bytes(connect(s, "v").pread(BLOCK, 0)), b"w" * BLOCK, "an acknowledged write")
    s.stop()


@needs(CLUSTER)
@alone
@test
def rados_servers_without_a_claim_answer_no_query(t):
    t.defer(CLUSTER.heal)
    s = RadosServer(t, CLUSTER, "claim").start()
    s.cli("stats")
    for number in range(CLUSTER.OSDS):
        CLUSTER.pause_osd(number)
    wait_for(lambda: s.cli("stats", check=False).returncode != 0, "queries are refused")
    why = s.refused("stats")
    check("not certain to own the pool" in why, why)
    for number in range(CLUSTER.OSDS):
        CLUSTER.resume_osd(number)
    wait_for(lambda: s.cli("stats", check=False).returncode == 0, "queries are answered")
    s.stop()
