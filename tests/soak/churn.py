"""Sustained load on a store that is short of space: fio on every volume, and snapshots that are created and
deleted.

Four volumes are overwritten without pause, at random and sequentially, while a snapshot is made and removed
each second, so garbage appears as fast as guests write. Each fio pass writes every block of its volume once
and then reads everything back, with checksums. The load counts every error, and measures latencies, the bytes
that the server writes, and its memory. `problems` of its report lists violations of promises.
"""

import collections
import json
import os
import threading
import time

from forebay import Failed, run
from harness import MIB, check, connect

VOLUMES = 4
LIMIT = 2 << 30
FSYNC_EVERY = 64
# Bytes of each volume by the live share, in percent, of the space that writers can use (the limit minus the
# reserve); the share includes volumes, maps and a snapshot.
SIZES = {60: 240 * MIB, 80: 360 * MIB}


class Volume:
    """Runs fio on one volume until its end time, and sums up the results."""

    def __init__(self, t, server, name, size, seed):
        self.t, self.server, self.name, self.size = t, server, name, size
        self.random_first = seed % 2 == 0
        self.seed = seed
        self.writes, self.flushes = collections.Counter(), collections.Counter()
        self.max_ns = 0
        self.written = self.passes = 0
        self.errors = []
        self.process = None

    def job(self, number, seconds):
        """One pass over all blocks, which is verified, or unverified overwrites for some time."""
        job = {
            "ioengine": "nbd", "uri": self.server.uri(self.name), "size": self.size, "bsrange": "4k-64k",
            "rw": "randwrite" if (number % 2 == 0) == self.random_first else "write", "iodepth": 16,
            "fsync": FSYNC_EVERY, "randseed": self.seed * 1000 + number, "verify": "crc32c", "verify_fatal": 1,
            "do_verify": 1,
        }
        if seconds:
            job |= {"do_verify": 0, "time_based": 1, "runtime": seconds, "norandommap": 1}
        return job

    def fio(self, number, seconds=0):
        argv = [f"--{key}={value}" for key, value in self.job(number, seconds).items()]
        done = run("fio", "--name=soak", "--output-format=json+", *argv, cwd=self.t.dir, check=False, timeout=3600)
        try:
            job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
        except (ValueError, LookupError) as e:
            raise Failed(f"fio on {self.name}: {done.stdout[-500:]}{done.stderr[-500:]}") from e
        if job["error"] or done.returncode:
            self.errors.append((job["error"], done.stderr.strip().splitlines()[-1:]))
        self.written += job["write"]["io_bytes"]
        self.max_ns = max(self.max_ns, job["write"]["clat_ns"]["max"])
        for into, found in ((self.writes, job["write"]["clat_ns"]), (self.flushes, job["sync"]["lat_ns"])):
            into.update({int(ns): count for ns, count in found.get("bins", {}).items()})

    def run(self, until):
        """Alternates overwrites with verified passes, and ends with a verified pass."""
        number = 0
        while True:
            last = time.monotonic() >= until
            if not last:
                self.fio(number, seconds=max(1, min(20, int(until - time.monotonic()))))
            self.fio(number + 1)
            self.passes += 1
            number += 2
            if last:
                return


def percentile(bins, percent):
    """A percentile of a histogram of fio, in milliseconds."""
    wanted = sum(bins.values()) * percent / 100
    for ns in sorted(bins):
        wanted -= bins[ns]
        if wanted <= 0:
            return ns / 1e6
    return 0.0


class Snapshots:
    """Creates a snapshot each second, of one volume after the other, and deletes the previous one."""

    def __init__(self, server, volumes):
        self.server, self.volumes = server, volumes
        self.made = 0
        self.errors = []

    def run(self, stop):
        previous = None
        while not stop.is_set():
            begin = time.monotonic()
            volume = self.volumes[self.made % len(self.volumes)]
            made = self.command("create", volume)
            if previous:
                self.command("rm", previous)
            previous = volume if made else None
            stop.wait(max(0, begin + 1 - time.monotonic()))
        if previous:
            self.command("rm", previous)

    def command(self, what, volume):
        done = self.server.cli("snapshot", what, volume, "soak", check=False)
        if done.returncode:
            self.errors.append(f"snapshot {what} {volume}: {done.stderr.strip()}")
        self.made += what == "create"
        return done.returncode == 0


class Samples:
    """Statistics of the server, each second."""

    def __init__(self, server):
        self.server = server
        self.rss, self.lives, self.lines = [], [], []

    def run(self, stop):
        begin = time.monotonic()
        while not stop.wait(1):
            with open(f"/proc/{self.server.process.pid}/status") as f:
                rss = next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))
            s = self.server.json("stats")
            space = s["space"] or {}
            self.rss.append(rss)
            self.lives.append(space.get("live_bytes", 0))
            self.lines.append(
                f"{time.monotonic() - begin:7.1f} s: {s['room']:4} free {s['store_free_bytes'] // MIB:5} "
                f"live {space.get('live_bytes', 0) // MIB:5} stored {s['stored_bytes'] // MIB:5} "
                f"reclaimable {space.get('reclaimable_bytes', 0) // MIB:5} moved {s['moved_bytes'] // MIB:6} "
                f"freed {s['freed_bytes'] // MIB:6} guests wrote {s['guest']['write']['bytes'] // MIB:6} "
                f"dirty {s['dirty_bytes'] // MIB:4} rss {rss // MIB:5} MiB"
            )

    def growth(self):
        """Growth of memory, in bytes, from the second quarter of the samples to the last."""
        quarter = len(self.rss) // 4
        return max(self.rss[-quarter:]) - max(self.rss[quarter : 2 * quarter]) if quarter else 0

    def live(self):
        """The most live bytes that a mark found."""
        return max(self.lives, default=0)


