"""iSCSI initiators of a pool in Ceph with two servers: logins that are redirected, and ALUA.

They share the cluster of `clients_rados`.
"""

import os
import re
import select
import socket
import struct
import threading
import time

from ceph import RadosServer
from clients_rados import CLUSTER, TAKEOVER_S
from clients_lost import BOOTS, with_boot_id
from datastore import TARGET, refused, url
from forebay import Failed
from harness import check, equal, needs, run, test, wait_for
from hosts import free_port
from initiator import BLOCK, GOOD, Closed, Initiator, Refused, pairs, text_of

SECRET = "twelve bytes and more"
MOVED, NOT_FOUND, DENIED, UNAVAILABLE, MISSING = 0x0101, 0x0203, 0x0201, 0x0301, 0x0207
STANDBY, POWER_ON, CHANGED, RESIZED = (2, 4, 0x0B), (6, 0x29, 1), (6, 0x2A, 6), (6, 0x2A, 9)
OPTIMIZED, IN_STANDBY = 0, 2
# Time for what an owner publishes to reach a standby, on a busy machine.
PUBLISHED_S = 30


class Path(RadosServer):
    """One of two servers, with its portal."""

    def __init__(self, t, name, node, mode, group=None, more=""):
        self.portal = ("127.0.0.1", free_port())
        config = f'[iscsi]\nwhile_standby = "{mode}"\n{more}' + (f"port_group = {group}\n" if group else "")
        portal = f"{self.portal[0]}:{self.portal[1]}"
        super().__init__(t, CLUSTER, name, "--iscsi", portal, node=node, config=config)

    def wait_bound(self):
        """Waits until it accepts connections."""
        wait_for(lambda: connects(self.portal), f"a portal of {self.log}")
        return self


def connects(portal):
    try:
        socket.create_connection(portal, timeout=5).close()
    except OSError:
        return False
    return True


def two(t, name, mode, more="", create=("--open",), apart=False):
    """An owner with a target of one disk, and its standby; with `apart`, as if on different hosts."""
    groups = (1, 2) if mode == "alua" else (None, None)
    a, b = (Path(t, name, node, mode, group, more) for node, group in zip("ab", groups))
    if apart and os.geteuid() == 0:
        for server, boot in zip((a, b), BOOTS):
            with_boot_id(t, server, boot)
    a.start()
    a.cli("volume", "create", "disk", "--size", "64M")
    a.cli("target", "create", TARGET, *create)
    a.cli("lun", "map", TARGET, "disk")
    b.stand_by()
    return a, b.wait_bound()


def moved_to(portal, target=TARGET, name="iqn.2026-01.org.example:any"):
    """Logs in, and returns the address to which it is redirected."""
    i = Raw(portal)
    keys = {"InitiatorName": name, "SessionType": "Normal", "TargetName": target, "AuthMethod": "None"}
    if target is None:
        keys = {"InitiatorName": name, "SessionType": "Discovery"}
    status, said = i.login(text_of(keys))
    i.close()
    equal(status, MOVED, "the status of a login at a standby")
    equal(list(said), ["TargetAddress"], "keys of a redirection")
    return said["TargetAddress"]


class Raw(Initiator):
    """A connection whose login requests are arbitrary."""

    def __init__(self, portal):
        self.socket = socket.create_connection(portal, timeout=60)
        self.buffer, self.header_digest, self.data_digest = b"", False, False
        self.isid, self.cmd_sn, self.exp_stat_sn = struct.pack(">BHBH", 0x80, 0, 0, 1), 1, 0

    def login(self, text, flags=0x87):
        """Sends a request; the status and the keys of the answer."""
        header = bytearray(48)
        header[0], header[1] = 0x43, flags
        header[8:14] = self.isid
        self.send(header, text)
        answer, data = self.receive()
        return struct.unpack_from(">H", answer, 36)[0], pairs(data)


