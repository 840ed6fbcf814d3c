"""Memory of another pool, of another server, or of another time of its pool."""

import os
import shutil

from clients_failures import one_line
from clients_lost import read_by_new_client, refused
from clients_memory import content, data_of, memory_file, written
from harness import BLOCK, check, connect, equal, run, test


@test
def memory_of_another_pool_is_not_used(t):
    servers = []
    for number in (1, 2):
        s = t.server(data=f"pool-{number}", start=False)
        s.memory = os.path.join(t.memory, str(number))
        os.mkdir(s.memory, 0o700)
        s.start()
        s.cli("volume", "create", "disk", "--size", "1M")
        written(s, "disk", number, flush=True)
        h = connect(s, "disk")
        h.pwrite(data_of(10 + number), 0)
        s.kill()
        servers.append(s)
    first, second = servers
    run("cp", "--sparse=always", memory_file(second), memory_file(first))
    first.start()
    refused(first.uri("disk"), "forebay volume resume disk")
    check(read_by_new_client(t, first, "disk") in (data_of(1), data_of(11)), "contents after a loss")
    second.start()
    equal(content(second, "disk"), data_of(12), "contents of the pool whose memory was copied")


@test
def a_second_server_does_not_touch_the_memory_of_the_first(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    h = connect(s, "disk")
    h.pwrite(data_of(1), 0)
    # A second one on the pool, with the same memory and with another; and one on a copy of the pool.
    other = os.path.join(t.memory, "other")
    os.mkdir(other, 0o700)
    shutil.copytree(s.data, t.path("copy-of-data"))
    for data, memory, words in (
        ("data", s.memory, ("in use", "another server")),
        ("data", other, ("in use", "another server")),
        ("copy-of-data", s.memory, ("another server",)),
    ):
        second = t.server(data=data, start=False)
        second.log, second.memory = t.path("second.log"), memory
        line = one_line(second, f"a second server on {data}")
        check(any(w in line for w in words), f"a second server on {data}: '{line}' contains none of {words}")
    os.rmdir(other)
    h.pwrite(data_of(2), 0)
    s.kill()
    s.start()
    equal(content(s, "disk"), data_of(2), "what the first server has acknowledged")


@test
def a_copy_of_a_pool_does_not_use_up_the_memory_of_the_original(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    h = connect(s, "disk")
    h.pwrite(data_of(1), 0)
    h.flush()
    h.pwrite(data_of(2), 0)
    s.kill()
    shutil.copytree(s.data, t.path("copied"))
    # Someone looks at the copy: it may take over the memory, but the original must notice.
    copy = t.server(data="copied")
    copied = connect(copy, "disk")
    copied.pwrite(data_of(3), BLOCK)
    copied.flush()
    copied.pwrite(data_of(4), 2 * BLOCK)
    copy.kill()
    s.start()
    found = served_or_refused(s)
    check(found in (None, data_of(2)), "the original has lost a write, and serves the client that was told it is there")
    if found:
        equal(content(s, "disk", 3 * BLOCK)[BLOCK:], bytes(2 * BLOCK), "blocks that were written to the copy only")


@test
def a_pool_that_is_restored_from_a_backup_does_not_get_newer_writes(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    h = connect(s, "disk")
    h.pwrite(data_of(1) + data_of(1), 0)
    h.flush()
    shutil.copytree(s.data, t.path("backup"))
    # Block 0 reaches the log after the backup; block 1, which is newer, is in memory.
    h.pwrite(data_of(2), 0)
    h.flush()
    h.pwrite(data_of(3), BLOCK)
    s.kill()
    shutil.rmtree(s.data)
    shutil.move(t.path("backup"), s.data)
    s.start()
    refused(s.uri("disk"), "forebay volume resume disk")
    found = read_by_new_client(t, s, "disk", 2 * BLOCK)
    check(found == data_of(1) + data_of(1), "a newer write is visible without the older one: no prefix of history")


def served_or_refused(s):
    """Block 0, as this process reads it; `None` if it is refused."""
    import nbd

    try:
        return content(s, "disk")
    except nbd.Error:
        return None


