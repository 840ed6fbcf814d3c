"""Partitions of the network around pools in Ceph: a server from OSDs, from monitors, from its
clients and from the other server, in both directions or in one. The pool has one owner; its clients
are served by it, or again by the next one, and no acknowledged write is lost.

The cluster, the clients and both servers are hosts of separate networks: see `networks`.
"""

import contextlib
import json
import os
import threading
import time

from ceph import Cluster, RadosServer
from clients_ghosts import PIECE, READ, Connection
from clients_lost import BOOTS, with_boot_id
from clients_rados import FENCED, TAKEOVER_S, not_answered
from harness import BLOCK, alone, check, equal, run, test, wait_for
from ledger import Ledger
from networks import HUB, Host, enter_hub

ROUNDS = int(os.environ.get("FOREBAY_RADOS_PARTITIONS", "0"))
BLOCKS = 64
# A client looks for another server if an answer takes longer.
ANSWER_S = 1.0
# How long partitions last that have no takeover: longer than the time after which an owner is regarded as
# dead.
CUT_S = 4.5
PROGRESS = 50
VOLUME = "disk"


class Site:
    """A cluster and two servers, each in its own network: the one that serves, and one that waits."""

    def __init__(self, t):
        self.cluster = Cluster(IP=HUB)
        t.defer(self.cluster.close)
        self.cluster.start()
        self.hosts = {}
        servers = []
        for number, (node, boot) in enumerate(zip("ab", BOOTS), 1):
            host = Host(t, number)
            server = RadosServer(t, self.cluster, "parted", "--nbd-allow-remote", node=node, address=host.address)
            with_boot_id(t, server, boot)
            server.prefix = host.prefix + server.prefix
            self.hosts[server] = host
            servers.append(server)
        self.owner, self.standby = servers
        self.owner.start()
        self.owner.cli("volume", "create", VOLUME, "--size", str(BLOCKS * BLOCK))
        self.standby.stand_by()
        self.ledger, self.random = Ledger(0, BLOCKS), t.random

    def osds(self, chain):
        """A rule for all packets of OSDs: `input` from them, `output` to them."""
        first = self.cluster.settings["PORT"] + 10
        return f"{chain} tcp {'sport' if chain == 'input' else 'dport'} {first}-{first + 189}"

    def monitors(self, chain):
        return f"{chain} tcp {'sport' if chain == 'input' else 'dport'} {self.cluster.settings['PORT']}"

    def clients(self, chain):
        return f"{chain} tcp {'dport' if chain == 'input' else 'sport'} {self.owner.port}"

    def other(self, server, chain):
        """A rule for all packets of the other server."""
        (other,) = (host for s, host in self.hosts.items() if s is not server)
        return f"{chain} ip {'saddr' if chain == 'input' else 'daddr'} {other.address}"

    def show(self):
        """Who owns the pool, as a third host sees it."""
        address = (self.owner.address, "--ceph-conf", self.cluster.conf, "--json")
        return json.loads(run(self.owner.bin, "pool", "show", *address).stdout)

    @contextlib.contextmanager
    def load(self):
        """A client that writes and reads, and in the end verifies all contents."""
        client = LedgerClient(self)
        client.start()
        client.wait_progress(self)
        yield client
        client.finish()
        found = attach(self.owner, TAKEOVER_S).pread(BLOCKS * BLOCK, 0)
        self.ledger.settle(self.ledger.check(bytes(found)))

    def check_roles(self):
        check(self.owner.process.poll() is None, f"the owner has ended:\n{self.owner.log_tail()}")
        check(self.standby.process.poll() is None, f"the standby has ended:\n{self.standby.log_tail()}")
        check(not self.standby.is_ready(), "the standby has taken the pool over")


def attach(server, limit):
    """A connection to the volume, or `None`."""
    import nbd

    h, deadline = nbd.NBD(), time.monotonic() + limit
    try:
        h.aio_connect_uri(server.tcp_uri(VOLUME))
        while h.aio_is_connecting() and time.monotonic() < deadline:
            h.poll(50)
        return h if h.aio_is_ready() else None
    except nbd.Error:
        return None