@needs(CLUSTER)
@test
def rados_standbys_redirect_logins(t):
    a, b = two(t, "redirect", "redirect", create=(), apart=True)
    a.cli("target", "allow", TARGET, "iqn.2026-01.org.example:friend")
    to_a = f"{a.portal[0]}:{a.portal[1]}"
    # The same for all: the answer does not depend on which targets and initiators exist.
    for target, name in ((TARGET, "friend"), (TARGET, "stranger"), (TARGET + "x", "friend"), (None, "stranger")):
        equal(moved_to(b.portal, target, f"iqn.2026-01.org.example:{name}"), to_a, "the owner's portal")
    broken_logins(b.portal)
    a.cli("target", "create", TARGET + "2", "--open")
    a.cli("lun", "map", TARGET + "2", "disk")
    through_b = url(b.portal).replace(TARGET, TARGET + "2")
    check("FOREBAY" in run("iscsi-inq", through_b).stdout, "iscsi-inq through a redirection")
    run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 0 1M", "-c", "flush", through_b)
    run("qemu-io", "-f", "raw", "-c", "read -P 0x5a 0 1M", through_b)
    flood(b.portal, to_a)
    held_logins_are_served_after_a_takeover(a, b, through_b)


def broken_logins(portal):
    """Requests that are no logins are refused, and do no harm."""
    for text, status in ((b"TargetName=x\0", MISSING), (b"\xff\0", 0x0200), (b"no equals sign\0", 0x0200)):
        i = Raw(portal)
        equal(i.login(text)[0], status, f"status of a login with {text}")
        i.close()
    for junk in (bytes(48), b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n" * 4):
        with socket.create_connection(portal, timeout=60) as s:
            try:
                s.sendall(junk)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
            except OSError:
                pass  # the server closed it


def flood(portal, to):
    """Thousands of redirections from several threads, next to silent connections."""
    silent = [socket.create_connection(portal) for _ in range(300)]
    errors = []

    def redirected():
        try:
            for _ in range(300):
                equal(moved_to(portal), to, "the owner's portal")
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=redirected) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for s in silent:
        s.close()
    check(not errors, f"during a flood: {errors[:1]}")


@needs(CLUSTER)
@test
def rados_standbys_bound_their_connections(t):
    a, b = two(t, "bounded", "redirect", more="[limits]\nconnections = 200\nnegotiating = 100\n")
    to_a = f"{a.portal[0]}:{a.portal[1]}"
    equal(moved_to(b.portal), to_a, "the owner's portal")
    silent = []
    for _ in range(3):
        silent += [socket.create_connection(b.portal) for _ in range(150)]
        # Silent connections give way after half a second.
        equal(moved_to(b.portal), to_a, f"the owner's portal, next to {len(silent)} silent connections")
    for s in silent:
        s.close()
    equal(moved_to(b.portal), to_a, "the owner's portal")


def held_logins_are_served_after_a_takeover(a, b, through_b):
    """While the owner is dead, logins wait: at the end the standby serves the same address."""
    held = [Raw(b.portal) for _ in range(300)]
    text = text_of({"InitiatorName": "iqn.2026-01.org.example:any", "SessionType": "Discovery"})

    def ask(i):
        header = bytearray(48)
        header[0], header[1] = 0x43, 0x87
        header[8:14] = i.isid
        i.send(header, text)

    def held_login():
        """A login that is not answered at once, which a redirection is."""
        i = Raw(b.portal)
        ask(i)
        if not b.is_ready() and select.select([i.socket], [], [], 0.3)[0]:
            i.close()
            return None
        return i

    a.kill()
    # Until the standby has noticed, it redirects.
    first = wait_for(held_login, "a login that waits for an owner")
    for i in held:
        ask(i)
    b.wait_ready(TAKEOVER_S)
    statuses = []
    for i in [first, *held]:
        try:
            statuses.append(struct.unpack_from(">H", i.receive()[0], 36)[0])
        except (Closed, ConnectionError):
            statuses.append(None)
        i.close()
    # A busy standby may be late with the redirection of the first one: then it had not noticed.
    expected = {None, UNAVAILABLE, 0} | ({MOVED} if statuses[0] == MOVED else set())
    check(set(statuses) <= expected, f"logins without an owner: {set(statuses)}")
    check(statuses.count(None) <= 256, "more logins were held than the limit")
    run("qemu-io", "-f", "raw", "-c", "read -P 0x5a 0 1M", through_b)
    # The former owner returns, and redirects to the new one.
    a.stand_by()
    a.wait_bound()
    equal(moved_to(a.portal), f"{b.portal[0]}:{b.portal[1]}", "the new owner's portal")


