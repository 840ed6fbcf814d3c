"""Metrics of a server with clients: requests are counted by front end and path."""

import os
import re

from harness import BLOCK, MIB, ControlSocket, Skipped, check, connect, equal, run, test
from tools import Unavailable, promtool

MONITORING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "packaging", "monitoring")


def text_of(server):
    """The metrics of a server, as Prometheus reads them."""
    connection = ControlSocket(server.control)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def scrape(server):
    """All series of a server, by name and labels."""
    text = text_of(server)
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.M)}


def requests(metrics, front, path):
    """The number of requests that were served."""
    return metrics[f'forebay_request_duration_seconds_count{{front_end="{front}",path="{path}"}}']


@test
def requests_are_counted_by_the_way_they_were_served(t):
    s = t.server("--cache", "64M")
    s.cli("volume", "create", "a", "--size", "64M")
    h = connect(s, "a")
    for number in range(64):
        h.pwrite(t.random.randbytes(BLOCK), number * BLOCK)
    for _ in range(5):
        h.flush()
    for number in range(64):
        h.pread(BLOCK, number * BLOCK)
    metrics = scrape(s)
    check(requests(metrics, "nbd", "buffered") >= 63, f"buffered writes: {requests(metrics, 'nbd', 'buffered')}")
    equal(requests(metrics, "nbd", "durable"), 5, "flushes")
    equal(requests(metrics, "nbd", "ram"), 64, "reads from RAM")
    equal(requests(metrics, "nbd", "store"), 0, "reads from the store")
    equal(metrics["forebay_connections"], 1, "connections")
    h.shutdown()
    s.stop()
    s.start()
    h = connect(s, "a")
    h.pread(MIB // 4, 0)
    metrics = scrape(s)
    equal(requests(metrics, "nbd", "store"), 1, "reads from the store after a restart")
    sums = [v for name, v in metrics.items() if name.startswith("forebay_request_duration_seconds_sum")]
    check(0 < sum(sums) < 60, f"times of requests: {sums}")


@test
def promtool_accepts_metrics_and_alerts(t):
    try:
        tool = promtool()
    except Unavailable as e:
        raise Skipped(str(e)) from e
    s = t.server("--cache", "64M", config='[metrics]\nvolumes = ["*"]\n')
    s.cli("volume", "create", "a", "--size", "64M")
    h = connect(s, "a")
    h.pwrite(t.random.randbytes(BLOCK), 0)
    h.flush()
    h.pread(BLOCK, 0)
    s.cli("gc")
    file = t.path("metrics")
    with open(file, "w") as f:
        f.write(text_of(s))
    with open(file) as f:
        found = run(tool, "check", "metrics", stdin=f, check=False)
    check(found.returncode == 0, f"promtool check metrics: {found.stdout}{found.stderr}")
    run(tool, "check", "rules", os.path.join(MONITORING, "forebay-alerts.yml"))
    run(tool, "test", "rules", "forebay-alerts-test.yml", cwd=MONITORING)


@test
def a_read_cache_that_is_too_small_is_reported(t):
    """A guest reads half as much again as the cache holds: one of twice the size would save reads."""
    s = t.server("--cache", "64M")
    size, piece = 96 * MIB, MIB // 16
    s.cli("volume", "create", "a", "--size", "96M")
    run("nbdcopy", t.noise_file("noise", size), s.uri("a"))
    equal(s.json("stats")["read_cache"]["advice"], [], "advice before the first read")
    h = connect(s, "a")
    offsets = [piece * number for number in range(size // piece)]
    for _ in range(100):
        t.random.shuffle(offsets)
        for offset in offsets:
            h.pread(piece, offset)
        cache = s.json("stats")["read_cache"]
        if any(advice["saved_reads_per_s"] for advice in cache["advice"]):
            break
    saved = {advice["more_percent"]: advice["saved_reads"] for advice in cache["advice"]}
    equal(list(saved), [10, 25, 50, 100], f"sizes of the advice in {cache}")
    check(0 < saved[100] <= cache["misses"], f"saved reads: {saved} of {cache['misses']}")
    check(cache["evictions"] > 0, "evictions")
    metrics = scrape(s)
    check(metrics['forebay_read_cache_ghost_hits_total{size="+100%"}'] >= saved[100], f"metrics after {saved}")
    check(re.search(r"more of it .*100 % saves \d+ block reads/s", s.cli("stats").stdout), "the advice in words")
    h.shutdown()
