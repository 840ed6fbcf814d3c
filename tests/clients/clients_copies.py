"""Memory of another pool, of another server, or of another time of its pool."""

import json
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
    for memory in (s.memory, other):
        second = t.server(start=False)
        second.log, second.memory = t.path("second.log"), memory
        line = one_line(second, "a second server on the pool")
        check("in use" in line or "another server" in line, f"a second server on the pool: '{line}'")
    os.rmdir(other)
    shutil.copytree(s.data, t.path("copy-of-data"))
    copy = t.server(data="copy-of-data")
    h.pwrite(data_of(2), 0)
    copy.cli("volume", "resume", "disk")
    written(copy, "disk", 3)
    s.kill()
    copy.stop()
    s.start()
    equal(content(s, "disk"), data_of(2), "what the first server has acknowledged")


def pool_with_acknowledged_writes(t):
    """A killed server. Block 0 of its disk is flushed, blocks 1 and 2 are in its memory only; this process is
    their client."""
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    h = connect(s, "disk")
    h.pwrite(data_of(1), 0)
    h.flush()
    h.pwrite(data_of(2) + data_of(3), BLOCK)
    s.kill()
    return s


def has_lost_nothing(s):
    equal(content(s, "disk", 3 * BLOCK), data_of(1) + data_of(2) + data_of(3), "what was acknowledged by the original")


def use_copy(t, name):
    """Opens a copy on the host of its killed original, writes to it, and kills it. The writes that were not
    durable are lost in the copy, and it has separate memory."""
    files = {file: os.stat(os.path.join(t.memory, file)).st_ino for file in os.listdir(t.memory)}
    copy = t.server(data=name, start=False)
    line = one_line(copy, "a copy that may be a pool that was moved")
    check("if it is a copy" in line and t.memory in line, f"a copy of a killed pool: '{line}'")
    shared, copy.memory = copy.memory, os.path.join(t.memory, "copy")
    os.mkdir(copy.memory, 0o700)
    copy.start()
    refused(copy.uri("disk"), "forebay volume resume disk")
    copy.stop()
    os.rmdir(copy.memory)
    copy.memory = shared
    copy.start()
    refused(copy.uri("disk"), "forebay volume resume disk")
    copy.cli("volume", "resume", "disk")
    written(copy, "disk", 4)
    copy.kill()
    kept = {file: os.stat(os.path.join(t.memory, file)).st_ino for file in os.listdir(t.memory) if file in files}
    equal(kept, files, "files of the memory that existed before")
    return copy


def removed_at_the_end(s):
    """A server that is stopped leaves no memory."""
    before = set(os.listdir(s.memory))
    s.stop()
    equal(len(before - set(os.listdir(s.memory))), 1, f"files of the memory that a stop removes, of {before}")


@test
def files_that_killed_servers_left_are_listed(t):
    s = pool_with_acknowledged_writes(t)

    def listed():
        args = ("--data", s.data, "memory", "list", "--memory-dir", s.memory)
        text = run(s.bin, *args).stdout
        (found,) = json.loads(run(s.bin, *args, "--json").stdout)
        equal(found["file"], memory_file(s), "file")
        check(found["advice"].split(":")[0] in text and found["file"] in text, f"the text: {text}")
        return found["directory"], found["state"]

    equal(listed(), (s.data, "needed"), "a killed server")
    s.start()
    equal(listed(), (s.data, "in_use"), "a server that runs")
    s.kill()
    run("cp", "-a", s.data, t.path("copied"))
    run("rm", "-r", s.data)
    equal(listed(), (None, "no_pool"), "the memory of a pool that was removed, of which there is a copy")
    done = run(s.bin, "memory", "list", "--memory-dir", t.path("none"), check=False)
    check(done.returncode == 1 and t.path("none") in done.stderr, f"a directory that does not exist: {done}")


@test
def a_copy_of_a_pool_does_not_use_the_memory_of_the_original(t):
    s = pool_with_acknowledged_writes(t)
    run("cp", "-a", s.data, t.path("copied"))
    copy = use_copy(t, "copied")
    copy.start()
    equal(content(copy, "disk"), data_of(4), "the acknowledged write of the copy")
    removed_at_the_end(copy)
    # The original may be renamed, and the copy be put in its place.
    os.rename(s.data, t.path("renamed"))
    os.rename(copy.data, s.data)
    copy = t.server(data="data")
    copy.kill()
    original = t.server(data="renamed")
    has_lost_nothing(original)
    removed_at_the_end(original)


@test
def memory_of_an_earlier_release_is_used_by_the_original_only(t):
    s = pool_with_acknowledged_writes(t)
    new = memory_file(s)
    old = new.rsplit("-", 3)[0]
    os.rename(new, old)
    run("cp", "-a", s.data, t.path("copied"))
    # The file system has to state when a file was created.
    if run("stat", "-c", "%W", os.path.join(s.data, "superblock")).stdout.strip() not in ("0", "-"):
        removed_at_the_end(use_copy(t, "copied").start())
    for end in (s.kill, lambda: removed_at_the_end(s)):
        s.start()
        has_lost_nothing(s)
        check(os.path.exists(old), "the name is kept, for the release that made the file")
        end()
    s.start()
    equal(memory_file(s), new, "the name of the next memory")


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
