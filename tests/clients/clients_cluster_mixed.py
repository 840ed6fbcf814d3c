"""Clusters under faults that are mixed at random, with a ledger of everything that was acknowledged.

In each round, some of these happen at the same time: a node is killed, paused, stopped, drained, or cut off
from OSDs, the monitor or other nodes, in both directions or in one; the process of a shard is killed or
paused; a shard is pinned to a node; a node joins; an OSD hangs or loses its data; the monitor is killed. All
the time,

- clients write to volumes and read them at two nodes each, and check every read: a read returns neither less
  than what was acknowledged, or read by any client, before the read began, nor anything that was never
  written;
- administrators create, clone, rename and remove volumes and snapshots at any node. What was acknowledged is
  there, what was refused did not happen, and what was not answered happened wholly or not at all.

A client whose node ends connects to another node, and so does a client that does not wait for a node that is
paused or cut off. What the former node still holds must not overwrite what the client writes then. Any other
client keeps its connection.
"""

import json
import os
import random
import threading
import time

from ceph import Cluster
from clients_cluster import STATE_S, ShardedCluster, exchange
from forebay import Failed, binary, run
from harness import BLOCK, Skipped, alone, check, equal, test, wait_for
from ledger import HEADER, MAGIC, block_bytes
from networks import HUB, Host, connect_hosts, enter_hub

ROUNDS = int(os.environ.get("FOREBAY_CLUSTER_ROUNDS", "2"))
# Longest pause of a node or an OSD, in seconds.
LONGEST_PAUSE_S = 30 if ROUNDS > 10 else 8
SHARDS = 6
BLOCKS = 32
# Requests of a client in progress.
DEPTH = 4
# Volumes, each with a writer and a reader.
VOLUMES = 6
# Disks that an administrator has at most.
MOST_DISKS = 24
# Time for a request of an administrator, beyond which its result is unknown.
REQUEST_S = 60
# Time for a client to get an answer, or to connect: only a hang takes longer.
CLIENT_S = 150
# Refusals, after which it is certain that nothing was changed.
REFUSALS = {"exists", "not_found", "has_clones", "has_snapshots", "in_use", "bad_name", "wrong_kind", "bad_request"}
# Never a consequence of a fault.
DEFECTS = {"internal", "damaged", "map_damaged", "memory_lost", "unreadable", "usage"}


def version_of(volume, block, found):
    """The version that a block of a volume has; `None` if it has none of this block."""
    if found == bytes(BLOCK):
        return 0
    magic, of, at, version, _ = HEADER.unpack_from(found)
    if magic != MAGIC or (of, at) != (volume, block) or found != block_bytes(volume, block, version):
        return None
    return version


class Volume:
    """What is known of a volume: for each block, the version that a read returns at least, and the highest
    version that was ever sent."""

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.lock = threading.Lock()
        self.floor, self.top = [0] * BLOCKS, [0] * BLOCKS

    def submit(self, block):
        with self.lock:
            self.top[block] += 1
            return self.top[block]

    def acknowledge(self, block, version):
        """A write was acknowledged, or a version was read: a read that begins later returns no older one."""
        with self.lock:
            self.floor[block] = max(self.floor[block], version)

    def read(self, block, floor, found):
        """Checks the result of a read. `floor` was valid when it began."""
        version = version_of(self.number, block, found)
        with self.lock:
            top = self.top[block]
        if version is None:
            raise Failed(f"block {block} of {self.name} has foreign or torn data: {found[:40].hex()}")
        if not floor <= version <= top:
            raise Failed(f"block {block} of {self.name} has version {version}, and {floor} to {top} are possible")
        self.acknowledge(block, version)
        return version

    def bounds(self):
        with self.lock:
            return list(self.floor), list(self.top)


