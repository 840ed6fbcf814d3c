"""Pools in Ceph: the end of servers, takeovers by standbys, and errors of users. All tests share one cluster.

The outages of the cluster itself are in `clients_rados_outages`.
"""

import json
import os
import signal
import threading
import time

from ceph import Cluster, Nodes, OverTcp, RadosServer, first_answer
from clients_crash import CONFIG, Client, crash_rounds
from clients_failures import fill_until_refused, refuses_to_start, tag
from clients_ghosts import PIECE, READ, Connection
from clients_kept import KeptClient
from clients_lost import BOOTS, with_boot_id
from forebay import Failed
from harness import BLOCK, MIB, alone, check, connect, equal, needs, run, test, wait_for

KILLS = int(os.environ.get("FOREBAY_RADOS_KILLS", "5"))
TAKEOVERS = int(os.environ.get("FOREBAY_RADOS_TAKEOVERS", "2"))
PAUSES = int(os.environ.get("FOREBAY_RADOS_PAUSES", "1"))
RACES = int(os.environ.get("FOREBAY_RADOS_RACES", "3"))

# Limits for a busy test machine. The measured times are printed: the goals are 2 s for a restart in place,
# and 10 s for a takeover.
RESTART_S, TAKEOVER_S = 30.0, 30.0
# Exit status of a server that lost its pool.
FENCED = 69
IN_USE = "in use by another"

CLUSTER = Cluster()


class TcpClient(KeptClient):
    """Every answer to a write means that it is durable."""

    def __init__(self, number, server, seed):
        super().__init__(number, OverTcp(server), seed)


class Writer(TcpClient):
    """A client that only writes."""

    def make_snapshot(self):
        """A snapshot would wait for a server that is paused."""


@needs(CLUSTER)
@test
def rados_keeps_flushed_writes_when_the_server_is_killed(t):
    s = RadosServer(t, CLUSTER, "killed").start()
    s.cli("volume", "create", "disk", "--size", "64M")
    data = t.random.randbytes(16 * MIB)
    longest = 0.0
    for round_ in range(3):
        h = connect(s, "disk")
        piece = 4 * MIB
        for offset in range(round_ * piece, (round_ + 1) * piece, MIB):
            h.pwrite(data[offset : offset + MIB], offset)
        h.flush()
        begin = time.monotonic()
        s.kill()
        s.start()
        longest = max(longest, first_answer(s, "disk", begin))
        found = bytes(connect(s, "disk").pread((round_ + 1) * piece, 0))
        check(found == data[: (round_ + 1) * piece], f"contents after kill {round_}")
    check(longest < RESTART_S, f"{longest:.1f} s from the kill to the first answer")
    equal(s.stop() < RESTART_S, True, "an orderly stop is quick")
    s.offline("check")
    check(s.offline("inspect").stdout, "inspect printed nothing")
    shown = show(s)
    check(isinstance(shown, dict) and shown, f"pool show: {shown}")
    print(f"from a kill to the first answer: at most {longest:.2f} s")


@needs(CLUSTER)
@test
def rados_loses_no_durable_write_when_servers_are_killed(t):
    server = RadosServer(t, CLUSTER, "ledger", config=CONFIG).start()

    def recover():
        # Sometimes the recovery is killed as well.
        while t.random.random() < 0.1:
            server.launch()
            time.sleep(t.random.uniform(0.0, 0.3))
            server.kill()
        server.start()

    kinds = (Client, KeptClient, TcpClient)
    clients = [kind(n, server, t.random.random()) for n, kind in enumerate(kinds)]
    # Commits take longer than in a directory.
    crash_rounds(t, server, KILLS, server.kill, recover, 1.0, clients)


def wait_loaded(nodes):
    """Waits until clients write, and the waiting server is announced."""
    writes = lambda: nodes.serving.json("stats")["guest"]["write"]["ops"]  # noqa: E731
    before = writes()
    wait_for(lambda: writes() > before + 20, "writes")
    wait_standby(nodes)


def wait_standby(nodes):
    """Waits until the waiting server is announced."""
    wait_for(lambda: any(s["alive"] for s in show(nodes.serving)["standbys"]), "a standby is announced")


def show(server):
    command = (server.bin, "pool", "show", server.address, "--ceph-conf", server.conf, "--json")
    return json.loads(run(*command).stdout)


