#!/usr/bin/env python3
"""Pools in Ceph next to librbd, on the same cluster in the same run: run by `make bench-rados`.

    bench.py [--quick] [--rounds N] [--seconds S] [--only WORD]

Each row measures all of its ways in turns, A B C, then B C A, and so on; a ratio is the median of the
ratios of the rounds. CPU times are those of the OSD processes together, and of the server (for librbd: of
the process that links it), for each write of a guest.

FOREBAY_BIN is the server (target/release/forebay), FOREBAY_XRAY the load generator (next to the
server); FOREBAY_CEPH_STORE=bluestore stores objects in files instead of in memory.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "clients"), os.path.join(HERE, "..", "..", "scripts", "pylib")]
os.environ.setdefault("FOREBAY_BIN", os.path.join(HERE, "..", "..", "target", "release", "forebay"))

from ceph import Cluster, RadosServer  # noqa: E402
from datastore import TARGET, portal  # noqa: E402
from forebay import Failed, binary, memory_directory, run, spawn  # noqa: E402
from harness import MIB, Context  # noqa: E402

VOLUME, IMAGE = "disk", "disk"
SIZE_MIB = 512
# Most space of the pool: the cluster's objects are in memory, three times.
LIMIT = "2G"
TICKS = os.sysconf("SC_CLK_TCK")
XRAY = os.environ.get("FOREBAY_XRAY", os.path.join(os.path.dirname(binary()), "forebay-xray"))


def cpu(pid):
    """User and system time of a process, in seconds."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children_cpu():
    """User and system time of the child processes that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass
class Way:
    """A way to write or read, with a function that returns operations and operations each second."""

    name: str
    load: callable
    # Processes that serve it; the OSDs do, in addition. Without one, the load's own CPU time counts.
    server: int = None


@dataclass
class Row:
    name: str
    ways: list
    unit: str = "IOPS"
    # What the first way is to reach, as a ratio of its rate to that of the last one.
    promise: float = None
    # And of the CPU time of the OSDs.
    osd_promise: float = None
    samples: list = field(default_factory=list)


class Bench:
    """The cluster, the servers and the disks."""

    def __init__(self, t, cluster, options):
        self.t, self.cluster, self.options = t, cluster, options
        self.loads, self.osds = 0, []
        for n in range(cluster.OSDS):
            with open(os.path.join(cluster.dir, "run", f"osd.{n}.process")) as f:
                self.osds.append(int(f.read().split()[0]))
        self.confs = {cache: self.client_conf(cache) for cache in ("true", "false")}
        self.start_forebay()
        self.start_librbd()

    def client_conf(self, cache):
        """A configuration for librbd. By default it caches writes only after a client's first flush."""
        path = self.t.path(f"ceph-cache-{cache}.conf")
        with open(self.cluster.conf) as whole, open(path, "w") as copy:
            copy.write(whole.read())
            copy.write(f"[client]\nrbd_cache = {cache}\nrbd_cache_writethrough_until_flush = false\n")
        return path

    def start_forebay(self):
        config = f'[store]\nlimit = "{LIMIT}"\n'
        args = ("--iscsi", "127.0.0.1:0", "--cache", f"{2 * SIZE_MIB}M")
        self.ours = RadosServer(self.t, self.cluster, "bench", *args, config=config).start()
        self.directory = self.t.server("--cache", f"{2 * SIZE_MIB}M", data="directory")
        for server in (self.ours, self.directory):
            server.cli("volume", "create", VOLUME, "--size", f"{SIZE_MIB}M")
            self.nbd_load(f"unix:{server.nbd}", "--rw", "write", "--bs", "1m", "--depth", "8", "--once")
        self.ours.cli("target", "create", TARGET, "--open")
        self.ours.cli("lun", "map", TARGET, VOLUME)

    def start_librbd(self):
        run("rbd", "-c", self.cluster.conf, "create", f"test/{IMAGE}", "--size", f"{SIZE_MIB}M")
        self.fio("--rw=write", "--bs=1M", "--iodepth=8")
        socket = os.path.join(self.ours.sockets, "qemu-nbd")
        source = f"rbd:test/{IMAGE}:conf={self.confs['true']}"
        argv = ["qemu-nbd", "--persistent", "--format=raw", "--cache=writeback", "--export-name=", "--socket", socket]
        with open(self.t.path("qemu-nbd.log"), "w") as log:
            self.qemu = spawn([*argv, source], stdout=log, stderr=log)
        self.t.defer(self.qemu.kill)
        deadline = time.monotonic() + 60
        while not os.path.exists(socket):
            if self.qemu.poll() is not None or time.monotonic() > deadline:
                raise Failed("qemu-nbd does not start")
            time.sleep(0.01)
        self.qemu_socket = socket

    # ---- loads --------------------------------------------------------------------------------------------

    def seed(self):
        """Another seed for each load: a block that has not changed is not stored again."""
        self.loads += 1
        return ["--seed", str(self.loads)]

    def nbd_load(self, address, *args, export=VOLUME):
        done = run(XRAY, "nbd-load", "--uri", address, "--export", export, *self.seed(), "--json", *args)
        report = json.loads(done.stdout)
        return report["ops"], report["iops"]

    def iscsi_load(self, *args):
        address = "{}:{}".format(*portal(self.ours))
        argv = ["--portal", address, "--target", TARGET, *self.seed(), "--json"]
        done = run(XRAY, "iscsi-load", *argv, *args)
        report = json.loads(done.stdout)
        return report["ops"], report["iops"]

    def fio(self, *args):
        """librbd without its cache: every write is durable when it is answered."""
        argv = ["fio", "--name=librbd", "--ioengine=rbd", "--clientname=admin", "--pool=test", f"--rbdname={IMAGE}"]
        argv += ["--output-format=json", "--refill_buffers", "--norandommap", *args]
        done = run(*argv, env={**os.environ, "CEPH_CONF": self.confs["false"]}, cwd=self.t.dir)
        written = json.loads(done.stdout)["jobs"][0]["write"]
        return written["total_ios"], written["iops"]

    def rados_bench(self, seconds):
        rados = ["rados", "-c", self.cluster.conf, "-p", "test"]
        flags = ["-b", str(MIB), "-t", "16", "--no-cleanup"]
        said = run(*rados, "bench", str(max(1, round(seconds))), "write", *flags).stdout
        figures = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        return int(figures["Total writes made"]), float(figures["Bandwidth (MB/sec)"])

    def clean_up(self):
        run("rados", "-c", self.cluster.conf, "-p", "test", "cleanup", "--prefix", "benchmark_data", timeout=600)

    # ---- rows ---------------------------------------------------------------------------------------------

    def rows(self):
        pid, tcp, unix = self.ours.process.pid, f"127.0.0.1:{self.ours.port}", f"unix:{self.ours.nbd}"
        for depth in (16, 64, 128):
            load = ["--rw", "randwrite", "--bs", "4k", "--depth", str(depth), "--seconds", self.seconds()]
            peer = ["--rw=randwrite", "--bs=4k", f"--iodepth={depth}", "--time_based", f"--runtime={self.seconds()}"]
            ways = [
                Way("NBD over TCP", lambda load=load: self.nbd_load(tcp, *load), pid),
                Way("iSCSI", lambda load=load: self.iscsi_load(*load), pid),
                Way("librbd", lambda peer=peer: self.fio(*peer)),
            ]
            promise = {16: 4.0, 128: 10.0}.get(depth)
            yield Row(f"durable 4 KiB random writes, depth {depth}", ways, promise=promise, osd_promise=0.1)
        load = ["--rw", "randwrite", "--bs", "4k", "--depth", "16", "--flush-each", "1s", "--seconds", self.seconds()]
        peer = f"unix:{self.qemu_socket}"
        ways = [
            Way("NBD, UNIX socket", lambda: self.nbd_load(unix, *load), pid),
            Way("qemu-nbd, librbd's cache", lambda: self.nbd_load(peer, *load, export=""), self.qemu.pid),
        ]
        yield Row("4 KiB random writes, depth 16, a flush each second", ways, promise=10.0, osd_promise=0.1)
        big = ["--rw", "write", "--bs", "1m", "--depth", "16", "--seconds", self.seconds()]
        ways = [
            Way("NBD over TCP", lambda: self.nbd_load(tcp, *big), pid),
            Way("rados bench", lambda: self.rados_bench(self.options.seconds)),
        ]
        yield Row("sequential 1 MiB writes, depth 16, durable", ways, unit="MiB/s", promise=0.8)
        reads = ["--rw", "randread", "--bs", "4k", "--depth", "32", "--size", f"{SIZE_MIB // 2}M"]
        reads += ["--seconds", self.seconds()]
        directory = f"unix:{self.directory.nbd}"
        ways = [
            Way("pool in Ceph", lambda: self.nbd_load(unix, *reads), pid),
            Way("pool in a directory", lambda: self.nbd_load(directory, *reads), self.directory.process.pid),
        ]
        yield Row("cached 4 KiB random reads, depth 32", ways, promise=0.9)

    def seconds(self):
        return str(self.options.seconds)

    def sample(self, way):
        """One measurement: the rate, and microseconds of CPU for each operation (OSDs, server)."""
        osds = sum(map(cpu, self.osds))
        serving, children = way.server and cpu(way.server), children_cpu()
        before = self.ours.json("stats")
        ops, rate = way.load()
        after = self.ours.json("stats")
        serving = cpu(way.server) - serving if way.server else children_cpu() - children
        osds = sum(map(cpu, self.osds)) - osds
        commits = after["commits"] - before["commits"]
        group = ops / commits if commits else 0.0
        return {"rate": rate, "osd_us": osds * 1e6 / ops, "server_us": serving * 1e6 / ops, "group": group}

    def measure(self, row):
        for n in range(self.options.rounds):
            order = [(n + i) % len(row.ways) for i in range(len(row.ways))]
            taken = {i: self.sample(row.ways[i]) for i in order}
            row.samples.append([taken[i] for i in range(len(row.ways))])
            if row.unit == "MiB/s":
                self.clean_up()
        return row


