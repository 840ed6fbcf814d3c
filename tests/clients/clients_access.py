"""Access over iSCSI: tenants that share a golden image, revoked secrets, and guesses."""

import struct
import threading
import time

from datastore import TARGET, portal, refused, target
from forebay import Failed
from harness import check, equal, test, wait_for
from initiator import BLOCK, GOOD, Closed, Initiator, Refused

SECRET, NEXT_SECRET = "twelve bytes and more", "the secret of tomorrow"
HOST = "iqn.2026-01.org.example:host"
LUN_RESET = 5
WRITE_PROTECTED = (7, 0x27, 0)


def secret_file(t, secret):
    path = t.path(f"secret-{secret[:4]}")
    with open(path, "w") as f:
        f.write(secret)
    return path


def closed(session, what):
    def is_closed():
        try:
            session.command(bytes(6))
            return False
        except Closed:
            return True

    wait_for(is_closed, what)


def reserve_out(action, kind, key, action_key, keep=False):
    return struct.pack(">BBBHIB", 0x5F, action, kind, 0, 24, 0), struct.pack(">QQIBBH", key, action_key, 0, keep, 0, 0)


@test
def tenants_of_one_image_are_isolated(t):
    s = t.server("--iscsi", "127.0.0.1:0")
    s.cli("volume", "create", "prepared", "--size", "8M")
    s.cli("snapshot", "create", "prepared", "golden")
    s.cli("volume", "create", "shared", "--size", "8M")
    tenants = [f"iqn.2026-01.org.example:tenant-{n}" for n in (1, 2)]
    for tenant in tenants:
        s.cli("target", "create", tenant, "--open")
        s.cli("lun", "map", tenant, "prepared@golden")
    address = portal(s)
    one, two = (Initiator(address, tenant, name=f"{HOST}-{tenant[-1]}").ready() for tenant in tenants)
    for action, key in ((0, 5), (6, 5), (1, 0)):
        cdb, out = reserve_out(action, 3, 0, key, keep=True)
        equal(one.command(cdb, out=out).code, WRITE_PROTECTED, f"PERSISTENT RESERVE OUT, service action {action}")
    equal(one.command(bytes([0x16, 0, 0, 0, 0, 0])).code, WRITE_PROTECTED, "RESERVE")
    swp = bytes(4) + bytes([0x0A, 0x0A, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0])
    equal(one.command(bytes([0x15, 0x10, 0, 0, len(swp), 0]), out=swp).code, WRITE_PROTECTED, "MODE SELECT with SWP")
    one.manage(LUN_RESET)
    answer, _ = one.receive()
    equal((answer[0], answer[2]), (0x22, 0), "answer to a reset")
    equal(one.command(bytes(6)).code, (6, 0x29, 3), "the attention of the tenant that asked for the reset")
    equal(two.command(bytes(6)).status, GOOD, "the other tenant gets no attention")
    equal(two.read_blocks(0, 1).status, GOOD, "a read of the other tenant")


@test
def administrators_show_and_clear_reservations(t):
    s, address = target(t, "disk")
    one, two = (Initiator(address, TARGET, name=f"{HOST}-{n}", isid=n).ready() for n in (1, 2))
    for cdb, out in (reserve_out(0, 0, 0, 0x77, keep=True), reserve_out(1, 5, 0x77, 0)):
        equal(one.command(cdb, out=out).status, GOOD, "PERSISTENT RESERVE OUT")
    check("RESERVATION" in s.cli("lun", "reservations", TARGET, "0").stdout, "a table")

    def shown():
        found = s.json("lun", "reservations", TARGET, "0")
        return found["persistent"] and found["persistent"]["type"], [(r["initiator"], r["key"]) for r in found["registrations"]]

    held = ("write_exclusive_registrants", [(f"{HOST}-1", "0000000000000077")])
    equal(shown(), held, "reservations")
    # The host does not return: its reservation remains, also after a restart.
    one.close()
    s.stop()
    s.start()
    equal(shown(), held, "reservations after a restart")
    two = Initiator(portal(s), TARGET, name=f"{HOST}-2", isid=2).ready()
    equal(two.write_blocks(0, bytes(BLOCK)).status, 0x18, "a write against the reservation")
    s.cli("lun", "reservations", TARGET, "0", "--clear")
    equal(two.write_blocks(0, bytes(BLOCK)).status, GOOD, "a write after it was cleared")
    equal(shown(), (None, []), "reservations that were cleared")
    said = s.refused("lun", "reservations", TARGET, "7")
    check("has no LUN 7" in said, said)