class Client(threading.Thread):
    """A client with some requests at a time. It connects to another node if its node has ended; another loss
    of its connection is a failure. With `writes`, it is the only writer of its volume."""

    def __init__(self, world, volume, home, writes):
        super().__init__(daemon=True)
        self.world, self.volume, self.home, self.writes = world, volume, home, writes
        self.random = random.Random(f"{volume.name}-{writes}-{world.t.random.random()}")
        self.stopping = threading.Event()
        self.answers, self.losses, self.moves, self.retries, self.longest, self.last, self.error = 0, 0, 0, 0, 0.0, None, None

    def run(self):
        try:
            while not self.stopping.is_set():
                node = self.world.node_for(self.home)
                self.serve(node, node.ends)
                self.home = self.world.node_for(self.home, self.random)
        except Exception as e:  # noqa: BLE001: reported by `check`
            self.error = e

    def serve(self, node, ends):
        """Sends requests until the connection is lost, or the client has to stop."""
        import nbd

        h, in_flight = nbd.NBD(), {}
        patience = self.random.choice([0.5, 2, 6, CLIENT_S])
        try:
            h.connect_uri(f"nbd+unix:///{self.volume.name}?socket={node.data}/nbd.sock")
        except nbd.Error as e:
            # A client is asked to try again while its shard has no owner.
            is_gone = "no export" in str(e) or "unknown" in str(e)
            check(not is_gone, f"{self.volume.name} does not exist at {node.name}: {e}")
            self.retries += 1
            self.stopping.wait(0.5)
            return
        connected = time.monotonic()
        try:
            while in_flight or not self.stopping.is_set():
                exchange(self, h, in_flight, DEPTH, BLOCKS)
                if node.is_unwell and time.monotonic() - max(self.last or connected, connected) > patience:
                    # Without a word: the requests that were sent may be executed later.
                    self.moves += 1
                    self.home = self.world.other_than(node, self.random)
                    return
                self.world.pace()
            h.shutdown()
        except nbd.Error as e:
            # The node may be about to be seen as ended by the thread that ends it.
            deadline = time.monotonic() + 5
            while node.ends == ends and node.is_running and time.monotonic() < deadline:
                time.sleep(0.05)
            if node.ends == ends and node.is_running:
                raise Failed(f"a client of {self.volume.name} at {node.name} was refused: {e}") from e
            self.losses += 1

    def begin(self, h, block):
        import nbd

        if not self.writes or self.random.random() < 0.3:
            buffer = nbd.Buffer(BLOCK)
            with self.volume.lock:
                floor = self.volume.floor[block]
            return h.aio_pread(buffer, block * BLOCK), (block, None, floor, buffer)
        version = self.volume.submit(block)
        data = nbd.Buffer.from_bytearray(bytearray(block_bytes(self.volume.number, block, version)))
        return h.aio_pwrite(data, block * BLOCK), (block, version, None, data)

    def end(self, block, version, floor, buffer):
        if version is None:
            self.volume.read(block, floor, bytes(buffer.to_bytearray()))
        else:
            self.volume.acknowledge(block, version)
        now = time.monotonic()
        self.longest = max(self.longest, now - (self.last or now))
        self.last = now
        self.answers += 1

    def check(self):
        kind = "writer" if self.writes else "reader"
        check(self.error is None, f"the {kind} of {self.volume.name} at {self.home.name}: {self.error!r}")


class Disk:
    """A disk of an administrator: what it has to contain."""

    def __init__(self, source, low, high, versions=None):
        # The volume of whose blocks it has versions.
        self.source, self.low, self.high, self.versions = source, low, high, versions
        self.origin = None


class Unanswered:
    """A request without an answer: the names that exist if it was executed, and those that exist if not."""

    def __init__(self, made, removed):
        self.made, self.removed = made, removed


