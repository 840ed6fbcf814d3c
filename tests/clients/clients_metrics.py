"""Metrics of a server with clients: requests are counted by front end and path."""

import http.client
import re
import socket

from harness import BLOCK, MIB, check, connect, equal, test


class ControlSocket(http.client.HTTPConnection):
    """HTTP over the control socket of a server."""

    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def scrape(server):
    """All series of a server, by name and labels."""
    connection = ControlSocket(server.control)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
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
