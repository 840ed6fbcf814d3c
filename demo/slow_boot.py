#!/usr/bin/env python3
"""Boots guests from a store that is as slow as four disks of 5400 rpm: without a cache, from a cold cache,
from a cold cache with the boot profile, and with the profile read ahead before the guests start.

Each case begins with a server that was just started. The time of a boot that never waits for the store is
measured as well and subtracted; the difference is the time that the store costs a guest. This makes emulated
guests, whose boots are slow, comparable too.

BOOT_GUESTS (4) sets the number of guests that boot at once, BOOT_ROUNDS (3) the number of rounds, whose
median counts.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scripts", "pylib"))

from forebay import Failed, Server, run  # noqa: E402
from guest import Accel, Guest  # noqa: E402

# Four disks of 5400 rpm, as in the published laboratory.
SLOW = 'slow = { spindles = 4, seek_ms = 12, rpm = 5400, rate = "100M" }'
BOOT_TIMEOUT_S = 1800
# (name, read cache, [boot] profile, whether the profile is read before guests start)
WAYS = (
    ("no cache", "1M", "off", False),
    ("cold cache", "1G", "off", False),
    ("cold cache, profile", "1G", "auto", False),
    ("profile read before", "1G", "on", True),
)

began = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


class Bench:
    """One pool, and a server on it that is started again for each case."""

    def __init__(self, scratch, image, accel):
        self.scratch, self.image, self.accel = scratch, image, accel

    def server(self, cache, profile, slow=True):
        config = os.path.join(self.scratch, "forebay.toml")
        with open(config, "w") as f:
            store = f"[store]\n{SLOW}\n" if slow else ""
            f.write(f'[memory]\nread_cache = "{cache}"\n[boot]\nprofile = "{profile}"\n{store}')
        data, log = os.path.join(self.scratch, "data"), os.path.join(self.scratch, "server.log")
        return Server(data, log=log, args=["--config", config])

    def boot(self, server, names):
        """Mean seconds until a guest is up, and the store reads of that time. Ends and resets the guests."""
        before = server.json("stats")["store"]["read"]
        begin, guests, took = time.monotonic(), [], []
        try:
            guests = [Guest.on_export(server, n, self.image, self.accel, self.scratch) for n in names]
            for guest in guests:
                guest.expect("up", begin + BOOT_TIMEOUT_S)
                took.append(time.monotonic() - begin)
        finally:
            for guest in guests:
                guest.kill()
        after = server.json("stats")["store"]["read"]
        while any(v["clients"] for v in server.json("volume", "list")):
            time.sleep(0.05)
        server.cli("volume", "reset", *names)
        return statistics.mean(took), [after[k] - before[k] for k in ("ops", "bytes")]

    def round(self, way, names):
        _, cache, profile, before = way
        with self.server(cache, profile) as server:
            if before:
                server.cli("image", "profile", "golden", "--prefetch")
                wait_until_cached(server)
            done = self.boot(server, names)
            server.stop()
        return done


def wait_until_cached(server):
    while True:
        profile = server.json("image", "profile", "golden")
        if profile["cached_bytes"] >= 0.95 * profile["bytes"]:
            return
        time.sleep(0.1)


def prepare(bench, names):
    """Prepares the image and its profile. Returns the boot times without a slow store, for one guest and for
    all."""
    say("importing the image, and recording a boot")
    with bench.server("1G", "auto", slow=False) as server:
        server.cli("image", "import", "golden", os.path.join(bench.image, "disk.qcow2"))
        server.cli("gc")
        server.cli("volume", "clone", "golden", "guest", "--count", str(len(names)), "--desktop")
        bench.boot(server, names[:1])
        while not server.json("image", "profile", "golden")["bytes"]:
            time.sleep(0.1)
        say("  " + server.cli("image", "profile", "golden").stdout.strip())
        floors = {len(n): bench.boot(server, n)[0] for n in (names[:1], names)}
        server.stop()
    return floors


def measure(bench, names, rounds):
    floors = prepare(bench, names)
    rows = []
    for count in sorted(floors):
        say(f"{count} guest(s): a boot without a slow store takes {floors[count]:.1f} s")
        for way in WAYS:
            done = [bench.round(way, names[:count]) for _ in range(rounds)]
            took = statistics.median(seconds for seconds, _ in done)
            ops, size = (statistics.median(reads[i] for _, reads in done) for i in (0, 1))
            rows.append((count, way[0], took, max(took - floors[count], 0.0), ops, size))
            say(f"  {way[0]}: up after {took:.1f} s, {ops:.0f} store reads")
    return rows


def table(rows):
    """The results as text."""
    columns = f"{'guests':>6}  {'':<19}  {'up after':>10}  {'store time':>10}  {'reads':>7}  {'MiB':>7}"
    lines = [f"{columns}  speed-up, of store time"]
    for count, way, took, store, ops, size in rows:
        base = next(r for r in rows if r[0] == count)
        # Less than a tenth of a second cannot be measured.
        faster = f"{base[2] / took:.1f}, {base[3] / max(store, 0.1):.1f}"
        lines.append(
            f"{count:>6}  {way:<19}  {took:>8.1f} s  {store:>8.1f} s  {ops:>7.0f}  {size / 2**20:>7.0f}  {faster}"
        )
    return "\n".join(lines)


def report(rows):
    print(f"\n{table(rows)}\n")
    ways = {(count, way): (took, store, ops) for count, way, took, store, ops, _ in rows}
    met = True
    for count in sorted({row[0] for row in rows}):
        faster = ways[count, WAYS[0][0]][1] / max(ways[count, WAYS[2][0]][1], 0.1)
        what = f"{count} guest(s): store time without cache, divided by that with the profile"
        met &= verdict(what, faster, 3, faster >= 3)
    # The base is without the profile: with it, one guest makes so few reads that timing would decide the
    # ratio.
    one, all_ = min(r[0] for r in rows), max(r[0] for r in rows)
    for way in WAYS[1:3]:
        times = ways[all_, way[0]][2] / ways[one, WAYS[1][0]][2]
        what = f"store reads of {all_} guests, {way[0]}, per read of one guest without profile"
        met &= verdict(what, times, 1.05, times <= 1.05)
    return met


def verdict(what, value, bound, met):
    print(f"{what}: {value:.2f} (promised: {bound}; {'met' if met else 'NOT met'})")
    return met


def main():
    count, rounds = int(os.environ.get("BOOT_GUESTS", "4")), int(os.environ.get("BOOT_ROUNDS", "3"))
    base = os.path.join(HERE, "..", ".cache")
    os.makedirs(base, exist_ok=True)
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="slow-boot-", dir=base))
    try:
        image = run(os.path.join(HERE, "build-image.sh"), timeout=3600, stderr=None).stdout.strip()
        accel = Accel.choose(os.path.join(image, "vmlinuz"), scratch)
        say(f"guests run with {accel.name}")
        names = [f"guest-{i:03}" for i in range(1, count + 1)]
        return 0 if report(measure(Bench(scratch, image, accel), names, rounds)) else 1
    except Failed as e:
        print(f"slow boot: FAILED: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
