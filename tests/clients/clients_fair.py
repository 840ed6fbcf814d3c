"""Limits of volumes and tenants, as NBD clients see them."""

import threading
import time

from forebay import Failed
from harness import BLOCK, MIB, alone, check, connect, equal, test, wait_for, waited


def rate(handle, seconds, request):
    """Requests per second, one at a time."""
    begun, done = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        request(handle)
        done += 1
    return done / (time.monotonic() - begun)


def read(handle):
    handle.pread(BLOCK, 0)


def write(handle):
    handle.pwrite(bytes([7]) * BLOCK, BLOCK)


def about(measure, expected, what):
    """Whether no measurement exceeds the limit, and one of five reaches it, which a pause of the machine may
    prevent. Within 15 %: the burst of a tenth of a second. The engine's own tests have an exact clock."""
    found = []
    while len(found) < 5:
        found.append(measure())
        check(found[-1] <= expected * 1.15, f"{what}: {found[-1]:.1f} per second instead of {expected}")
        if found[-1] >= expected * 0.85:
            return
    raise Failed(f"{what}: {found} per second instead of {expected}")


def is_fast(handle):
    """Whether one of five measurements is far above the limits of these tests: a pause of the machine may
    spoil the other four."""
    return any(rate(handle, 0.5, read) > 300 for _ in range(5))


@alone
@test
def a_limit_holds_and_is_changed_live(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "4M")
    h = connect(s, "v")
    write(h)
    check(is_fast(h), "an unlimited volume is slow")
    s.cli("volume", "limit", "v", "--iops", "100")
    about(lambda: rate(h, 2, read), 100, "reads")
    about(lambda: rate(h, 2, write), 100, "writes")
    # A request that waits for a slow limit ends when the limit is removed.
    s.cli("volume", "limit", "v", "--iops", "1", "--iops-burst", "1")
    read(h)
    before = waited(s, "v")
    check(before > 100, "waits are not counted")
    # With the limit, they take ten minutes.
    waiting = threading.Thread(target=lambda: [read(h) for _ in range(600)], daemon=True)
    waiting.start()
    wait_for(lambda: waited(s, "v") > before, "a read that waits")
    s.cli("volume", "limit", "v", "--clear")
    waiting.join(60)
    check(not waiting.is_alive(), "the change does not apply to requests")


@alone
@test
def bandwidth_is_limited_and_the_limits_survive_a_restart(t):
    s = t.server()
    s.cli("volume", "create", "v", "--size", "16M")
    s.cli("volume", "limit", "v", "--bandwidth-write", "4M", "--bandwidth-burst", "512K")
    s.stop()
    s.start()
    h = connect(s, "v")
    data = bytes([3]) * (64 << 10)
    about(lambda: rate(h, 2, lambda h: h.pwrite(data, 0)) * len(data) / MIB, 4, "MiB written")
    check(is_fast(h), "reads are limited too")
    expected = {"bandwidth_write": 4 * MIB, "bandwidth_burst": 512 << 10}
    equal(s.json("volume", "limit", "v")["limits"], expected, "limits")


@alone
@test
def a_tenant_is_limited_as_a_whole_and_no_other(t):
    s = t.server()
    for name in ("a", "b", "free"):
        s.cli("volume", "create", name, "--size", "4M")
    for name in ("a", "b"):
        s.cli("volume", "limit", name, "--tenant", "acme")
    s.cli("tenant", "limit", "acme", "--iops", "100")
    handles = [connect(s, name) for name in ("a", "b", "free")]
    rates = {}

    def measure(n):
        rates[n] = rate(handles[n], 2, read)

    def of_tenant():
        threads = [threading.Thread(target=measure, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return rates[0] + rates[1]

    about(of_tenant, 100, "reads of the tenant")
    check(30 <= rates[0] <= 70, f"one of its volumes has {rates[0]:.1f} reads per second")
    check(rates[2] > 300 or is_fast(handles[2]), f"a volume of no tenant has {rates[2]:.0f} reads per second")
    s.cli("volume", "clone", "a", "c")
    equal(s.json("volume", "show", "c")["tenant"], "acme", "tenant of a clone")


@test
def requests_that_wait_end_with_their_connection(t):
    import nbd

    s = t.server()
    s.cli("volume", "create", "v", "--size", "4M")
    write(connect(s, "v"))
    s.cli("volume", "limit", "v", "--iops", "1", "--iops-burst", "1")
    gone = connect(s, "v")
    before = waited(s, "v")
    for _ in range(60):
        gone.aio_pread(nbd.Buffer(BLOCK), 0)
    wait_for(lambda: waited(s, "v") > before, "a read that has waited, and others behind it")
    del gone
    s.wait_unused("v")
    before = waited(s, "v")
    read(connect(s, "v"))
    # It would wait behind the reads of the connection that is gone.
    check(waited(s, "v") <= before + 2, "requests of a connection that is gone still take tokens")
