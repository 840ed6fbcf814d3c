"""Loss of a host's memory, with pools in Ceph: clients on the same host that may have answers for
lost writes are refused until an administrator resumes the volume, also after other servers had the
pool in between.

As in `clients_lost`, the process of a test is a client from before the loss.
"""

import os

from ceph import RadosServer
from clients_lost import (
    BOOTS,
    disks_in_every_state,
    lose_memory,
    lost_in_list,
    only_affected_disks_are_refused,
    read_by_new_client,
    refused,
    with_boot_id,
)
from clients_memory import content, data_of, memory_file, written, written_and_settled
from clients_rados import CLUSTER
from harness import check, connect, equal, needs, test


def hosts(t, name):
    """Two servers of a pool, as if on different hosts. The first one serves."""
    servers = [RadosServer(t, CLUSTER, name, node=node) for node in "ab"]
    for server, boot in zip(servers, BOOTS):
        with_boot_id(t, server, boot)
    servers[0].start()
    return servers


@needs(CLUSTER)
@test
def rados_local_clients_of_a_host_that_lost_its_memory_are_refused(t):
    a, b = hosts(t, "forgot")
    unaffected = disks_in_every_state(t, a)
    lose_memory(a)
    only_affected_disks_are_refused(t, a, unaffected)
    refused(a.tcp_uri("dirty"), "'dirty'", "forebay volume resume dirty")
    # Another server has the pool in between, and loses nothing itself.
    a.kill()
    b.start()
    for name, expected in unaffected.items():
        equal(content(b, name), expected, f"contents of '{name}' at the other host")
    equal(lost_in_list(b), {"dirty", "dirty-desk"}, "disks with lost writes, at the other host")
    b.stop()
    a.start()
    only_affected_disks_are_refused(t, a, unaffected)
    a.cli("volume", "resume", "dirty")
    a.cli("volume", "reset", "dirty-desk")
    equal(content(a, "dirty"), data_of(2), "contents of 'dirty' when it is resumed")
    equal(lost_in_list(a), set(), "disks with lost writes in the end")
    a.stop()
    a.offline("check")


@needs(CLUSTER)
@test
def rados_local_clients_are_refused_when_a_pool_returns_to_their_host(t):
    a, b = hosts(t, "returned")
    for lost in (True, False):
        dirty, flushed, later = disks = [f"{kind}-{lost}" for kind in ("dirty", "flushed", "later")]
        for disk in disks:
            a.cli("volume", "create", disk, "--size", "1M")
            written_and_settled(a, disk, 1)
        h = connect(a, dirty)
        h.pwrite(data_of(2), 0)
        a.kill()
        if lost:
            os.unlink(memory_file(a))
        b.start()
        # The clients of the other host are no clients of this one.
        check(read_by_new_client(t, b, dirty) in (data_of(1), data_of(2)), "what was durable")
        written(b, later, 3, flush=True)
        b.stop()
        a.start()
        # Also if the memory is still there: the pool has another history since.
        refused(a.uri(dirty), f"'{dirty}'", f"forebay volume resume {dirty}")
        equal(lost_in_list(a), {dirty}, "disks with lost writes")
        equal(content(a, flushed), data_of(1), "a disk that has lost nothing")
        equal(content(a, later), data_of(3), "what the other host has written")
        found = read_by_new_client(t, a, dirty)
        a.cli("volume", "resume", dirty)
        equal(content(a, dirty), found, "contents when it is resumed")
    a.stop()
    a.offline("check")