def median_of(row, way, figure):
    return statistics.median(sample[way][figure] for sample in row.samples)


def ratio(row, way, figure):
    """The median over the rounds of a way's figure to that of the last way."""
    pairs = ((sample[way][figure], sample[-1][figure]) for sample in row.samples)
    return statistics.median(ours / peer if peer else float("inf") for ours, peer in pairs)


def verdict(found, promise, at_least):
    if promise is None:
        return f"{found:.2f}"
    kept = found >= promise if at_least else found <= promise
    bound = f"at {'least' if at_least else 'most'} {promise:g}"
    return f"{found:.2f} ({bound}{'' if kept else ', MISSED'})"


def show(row):
    print(f"\n{row.name}")
    for i, way in enumerate(row.ways):
        figures = [median_of(row, i, figure) for figure in ("rate", "osd_us", "server_us")]
        text = f"  {way.name:26}{figures[0]:10,.0f} {row.unit}   OSD {figures[1]:8,.1f} us   server {figures[2]:7,.1f} us"
        if group := median_of(row, i, "group"):
            text += f"   {group:5,.1f} for each commit"
        if i < len(row.ways) - 1:
            text += f"   ratio {verdict(ratio(row, i, 'rate'), row.promise, True)}"
            if row.osd_promise is not None:
                text += f", of OSD CPU {verdict(ratio(row, i, 'osd_us'), row.osd_promise, False)}"
        print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Pools in Ceph next to librbd")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (2.0 if options.quick else 5.0)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir="/tmp") as scratch, Cluster() as cluster:
        t = Context("bench", scratch, memory_directory(), 1)
        with t.stack:
            bench = Bench(t, cluster, options)
            for row in bench.rows():
                if options.only in row.name:
                    show(bench.measure(row))


if __name__ == "__main__":
    # SIGTERM ends the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
