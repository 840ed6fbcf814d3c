"""Clients that may have answers for writes that are lost: they are refused, and told how to continue.

The memory of answered writes is lost by deleting its file while the server is down. The process of a test is
a client from before the loss; commands that it starts later are clients from after it. Over the network, the
age of a client is unknown, so all are refused.
"""

import os
import re
import time

from clients_memory import content, data_of, memory_file, written, written_and_settled
from datastore import TARGET, portal, target, url
from forebay import Failed
from harness import BLOCK, MIB, check, connect, equal, need_root, run, test
from hosts import free_port
from initiator import GOOD, Initiator

# Sense data of a unit that needs an administrator, and of one that has become ready again.
MANUAL_INTERVENTION, BECAME_READY = (2, 0x04, 0x03), (6, 0x28, 0x00)
# Longer than the unit of the age of a process, by which a new process is recognised. No event marks its end.
AGE_S = 0.05
# Also the boot in which a test starts, so that it differs from the next one in any case.
BOOTS = ("11111111-2222-4333-8444-555555555555", "99999999-8888-4777-8666-555555555555")


def remote(port, export):
    """A client over TCP."""
    import nbd

    h = nbd.NBD()
    h.connect_uri(tcp_uri(port, export))
    return h


def tcp_uri(port, export):
    return f"nbd://127.0.0.1:{port}/{export}"


def lose_memory(server):
    """Kills the server, deletes its memory, and starts it again."""
    server.kill()
    os.unlink(memory_file(server))
    server.start()


def refused(uri, *words):
    """Fails unless libnbd is refused by the server's policy, with a text that contains these words."""
    import nbd

    said = []
    h = nbd.NBD()
    h.set_debug_callback(lambda _, message: said.append(message) and 0)
    h.set_debug(True)
    try:
        h.connect_uri(uri)
    except nbd.Error as e:
        check("server policy" in str(e), f"refused for another reason: {e}")
        text = next((line for line in said if "server error message" in line), "")
        for word in words:
            check(word in text, f"the server's text does not contain '{word}': {text!r}")
        return
    raise Failed(f"{uri}: a client was served that may have answers for lost writes")


def refused_command(words, *argv):
    """Runs a command that must fail with these words."""
    done = run(*argv, check=False)
    check(done.returncode != 0, f"{argv[0]} was served")
    check(words in done.stderr, f"the message of {argv[0]} does not contain '{words}': {done.stderr!r}")


def read_by_new_client(t, server, export, size=BLOCK):
    """What a client reads that started just now."""
    time.sleep(AGE_S)
    copy = t.path("copy")
    run("nbdcopy", server.uri(export), copy)
    with open(copy, "rb") as f:
        return f.read(size)


def disks_in_every_state(t, s):
    """Volumes and desktops, of which some have acknowledged writes that are not durable yet. The result: what
    those contain that a loss does not affect."""
    with open(t.path("blank"), "wb") as f:
        f.truncate(MIB)
    s.cli("image", "import", "blank", t.path("blank"))
    for name in ("quiet-desk", "dirty-desk"):
        s.cli("volume", "clone", "blank", name, "--desktop")
    for name in ("never", "flushed", "dirty"):
        s.cli("volume", "create", name, "--size", "1M")
    s.cli("volume", "create", "always", "--size", "1M", "--sync", "always")
    written_and_settled(s, "flushed", 1)
    written_and_settled(s, "dirty", 2)
    written(s, "always", 3)
    for name in ("dirty", "dirty-desk"):
        h = connect(s, name)
        h.pwrite(data_of(4), BLOCK)
    zero = bytes(BLOCK)
    return {"never": zero, "flushed": data_of(1), "always": data_of(3), "quiet-desk": zero}


def only_affected_disks_are_refused(t, s, unaffected):
    """After a loss of the memory: the other disks are served, and the affected ones to new clients only."""
    for name, expected in unaffected.items():
        equal(content(s, name), expected, f"contents of '{name}', which has lost nothing")
    refused(s.uri("dirty"), "'dirty'", "forebay volume resume dirty")
    refused(s.uri("dirty-desk"), "'dirty-desk'", "forebay volume reset dirty-desk")
    equal(read_by_new_client(t, s, "dirty"), data_of(2), "what a client reads that started after the loss")
    run("qemu-io", "-f", "raw", "-c", "read -P 0 0 1M", s.uri("dirty-desk"))
    equal(lost_in_list(s), {"dirty", "dirty-desk"}, "disks with lost writes, as 'volume list' says")


