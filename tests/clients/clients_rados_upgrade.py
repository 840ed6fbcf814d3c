"""Upgrades of a server whose iSCSI initiators have two paths (ALUA) to a pool in Ceph: their
sessions stay."""

import os

from clients_rados import CLUSTER, TAKEOVER_S
from clients_rados_paths import CHANGED, IN_STANDBY, OPTIMIZED, PUBLISHED_S, STANDBY, admitted, rtpg, session, two
from harness import alone, check, equal, needs, test, wait_for
from initiator import GOOD
from upgrade_load import IscsiLoad

UPGRADES = int(os.environ.get("FOREBAY_RADOS_UPGRADES", "3"))


class PathLoad(IscsiLoad):
    """A load on the active path."""

    longest_s = 10.0


def states(i):
    return {group: state for group, (state, _) in rtpg(i).items()}


@needs(CLUSTER)
@alone
@test
def rados_alua_sessions_survive_upgrades(t):
    a, b = two(t, "upgraded", "alua", apart=True)
    wait_for(lambda: admitted(session, b), "admitted by the standby", PUBLISHED_S)
    standby = session(b)
    wait_for(lambda: standby.command(bytes(6)).code == STANDBY, "a path in standby", PUBLISHED_S)
    upgrade_under_load(t, a, {1: OPTIMIZED, 2: IN_STANDBY})
    # The other path has noticed nothing, and leads to the pool when the owner dies.
    equal(standby.command(bytes(6)).code, STANDBY, "the path in standby, after upgrades of the owner")
    a.kill()
    b.wait_ready(TAKEOVER_S)
    equal(standby.command(bytes(6)).code, CHANGED, "the first answer after a takeover")
    a.stand_by()
    a.wait_bound()
    wait_for(lambda: admitted(session, a), "admitted by the former owner", PUBLISHED_S)
    # A session that began in standby stays through upgrades, too.
    equal(standby.write_blocks(100_000, b"standby " * 64).status, GOOD, "a write on the path that was in standby")
    upgrade_under_load(t, b, {1: IN_STANDBY, 2: OPTIMIZED})
    equal(standby.read_blocks(100_000, 1).data, b"standby " * 64, "the session that began in standby")
    equal(states(standby), {1: IN_STANDBY, 2: OPTIMIZED}, "states of the groups at the end")
    b.stop()


def upgrade_under_load(t, server, expected):
    """Upgrades a server several times. Its sessions stay connected, and what they read is what they wrote."""
    load = PathLoad("active path", t.random, server.portal)
    load.start()
    idle = session(server, isid=9).ready()
    for n in range(UPGRADES):
        before = load.requests
        wait_for(lambda: load.requests > before + 50 or load.error, "requests", 60)
        server.upgrade()
        equal(idle.command(bytes(6)).status, GOOD, f"an idle session after upgrade {n}")
        wait_for(lambda: states(idle) == expected, f"states of the groups after upgrade {n}", PUBLISHED_S)
    load.finish()
    check(load.requests > 0, "no requests")
    idle.logout()
    print(f"{UPGRADES} upgrades, {load.requests} commands; the longest one took {load.longest:.2f} s")