class Report:
    """The results of a soak."""

    def __init__(self, seconds, volumes, snapshots, samples, before, after, limit):
        self.volumes, self.snapshots, self.samples = volumes, snapshots, samples
        delta = lambda *keys: value(after, keys) - value(before, keys)  # noqa: E731
        self.written = max(1, delta("guest", "write", "bytes"))
        self.stored = delta("store", "write", "bytes")
        self.moved, self.freed = delta("moved_bytes"), delta("freed_bytes")
        self.limit = limit
        self.checkpoints, self.seconds = delta("checkpoints"), seconds

    def errors(self):
        return [f"{v.name}: {e}" for v in self.volumes for e in v.errors] + self.snapshots.errors

    def out_of_room(self):
        return sum("ENOSPC" in e or "(28" in e or "No space" in e or "no room" in e for e in self.errors())

    def lines(self):
        yield (
            f"{self.seconds:.0f} s, {self.written // MIB} MiB written by guests, {self.snapshots.made} snapshots; "
            f"at most {self.samples.live() // MIB} of {self.limit // MIB} MiB live"
        )
        yield f"ENOSPC: {self.out_of_room()}; errors in total: {len(self.errors())}"
        yield from self.errors()[:10]
        for v in self.volumes:
            of = {n: [percentile(b, p) for p in (50, 99)] for n, b in (("write", v.writes), ("flush", v.flushes))}
            yield (
                f"{v.name}: {v.written // MIB} MiB in {v.passes} passes; write p50 {of['write'][0]:.2f} "
                f"p99 {of['write'][1]:.1f} max {v.max_ns / 1e6:.0f} ms; flush p50 {of['flush'][0]:.1f} "
                f"p99 {of['flush'][1]:.1f} max {max(v.flushes, default=0) / 1e6:.0f} ms"
            )
        yield (
            f"store bytes written per guest byte: {self.stored / self.written:.2f}, of which the cleaner "
            f"{self.moved / self.written:.2f}; freed {self.freed // MIB} MiB; {self.checkpoints} checkpoints"
        )
        rss = self.samples.rss or [0]
        yield f"server memory: {rss[0] // MIB} MiB at first, at most {max(rss) // MIB}, growth {self.samples.growth() // MIB}"

    def problems(self):
        """Violations of promises: any error, or growing memory."""
        found = self.errors()
        # Caches fill during the first minutes.
        if self.seconds >= 300 and self.samples.growth() > max(32 * MIB, max(self.samples.rss) // 10):
            found.append(f"memory grew by {self.samples.growth() // MIB} MiB")
        return found


def value(stats, keys):
    for key in keys:
        stats = stats[key]
    return stats


def soak(t, share, seconds, scale=1, verbose=False):
    """Runs the load for `seconds` at this live share, stops the server and checks its pool. Returns the
    report. `scale` divides the sizes of the store and its contents, except those of the guests' requests."""
    limit, size = LIMIT // scale, SIZES[share] // scale
    with open(t.path("forebay.toml"), "w") as f:
        # Caches are small, so that they are full before memory is measured.
        f.write(f'[store]\nlimit = {limit}\n[memory]\nread_cache = "64M"\nmap_cache = "32M"\n')
        f.write(f'write_buffer = {64 * MIB // scale}\n[dedup]\nindex = "16M"\n')
    server = t.server("--config", t.path("forebay.toml"))
    names = [f"v{n}" for n in range(VOLUMES)]
    for name in names:
        server.cli("volume", "create", name, "--size", str(size))
        fill(server, name, size, t.random)
    volumes = [Volume(t, server, name, size, t.random.randrange(1000)) for name in names]
    snapshots, samples = Snapshots(server, names), Samples(server)
    before, begin, stop = server.json("stats"), time.monotonic(), threading.Event()
    failed = []

    def guarded(function, *args):
        try:
            function(*args)
        except Exception as e:  # noqa: BLE001: reported by the thread that waits
            failed.append(e)

    guests = [threading.Thread(target=guarded, args=(v.run, begin + seconds)) for v in volumes]
    others = [threading.Thread(target=guarded, args=(o.run, stop)) for o in (snapshots, samples)]
    for thread in guests + others:
        thread.start()
    for thread in guests:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    report = Report(time.monotonic() - begin, volumes, snapshots, samples, before, server.json("stats"), limit)
    if verbose:
        print("\n".join(samples.lines), flush=True)
    print("\n".join(report.lines()), flush=True)
    if failed:
        raise failed[0]
    server.stop()
    done = run(server.bin, "check", "--data", server.data, check=False, timeout=1200)
    check(done.returncode == 0, f"forebay check:\n{done.stdout}{done.stderr}")
    return report


def fill(server, name, size, random):
    """Writes a complete volume once, so that its live data exists from the start."""
    handle = connect(server, name)
    for offset in range(0, size, MIB):
        handle.pwrite(random.randbytes(min(MIB, size - offset)), offset)
    handle.flush()
    handle.shutdown()