def lost_in_list(server):
    """The disks with lost writes, from the table, which must agree with `--json`."""
    lost = {v["name"] for v in server.json("volume", "list") if v["memory_lost"]}
    table = server.cli("volume", "list").stdout
    line = next((line for line in table.splitlines() if line.startswith("Lost writes:")), "")
    names = line.removeprefix("Lost writes:").partition(";")[0]
    equal({n.strip() for n in names.split(",") if n.strip()}, lost, "names in the table and in the JSON")
    return lost


@test
def a_client_with_lost_writes_is_refused_until_it_is_resumed(t):
    s = t.server()
    unaffected = disks_in_every_state(t, s)
    lose_memory(s)
    (named,) = re.findall(r'answered writes are lost: .* disks="(.*?)"', s.log_tail(50))
    equal(set(named.split(", ")), {"dirty", "dirty-desk"}, "disks with lost writes, as the log says")
    only_affected_disks_are_refused(t, s, unaffected)
    # The refusal survives servers that lose nothing.
    for end in (s.kill, s.stop):
        end()
        s.start()
        only_affected_disks_are_refused(t, s, unaffected)
    show = s.cli("volume", "show", "dirty").stdout
    check("forebay volume resume dirty" in show, f"'volume show' names no command:\n{show}")
    s.cli("volume", "resume", "dirty")
    equal(content(s, "dirty"), data_of(2), "contents of 'dirty' when it is resumed")
    refused(s.uri("dirty-desk"), "volume reset")
    equal(lost_in_list(s), {"dirty-desk"}, "disks with lost writes after 'volume resume'")
    s.cli("volume", "reset", "dirty-desk")
    equal(content(s, "dirty-desk", 2 * BLOCK), bytes(2 * BLOCK), "contents of 'dirty-desk' when it is reset")
    equal(lost_in_list(s), set(), "disks with lost writes after 'volume reset'")
    # And so does the admission.
    s.kill()
    s.start()
    equal(content(s, "dirty"), data_of(2), "contents of 'dirty' after another crash")
    content(s, "dirty-desk")


@test
def clients_over_the_network_are_told_the_command(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}", "--remote-answers", "memory")
    s.cli("volume", "create", "disk", "--size", "1M")
    h = remote(port, "disk")
    h.pwrite(data_of(1), 0)
    lose_memory(s)
    command, uri = "forebay volume resume disk", tcp_uri(port, "disk")
    refused(uri, "'disk'", command)
    # These have started after the loss, which cannot be known of clients over the network.
    refused_command(command, "qemu-io", "-f", "raw", "-c", "read 0 4k", uri)
    refused_command(command, "qemu-img", "info", uri)
    refused_command("opt_go", "nbdinfo", uri)
    # Exports are listed nevertheless.
    check("disk" in run("nbdinfo", "--list", f"nbd://127.0.0.1:{port}").stdout, "the export is not listed")
    # The same programs are served on the same host.
    time.sleep(AGE_S)
    run("qemu-io", "-f", "raw", "-c", "read 0 4k", s.uri("disk"))
    check("1048576" in run("nbdinfo", s.uri("disk")).stdout, "nbdinfo on the UNIX socket")
    s.cli("volume", "resume", "disk")
    run("qemu-io", "-f", "raw", "-c", "read 0 4k", uri)
    run("nbdinfo", uri)


@test
def clients_over_the_network_lose_nothing_by_default(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}")
    s.cli("volume", "create", "disk", "--size", "4M")
    h = remote(port, "disk")
    for round_ in range(5):
        blocks = range(round_ * 50, round_ * 50 + 50)
        for block in blocks:
            h.pwrite(data_of(block), block * BLOCK)
        lose_memory(s)
        h = remote(port, "disk")
        for block in blocks:
            equal(bytes(h.pread(BLOCK, block * BLOCK)) == data_of(block), True, f"block {block} after a loss")
        equal(lost_in_list(s), set(), "disks with lost writes")


def unit_code(initiator):
    """Sense data of TEST UNIT READY, after the unit attention of a new session."""
    code = initiator.command(bytes(6)).code
    return initiator.command(bytes(6)).code if code and code[:2] == (6, 0x29) else code