@needs(CLUSTER)
@alone
@test
def rados_standbys_lose_no_acknowledged_write(t):
    nodes = Nodes(t, CLUSTER, "standby", config=CONFIG).start()
    nodes.cli("volume", "create", "probe", "--size", "1M")
    took = {signal.SIGKILL: [], signal.SIGTERM: []}
    ended = None

    def end():
        nonlocal ended
        wait_loaded(nodes)
        nodes.check_waiting()
        number = list(took)[sum(map(len, took.values())) % 2]
        begin = time.monotonic()
        if number == signal.SIGKILL:
            nodes.serving.kill()
        else:
            nodes.serving.stop()
            begin = time.monotonic()
        ended = number, begin

    def take_over():
        number, begin = ended
        former = nodes.serving
        serving = nodes.take_over(TAKEOVER_S)
        took[number].append(first_answer(serving, "probe", begin))
        former.stand_by()

    clients = [TcpClient(n, nodes, t.random.random()) for n in range(3)]
    crash_rounds(t, nodes, TAKEOVERS, end, take_over, 1.0, clients)
    for number, times in took.items():
        if times:
            name = signal.Signals(number).name
            check(max(times) < TAKEOVER_S, f"a takeover after {name} took {max(times):.1f} s")
            print(f"from {name} to the first answer of a standby: at most {max(times):.2f} s, {len(times)} times")


@needs(CLUSTER)
@alone
@test
def rados_shows_no_late_write_of_a_paused_server(t):
    nodes = Nodes(t, CLUSTER, "paused", config=CONFIG)
    if os.geteuid() == 0:
        # The standby is on another host, so it cannot know that the other process lives.
        for server, boot in zip(nodes.servers, BOOTS):
            with_boot_id(t, server, boot)
    nodes.start()
    took, ended, late = [], [], 0
    for round_ in range(PAUSES):
        times = pause(t, nodes, round_)
        took.append(times[0])
        ended.append(times[1])
        late += times[2]
    nodes.stop()
    nodes.offline("check")
    print(
        f"{PAUSES} pauses: takeover after at most {max(took):.2f} s; the paused server ended at most "
        f"{max(ended):.2f} s after it continued; {late} answers were already on their way"
    )


def pause(t, nodes, round_):
    """Pauses the serving node under load until the other one has taken over, and lets it continue. Returns
    the durations of the takeover and of the end of the former server, and the number of its late answers."""
    former, volume = nodes.serving, f"volume-{round_}"
    writer = Writer(round_, former, t.random.random())
    writer.create()
    idle = Connection(("127.0.0.1", former.port), volume)
    load = threading.Thread(target=writer.load, daemon=True)
    load.start()
    wait_for(lambda: writer.count["writes"] > 200, "200 writes")
    time.sleep(t.random.uniform(0.0, 0.5))
    nodes.check_waiting()
    begin = time.monotonic()
    former.process.send_signal(signal.SIGSTOP)
    serving = nodes.take_over(TAKEOVER_S)
    took = first_answer(serving, volume, begin)
    acknowledged = writer.count["writes"]
    found = contents(serving, writer)
    writer.ledger.check(found)
    model = overwrite(t, serving, volume, found)
    if t.random.random() < 0.5:
        serving.cli("gc")
    # The former server finds this request when it continues: its answer would be older than the model.
    idle.send(READ, 0, PIECE)
    begin = time.monotonic()
    former.process.send_signal(signal.SIGCONT)
    equal(former.wait(60), FENCED, "exit status of the server that was paused")
    ended = time.monotonic() - begin
    not_answered(idle)
    load.join(60)
    check(not load.is_alive(), "a client of the former server still waits")
    # Answers that were on their way are for writes that the other server has found.
    writer.ledger.check(found)
    check(contents(serving, writer) == model, "the volume has changed after the former server continued")
    serving.kill()
    serving.start()
    check(contents(serving, writer) == model, "the volume has changed after a restart")
    serving.cli("volume", "rm", volume)
    former.stand_by()
    return took, ended, writer.count["writes"] - acknowledged


def contents(server, client):
    """The contents of a client's volume, as this server reads it."""
    h = connect(server, client.name)
    data = bytes(h.pread(client.blocks * client.size, 0))
    h.shutdown()
    return data


