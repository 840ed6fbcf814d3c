"""Thousands of volumes, a quarter of them in use: times of the server and of the page."""

import http.client
import os
import statistics
import sys
import threading
import time

from browser import address, browser, control
from forebay import spawn
from harness import BLOCK, MIB, alone, check, connect, test

VOLUMES = int(os.environ.get("FOREBAY_BROWSER_VOLUMES", "2000"))
# Generous: other programs run on the machine of a test. The printed times are the ones to look at.
SERVER_S, PAGE_S = 2.0, 10.0
PAGES = (
    ("volumes", f"{VOLUMES + 1:,} in total"), ("overview", "Busiest disks"), ("images", "golden"),
    ("volumes/v-0001", "Properties"), ("jobs", "No job"), ("events", "created"), ("cache", "Map cache"),
    ("pools", "Data directory"), ("iscsi", "no targets"),
)
PATHS = ("/volumes", "/activity", "/stats", "/images", "/jobs", "/targets", "/pool", "/stats/v-0001")


def server_times(base):
    """The median time of each request of the pages, in seconds."""
    host = base.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    times = {}
    for path in PATHS:
        took = []
        for _ in range(7):
            begin = time.perf_counter()
            connection.request("GET", f"/api/v1{path}")
            response = connection.getresponse()
            size = len(response.read())
            took.append(time.perf_counter() - begin)
            check(response.status == 200, f"{path}: {response.status}")
        times[path] = statistics.median(took)
        print(f"GET {path}: {times[path] * 1000:.1f} ms, {size} bytes")
    connection.close()
    return times


# What the page of volumes requests, for several of them; the argument is the address.
POLLER = """
import http.client, sys, time
connection = http.client.HTTPConnection(sys.argv[1])
while True:
    for path in ("/stats", "/activity"):
        connection.request("GET", "/api/v1" + path)
        connection.getresponse().read()
    time.sleep(2 / PAGES)
"""
WATCHING_PAGES, WATCHED_S = 5, 4


def watched(base, latencies):
    """Prints the latency of the guests' writes without pages, and with several that follow the volumes."""
    def measure(what):
        begin = len(latencies)
        time.sleep(WATCHED_S)
        found = sorted(latencies[begin:])
        check(found, "no write was answered")
        at = [found[min(len(found) - 1, int(len(found) * q))] * 1e6 for q in (0.5, 0.99)]
        print(f"guest writes {what}: {len(found)}, median {at[0]:.0f} us, 99 % {at[1]:.0f} us")

    measure("without pages")
    code = POLLER.replace("PAGES", str(WATCHING_PAGES))
    poller = spawn([sys.executable, "-c", code, base.removeprefix("http://")])
    try:
        measure(f"with {WATCHING_PAGES} pages of volumes")
    finally:
        poller.kill()
        poller.wait()
    measure("without pages again")


@alone
@test
def two_thousand_volumes(t):
    server = t.server("--http", "127.0.0.1:0")
    control(server, "POST", "/volumes", {"name": "base", "size_bytes": 64 * MIB})
    control(server, "POST", "/images/golden", {"source": "base"})
    control(server, "POST", "/clones", {"source": "golden", "name": "v", "count": VOLUMES})
    guests = [connect(server, f"v-{n:04}") for n in range(1, VOLUMES // 4 + 1)]
    stopping, latencies = threading.Event(), []

    def work():
        n = 0
        while not stopping.is_set():
            guest = guests[n % len(guests)]
            begin = time.perf_counter()
            guest.pwrite(n.to_bytes(8, "big") * (BLOCK // 8), n % 64 * BLOCK)
            latencies.append(time.perf_counter() - begin)
            n += 1

    load = threading.Thread(target=work)
    load.start()
    try:
        base = address(server)
        for path, took in server_times(base).items():
            check(took < SERVER_S, f"{path} took {took:.2f} s")
        watched(base, latencies)
        b = browser(t, base)
        b.open()
        b.shows("Offload of the store")
        for page, shown in PAGES:
            begin = time.perf_counter()
            b.go(f"#/{page}")
            b.shows(shown)
            took = time.perf_counter() - begin
            print(f"page {page}: shown after {took * 1000:.0f} ms")
            check(took < PAGE_S, f"{page} was shown after {took:.1f} s")
        b.go("#/volumes")
        b.shows(f"page 1 of {VOLUMES // 100 + 1}")
        b.click("Last")
        b.shows(f"page {VOLUMES // 100 + 1} of {VOLUMES // 100 + 1}")
        b.click("Ops/s")
        most = "return document.querySelector('tbody tr').cells[7].textContent"
        b.until(lambda: b.script(most) not in ("", "0"), "no volume is active")
        b.css("input[type=search]")[0].send_keys(f"v-{VOLUMES:04}")
        b.shows(f"1 of {VOLUMES + 1:,}")
    finally:
        stopping.set()
        load.join()
        for guest in guests:
            guest.shutdown()