def rtpg(i):
    """The groups of REPORT TARGET PORT GROUPS: state and relative port, by number."""
    data = i.command(struct.pack(">BBIIBB", 0xA3, 0x0A, 0, 4096, 0, 0), expected=4096).data
    equal(int.from_bytes(data[:4]), len(data) - 4, "the length of the groups")
    groups = {}
    for at in range(4, len(data), 12):
        state, _, group, _, _, _, count, _, port = struct.unpack_from(">BBHBBBBHH", data, at)
        equal(count, 1, "ports of a group")
        groups[group] = (state & 15, port)
    return groups


def vpd(i, page):
    return i.command(struct.pack(">BBBHB", 0x12, 1, page, 1024, 0), expected=1024).data


def port_of(page):
    """Group and relative port in the page of identification."""
    found, at = {}, 4
    while at < len(page):
        kind, length = page[at + 1] & 0x3F, page[at + 3]
        found[kind] = page[at + 4 : at + 4 + length]
        at += 4 + length
    return int.from_bytes(found[0x15][2:]), int.from_bytes(found[0x14][2:])


def units_of(page):
    """The designators of the unit in the page of identification."""
    found, at = [], 4
    while at < len(page):
        if page[at + 1] & 0x30 == 0:
            found.append(bytes(page[at : at + 4 + page[at + 3]]))
        at += 4 + page[at + 3]
    return found


@needs(CLUSTER)
@test
def rados_standbys_are_paths_in_standby(t):
    with open(t.path("secret"), "w") as f:
        f.write(SECRET)
    a, b = two(t, "alua", "alua", create=("--chap-user", "u", "--chap-secret-file", t.path("secret")))
    friend = "iqn.2026-01.org.example:friend"
    a.cli("target", "allow", TARGET, friend)

    def login(server, isid=1, name=friend, chap=("u", SECRET)):
        return Initiator(server.portal, TARGET, name=name, isid=isid, chap=chap, timeout=60)

    wait_for(lambda: admitted(login, b), "admitted by the standby", PUBLISHED_S)
    refused(DENIED, login, b, chap=("u", "not the right secret"))
    refused(DENIED, login, b, chap=None)
    refused(NOT_FOUND, login, b, name="iqn.2026-01.org.example:stranger")
    broken_logins(b.portal)
    active, standby = login(a), login(b)
    described_alike(a, b, active, standby)
    refused_in_standby(standby)
    equal(active.ready().write_blocks(8, b"before  " * 64).status, GOOD, "a write on the active path")
    changes_reach_the_standby(t, a, b, login, standby)
    discovers_both(a, b, friend)

    # The owner dies, and both sessions know what to do.
    a.kill()
    b.wait_ready(TAKEOVER_S)
    equal(standby.command(bytes(6)).code, CHANGED, "the first answer after a takeover")
    equal(standby.command(bytes(6)).status, GOOD, "the second")
    equal({group: state for group, (state, _) in rtpg(standby).items()}, {1: IN_STANDBY, 2: OPTIMIZED}, "groups")
    equal(standby.read_blocks(8, 1).data, b"before  " * 64, "what the former owner acknowledged")
    equal(standby.write_blocks(8, b"after   " * 64).status, GOOD, "a write on the path that was in standby")
    a.stand_by()
    a.wait_bound()
    wait_for(lambda: admitted(login, a), "admitted by the former owner", PUBLISHED_S)
    again = login(a)
    equal(again.command(bytes(6)).code, POWER_ON, "the former owner's first answer")
    equal(again.command(bytes(6)).code, STANDBY, "the former owner")
    equal({group: state for group, (state, _) in rtpg(again).items()}, {1: IN_STANDBY, 2: OPTIMIZED}, "groups of it")
    b.stop()
    a.wait_ready(TAKEOVER_S)
    equal(again.command(bytes(6)).code, CHANGED, "after the way back")
    equal(again.read_blocks(8, 1).data, b"after   " * 64, "after the way back")


def admitted(login, server):
    try:
        login(server, isid=50).close()
    except (Refused, Closed, ConnectionError, TimeoutError):
        return False
    return True


