"""Several pools on the same hosts: each has a process on every host that may serve it."""

import json
import os
import time
from functools import partial

from ceph import Nodes, first_answer
from clients_api import pool
from clients_metrics import scrape
from clients_rados import CLUSTER, TAKEOVER_S, wait_standby
from clients_rados_handover import Probe, after_handover, named
from harness import BLOCK, alone, check, connect, equal, needs, test, wait_for


def named_by_owner(nodes):
    """Waits until the API and the metrics of the owner report its standby."""
    name = f"host {os.uname().nodename}, process {nodes.waiting.process.pid}"
    waiting = [{"server": name, "alive": True}]
    wait_for(lambda: json.loads(pool(nodes.serving))["owner"]["standbys"] == waiting, f"standbys {waiting}", TAKEOVER_S)
    equal(scrape(nodes.serving)[f'forebay_pool_standbys{{pool="{nodes.serving.address}"}}'], 1, "the metric")


def progressed(probe, answers):
    """Whether a probe has more answers, or has failed."""
    return probe.error or probe.answers > answers


@needs(CLUSTER)
@alone
@test
def rados_pools_of_one_host_change_hands_separately(t):
    # Host `a` serves the first pool, `b` the second one; each stands by for the other.
    pools = [Nodes(t, CLUSTER, name) for name in ("first", "second")]
    pools[1].write_serving(1)
    probes = []
    for number, nodes in enumerate(pools):
        nodes.start()
        # The same names in both.
        for volume in ("disk", "probe"):
            nodes.cli("volume", "create", volume, "--size", "1M")
        h = connect(nodes, "disk")
        h.pwrite(bytes([number + 1]) * BLOCK, 0)
        h.flush()
        probes.append(Probe(nodes, "probe"))
        probes[-1].start()
        wait_standby(nodes)
        named_by_owner(nodes)

    before = [probe.answers for probe in probes]
    advanced = lambda: all(p.error or p.answers > n + 20 for p, n in zip(probes, before))  # noqa: E731
    wait_for(advanced, "answers of both pools")
    probes[0].take_longest()
    begin = time.monotonic()
    # Host `b` fails: a process that serves and one that waits.
    lost = [pools[0].waiting, pools[1].serving]
    for server in lost:
        server.kill()
    pools[1].take_over(TAKEOVER_S)
    took = first_answer(pools[1].serving, "probe", begin)
    check(took < TAKEOVER_S, f"the takeover took {took:.1f} s")
    undisturbed = probes[0].take_longest()
    for number, nodes in enumerate(pools):
        equal(bytes(connect(nodes, "disk").pread(BLOCK, 0)), bytes([number + 1]) * BLOCK, f"contents of pool {number}")

    # It returns, and gets its pool back.
    for server in lost:
        server.stand_by()
    for nodes in pools:
        wait_standby(nodes)
    done = pools[1].serving.json("pool", "handover", "--to", named(lost[1]))
    after_handover(pools[1])
    for nodes, probe in zip(pools, probes, strict=True):
        nodes.check_waiting()
        # `finish` reports the error of a probe that has failed.
        wait_for(partial(progressed, probe, probe.answers), f"progress of {nodes.address}", TAKEOVER_S)
        probe.finish()
    print(f"failure of a host: {took:.2f} s for its pool, {undisturbed:.2f} s at most for the other one, "
          f"{done['pause_ms']} ms to give it back")