@test
def a_lun_with_lost_writes_is_not_ready_until_it_is_resumed(t):
    s, address = target(t, "back", lun=["--write-back"], serve=["--remote-answers", "memory"])
    s.cli("volume", "create", "through", "--size", "1M")
    s.cli("lun", "map", TARGET, "through")
    i = Initiator(address, TARGET).ready()
    for lun in (0, 1):
        i.ready(lun)
        equal(i.write_blocks(0, bytes([lun + 1]) * 512, lun=lun).status, GOOD, f"a write to LUN {lun}")
    lose_memory(s)
    equal(lost_in_list(s), {"back"}, "disks with lost writes")
    address = portal(s)
    i = Initiator(address, TARGET)
    for _ in range(3):
        equal(unit_code(i), MANUAL_INTERVENTION, "TEST UNIT READY")
        equal(i.read_blocks(0, 1).code, MANUAL_INTERVENTION, "a read")
        equal(i.write_blocks(0, bytes(512)).code, MANUAL_INTERVENTION, "a write")
        equal(i.command(bytes([0x12, 0, 0, 0, 96, 0]), expected=96).status, GOOD, "INQUIRY")
    # Writes that are acknowledged when they are durable are not lost.
    while (read := i.read_blocks(0, 1, lun=1)).status != GOOD:
        equal(read.code[0], 6, "a read of the other LUN")
    equal(read.data, bytes([2]) * 512, "contents of the other LUN")
    # Other initiators.
    refused_command("0x0403", "iscsi-inq", url(address))
    refused_command("0x0403", "qemu-io", "-f", "raw", "-c", "read 0 4k", url(address))
    check("FOREBAY" in run("iscsi-inq", url(address, 1)).stdout, "INQUIRY of the other LUN")
    s.cli("volume", "resume", "back")
    equal(i.command(bytes(6)).code, BECAME_READY, "unit attention of the LUN when it is resumed")
    equal(i.read_blocks(0, 1).status, GOOD, "a read afterwards")
    run("qemu-io", "-f", "raw", "-c", "read 0 4k", url(address))


@test
def losses_are_accepted_on_request(t):
    s = t.server(config='[durability]\non_memory_loss = "accept"\n')
    s.cli("volume", "create", "disk", "--size", "1M")
    written(s, "disk", 1, flush=True)
    h = connect(s, "disk")
    h.pwrite(data_of(2), BLOCK)
    lose_memory(s)
    equal(content(s, "disk"), data_of(1), "what was flushed")
    equal(lost_in_list(s), set(), "disks with lost writes")
    warnings = [line for line in s.log_tail(50).splitlines() if " WARN " in line and "disk" in line]
    check(any("lost" in line for line in warnings), f"no warning names the disk:\n{s.log_tail()}")


@test
def memory_that_is_removed_under_the_server_is_lost(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "1M")
    written(s, "disk", 1, flush=True)
    os.unlink(memory_file(s))
    h = connect(s, "disk")
    h.pwrite(data_of(2), 0)
    equal(bytes(h.pread(BLOCK, 0)), data_of(2), "what the server serves")
    s.kill()
    s.start()
    refused(s.uri("disk"), "volume resume")
    # A server that stops in order loses nothing.
    s.cli("volume", "resume", "disk")
    os.unlink(memory_file(s))
    written(s, "disk", 3)
    s.stop()
    s.start()
    equal(content(s, "disk"), data_of(3), "what was written before the stop")


def with_boot_id(t, s, text):
    """Lets the server start in a mount namespace in which the host has another boot id."""
    need_root("a mount namespace")
    path = t.path(f"boot-{text[:8]}")
    with open(path, "w") as f:
        f.write(f"{text}\n")
    mount = f"mount --bind {path} /proc/sys/kernel/random/boot_id"
    s.prefix = ["unshare", "-m", "sh", "-ec", f'{mount}; exec "$@"', "sh"]


@test
def after_a_start_of_the_host_local_clients_are_served_and_remote_ones_refused(t):
    port = free_port()
    s = t.server("--nbd", f"127.0.0.1:{port}", "--remote-answers", "memory", start=False)
    with_boot_id(t, s, BOOTS[0])
    s.start()
    for name in ("local", "remote"):
        s.cli("volume", "create", name, "--size", "1M")
        written_and_settled(s, name, 1)
    clients = connect(s, "local"), remote(port, "remote")
    for h in clients:
        h.pwrite(data_of(2), 0)
    s.kill()
    # In the same boot, all is there.
    s.start()
    for name in ("local", "remote"):
        equal(content(s, name), data_of(2), f"contents of '{name}' in the same boot")
    clients = connect(s, "local"), remote(port, "remote")
    for h in clients:
        h.flush()
        h.pwrite(data_of(3), 0)
    s.kill()
    with_boot_id(t, s, BOOTS[1])
    s.start()
    # The clients of this host ended with it, although this one plays one that did not.
    check(content(s, "local") in (data_of(2), data_of(3)), "contents of 'local' after a start of the host")
    refused(tcp_uri(port, "remote"), "forebay volume resume remote")
    s.cli("volume", "resume", "remote")
    found = bytes(remote(port, "remote").pread(BLOCK, 0))
    check(found in (data_of(2), data_of(3)), "contents of 'remote' when it is resumed")