class Administrator(threading.Thread):
    """Creates, clones, renames and removes disks, at any node. All names of its disks begin with the name of
    the administrator."""

    def __init__(self, world, name):
        super().__init__(daemon=True)
        self.world, self.name = world, name
        self.random = random.Random(f"{name}-{world.t.random.random()}")
        self.stopping, self.idle = threading.Event(), threading.Event()
        # While it is set, no request begins.
        self.holding = threading.Event()
        self.disks, self.unanswered, self.numbers = {}, [], 0
        self.done, self.lost, self.refused, self.error = 0, 0, 0, None

    def run(self):
        try:
            while not self.stopping.is_set():
                if self.holding.is_set():
                    self.idle.set()
                    time.sleep(0.05)
                    continue
                self.idle.clear()
                self.step()
                time.sleep(self.random.uniform(0.02, 0.2))
        except Exception as e:  # noqa: BLE001: reported by `check`
            self.error = e
        self.idle.set()

    def step(self):
        snapshots = [name for name in self.disks if "@" in name]
        volumes = [name for name in self.disks if "@" not in name]
        choice = self.random.random()
        if self.random.random() < 0.03:
            # A reclaim moves data and frees space; whether it was done is of no interest.
            self.request("--shard", self.random.choice(self.world.cluster.shards), "gc")
        elif len(self.disks) < MOST_DISKS and (choice < 0.3 or not snapshots):
            self.snapshot(self.random.choice(self.world.volumes))
        elif len(self.disks) < MOST_DISKS and choice < 0.55:
            self.clone(self.random.choice([*snapshots, *(v.name for v in self.world.volumes)]))
        elif volumes and choice < 0.7:
            self.rename(self.random.choice(volumes))
        elif volumes and choice < 0.85:
            self.remove(self.random.choice(volumes))
        elif snapshots and choice < 0.95:
            self.remove(self.random.choice(snapshots))
        elif self.disks:
            self.verify(self.random.choice(list(self.disks)))

    def new_name(self):
        self.numbers += 1
        return f"{self.name}-{self.numbers}"

    def request(self, *args):
        """The code with which a request was refused, `None` if it was done, and "" if that is not known."""
        node = self.world.node_for(None, self.random)
        argv = [binary(), "--socket", node.control, "--json", *args]
        try:
            done = run(*argv, check=False, timeout=REQUEST_S)
        except Failed:
            self.lost += 1
            return ""
        if done.returncode == 0:
            self.done += 1
            return None
        try:
            code = json.loads(done.stderr.splitlines()[-1])["error"]["code"]
        except (ValueError, LookupError):
            code = ""
        check(code not in DEFECTS, f"{args} at {node.name}: {done.stderr}")
        if code in REFUSALS:
            self.refused += 1
            return code
        self.lost += 1
        return ""

    def change(self, made, removed, tolerated, *args):
        """Makes a request that makes and removes disks by name. True if it was done."""
        refusal = self.request(*args)
        if refusal:
            check(refusal in tolerated, f"{args} was refused: {refusal}")
            return False
        gone = {name: self.disks.pop(name) for name in removed}
        if refusal is None:
            self.disks.update(made)
            return True
        self.unanswered.append(Unanswered(made, gone))
        return False

    def snapshot(self, volume):
        low, _ = volume.bounds()
        name = self.new_name()
        disk = Disk(volume, low, None)
        if self.change({f"{volume.name}@{name}": disk}, [], (), "snapshot", "create", volume.name, name):
            disk.high = volume.bounds()[1]

    def clone(self, source):
        name, count = self.new_name(), self.random.choice([None, None, 3])
        names = [name] if count is None else [f"{name}-{n:03}" for n in range(1, count + 1)]
        args = ["volume", "clone", source, name, *(["--count", str(count)] if count else [])]
        of = self.disks.get(source)
        if of:
            made = {one: Disk(of.source, of.low, of.high, of.versions) for one in names}
            for disk in made.values():
                disk.origin = source
            self.change(made, [], (), *args)
            return
        volume = next(v for v in self.world.volumes if v.name == source)
        low, _ = volume.bounds()
        made = {one: Disk(volume, low, None) for one in names}
        if self.change(made, [], (), *args):
            for disk in made.values():
                disk.high = volume.bounds()[1]

    def rename(self, name):
        new = self.new_name()
        # A connection with which the volume was read may not have ended.
        self.change({new: self.disks[name]}, [name], ("in_use",), "volume", "rename", name, new)

    def remove(self, name):
        if "@" not in name:
            self.change({}, [name], ("in_use",), "volume", "rm", "--yes", name)
            return
        unanswered = [disk for one in self.unanswered for disk in [*one.made.values(), *one.removed.values()]]
        clones = [disk for disk in [*self.disks.values(), *unanswered] if disk.origin == name]
        tolerated = ("has_clones", "in_use") if clones else ("in_use",)
        volume, snapshot = name.split("@")
        if not self.change({}, [name], tolerated, "snapshot", "rm", "--yes", volume, snapshot):
            return
        check(all(disk.origin != name for disk in self.disks.values()), f"{name} was removed in spite of its clones")

    def verify(self, name):
        """Reads a disk. Its contents never change."""
        import nbd

        disk, node = self.disks[name], self.world.node_for(None, self.random)
        ends, h = node.ends, nbd.NBD()
        try:
            h.connect_uri(f"nbd+unix:///{name}?socket={node.data}/nbd.sock")
        except nbd.Error as e:
            check("no export" not in str(e), f"{name} does not exist at {node.name}: {e}")
            return
        try:
            found = bytes(h.pread(BLOCKS * BLOCK, 0))
            h.shutdown()
        except nbd.Error as e:
            check(node.ends != ends or not node.is_running, f"{name} cannot be read at {node.name}: {e}")
            return
        versions = [
            version_of(disk.source.number, block, found[block * BLOCK : (block + 1) * BLOCK]) for block in range(BLOCKS)
        ]
        for block, version in enumerate(versions):
            possible = version is not None and disk.low[block] <= version <= disk.high[block]
            text = f"block {block} of {name} has version {version}; {disk.low[block]} to {disk.high[block]} are possible"
            check(possible, text)
        if disk.versions is not None:
            equal(versions, disk.versions, f"the contents of {name}, which were read before")
        disk.versions = versions
        # Clones that were made before have the same contents.
        for other in self.disks.values():
            if other.origin == name and other.versions is None:
                other.versions = versions

    def settle(self, listed):
        """Determines whether requests without an answer were executed: each of them wholly, or not at all."""
        for one in self.unanswered:
            done = [name in listed for name in one.made] + [name not in listed for name in one.removed]
            text = f"a request was executed in part: made {list(one.made)}, removed {list(one.removed)}, found {listed}"
            check(all(done) or not any(done), text)
            self.disks.update(one.made if all(done) else one.removed)
            for disk in one.made.values():
                if disk.high is None:
                    disk.high = disk.source.bounds()[1]
        self.unanswered.clear()

    def check(self):
        check(self.error is None, f"the administrator {self.name}: {self.error!r}")