def described_alike(a, b, active, standby):
    """Both paths lead to the same unit, and know each other."""
    first, second = vpd(active, 0x83), vpd(standby, 0x83)
    equal(units_of(second), units_of(first), "designators of the unit")
    check(len(units_of(first)) == 3, "designators of the unit")
    equal(vpd(standby, 0x80), vpd(active, 0x80), "serial numbers")
    equal((port_of(first), port_of(second)), ((1, 1), (2, 4097)), "groups and relative ports")
    for i in (active, standby):
        inquiry = i.command(bytes([0x12, 0, 0, 0, 96, 0]), expected=96).data
        equal((inquiry[0], inquiry[5] >> 4 & 3), (0, 1), "INQUIRY")
        equal(i.command(bytes(6)).code, POWER_ON, "the first command of a session")
    expected = {1: (OPTIMIZED, 1), 2: (IN_STANDBY, 4097)}
    equal(rtpg(standby), expected, "groups as the standby reports them")
    wait_for(lambda: rtpg(active) == expected, "the standby known to the owner", PUBLISHED_S)
    luns = struct.pack(">BBBBBBIBB", 0xA0, 0, 0, 0, 0, 0, 256, 0, 0)
    equal(standby.command(luns, expected=256).data, active.command(luns, expected=256).data, "units")
    capacity = struct.pack(">BBQIBB", 0x9E, 0x10, 0, 32, 0, 0)
    equal(standby.command(capacity, expected=32).data, active.command(capacity, expected=32).data, "sizes")
    caching = bytes([0x1A, 8, 8, 0, 255, 0])
    equal(standby.command(caching, expected=255).data, active.command(caching, expected=255).data, "caches")


def refused_in_standby(i):
    equal(i.command(bytes(6)).code, STANDBY, "TEST UNIT READY")
    equal(i.read_blocks(8, 1).code, STANDBY, "a read")
    equal(i.write_blocks(8, b"lost    " * 64).code, STANDBY, "a write")
    equal(i.write_blocks(0, bytes(1 << 20)).code, STANDBY, "a long write")
    equal(i.compare_and_write(8, bytes(BLOCK), bytes(BLOCK)).code, STANDBY, "COMPARE AND WRITE")
    sense = i.command(bytes([3, 0, 0, 0, 18, 0]), expected=18).data
    equal((sense[2] & 15, sense[12], sense[13]), STANDBY, "REQUEST SENSE")
    equal(i.read_blocks(0, 1, lun=7).code, (5, 0x25, 0), "a unit that does not exist")


def changes_reach_the_standby(t, a, b, login, standby):
    """Sizes, disks, and access lists."""
    a.cli("volume", "resize", "disk", "128M")
    wait_for(lambda: standby.command(bytes(6)).code == RESIZED, "resized", PUBLISHED_S)
    a.cli("volume", "create", "more", "--size", "8M")
    a.cli("lun", "map", TARGET, "more")
    wait_for(lambda: standby.command(bytes(6), lun=1).code == STANDBY, "mapped", PUBLISHED_S)
    guest = "iqn.2026-01.org.example:guest"
    a.cli("target", "allow", TARGET, guest)
    wait_for(lambda: admitted(lambda s, isid: login(s, isid, name=guest), b), "allowed", PUBLISHED_S)
    session = login(b, 3, name=guest)
    a.cli("target", "deny", TARGET, guest)
    wait_for(lambda: ended(session), "ended", PUBLISHED_S)
    refused(NOT_FOUND, login, b, name=guest)
    while standby.command(bytes(6)).code != STANDBY:
        pass


def ended(session):
    try:
        session.command(bytes(6))
    except (Closed, ConnectionError):
        return True
    return False


def discovers_both(a, b, name):
    both = {f"TargetAddress={s.portal[0]}:{s.portal[1]},{group}" for group, s in ((1, a), (2, b))}
    for server in (a, b):
        found = Initiator(server.portal, name=name).text({"SendTargets": "All"})
        equal(set(found), {f"TargetName={TARGET}", *both}, f"what is discovered at {server.log}")