def overwrite(t, server, volume, found):
    """Writes other data to parts of the volume, durably; returns its contents."""
    model, size = bytearray(found), 8 * BLOCK
    h = connect(server, volume)
    for offset in t.random.sample(range(0, len(model), size), len(model) // size // 2):
        model[offset : offset + size] = t.random.randbytes(size)
        h.pwrite(bytes(model[offset : offset + size]), offset)
    h.flush()
    h.shutdown()
    return bytes(model)


def not_answered(connection):
    """Fails if a read was answered."""
    try:
        connection.reply(PIECE)
    except (ConnectionError, OSError):
        return
    raise Failed("a server that had lost its pool answered a read")


@needs(CLUSTER)
@test
def rados_pools_have_one_server(t):
    servers = [RadosServer(t, CLUSTER, "race", node=node) for node in "ab"]
    winners = ""
    for round_ in range(RACES):
        for s in servers:
            s.remove_sockets()
            open(s.log, "w").close()
        for s in servers:
            s.launch()
        winner = one_winner(servers)
        winners += "ab"[servers.index(winner)]
        if round_ == 0:
            winner.cli("volume", "create", "disk", "--size", "1M")
        import nbd

        h = connect(OverTcp(winner), "disk")
        equal(int.from_bytes(bytes(h.pread(8, 0))), round_, "what the winner of the last round has written")
        h.pwrite((round_ + 1).to_bytes(8) * (BLOCK // 8), 0, flags=nbd.CMD_FLAG_FUA)
        h.shutdown()
        if t.random.random() < 0.5:
            winner.kill()
        else:
            winner.stop()
    servers[0].offline("check")
    print(f"winners of {RACES} races: a {winners.count('a')} times, b {winners.count('b')} times")


def one_winner(servers, timeout=60):
    """Waits until one of both servers is ready and the other one has ended; returns the former."""

    def decided():
        ended = [s.process.poll() is not None for s in servers]
        ready = [s.is_ready() for s in servers]
        check(not all(ended), "both servers have ended:\n" + "\n".join(s.log_tail() for s in servers))
        check(not all(ready), "both servers are ready")
        return any(ended) and any(r and not e for r, e in zip(ready, ended))

    wait_for(decided, "decided", timeout)
    loser, winner = sorted(servers, key=lambda s: s.process.poll() is None)
    equal(loser.wait(60), 1, "exit status of the other server")
    lines = [line for line in loser.log_tail().splitlines() if line.startswith("forebay:")]
    check(len(lines) == 1 and IN_USE in lines[0], f"no reason in one line:\n{loser.log_tail()}")
    return winner


@needs(CLUSTER)
@test
def rados_pools_over_quota_recover(t):
    CLUSTER.pool("small")
    CLUSTER.quota("small", 128 * MIB)
    s = RadosServer(t, CLUSTER, "quota", "--cache", "16M", pool="small").start()
    s.cli("volume", "create", "keep", "--size", "64M")
    data = t.random.randbytes(16 * MIB)
    keep = connect(s, "keep")
    keep.pwrite(data, 0)
    keep.flush()
    s.cli("volume", "create", "fill", "--size", "1G")
    h = connect(s, "fill")
    written = fill_until_refused(t, h)
    check(s.process.poll() is None, "the server has ended")
    # Sampled, because the monitor notices an excess late, after many MiB.
    for i in range(0, written, max(1, written // 32)):
        equal(bytes(h.pread(16, i * MIB)), tag(i), f"MiB {i} of {written} that were flushed")
    check(bytes(keep.pread(len(data), 0)) == data, "the other volume over quota")
    h.shutdown()
    s.wait_unused("fill")
    s.cli("volume", "rm", "fill")
    s.cli("gc", check=False)
    CLUSTER.quota("small", 1024 * MIB)
    more = t.random.randbytes(MIB)
    wait_for(lambda: accepted(keep, more, 32 * MIB), "accepted")
    check(bytes(keep.pread(len(data), 0)) == data, "the other volume afterwards")
    s.kill()
    s.start()
    keep = connect(s, "keep")
    check(bytes(keep.pread(len(data), 0)) == data, "the other volume after a restart")
    check(bytes(keep.pread(MIB, 32 * MIB)) == more, "what was written after the quota was raised")
    s.stop()
    s.offline("check")
    print(f"{written} MiB of random data were accepted with a quota of 128 MiB")


def accepted(handle, data, offset):
    """Whether a write and its flush succeed; any error but ENOSPC fails the test."""
    import nbd

    try:
        handle.pwrite(data, offset)
        handle.flush()
    except nbd.Error as e:
        equal(e.errno, "ENOSPC", "error over quota")
        return False
    return True


@needs(CLUSTER)
@test
def rados_errors_of_users_are_one_line(t):
    missing = RadosServer(t, CLUSTER, "nowhere", pool="nosuch")
    refuses_to_start(t, missing, "a pool that does not exist", "nosuch")
    CLUSTER.ec_pool("coded")
    coded = RadosServer(t, CLUSTER, "coded", pool="coded")
    refuses_to_start(t, coded, "an erasure-coded pool", "erasure-coded", "replicated")
    refuses_to_start(t, coded, "the same again", "erasure-coded")
    conf = t.path("nosuch.conf")
    refuses_to_start(t, RadosServer(t, CLUSTER, "conf", conf=conf), "a missing configuration", conf)
    keyless = t.path("keyless.conf")
    with open(CLUSTER.conf) as whole, open(keyless, "w") as copy:
        path = f"keyring = {t.path('nosuch.keyring')}\n"
        copy.writelines(path if line.startswith("keyring") else line for line in whole)
    refuses_to_start(t, RadosServer(t, CLUSTER, "key", conf=keyless), "a missing key", "key", "ermission", "denied")
    s = RadosServer(t, CLUSTER, "used").start()
    done = s.offline("check", check=False)
    check(done.returncode == 1 and IN_USE in done.stderr, f"check of a pool in use: {done.returncode}, {done.stderr}")
    second = RadosServer(t, CLUSTER, "used", node="b")
    refuses_to_start(t, second, "a pool in use", IN_USE)
    s.stop()