@test
def a_changed_secret_ends_sessions(t):
    first, second = secret_file(t, SECRET), secret_file(t, NEXT_SECRET)
    s, address = target(t, "disk", create=["--chap-user", "u", "--chap-secret-file", first])
    s.cli("target", "allow", TARGET, HOST)
    i = Initiator(address, TARGET, name=HOST, chap=("u", SECRET)).ready()
    # Unrelated changes do not end it.
    s.cli("target", "allow", TARGET, HOST, "--lun", "0")
    equal(i.read_blocks(0, 1).status, GOOD, "a read after another change")
    s.cli("target", "allow", TARGET, HOST, "--chap-user", "u", "--chap-secret-file", second)
    closed(i, "a session that proved the old secret")
    refused(0x0201, Initiator, address, TARGET, name=HOST, chap=("u", SECRET))
    i = Initiator(address, TARGET, name=HOST, chap=("u", NEXT_SECRET)).ready()
    s.cli("target", "deny", TARGET, HOST)
    closed(i, "a session of an initiator that was denied")


@test
def a_denial_during_login_takes_effect(t):
    s, address = target(t, "disk", create=["--chap-user", "u", "--chap-secret-file", secret_file(t, SECRET)])
    stop = threading.Event()
    left = []

    def log_in():
        while not stop.is_set():
            try:
                left.append(Initiator(address, TARGET, name=HOST, chap=("u", SECRET), timeout=10))
            except (Refused, Closed, OSError):
                pass

    thread = threading.Thread(target=log_in)
    for _ in range(20):
        s.cli("target", "allow", TARGET, HOST)
        thread.is_alive() or thread.start()
        time.sleep(t.random.random() * 0.02)
        s.cli("target", "deny", TARGET, HOST)
    stop.set()
    thread.join()
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of all sessions of a denied initiator")
    check(left, "no login succeeded")


@test
def the_strongest_hash_is_chosen_and_md5_can_be_disabled(t):
    config = t.path("config.toml")
    create = ["--open", "--chap-user", "u", "--chap-secret-file", secret_file(t, SECRET)]
    with open(config, "w") as f:
        f.write("[iscsi]\n")
    s, address = target(t, "disk", create=create, serve=["--config", config])
    i = Initiator(address, TARGET, chap=("u", SECRET), algorithm="5,6,7")
    equal(i.algorithm, 7, "what is chosen of MD5, SHA-1 and SHA-256")
    s.stop()
    with open(config, "w") as f:
        f.write('[iscsi]\nchap_algorithms = ["sha256", "sha3-256"]\n')
    s.start()
    refused(0x0201, Initiator, portal(s), TARGET, chap=("u", SECRET), algorithm=5)
    equal(Initiator(portal(s), TARGET, chap=("u", SECRET), algorithm="5,7").algorithm, 7, "what is chosen without MD5")


@test
def guesses_are_delayed_and_do_not_lock_a_host_out(t):
    s, address = target(t, "disk", create=["--chap-user", "u", "--chap-secret-file", secret_file(t, SECRET)])
    s.cli("target", "allow", TARGET, HOST)
    s.cli("target", "allow", TARGET, HOST + "-own")
    # A login with another name does not reset the failure count of this one.
    began = time.monotonic()
    for n in range(4):
        refused(0x0201, Initiator, address, TARGET, name=HOST, chap=("u", f"guess number {n}"))
        Initiator(address, TARGET, name=HOST + "-own", chap=("u", SECRET), isid=2).close()
    check(time.monotonic() - began >= 3, "guesses are not delayed")  # 0 + 0.5 + 1 + 1.5 s
    try:
        Initiator(address, TARGET, name=HOST, chap=("u", SECRET)).ready()
    except Refused as e:
        raise Failed("the right secret after wrong ones is refused") from e