@needs(CLUSTER)
@test
def rados_hosts_with_two_paths_lose_no_acknowledged_write(t):
    """A host that does as multipathd: it writes on the path whose group is active."""
    a, b = two(t, "paths", "alua", apart=True)
    wait_for(lambda: admitted(session, b), "admitted by the standby", PUBLISHED_S)
    paths = [session(a).ready(), session(b)]
    servers, written, attempts, at = [a, b], {}, 0, 0
    for takeover in range(2):
        for n in range(200):
            block = at % 1000
            data = struct.pack(">Q", at) * (BLOCK // 8)
            active = next(p for p in paths if p)
            equal(active.write_blocks(block, data).status, GOOD, f"write {at} on the active path")
            written[block] = data
            at += 1
        owner = 0 if servers[0].is_ready() else 1
        began = time.monotonic()
        servers[owner].kill()
        other = paths[1 - owner] if takeover == 0 else None
        paths = [None, None]
        paths[1 - owner] = other or session(servers[1 - owner])
        block, data = at % 1000, struct.pack(">Q", at) * (BLOCK // 8)
        while True:
            attempts += 1
            done = paths[1 - owner].write_blocks(block, data)
            if done.status == GOOD:
                break
            check(done.code in (STANDBY, CHANGED, POWER_ON), f"a write during a takeover: {done}")
            check(time.monotonic() - began < TAKEOVER_S, "the path stays in standby")
            time.sleep(0.05)
        written[block] = data
        at += 1
        print(f"from the death of the owner to a write on the other path: {time.monotonic() - began:.2f} s")
        for block, data in written.items():
            equal(paths[1 - owner].read_blocks(block, 1).data, data, f"block {block}")
        servers[1 - owner].wait_ready(TAKEOVER_S)
        servers[owner].stand_by()
        servers[owner].wait_bound()
        wait_for(lambda: admitted(session, servers[owner]), "admitted by the former owner", PUBLISHED_S)
    print(f"{at} writes; {attempts} attempts during the takeovers")


def session(server, isid=1):
    return Initiator(server.portal, TARGET, isid=isid, timeout=60)


@needs(CLUSTER)
@test
def rados_libiscsi_tools_know_both_paths(t):
    a, b = two(t, "tools", "alua")
    wait_for(lambda: admitted(session, b), "admitted by the standby", PUBLISHED_S)
    # The tools begin with TEST UNIT READY, and give up.
    done = run("iscsi-inq", url(b.portal), check=False)
    check("NOT READY" in done.stderr + done.stdout, f"iscsi-inq at the standby: {done.stdout}{done.stderr}")
    before = run("iscsi-inq", "-e", "1", "-c", "128", url(a.portal)).stdout
    listed = run("iscsi-ls", f"iscsi://{b.portal[0]}:{b.portal[1]}").stdout
    check(all(str(s.portal[1]) in listed for s in (a, b)), f"iscsi-ls at the standby: {listed}")
    for name in ("Inquiry.Standard", "Inquiry.EVPD", "Inquiry.MandatoryVPDSBC", "ReportSupportedOpcodes.Simple"):
        said = run("iscsi-test-cu", f"--test=ALL.{name}", url(a.portal), check=False).stdout
        check(re.search(r"tests\s+1\s+1\s+1\s+0", said), f"{name} at the owner:\n{said[-1500:]}")
    a.kill()
    b.wait_ready(TAKEOVER_S)
    equal(run("iscsi-inq", "-e", "1", "-c", "128", url(b.portal)).stdout, before, "the serial number after a takeover")

@needs(CLUSTER)
@test
def rados_servers_with_the_same_group_are_told(t):
    a = Path(t, "same", "a", "alua", 1).start()
    a.cli("target", "create", TARGET, "--open")
    b = Path(t, "same", "b", "alua", 1)
    b.stand_by()
    b.wait_bound()
    wait_for(lambda: "same [iscsi] port_group" in b.log_tail(50), "in the log", PUBLISHED_S)
    refused(UNAVAILABLE, session, b)
    equal(session(a).command(bytes([0x12, 0, 0, 0, 96, 0]), expected=96).status, GOOD, "the owner serves")
    for line in ('while_standby = "alua"\n', 'while_standby = "alua"\nport_group = 17\n', 'portals = ["0.0.0.0:3260"]\n'):
        with open(t.path("bad.toml"), "w") as f:
            f.write("[iscsi]\n" + line)
        done = run(a.bin, "serve", "--data", t.path("bad"), "--pool", a.address, "--config", t.path("bad.toml"), check=False)
        check(done.returncode == 1 and "iscsi." in done.stderr, f"{line}: {done.returncode}, {done.stderr}")
    if b.process.poll() is not None:
        raise Failed("the standby has ended")
