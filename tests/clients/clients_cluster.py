"""Clusters: nodes that join, fail, return, drain and leave, while clients write to volumes in every shard.

Each node is in a separate namespace of processes, so that the others cannot see whether its processes live,
as on another host. A node is killed with all its processes at once.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time

from clients_iscsi import secret_file
from clients_metrics import scrape
from clients_metrics import text_of as metrics_of
from clients_rados import CLUSTER
from clients_rados_handover import Probe
from clients_rados_paths import MOVED, NOT_FOUND, SECRET, Raw
from forebay import Failed, binary, run, spawn
from harness import BLOCK, alone, check, equal, needs, test, wait_for
from hosts import free_port
from initiator import text_of
from ledger import block_bytes
from tools import Unavailable, promtool

# Longest wait for a state of the cluster on a busy machine.
STATE_S = 90
# Blocks of the volume of a guest.
BLOCKS = 64
# Time without a change of the membership before shards move.
SETTLE_S = 2


class Node:
    """A node. Its directory has a short path: it contains sockets."""

    def __init__(self, cluster, name, *args):
        self.cluster, self.name, self.args = cluster, name, args
        self.data = os.path.join(cluster.directory, name)
        self.memory = os.path.join(cluster.memory, name)
        os.makedirs(self.memory, mode=0o700)
        self.control = os.path.join(self.data, "forebay.sock")
        self.log = cluster.t.path(f"{cluster.name}-{name}.log")
        # What makes its commands run on its host.
        self.prefix = []
        self.process = None
        cluster.t.defer(self.kill)

    def start(self):
        argv = [
            *self.prefix,
            *["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
            *[binary(), "serve", "--cluster", *self.cluster.location, "--data", self.data, "--node-name", self.name],
            *["--settle", SETTLE_S, "--cache", "64M", "--cores", 1, "--memory-dir", self.memory, "--json", *self.args],
        ]
        with open(self.log, "ab") as log:
            self.process = spawn(argv, stdout=log, stderr=log)
        return self

    def kill(self):
        """Kills all processes of the node at once, as when its host fails."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def processes(self):
        """The ids of the process of the node, and of those of its shards."""
        pids = run("ps", "-o", "pid=", "--ppid", self.process.pid).stdout.split()
        children = [run("ps", "-o", "pid=", "--ppid", pid, check=False).stdout.split() for pid in pids]
        return pids, [pid for found in children for pid in found]

    def signal(self, name):
        """Sends a signal to all processes of the node."""
        pids, children = self.processes()
        # The process of a shard may have ended.
        run("kill", f"-{name}", *pids)
        for pid in children:
            run("kill", f"-{name}", pid, check=False)

    def stop(self):
        """Stops the node in order: it releases its shards."""
        # The parent passes the signal on to the first process of the namespace.
        run("pkill", "-TERM", "-P", self.process.pid)
        equal(self.process.wait(60), 0, f"status of the node {self.name}")
        self.process = None

    def ready(self):
        """The ready line."""
        lines = lambda: [line for line in self.text().splitlines() if '"ready"' in line]  # noqa: E731
        wait_for(lines, f"the ready line of {self.name}", STATE_S)
        return json.loads(lines()[-1])

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def cli(self, *args, check=True):
        """A command at the control socket of the node."""
        return run(binary(), "--socket", self.control, *args, check=check)

    def begin(self, *args):
        """Begins a command at the control socket of the node."""
        return spawn([binary(), "--socket", self.control, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def json(self, *args):
        """The result of a command at the control socket of the node."""
        return json.loads(self.cli("--json", *args).stdout)

    def get(self, path):
        """What the API of the cluster returns at this node."""
        return json.loads(run("curl", "-sS", "--unix-socket", self.control, f"http://localhost/api/v1/{path}").stdout)

    def tcp_uri(self, export):
        """As a server of the shard to which the export belongs, for a probe."""
        shard, export = export.split("/")
        return f"nbd+unix:///{export}?socket={self.data}/shards/{int(shard):05}/nbd.sock"


@contextlib.contextmanager
def connected(node, volume):
    """A client that has a volume open at a node."""
    import nbd

    h = nbd.NBD()
    h.connect_uri(f"nbd+unix:///{volume}?socket={node.data}/nbd.sock")
    try:
        yield h
    finally:
        h.shutdown()


def exchange(client, h, in_flight, depth, blocks):
    """Keeps `depth` requests under way, on different blocks, and ends the requests that were answered."""
    busy = {block for block, *_ in in_flight.values()}
    while len(in_flight) < depth and not client.stopping.is_set():
        block = client.random.choice([b for b in range(blocks) if b not in busy])
        busy.add(block)
        cookie, request = client.begin(h, block)
        in_flight[cookie] = request
    h.poll(100)
    for cookie in [cookie for cookie in in_flight if h.aio_command_completed(cookie)]:
        client.end(*in_flight.pop(cookie))


class Guest(threading.Thread):
    """A client of one node, with many requests at a time, which never connects again: whatever happens to the
    owners of its disk has to be a pause. Each read has to return what was acknowledged last."""

    DEPTH = 16

    def __init__(self, node, volume, number):
        super().__init__(daemon=True)
        self.uri = f"nbd+unix:///{volume}?socket={node.data}/nbd.sock"
        self.volume, self.number, self.random = volume, number, random.Random(number)
        self.stopping = threading.Event()
        self.versions = [0] * BLOCKS
        self.answers, self.longest, self.last, self.error = 0, 0.0, None, None

    def run(self):
        import nbd

        try:
            h = nbd.NBD()
            h.connect_uri(self.uri)
            in_flight = {}
            while in_flight or not self.stopping.is_set():
                exchange(self, h, in_flight, self.DEPTH, BLOCKS)
            h.shutdown()
        except Exception as e:  # noqa: BLE001: reported by `finish`
            self.error = e

    def begin(self, h, block):
        import nbd

        if self.random.random() < 0.4:
            buffer = nbd.Buffer(BLOCK)
            return h.aio_pread(buffer, block * BLOCK), (block, None, buffer)
        version = self.versions[block] + 1
        data = nbd.Buffer.from_bytearray(bytearray(block_bytes(self.number, block, version)))
        return h.aio_pwrite(data, block * BLOCK), (block, version, data)

    def end(self, block, version, buffer):
        if version is None:
            self.verify(block, bytes(buffer.to_bytearray()))
        else:
            self.versions[block] = version
        now = time.monotonic()
        self.longest = max(self.longest, now - (self.last or now))
        self.last = now
        self.answers += 1

    def verify(self, block, found):
        version = self.versions[block]
        expected = block_bytes(self.number, block, version) if version else bytes(BLOCK)
        if found != expected:
            raise Failed(f"block {block} of {self.volume} is not version {version}, the last one that was acknowledged")

    def take_longest(self):
        longest, self.longest = self.longest, 0.0
        return longest

    def finish(self):
        self.stopping.set()
        self.join(60)
        check(not self.is_alive() and self.error is None, f"the guest of {self.volume}: {self.error!r}")


def wait_answers(clients, what, longest):
    """Waits until every client has further answers; checks its longest time without an answer."""
    before = [client.answers for client in clients]
    advanced = lambda: all(c.error or c.answers > n + 20 for c, n in zip(clients, before))  # noqa: E731
    wait_for(advanced, f"answers after {what}", STATE_S)
    for client in clients:
        check(not client.error, f"{what}: {client.error!r}")
    times = sorted(client.take_longest() for client in clients)
    print(f"{what}: longest times without an answer {', '.join(f'{s:.2f}' for s in times)} s")
    check(times[-1] < longest, f"{what}: a client waited {times[-1]:.1f} s")


class ShardedCluster:
    """A cluster with its nodes."""

    def __init__(self, t, name, shards, *create, ceph=CLUSTER):
        self.t, self.name, self.shards = t, name, range(1, shards + 1)
        self.directory = tempfile.mkdtemp(prefix="fb-", dir="/tmp")
        t.defer(shutil.rmtree, self.directory, ignore_errors=True)
        self.memory = t.memory
        self.address = f"rados:test/{name}"
        self.location = [self.address, "--ceph-conf", ceph.conf]
        self.nodes = {}
        self.command("cluster", "create", "--shards", shards, *create)

    @property
    def servers(self):
        """What a probe tries one after another: all nodes, also those that do not run."""
        return list(self.nodes.values())

    def add(self, *names, args=()):
        """Adds nodes, which do not run yet."""
        self.nodes.update((name, Node(self, name, *args)) for name in names)

    def command(self, noun, verb, *args, check=True):
        """A command that needs no running node."""
        return run(binary(), "--json", noun, verb, *self.location, *args, check=check)

    def start(self, *names):
        for name in names:
            self.nodes[name].start()

    def status(self):
        return json.loads(self.command("cluster", "status").stdout)

    def owned(self):
        """The number of shards that each node owns, if all shards are served at home; `None` otherwise."""
        status = self.status()
        at_home = all(s["state"] == "serving" and s["owner"] == s["home"] for s in status["shards"])
        return {node["name"]: node["owned"] for node in status["nodes"]} if at_home else None

    def wait_owned(self, expected):
        """Waits until all shards are served at home, and the nodes own this many."""
        deadline = time.monotonic() + STATE_S
        while (owned := self.owned()) != expected:
            if time.monotonic() > deadline:
                status = json.dumps(self.status(), indent=1)
                logs = "".join(f"{n.log}:\n{n.text()[-3000:]}\n" for n in self.nodes.values())
                raise Failed(f"shards {owned}, expected {expected}\n{status}\n{logs}")

    def cli(self, shard, *args):
        """A command for the server of a shard."""
        for node in self.nodes.values():
            socket = os.path.join(node.data, "shards", f"{shard:05}", "forebay.sock")
            if os.path.exists(socket):
                done = run(binary(), "--socket", socket, *args, check=False)
                if done.returncode == 0:
                    return done.stdout
        raise Failed(f"no node has executed {args} in shard {shard}")


@needs(CLUSTER)
@test
def cluster_nodes_show_the_metrics_of_their_shards(t):
    cluster = ShardedCluster(t, "figures", 4)
    cluster.add("n1", "n2", args=["--http", "127.0.0.1:0"])
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    served = {}
    for node in cluster.nodes.values():
        metrics = scrape(node)
        equal(metrics["forebay_cluster_shards"], 4, "shards")
        for name in cluster.nodes:
            equal(metrics[f'forebay_cluster_node_shards{{node="{name}"}}'], 2, f"shards of {name}")
            equal(metrics[f'forebay_cluster_node_state{{node="{name}",state="up"}}'], 1, f"{name} is up")
        answers = re.compile(r'forebay_node_shard_answers{shard="(\d+)"}')
        served[node.name] = {m[1] for m in map(answers.fullmatch, metrics) if m and metrics[m[0]] == 1}
        # Each shard of the node has its own metrics, and no other shard has any.
        of_shards = {m[1] for m in (re.search(r'[{,]shard="(\d+)"', key) for key in metrics if "_pool_" in key) if m}
        equal(of_shards, served[node.name], f"shards with metrics at {node.name}")
    check(not served["n1"] & served["n2"] and len(served["n1"] | served["n2"]) == 4, f"{served}")
    with contextlib.suppress(Unavailable):
        tool, file = promtool(), t.path("metrics")
        with open(file, "w") as f:
            f.write(metrics_of(cluster.nodes["n1"]))
        with open(file) as f:
            found = run(tool, "check", "metrics", stdin=f, check=False)
        check(found.returncode == 0, f"promtool check metrics: {found.stdout}{found.stderr}")
    for node in cluster.nodes.values():
        node.stop()


@needs(CLUSTER)
@alone
@test
def cluster_shards_move_with_the_nodes(t):
    cluster = ShardedCluster(t, "moves", 6)
    cluster.add("n1", "n2", "n3", "n4")
    cluster.start("n1", "n2", "n3")
    cluster.wait_owned({"n1": 2, "n2": 2, "n3": 2})
    probes = []
    for shard in cluster.shards:
        cluster.cli(shard, "volume", "create", f"disk-{shard}", "--size", "1M")
        probes.append(Probe(cluster, f"{shard}/disk-{shard}"))
        probes[-1].start()

    def check_progress(what, longest):
        wait_answers(probes, what, longest)

    def owned_by(name):
        """The number of shards of a node, if all shards are served at home; `None` otherwise."""
        return (cluster.owned() or {}).get(name)

    check_progress("start", STATE_S)

    # A node joins: its share moves, by handover.
    cluster.start("n4")
    wait_for(lambda: owned_by("n4"), "the fourth node", STATE_S)
    equal(sorted(cluster.owned().values()), [1, 1, 2, 2], "shards of four nodes")
    check_progress("a node joined", 10)

    # A node fails with all its processes.
    cluster.nodes["n1"].kill()
    wait_for(lambda: owned_by("n1") == 0, "a takeover", STATE_S)
    check_progress("a node failed", 20)
    states = {node["name"]: node["state"] for node in json.loads(cluster.command("node", "list").stdout)}
    equal(states, {"n1": "suspect", "n2": "up", "n3": "up", "n4": "up"}, "states")

    # It returns, and gets its share again.
    cluster.start("n1")
    wait_for(lambda: owned_by("n1"), "shards of the node that returned", STATE_S)
    check_progress("a node returned", 10)

    # Another one is drained and removed.
    cluster.command("node", "drain", "n2")
    wait_for(lambda: owned_by("n2") == 0, "a drained node", STATE_S)
    check_progress("a node was drained", 10)
    refused = cluster.command("node", "rm", "n3", check=False)
    check("drain it first" in refused.stderr, refused.stderr)
    cluster.command("node", "rm", "n2")
    removed = cluster.nodes["n2"]
    wait_for(lambda: removed.process.poll() is not None, "the end of the removed node")
    check("this node was removed from the cluster" in removed.text(), removed.text()[-500:])
    removed.process = None

    for probe in probes:
        probe.finish()
    for node in cluster.nodes.values():
        if node.process:
            node.stop()
    for shard in cluster.status()["shards"]:
        equal(shard["state"], "free", f"state of shard {shard['number']}")
        run(binary(), "check", "--pool", shard["pool"], "--ceph-conf", CLUSTER.conf)


@needs(CLUSTER)
@alone
@test
def cluster_guests_notice_only_pauses(t):
    cluster = ShardedCluster(t, "guests", 6)
    cluster.add("n1", "n2", "n3", "n4")
    cluster.start("n1", "n2", "n3")
    cluster.wait_owned({"n1": 2, "n2": 2, "n3": 2})
    n1 = cluster.nodes["n1"]
    guests = []
    for shard in cluster.shards:
        n1.cli("--shard", shard, "volume", "create", f"g{shard}", "--size", BLOCKS * BLOCK)
        guests.append(Guest(n1, f"g{shard}", shard))
        guests[-1].start()
    listed = run("nbdinfo", "--list", "--json", f"nbd+unix:///?socket={n1.data}/nbd.sock").stdout
    equal(len(json.loads(listed)["exports"]), 6, "exports at a node")
    unknown = run("nbdinfo", f"nbd+unix:///nothing?socket={n1.data}/nbd.sock", check=False)
    check(unknown.returncode != 0 and "nothing" in unknown.stderr, unknown.stderr)
    wait_answers(guests, "start", STATE_S)

    def owned_by(name):
        return (cluster.owned() or {}).get(name)

    cluster.start("n4")
    wait_for(lambda: owned_by("n4"), "the fourth node", STATE_S)
    wait_answers(guests, "a node joined", 10)
    cluster.nodes["n2"].kill()
    wait_for(lambda: owned_by("n2") == 0, "a takeover", STATE_S)
    wait_answers(guests, "a node failed", 20)
    # An owner that is stopped for longer than the others wait, and continues.
    cluster.nodes["n3"].signal("STOP")
    wait_for(lambda: owned_by("n3") == 0, "a takeover from a node that was stopped", STATE_S)
    cluster.nodes["n3"].signal("CONT")
    wait_answers(guests, "a node was stopped and continued", 20)
    cluster.start("n2")
    cluster.command("node", "drain", "n4")
    wait_for(lambda: owned_by("n4") == 0, "a drained node", STATE_S)
    wait_answers(guests, "a node was drained", 10)
    for guest in guests:
        guest.finish()
    for guest in guests:
        copy = t.path(f"{guest.volume}.raw")
        run("nbdcopy", guest.uri, copy)
        with open(copy, "rb") as f:
            contents = f.read()
        for block in range(BLOCKS):
            guest.verify(block, contents[block * BLOCK : (block + 1) * BLOCK])
    print(f"{sum(guest.answers for guest in guests)} requests")
    for node in cluster.nodes.values():
        node.stop()
    for shard in cluster.status()["shards"]:
        run(binary(), "check", "--pool", shard["pool"], "--ceph-conf", CLUSTER.conf)


@needs(CLUSTER)
@alone
@test
def cluster_names_are_common(t):
    cluster = ShardedCluster(t, "names", 4)
    cluster.add("n1", "n2")
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    n1, n2 = cluster.nodes["n1"], cluster.nodes["n2"]

    def names(node, kind="volume"):
        return [disk["name"] for disk in node.json(kind, "list")]

    # Volumes are created at any node, in its shards, and each node has all of them.
    for i in range(6):
        (n1 if i % 2 else n2).cli("volume", "create", f"v{i}", "--size", "8M")
    equal(names(n1), [f"v{i}" for i in range(6)], "volumes at the first node")
    equal(names(n2), names(n1), "volumes at the second node")
    owners = {shard["number"]: shard["owner"] for shard in cluster.status()["shards"]}
    for disk in n1.json("volume", "list"):
        equal(owners[disk["shard"]], "n1" if int(disk["name"][1:]) % 2 else "n2", f"the owner of {disk['name']}")
    for node in (n1, n2):
        taken = node.cli("volume", "create", "v0", "--size", "8M", check=False)
        check("'v0' exists" in taken.stderr, taken.stderr)

    # A machine with many disks uses all nodes.
    for i in range(4):
        n1.cli("volume", "create", f"spread-{i}", "--size", "1M", "--spread")
    spread = [n2.get(f"volumes/spread-{i}/location") for i in range(4)]
    equal(sorted(one["node"] for one in spread), ["n1", "n1", "n2", "n2"], "the nodes of four volumes")
    equal(len({one["shard"] for one in spread}), 4, "the shards of four volumes")
    n2.cli("volume", "rm", "--yes", *(f"spread-{i}" for i in range(4)))

    # Everything else goes to the owner of the volume, whichever node is asked.
    for node in (n1, n2):
        for i in (0, 1):
            snapshot = f"of-{node.name}"
            node.cli("snapshot", "create", f"v{i}", snapshot)
            node.cli("volume", "clone", f"v{i}@{snapshot}", f"c{i}-{node.name}", "--count", "3")
    equal(len(names(n1)), 6 + 12, "volumes and clones")
    check("c0-n2-003" in names(n2), names(n2))
    n1.cli("volume", "rm", "c0-n2-003")
    check("c0-n2-003" not in names(n2), "a removed volume")
    n2.cli("volume", "create", "c0-n2-003", "--size", "1M")
    missing = n1.cli("volume", "rm", "nothing", check=False)
    check("no volume, snapshot or image is named 'nothing'" in missing.stderr, missing.stderr)
    needs_shard = n1.cli("gc", check=False)
    check("--shard" in needs_shard.stderr, needs_shard.stderr)
    n1.cli("--shard", 4, "gc")
    equal(n1.get("health")["state"], "ok", "the health of the cluster")
    location = n1.get("volumes/v0/location")
    equal((location["node"], location["shard"] in cluster.shards), ("n2", True), "where v0 is")

    # Clones of several shards are reset together, and to another image in their shard.
    clones = ["c0-n1-001", "c0-n2-001", "c1-n1-001", "c1-n2-001"]
    check("reset 4 volumes" in n2.cli("volume", "reset", *clones).stdout, "clones of two shards")
    n1.cli("image", "create", "next", "v0@of-n2")
    elsewhere = n2.cli("volume", "reset", *clones, "--to", "next", check=False)
    check("'c1-n1-001' is in shard" in elsewhere.stderr and "'next' is in shard" in elsewhere.stderr, elsewhere.stderr)
    n2.cli("volume", "reset", *clones[:2], "--to", "next")
    origins = {disk["name"]: disk["origin"] for disk in n1.json("volume", "list")}
    equal([origins[name] for name in clones], ["next", "next", "v1@of-n1", "v1@of-n2"], "origins")
    n1.cli("volume", "reset", "c0-n1-001", "--to", "v0@of-n1")
    n1.cli("volume", "reset", "c0-n2-001", "--to", "v0@of-n2")
    n1.cli("image", "rm", "next")

    # A volume is renamed at any node: its owner and its snapshots stay, and the old name is free.
    for node, other in ((n1, n2), (n2, n1)):
        uuid = node.json("volume", "show", "v0")["uuid"]
        node.cli("volume", "rename", "v0", "renamed")
        equal(other.json("volume", "show", "renamed")["uuid"], uuid, "the volume under its new name")
        equal(other.get("volumes/renamed/location")["node"], "n2", "where it is")
        check("renamed@of-n1" in other.cli("snapshot", "list").stdout, "its snapshots")
        gone = other.cli("volume", "show", "v0", check=False)
        check("named 'v0'" in gone.stderr, gone.stderr)
        other.cli("volume", "create", "v0", "--size", "1M")
        taken = node.cli("volume", "rename", "renamed", "v0", check=False)
        check("'v0' exists" in taken.stderr, taken.stderr)
        other.cli("volume", "rm", "v0")
        with connected(node, "renamed"):
            used = other.cli("volume", "rename", "renamed", "v0", check=False)
            check("in use" in used.stderr, used.stderr)
        node.cli("volume", "rename", "renamed", "v0")
    equal(names(n1), names(n2), "volumes after renaming")

    # A node fails: its volumes stay listed as soon as the other one has taken its shards over.
    n2.kill()
    wait_for(lambda: (cluster.owned() or {}).get("n1") == 4, "a takeover", STATE_S)
    equal(len(names(n1)), 6 + 12, "volumes after a takeover")
    n1.cli("volume", "rm", "c0-n2-003")
    n1.cli("volume", "create", "v6", "--size", "8M")
    n1.stop()


FRIEND, STRANGER = "iqn.2026-01.org.example:friend", "iqn.2026-01.org.example:stranger"


def iqn(name):
    return f"iqn.2026-01.org.example:{name}"


def with_portals(cluster, *names):
    """Adds nodes with one iSCSI portal each."""
    cluster.add(*names)
    for name in names:
        node = cluster.nodes[name]
        node.portal = ("127.0.0.1", free_port())
        node.args = ["--node-address", "127.0.0.1", "--iscsi", f"127.0.0.1:{node.portal[1]}"]


def discovered(node, initiator):
    """What libiscsi discovers at the portal of a node: the portals of each target."""
    listed = run("iscsi-ls", "-i", initiator, f"iscsi://127.0.0.1:{node.portal[1]}").stdout
    found = {}
    for target, portal in re.findall(r"Target:(\S+) Portal:(\S+),1", listed):
        found.setdefault(target, []).append(portal)
    return found


def answer(node, target, initiator):
    """The status of a login at the portal of a node, and the address to which it is redirected."""
    i = Raw(node.portal)
    keys = {"InitiatorName": initiator, "SessionType": "Normal", "TargetName": iqn(target), "AuthMethod": "None"}
    status, said = i.login(text_of(keys))
    i.close()
    return status, said.get("TargetAddress")


class QemuDisk:
    """A LUN that QEMU's initiator has open through the portal of a node."""

    def __init__(self, t, node, target, initiator=FRIEND, secret=None):
        options = {"driver": "iscsi", "transport": "tcp", "portal": f"127.0.0.1:{node.portal[1]}"}
        options |= {"target": iqn(target), "lun": 0, "initiator-name": initiator}
        argv = ["qemu-io"]
        if secret:
            argv += ["--object", f"secret,id=s,data={secret}"]
            options |= {"user": "guest", "password-secret": "s"}
        argv += ["--image-opts", ",".join(f"{key}={value}" for key, value in options.items())]
        self.process = subprocess.Popen(
            [str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        t.defer(self.process.kill)

    def do(self, command, expected):
        """Executes a command; returns the seconds that it took."""
        begun = time.monotonic()
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, with a message
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if expected in line:
                return time.monotonic() - begun
            if "failed" in line:
                break
        raise Failed(f"{command}: {''.join(lines)}")

    def write(self, pattern, at="0"):
        return self.do(f"write -f -P {pattern} {at} 64k", "wrote 65536/65536")

    def read(self, pattern, at="0"):
        return self.do(f"read -P {pattern} {at} 64k", "read 65536/65536")

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


@needs(CLUSTER)
@alone
@test
def cluster_targets_are_reached_through_any_portal(t):
    cluster = ShardedCluster(t, "iscsi", 6)
    with_portals(cluster, "n1", "n2", "n3")
    cluster.start("n1", "n2", "n3")
    cluster.wait_owned({"n1": 2, "n2": 2, "n3": 2})
    nodes = [cluster.nodes[name] for name in ("n1", "n2", "n3")]
    n1, n2, n3 = nodes

    # Each target is in the shard of its disk, whichever node is asked.
    for n, node in enumerate(nodes):
        other, third = nodes[(n + 1) % 3], nodes[(n + 2) % 3]
        node.cli("volume", "create", f"d{n}", "--size", "16M")
        other.cli("target", "create", iqn(f"t{n}"), "--for", f"d{n}")
        third.cli("lun", "map", iqn(f"t{n}"), f"d{n}")
        third.cli("target", "allow", iqn(f"t{n}"), FRIEND)
    n1.cli("target", "allow", iqn("t2"), STRANGER)
    names = [iqn(f"t{n}") for n in range(3)]
    shards = {target["name"]: target["shard"] for target in n1.json("target", "list")}
    equal(list(shards), names, "targets at the first node")
    equal([t["name"] for t in n3.json("target", "list")], names, "targets at the third node")
    of_disks = {disk["name"]: disk["shard"] for disk in n2.json("volume", "list")}
    for n in range(3):
        equal(shards[iqn(f"t{n}")], of_disks[f"d{n}"], f"the shard of target {n}")

    # Names are the cluster's; those of targets and disks are apart.
    for node in nodes:
        taken = node.cli("target", "create", iqn("t0").upper(), check=False)
        check(f"target {iqn('t0')} exists" in taken.stderr, taken.stderr)
    n1.cli("volume", "create", "iqn.2026-01.org.example:t0", "--size", "1M")
    n2.cli("volume", "rm", "iqn.2026-01.org.example:t0")
    apart = n1.cli("lun", "map", iqn("t0"), "d1", check=False)
    check(f"is in shard {of_disks['d1']}" in apart.stderr and "--for 'd1'" in apart.stderr, apart.stderr)
    each = n1.cli("target", "rm", "--all", "--yes", check=False)
    check("--shard" in each.stderr, each.stderr)

    # Discovery at each portal, by initiators with different access.
    portals = sorted(f"127.0.0.1:{node.portal[1]}" for node in nodes)
    for node in nodes:
        found = discovered(node, FRIEND)
        equal(sorted(found), names, f"targets at {node.name}")
        for target in names:
            equal(sorted(found[target]), portals, f"portals of {target} at {node.name}")
        equal(list(discovered(node, STRANGER)), [iqn("t2")], f"targets of another initiator at {node.name}")
        equal(discovered(node, iqn("nobody")), {}, "targets of an unknown initiator")
        # A target that an initiator must not know is like none.
        for target in ("t0", "t1", "nothing"):
            equal(answer(node, target, STRANGER), (NOT_FOUND, None), f"a login to {target}")
        status, to = answer(node, "t2", STRANGER)
        equal(status, MOVED, "a login to a target that admits the initiator")
        check(to not in portals, "the portal of the shard")

    # Data through any portal.
    for n in range(3):
        for m, node in enumerate(nodes):
            disk = QemuDisk(t, node, f"t{n}")
            if m == 0:
                disk.write(n + 1)
            disk.read(n + 1)
            disk.close()

    # CHAP is the owner's, for every portal.
    n1.cli("volume", "create", "secret", "--size", "16M")
    chap = ["--chap-user", "guest", "--chap-secret-file", secret_file(t, "chap", SECRET)]
    n2.cli("target", "create", iqn("chap"), "--open", "--for", "secret", *chap)
    n3.cli("lun", "map", iqn("chap"), "secret")
    for node in nodes:
        disk = QemuDisk(t, node, "chap", secret=SECRET)
        disk.write(7)
        disk.close()
        for secret in (None, "not the secret of it"):
            try:
                QemuDisk(t, node, "chap", secret=secret).read(7)
            except Failed as e:
                check("uthenti" in str(e), str(e))
            else:
                raise Failed(f"a login with the secret {secret}")

    # A removed target is free for another shard at once, and a login follows it.
    n1.cli("target", "rm", iqn("t0"))
    equal(answer(n2, "t0", FRIEND), (NOT_FOUND, None), "a removed target")
    n2.cli("target", "create", iqn("t0"), "--for", "d2")
    n3.cli("target", "allow", iqn("t0"), FRIEND)
    equal(answer(n1, "t0", FRIEND), answer(n1, "t2", FRIEND), "the portal of the shard of d2")
    n1.cli("target", "rm", iqn("t0"))
    n1.cli("target", "create", iqn("t0"), "--for", "d0")
    n1.cli("lun", "map", iqn("t0"), "d0")
    n1.cli("target", "allow", iqn("t0"), FRIEND)

    a_moved_shard_is_a_pause(t, cluster, nodes)
    a_failed_node_is_a_pause(t, cluster, nodes)


@needs(CLUSTER)
@test
def cluster_connect_names_the_portals_of_the_nodes(t):
    cluster = ShardedCluster(t, "connect", 2)
    with_portals(cluster, "n1", "n2")
    n1, n2 = cluster.nodes.values()
    # Only the first node serves NBD clients of other hosts.
    n1.args += ["--nbd", f"unix:{n1.data}/nbd.sock", "--nbd", "127.0.0.1:0"]
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 1, "n2": 1})
    [remote] = [address for address in n1.ready()["nbd"] if not address.startswith("unix:")]
    for owner, name in ((n1, "a"), (n2, "b")):
        owner.cli("volume", "create", name, "--size", "1M")
        with connected(owner, name) as h:
            h.pwrite(name.encode() * BLOCK, 0)
        n1.cli("target", "create", iqn(name), "--open", "--for", name)
        n2.cli("lun", "map", iqn(name), name)
    for node, other in ((n1, n2), (n2, n1)):
        portal, other_portal = (f"127.0.0.1:{one.portal[1]}" for one in (node, other))
        for owner, name in ((n1, "a"), (n2, "b")):
            ways = node.json("volume", "connect", name)
            uris = {way["address"]: way["text"] for way in ways if way["for"] == "uri"}
            equal(sorted(uris), sorted([f"unix:{node.data}/nbd.sock", remote]), f"addresses of {name} at {node.name}")
            for uri in uris.values():
                read = run("nbdinfo", "--json", uri).stdout
                equal(json.loads(read)["exports"][0]["export-size"], 1 << 20, f"the size at {uri}")
            listed = run("qemu-io", "-r", "-f", "raw", "-c", f"read -P {ord(name)} 0 4k", uris[remote]).stdout
            check("read 4096/4096" in listed and "failed" not in listed, f"{name} at {remote}: {listed}")
            [way] = [way for way in ways if way["for"] == "iscsi"]
            equal((way["address"], way["target"]), (portal, iqn(name)), f"the portal of {name} at {node.name}")
            check(any(other_portal in note for note in way["notes"]), f"the other portal: {way['notes']}")
            location = node.get(f"volumes/{name}/location")
            expected = {
                "n1": {"node": "n1", "nbd": [remote], "iscsi": [f"127.0.0.1:{n1.portal[1]}"]},
                "n2": {"node": "n2", "nbd": [], "iscsi": [f"127.0.0.1:{n2.portal[1]}"]},
            }
            order = ["n1", "n2"] if owner is n1 else ["n2", "n1"]
            equal(location["portals"], [expected[name] for name in order], f"portals in the location of {name}")
    # The server of a shard names none of other nodes.
    shard = n2.get("volumes/b/location")["shard"]
    own = {way["address"] for way in n1.get(f"shards/{shard}/volumes/b/connect")["ways"]}
    check(f"unix:{n2.data}/nbd.sock" in own and remote not in own, f"the addresses at the server of a shard: {own}")
    for node in cluster.nodes.values():
        node.stop()


class Writer(threading.Thread):
    """Writes to a LUN without a pause, and reads what it has written."""

    def __init__(self, disk):
        super().__init__(daemon=True)
        self.disk, self.stopping = disk, threading.Event()
        self.count, self.longest, self.error = 0, 0.0, None
        self.start()

    def run(self):
        try:
            while not self.stopping.is_set():
                pattern = 1 + self.count % 250
                took = self.disk.write(pattern, "8M") + self.disk.read(pattern, "8M")
                self.count, self.longest = self.count + 1, max(self.longest, took)
        except Exception as e:  # noqa: BLE001: reported by `finish`
            self.error = e

    def finish(self):
        """Ends it after some more writes; returns the longest time of a write and a read."""
        count = self.count
        wait_for(lambda: self.error or self.count > count + 2, "writes of an initiator", STATE_S)
        self.stopping.set()
        self.join(60)
        check(not self.error and not self.is_alive(), f"an initiator: {self.error}")
        self.disk.close()
        return self.longest


def a_moved_shard_is_a_pause(t, cluster, nodes):
    """A node is drained, and gets its shards again."""
    n1, n2, n3 = nodes
    writer = Writer(QemuDisk(t, n1, "t1"))
    cluster.command("node", "drain", "n2")
    wait_for(lambda: (cluster.owned() or {}).get("n2") == 0, "a drained node", STATE_S)
    # Initiators do not discover it, and can still use its portal.
    check(f"127.0.0.1:{n2.portal[1]}" not in discovered(n1, FRIEND)[iqn("t1")], "the portal of a node that drains")
    equal(answer(n2, "t1", FRIEND)[0], MOVED, "a login at a node that drains")
    cluster.command("node", "drain", "n2", "--cancel")
    wait_for(lambda: (cluster.owned() or {}).get("n2") == 2, "a node that has its shards again", STATE_S)
    longest = writer.finish()
    print(f"handovers: the longest write took {longest:.2f} s, of {writer.count}")
    check(longest < 10, "a write during a handover")


def a_failed_node_is_a_pause(t, cluster, nodes):
    """Initiators come back to the portal that they were configured with, and are redirected again."""
    status = cluster.status()
    shards = {target["name"]: target["shard"] for target in nodes[0].json("target", "list")}
    owners = {shard["number"]: shard["owner"] for shard in status["shards"]}
    owner = cluster.nodes[owners[shards[iqn("t2")]]]
    others = [node for node in nodes if node is not owner]
    writers = [Writer(QemuDisk(t, node, f"t{n}")) for node, n in zip(others, (2, 0))]
    idle = QemuDisk(t, others[1], "t2")
    idle.write(99, "2M")
    wait_for(lambda: all(writer.count for writer in writers), "writes")
    owner.kill()
    took = idle.read(99, "2M")
    longest = [writer.finish() for writer in writers]
    print(f"a node failed: the longest writes took {', '.join(f'{s:.2f}' for s in longest)} s, a read {took:.2f} s")
    check(3 < longest[0] < 20 and took < 20, "the pause of a disk whose owner failed")
    idle.close()
    rest = lambda: sum((cluster.owned() or {}).get(node.name, 0) for node in others)  # noqa: E731
    wait_for(lambda: rest() == 6, "a takeover of all shards", STATE_S)
    for node in others:
        equal(sorted(discovered(node, FRIEND)), [iqn("chap"), *(iqn(f"t{n}") for n in range(3))], "targets afterwards")
        equal(answer(node, "t0", STRANGER), (NOT_FOUND, None), "a login of another initiator afterwards")
        node.stop()


@needs(CLUSTER)
@test
def cluster_tokens_are_common(t):
    cluster = ShardedCluster(t, "tokens", 2)
    cluster.add("n1", "n2", args=["--http", "127.0.0.1:0"])
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 1, "n2": 1})
    n1, n2 = cluster.nodes["n1"], cluster.nodes["n2"]
    n1.cli("volume", "create", "web-1", "--size", "1M")
    n2.cli("volume", "create", "db-1", "--size", "1M")

    def request(node, path, *args):
        """The status and the body of a request over TCP."""
        url = f"http://{node.ready()['http']}/{path}"
        out = run("curl", "-sS", "-w", "\n%{http_code}", *args, url).stdout
        body, status = out.rsplit("\n", 1)
        return int(status), body

    def with_token(node, path, secret, *args):
        return request(node, f"api/v1/{path}", "-H", f"Authorization: Bearer {secret}", "-H", "X-Forebay: 1", *args)

    # Without a token, clients of the host itself are served, as at a server.
    equal(request(n1, "api/v1/volumes")[0], 200, "a loopback client before the first token")
    administrator = n1.json("token", "create", "admin", "--role", "administrator")["secret"]
    reader = n2.json("token", "create", "web", "--role", "reader", "--disks", "web-*")["secret"]
    wait_for(lambda: request(n2, "api/v1/volumes")[0] == 401, "a node that demands tokens", STATE_S)
    for node in (n1, n2):
        wait_for(lambda: with_token(node, "volumes", reader)[0] == 200, "the token at both nodes", STATE_S)
        listed = {secret: json.loads(with_token(node, "volumes", secret)[1]) for secret in (administrator, reader)}
        names = {secret: [volume["name"] for volume in found] for secret, found in listed.items()}
        equal(names[administrator], ["db-1", "web-1"], "volumes of the administrator")
        equal(names[reader], ["web-1"], "volumes of the reader")
        equal(with_token(node, "volumes/web-1", reader)[0], 200, "a volume in the scope")
        for path in ("volumes/db-1", "volumes/db-1/location"):
            status, hidden = with_token(node, path, reader)
            missing = with_token(node, path.replace("db-1", "db-2"), reader)[1]
            equal((status, hidden.replace("db-1", "db-2")), (404, missing), f"{path} for a reader without it")
        equal(with_token(node, "volumes/web-1", reader, "-X", "DELETE")[0], 403, "a removal by a reader")
        equal(with_token(node, "cluster", reader)[0], 403, "the cluster for a reader with a scope")
        equal(with_token(node, "shards/1/pool/upgrade", administrator, "-X", "POST", "--json", "{}")[0] // 100, 4, "over TCP")
        equal(with_token(node, "tokens", reader)[0], 403, "tokens for a reader")
        # A client cannot name itself.
        forged = '{"name":"x","role":"administrator","scope":null,"max_disks":null,"via":"socket","address":null}'
        status, _ = with_token(node, "volumes/db-1", reader, "-H", f"X-Forebay-Client: {forged}")
        equal(status, 404, "a client that names itself")
        equal(request(node, "api/v1/volumes", "-H", f"X-Forebay-Client: {forged}")[0], 401, "without a token")
        # A page of another site.
        status, _ = with_token(node, "volumes", administrator, "-H", "Origin: http://evil.example")
        equal(status, 403, "a page of another site")
        status, page = request(node, "")
        check(status == 200 and "<html" in page, page[:200])
    equal(with_token(n1, "volumes/web-1", administrator, "-X", "DELETE")[0], 200, "a removal by an administrator")
    n1.cli("token", "revoke", "web")
    wait_for(lambda: with_token(n2, "volumes", reader)[0] == 401, "the end of a token at the other node", STATE_S)
    taken = n2.cli("token", "create", "admin", "--role", "administrator", check=False)
    check("a token named 'admin' exists" in taken.stderr, taken.stderr)
    for node in cluster.nodes.values():
        node.stop()


@needs(CLUSTER)
@test
def cluster_shards_go_where_an_administrator_wants_them(t):
    cluster = ShardedCluster(t, "place", 4)
    cluster.add("n1", "n2")
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    cluster.command("node", "weight", "n1", "3")
    cluster.wait_owned({"n1": 3, "n2": 1})
    [kept] = [shard["number"] for shard in cluster.status()["shards"] if shard["owner"] == "n2"]
    cluster.command("cluster", "pin", str(kept), "n1")
    cluster.wait_owned({"n1": 3, "n2": 1})
    owners = {shard["number"]: shard["owner"] for shard in cluster.status()["shards"]}
    equal(owners[kept], "n1", "the owner of the pinned shard")
    cluster.command("cluster", "pin", str(kept), "--remove")
    cluster.command("cluster", "grow", "--shards", "8")
    cluster.shards = range(1, 9)
    cluster.wait_owned({"n1": 6, "n2": 2})
    fewer = cluster.command("cluster", "grow", "--shards", "2", check=False)
    check("shards cannot be removed" in fewer.stderr, fewer.stderr)
    nowhere = cluster.command("cluster", "pin", "9", "n1", check=False)
    check("has no shard 9" in nowhere.stderr, nowhere.stderr)
    for node in cluster.nodes.values():
        node.stop()


@needs(CLUSTER)
@test
def cluster_commands_explain_what_is_wrong(t):
    cluster = ShardedCluster(t, "words", 2)

    def refusal(*args):
        done = run(binary(), *args, check=False)
        check(done.returncode != 0, f"{args} was not refused")
        return done.stderr

    conf = ["--ceph-conf", CLUSTER.conf]
    again = refusal("cluster", "create", *cluster.location)
    check("'words' exists" in again, again)
    missing = refusal("node", "list", "rados:test/other", *conf)
    check("there is no cluster here" in missing and "forebay cluster create" in missing, missing)
    unknown = refusal("node", "drain", *cluster.location, "n9")
    check("no node is named 'n9'" in unknown, unknown)
    no_pool = refusal("cluster", "create", "rados:test/third", *conf, "--from", "nothing")
    check("there is no pool 'nothing'" in no_pool, no_pool)
    cluster.add("n1")
    cluster.start("n1")
    cluster.wait_owned({"n1": 2})
    last = refusal("node", "drain", *cluster.location, "n1")
    check("start another node first" in last, last)
    # Another host with the same name.
    double = Node(cluster, "n1-again")
    double.name = "n1"
    double.start()
    equal(double.process.wait(STATE_S), 1, "status of a second node of the same name")
    check("another node of the cluster is named 'n1'" in double.text(), double.text()[-500:])
    double.process = None
    cluster.nodes["n1"].stop()


@needs(CLUSTER)
@test
def cluster_of_an_existing_pool(t):
    conf = ["--ceph-conf", CLUSTER.conf]
    server = t.server("--pool", "rados:test/old", *conf)
    server.cli("volume", "create", "disk", "--size", "1M")
    server.stop()
    # A node would otherwise create an empty cluster next to the pool.
    node_args = ["serve", "--cluster", "rados:test/old", *conf, "--data", t.path("node"), "--node-name", "n1"]
    refused = run(binary(), *node_args, check=False)
    check("forebay cluster create --from old" in refused.stderr, refused.stderr)
    cluster = ShardedCluster(t, "old", 2, "--from", "old")
    cluster.add("n1")
    cluster.start("n1")
    cluster.wait_owned({"n1": 2})
    check("disk" in cluster.cli(1, "volume", "list"), "the volume of the pool")
    equal(cluster.cli(2, "--json", "volume", "list").strip(), "[]", "volumes of the second shard")
    # The disks of the pool get names in the cluster.
    node = cluster.nodes["n1"]
    wait_for(lambda: node.cli("volume", "show", "disk", check=False).returncode == 0, "the name of the disk")
    taken = node.cli("--shard", 2, "volume", "create", "disk", "--size", "1M", check=False)
    check("'disk' exists" in taken.stderr, taken.stderr)
    cluster.nodes["n1"].stop()
