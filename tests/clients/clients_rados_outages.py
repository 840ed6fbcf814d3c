"""Outages of the Ceph cluster under load, with a standby: requests wait and continue. No request fails, and
the standby does not take over.
"""

import contextlib
import math
import os
import time

from ceph import LargeCluster, Nodes, first_answer
from clients_rados import CLUSTER, TAKEOVER_S
from harness import alone, check, needs, test, wait_for
from upgrade_load import NbdLoad

OUTAGE_S = float(os.environ.get("FOREBAY_RADOS_OUTAGE_S", "10"))
# Until requests continue after a failure of OSDs. Ceph itself needs up to 15 s if an OSD hangs.
CONTINUE_S = 60.0
# The longest request while no OSD fails, on a busy test machine.
GAP_S = 5.0
# The longest request while an OSD hangs that has a segment, and not the header; Ceph itself needs 5 s.
HUNG_S = 3.0
# How many requests prove that the load makes progress.
PROGRESS = 500


LARGE_CLUSTER = LargeCluster()


class RadosLoad(NbdLoad):
    """A load whose requests may take any time. The tests limit it."""

    longest_s = math.inf


class LoadedNodes:
    """Two nodes and a load over TCP and over a UNIX socket, each on a separate volume."""

    def __init__(self, t, name, cluster=CLUSTER):
        # Last, after the end of the servers.
        t.defer(cluster.heal)
        self.nodes = Nodes(t, cluster, name).start()
        self.loads = []
        for kind in ("tcp", "unix"):
            self.nodes.cli("volume", "create", kind, "--size", "8M")
            uri = self.nodes.tcp_uri(kind) if kind == "tcp" else self.nodes.uri(kind)
            self.loads.append(RadosLoad(kind, t.random, uri))
        for load in self.loads:
            load.start()
        self.wait_progress("the load")

    def requests(self):
        """How many requests each load has completed."""
        for load in self.loads:
            check(load.error is None, f"{load.name}: {load.error!r}")
        self.nodes.check_waiting()
        return [load.requests for load in self.loads]

    def wait_progress(self, what, count=PROGRESS):
        """Waits until each load has completed some more requests; the duration."""
        begin, before = time.monotonic(), self.requests()
        wait_for(lambda: all(n >= b + count for n, b in zip(self.requests(), before)), what, CONTINUE_S)
        return time.monotonic() - begin

    def watch(self, seconds):
        """Lets time pass, and fails as soon as a request or a server does. Returns how long no request was
        completed at the end."""
        end = time.monotonic() + seconds
        last, changed = None, time.monotonic()
        while time.monotonic() < end:
            requests = self.requests()
            if requests != last:
                last, changed = requests, time.monotonic()
            time.sleep(0.05)
        return time.monotonic() - changed

    @contextlib.contextmanager
    def longest(self):
        """The longest request within the block, as the only element of a list."""
        for load in self.loads:
            load.longest = 0.0
        found = []
        yield found
        found.append(max(load.longest for load in self.loads))

    def finish(self):
        """Ends the load, which verifies all contents; then the standby does take over, and has them all."""
        self.nodes.check_waiting()
        for load in self.loads:
            load.finish()
        contents = {kind: digest(self.nodes.uri(kind)) for kind in ("tcp", "unix")}
        self.nodes.serving.stop()
        begin = time.monotonic()
        serving = self.nodes.take_over(TAKEOVER_S)
        took = first_answer(serving, "tcp", begin)
        for kind, before in contents.items():
            check(digest(serving.uri(kind)) == before, f"contents of '{kind}' on the other node")
        serving.stop()
        serving.offline("check")
        return took


def digest(uri):
    """The contents of an export."""
    import nbd

    h = nbd.NBD()
    h.connect_uri(uri)
    return bytes(h.pread(h.get_size(), 0))


@needs(CLUSTER)
@alone
@test
def rados_outage_of_an_osd_delays_requests(t):
    loaded = LoadedNodes(t, "osd")
    with loaded.longest() as longest:
        CLUSTER.kill_osd(0)
        loaded.wait_progress("requests after an OSD was killed")
        CLUSTER.start_osd(0)
        CLUSTER.wait_up()
        CLUSTER.wait_clean()
        loaded.wait_progress("requests after it was started")
    print(f"an OSD was killed and started: the longest request took {longest[0]:.2f} s")
    loaded.finish()