class LedgerClient(threading.Thread):
    """Sends one request at a time, writes durably. If an answer is late, or the connection ends, it
    looks for the server that has the pool."""

    def __init__(self, site):
        super().__init__(daemon=True)
        self.ledger, self.random = site.ledger, site.random
        self.servers = [site.owner, site.standby]
        self.stopping = threading.Event()
        self.answers, self.longest, self.last, self.error = 0, 0.0, None, None

    def run(self):
        import nbd

        try:
            while not self.stopping.is_set():
                for server in self.servers:
                    h = attach(server, ANSWER_S)
                    with contextlib.suppress(nbd.Error):
                        while h and not self.stopping.is_set() and self.request(h):
                            pass
                time.sleep(0.01)
        except Exception as e:  # noqa: BLE001: reported by `finish`
            self.error = e

    def request(self, h):
        """Whether it was answered in time."""
        import nbd

        block = self.random.choice([b for b in range(BLOCKS) if not self.ledger.busy_until(b)])
        if self.random.random() < 0.3:
            buffer = nbd.Buffer(BLOCK)
            if not ended(h, h.aio_pread(buffer, block * BLOCK)):
                return False
            padded = bytes(block * BLOCK) + bytes(buffer.to_bytearray())
            self.ledger.identify(padded, block, self.ledger.history[block], self.ledger.durable[block])
        else:
            write = self.ledger.submit([block], False)
            data = bytearray(self.ledger.bytes_of(block, write.version))
            if not ended(h, h.aio_pwrite(nbd.Buffer.from_bytearray(data), block * BLOCK, flags=nbd.CMD_FLAG_FUA)):
                return False
            self.ledger.acknowledge(write)
            self.ledger.make_durable([block], write.acknowledged)
        now = time.monotonic()
        self.longest = max(self.longest, now - (self.last or now))
        self.last = now
        self.answers += 1
        return True

    def wait_progress(self, site, count=PROGRESS):
        before = self.answers
        wait_for(lambda: self.error or self.answers >= before + count, "answers", 2 * TAKEOVER_S)
        check(self.error is None, f"client: {self.error!r}")

    def finish(self):
        self.stopping.set()
        self.join(60)
        check(not self.is_alive() and self.error is None, f"client: {self.error!r}")


def ended(h, cookie):
    """Waits for a request; false if it takes too long."""
    deadline = time.monotonic() + ANSWER_S
    while not h.aio_command_completed(cookie):
        if time.monotonic() > deadline:
            return False
        h.poll(50)
    return True


def moves(site, name, *rules):
    """The owner is cut off by these rules: the standby takes the pool over. The former owner
    answers nothing more, and ends when it notices."""
    former, host = site.owner, site.hosts[site.owner]
    with site.load() as client:
        idle = Connection((former.host, former.port), VOLUME)
        begin = time.monotonic()
        host.drop(*rules)
        site.standby.wait_ready(TAKEOVER_S)
        site.owner, site.standby = site.standby, former
        client.wait_progress(site)
        gap, took = client.longest, time.monotonic() - begin
        term = site.show()["term"]
        idle.socket.settimeout(ANSWER_S)
        idle.send(READ, 0, PIECE)
        not_answered(idle)
        host.heal()
        equal(former.wait(60), FENCED, f"{name}: exit status of the former owner")
        client.wait_progress(site)
        shown = site.show()
        equal((shown["term"], shown["alive"]), (term, True), f"{name}: the pool afterwards")
    former.stand_by()
    check(gap < TAKEOVER_S, f"{name}: {gap:.1f} s without an answer")
    return f"{name}: another owner; {gap:.1f} s without an answer, {took:.1f} s until {PROGRESS} answers"


def stays(site, name, cut, *rules, seconds=CUT_S):
    """The server `cut` is cut off by these rules for some time: the owner keeps the pool, and its clients are
    served, at the latest when it is over."""
    term = site.show()["term"]
    with site.load() as client:
        host = site.hosts[cut]
        host.drop(*rules)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            site.check_roles()
            time.sleep(0.05)
        host.heal()
        client.wait_progress(site)
        site.check_roles()
        equal(site.show()["term"], term, f"{name}: term")
    check(client.longest < seconds + TAKEOVER_S, f"{name}: {client.longest:.1f} s without an answer")
    return f"{name}: the same owner; {client.longest:.1f} s without an answer"


def both(rule):
    return rule("input"), rule("output")


def scenarios(site):
    """All partitions by name."""
    owner, standby = site.owner, site.standby
    cluster = (*both(site.osds), *both(site.monitors))
    return {
        "owner from OSDs": lambda: moves(site, "owner from OSDs", *both(site.osds)),
        "answers of OSDs to the owner": lambda: moves(site, "answers of OSDs to the owner", site.osds("input")),
        "requests of the owner to OSDs": lambda: moves(site, "requests of the owner to OSDs", site.osds("output")),
        "owner from the cluster": lambda: moves(site, "owner from the cluster", *cluster),
        "owner from monitors": lambda: stays(
            site, "owner from monitors", owner, *both(site.monitors), seconds=1.5
        ),
        "standby from OSDs": lambda: stays(site, "standby from OSDs", standby, *both(site.osds)),
        "answers of OSDs to the standby": lambda: stays(
            site, "answers of OSDs to the standby", standby, site.osds("input")
        ),
        "servers from each other": lambda: stays(
            site, "servers from each other", owner, *both(lambda chain: site.other(owner, chain)), seconds=1.0
        ),
        "owner from clients": lambda: stays(site, "owner from clients", owner, *both(site.clients), seconds=2.0),
        "answers to clients": lambda: stays(site, "answers to clients", owner, site.clients("output"), seconds=2.0),
    }


SHORT = ("owner from monitors", "answers to clients", "standby from OSDs", "owner from OSDs", "answers of OSDs to the owner")


@alone
@test
def rados_partitions_leave_one_owner(t):
    enter_hub()
    site = Site(t)
    names = SHORT if not ROUNDS else (t.random.choice(list(scenarios(site))) for _ in range(ROUNDS))
    for name in names:
        print(scenarios(site)[name](), flush=True)
    site.standby.kill()
    site.owner.stop()
    site.owner.prefix = []
    site.owner.offline("check")