class World:
    """The cluster, its clients and administrators, and the faults."""

    def __init__(self, t, name):
        self.t, self.random = t, t.random
        try:
            enter_hub()
            connect_hosts()
            self.ceph = Cluster(IP=HUB)
        except Skipped:
            # No node is cut off then.
            self.ceph = Cluster()
        t.defer(self.ceph.close)
        self.ceph.start()
        self.hosts = [Host(t, number) for number in range(1, 5)] if "IP" in self.ceph.settings else []
        self.cluster = ShardedCluster(t, name, SHARDS, ceph=self.ceph)
        self.cluster.add("n1", "n2", "n3", "n4")
        self.nodes = list(self.cluster.nodes.values())
        for node in self.nodes:
            # How often the node has ended, whether it runs, and whether it is paused or cut off.
            node.ends, node.is_running, node.is_unwell = 0, False, False
            if self.hosts:
                node.host = self.hosts[int(node.name[1:]) - 1]
                node.prefix = node.host.prefix
        self.faults = []
        for name in ("n1", "n2", "n3"):
            self.start(self.cluster.nodes[name])
        self.cluster.wait_owned({"n1": 2, "n2": 2, "n3": 2})
        self.front = self.nodes[0]
        self.volumes, self.clients = [], []
        for number in range(1, VOLUMES + 1):
            volume = Volume(f"g{number}", number)
            self.front.cli("--shard", number, "volume", "create", volume.name, "--size", BLOCKS * BLOCK)
            self.volumes.append(volume)
            # The node that never ends has one half of the writers, and the readers of the other half.
            homes = [self.front, self.nodes[1 + number % 2]]
            writer, reader = homes if number % 2 else homes[::-1]
            self.clients += [Client(self, volume, writer, True), Client(self, volume, reader, False)]
        self.administrators = [Administrator(self, "ann"), Administrator(self, "bob")]
        for thread in [*self.clients, *self.administrators]:
            thread.start()

    def pace(self):
        """The load is small, since the faults are what is tested."""
        time.sleep(0.002)

    def check(self):
        for one in [*self.clients, *self.administrators]:
            one.check()

    def start(self, node):
        # The log has the ready lines of earlier processes.
        lines = lambda: node.text().count('"ready"') if os.path.exists(node.log) else 0  # noqa: E731
        before = lines()
        node.start()
        wait_for(lambda: lines() > before, f"the ready line of {node.name}", STATE_S)
        node.is_running = True

    def node_for(self, home, rng=None):
        """The node that a client uses: its home, or another one that runs."""
        if home is not None and home.is_running:
            return home
        running = [node for node in self.nodes if node.is_running]
        well = [node for node in running if not node.is_unwell]
        return (rng or random).choice(well or running)

    def other_than(self, node, rng):
        """Another node for a client that leaves this one."""
        others = [other for other in self.nodes if other.is_running and other is not node]
        return rng.choice([other for other in others if not other.is_unwell] or others)

    # Each fault is a generator: it makes the fault, and ends it when it is resumed.

    def victim(self, including_front=False):
        """A node whose fault leaves two others."""
        able = [node for node in self.nodes if node.is_running and not node.is_unwell]
        victims = [node for node in able if including_front or node is not self.front]
        return self.random.choice(victims) if victims and len(able) > 2 else None

    def killed(self):
        node = self.victim()
        if node:
            node.is_running, node.ends = False, node.ends + 1
            node.kill()
            yield f"{node.name} is killed"
            self.start(node)

    def stopped(self):
        node = self.victim()
        if node:
            node.is_running, node.ends = False, node.ends + 1
            node.stop()
            yield f"{node.name} is stopped"
            self.start(node)

    def paused(self):
        node = self.victim(including_front=True)
        if node:
            node.is_unwell = True
            node.signal("STOP")
            yield f"{node.name} is paused"
            node.signal("CONT")
            node.is_unwell = False

    def cut_off(self):
        node = self.victim(including_front=True) if self.hosts else None
        if node:
            first = self.ceph.settings["PORT"]
            others = ", ".join(host.address for host in self.hosts if host is not node.host)
            groups = {
                "OSDs": {"input": f"tcp sport {first + 10}-{first + 199}", "output": f"tcp dport {first + 10}-{first + 199}"},
                "the monitor": {"input": f"tcp sport {first}", "output": f"tcp dport {first}"},
                "other nodes": {"input": f"ip saddr {{ {others} }}", "output": f"ip daddr {{ {others} }}"},
            }
            chosen = self.random.choice([["OSDs"], ["other nodes"], ["OSDs", "the monitor"], list(groups)])
            chains = self.random.choice([["input"], ["output"], ["input", "output"]])
            node.is_unwell = True
            node.host.drop(*(f"{chain} {groups[group][chain]}" for group in chosen for chain in chains))
            yield f"{node.name} is cut off from {', '.join(chosen)} ({' and '.join(chains)})"
            node.host.heal()
            node.is_unwell = False

    def shard_process(self, name, then=None):
        """A signal to the process of a shard, and another one later."""
        running = [node for node in self.nodes if node.is_running and not node.is_unwell]
        node = self.random.choice(running)
        children = node.processes()[1]
        if children:
            pid = self.random.choice(children)
            run("kill", f"-{name}", pid, check=False)
            yield f"a process of {node.name} gets SIG{name}"
            if then:
                run("kill", f"-{then}", pid, check=False)

    def process_killed(self):
        yield from self.shard_process("KILL")

    def process_paused(self):
        yield from self.shard_process("STOP", "CONT")

    def drained(self):
        node = self.random.choice([node for node in self.nodes if node.is_running])
        if self.cluster.command("node", "drain", node.name, check=False).returncode == 0:
            yield f"{node.name} is drained"
            self.cluster.command("node", "drain", node.name, "--cancel")

    def pinned(self):
        node = self.random.choice([node for node in self.nodes if node.is_running])
        shard = str(self.random.choice(self.cluster.shards))
        if self.cluster.command("cluster", "pin", shard, node.name, check=False).returncode == 0:
            yield f"shard {shard} is pinned to {node.name}"
            self.cluster.command("cluster", "pin", shard, "--remove")

    def joined(self):
        new = self.nodes[3]
        if not new.is_running and not new.ends:
            self.start(new)
            yield f"{new.name} joins"

    def osd_paused(self):
        number = self.random.randrange(self.ceph.OSDS)
        self.ceph.pause_osd(number)
        yield f"OSD {number} hangs"
        self.ceph.resume_osd(number)
        self.ceph.wait_up()

    def osd_lost(self):
        number = self.random.randrange(self.ceph.OSDS)
        self.ceph.kill_osd(number)
        yield f"OSD {number} loses its data"
        self.ceph.start_osd(number)
        self.ceph.wait_up()
        self.ceph.wait_clean(120)

    def monitor_killed(self):
        self.ceph.kill_mon()
        yield "the monitor is killed"
        self.ceph.start_mon()
        self.ceph.wait_up()

    def round(self, number):
        """Some faults at the same time, and everything is well again."""
        osd = self.random.choice([self.osd_paused, self.osd_lost, self.monitor_killed])
        kinds = [self.killed, self.killed, self.stopped, self.paused, self.paused, self.cut_off, self.cut_off]
        kinds += [self.process_killed, self.process_paused, self.drained, self.pinned, self.joined]
        # Commands about the cluster need the monitor, so a fault of the monitor is the last to begin.
        chosen = self.random.sample(kinds, self.random.randint(1, 3))
        chosen += [osd] if self.random.random() < 0.4 else []
        faults, what = [], []
        for kind in chosen:
            fault = kind()
            text = next(fault, None)
            if text:
                faults.append(fault)
                what.append(text)
                self.wait(self.random.choice([0, 0.2, 1, 3]))
        self.wait(self.random.choice([0, 1, 3, 6, LONGEST_PAUSE_S]))
        # The faults of Ceph end first, since others may need Ceph to end.
        for fault in reversed(faults) if chosen[-1] is osd else self.random.sample(faults, len(faults)):
            next(fault, None)
            self.wait(self.random.choice([0, 0, 0.5]))
        self.recover(", ".join(what))
        print(f"round {number}: {', '.join(what) or 'nothing'}", flush=True)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            time.sleep(0.05)

    def recover(self, what):
        """Waits until all shards are at home, and all clients have answers. Then the names are compared."""
        running = {node.name for node in self.nodes if node.is_running}

        def is_well():
            self.check()
            owned = self.cluster.owned()
            return owned is not None and sum(owned[name] for name in running) == SHARDS

        wait_for(is_well, f"all shards at home after: {what}", STATE_S)
        before = [client.answers for client in self.clients]

        def have_answers():
            self.check()
            return all(client.answers > n + 10 for client, n in zip(self.clients, before))

        wait_for(have_answers, f"answers for all clients after: {what}", CLIENT_S)
        for administrator in self.administrators:
            administrator.holding.set()
        for administrator in self.administrators:
            check(administrator.idle.wait(REQUEST_S + 30), "an administrator waits for an answer")
        self.check()
        listed = None
        for node in self.nodes:
            if node.is_running:
                names = self.names_at(node)
                difference = sorted(names ^ (listed or names))
                check(not difference, f"the names at {node.name} and at other nodes differ: {difference}")
                listed = names
        for administrator in self.administrators:
            administrator.settle(listed)
        expected = {volume.name for volume in self.volumes}.union(*(a.disks for a in self.administrators))
        check(listed == expected, f"the names after {what}: too many or too few are {sorted(listed ^ expected)}")
        for administrator in self.administrators:
            administrator.idle.clear()
            administrator.holding.clear()

    def names_at(self, node):
        """All disks, as a node lists them."""
        deadline = time.monotonic() + STATE_S
        while True:
            done = [node.cli("--json", kind, "list", check=False) for kind in ("volume", "snapshot")]
            # A list states which shards it lacks, such as one that is being handed over.
            if not any(one.returncode or one.stderr for one in done):
                return {disk["name"] for one in done for disk in json.loads(one.stdout)}
            check(time.monotonic() < deadline, f"no complete list at {node.name}: {[one.stderr for one in done]}")
            time.sleep(0.2)

    def finish(self):
        for one in [*self.clients, *self.administrators]:
            one.stopping.set()
        for one in [*self.clients, *self.administrators]:
            one.join(CLIENT_S)
            check(not one.is_alive(), "a client or an administrator hangs")
        self.check()
        for administrator in self.administrators:
            administrator.settle(self.names_at(self.front))
            for name in list(administrator.disks):
                administrator.verify(name)
        for volume in self.volumes:
            copy = self.t.path(f"{volume.name}.raw")
            run("nbdcopy", f"nbd+unix:///{volume.name}?socket={self.front.data}/nbd.sock", copy)
            with open(copy, "rb") as f:
                contents = f.read()
            for block in range(BLOCKS):
                volume.read(block, volume.floor[block], contents[block * BLOCK : (block + 1) * BLOCK])
        for node in self.nodes:
            if node.is_running:
                node.is_running = False
                node.stop()
        for shard in self.cluster.status()["shards"]:
            run(binary(), "check", "--pool", shard["pool"], "--ceph-conf", self.ceph.conf)
        requests = sum(client.answers for client in self.clients)
        longest = max(client.longest for client in self.clients)
        of = lambda what: sum(getattr(a, what) for a in self.administrators)  # noqa: E731
        print(
            f"{requests} requests, the longest time without an answer {longest:.1f} s, "
            f"{sum(client.losses for client in self.clients)} lost connections, {sum(c.moves for c in self.clients)} moves; "
            f"administrators: {of('done')} changes, "
            f"{of('refused')} refused, {of('lost')} without an answer"
        )


@alone
@test
def cluster_keeps_its_promises_under_mixed_faults(t):
    world = World(t, "mixed")
    for number in range(1, ROUNDS + 1):
        world.round(number)
    world.finish()