@needs(CLUSTER)
@alone
@test
def rados_outage_of_a_hanging_osd_delays_requests(t):
    loaded = LoadedNodes(t, "hang")
    # Shorter than the time after which the others report it; then for as long as that takes.
    with loaded.longest() as longest:
        CLUSTER.pause_osd(1)
        loaded.watch(2.0)
        CLUSTER.resume_osd(1)
        loaded.wait_progress("requests after a short pause of an OSD")
        CLUSTER.pause_osd(2)
        loaded.wait_progress("requests without the OSD that hangs")
        CLUSTER.resume_osd(2)
        loaded.wait_progress("requests after it continued")
    print(f"OSDs hung: the longest request took {longest[0]:.2f} s")
    loaded.finish()


@needs(LARGE_CLUSTER)
@alone
@test
def rados_outage_of_an_osd_that_has_a_segment_is_short(t):
    cluster = LARGE_CLUSTER
    # The objects of some pools are on the same OSDs as their headers.
    names = (f"segment-{n}" for n in range(20))
    name = next(n for n in names if all(elsewhere(cluster, n, f"segment.{i:08x}") for i in range(1, 5)))
    loaded = LoadedNodes(t, name, cluster)
    for _ in range(3):
        (segment, *_) = (o for o in cluster.growing("test", name) if o.startswith("segment."))
        osds = elsewhere(cluster, name, segment)
        if not osds:
            continue
        hung = t.random.choice(sorted(osds))
        with loaded.longest() as longest:
            cluster.pause_osd(hung)
            # Ceph has not noticed it yet.
            stopped = loaded.watch(HUNG_S)
            cluster.resume_osd(hung)
            loaded.wait_progress("requests after it continued")
        print(f"an OSD with {segment} hung for {HUNG_S:.0f} s: the longest request took {longest[0]:.2f} s")
        check(stopped < HUNG_S / 2 and longest[0] < HUNG_S, f"{longest[0]:.1f} s, none completed for {stopped:.1f} s")
        cluster.wait_clean()
    check("an append is overdue" in open(loaded.nodes.serving.log).read(), "no append was overdue")
    loaded.finish()


def elsewhere(cluster, pool, segment):
    """The OSDs that have a segment, and not the header."""
    return set(cluster.acting("test", pool, segment)) - set(cluster.acting("test", pool, "pool"))


@needs(CLUSTER)
@alone
@test
def rados_outage_of_two_osds_stops_requests_until_its_end(t):
    loaded = LoadedNodes(t, "two")
    CLUSTER.kill_osd(0)
    CLUSTER.kill_osd(1)
    stopped = loaded.watch(OUTAGE_S)
    check(stopped > OUTAGE_S / 2, f"requests were completed until {stopped:.1f} s before the end of the outage")
    for osd in (0, 1):
        CLUSTER.start_osd(osd)
    CLUSTER.wait_up()
    took = loaded.wait_progress("requests after the outage")
    CLUSTER.wait_clean()
    print(
        f"outage of {OUTAGE_S:.0f} s: no request was completed for {stopped:.1f} s; they continued {took:.2f} s after "
        "all OSDs were up"
    )
    loaded.finish()


@needs(CLUSTER)
@alone
@test
def rados_outage_of_the_monitors_has_no_effect(t):
    CLUSTER.wait_clean()
    loaded = LoadedNodes(t, "mon")
    with loaded.longest() as longest:
        CLUSTER.kill_mon()
        loaded.watch(OUTAGE_S)
        loaded.wait_progress("requests without monitors")
        CLUSTER.start_mon()
        CLUSTER.wait_up()
        loaded.wait_progress("requests with monitors")
    print(f"outage of {OUTAGE_S:.0f} s: the longest request took {longest[0]:.2f} s")
    check(longest[0] < GAP_S, f"a request took {longest[0]:.1f} s while the monitors were gone")
    loaded.finish()
