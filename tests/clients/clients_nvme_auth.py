"""In-band authentication of NVMe hosts: what a target that demands it refuses, and what a proof requires."""

import os
import threading

from clients_nvme import ANYWHERE, SUBSYSTEM, TARGET, portal, refused
from forebay import Failed as Wrong
from harness import check, equal, test, wait_for
from initiator import Closed
from nvme_auth import (
    AUTHENTICATE,
    FAILED,
    GROUP,
    GROUPS,
    HASH,
    HASHES,
    MESSAGE,
    PAYLOAD,
    REQUIRED,
    Rejected,
    authenticate,
    key,
    message,
    negotiate,
    receive,
    send,
)
from nvme_host import BLOCK, DISCOVERY, FABRICS, HOST, IDENTIFY, INVALID_HOST, OK, READ, SEQUENCE_ERROR, Failed, Host, Queue

# Another address of this machine.
ELSEWHERE = ("127.0.0.2", 0)
KEY, OF_TARGET, OTHER = key(bytes(range(32)), 1), key(b"t" * 48), key(b"o" * 64, 3)


def secret_file(t, secret):
    path = t.path("a-secret")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as f:
        f.write(secret)
    return path


def served(t, *create, allow=()):
    s = t.server(*ANYWHERE)
    s.cli("target", "create", TARGET, *create)
    s.cli("volume", "create", "v", "--size", "64M")
    s.cli("lun", "map", TARGET, "v")
    s.cli("target", "allow", TARGET, HOST, "--dhchap-key-file", secret_file(t, KEY), *allow)
    return s, portal(s)


def proves(text=KEY, **more):
    return lambda queue, host, subsystem: authenticate(queue, host, subsystem, text, **more)


def rejected(why, function, *args):
    try:
        function(*args)
    except Rejected as e:
        equal(e.why, why, "explanation of the failure")
        return
    raise Wrong(f"the authentication succeeded; it should fail with {why}")


@test
def nvme_hosts_authenticate_themselves(t):
    s, address = served(t, "--dhchap-key-file", secret_file(t, OF_TARGET))
    for hashed in HASHES:
        for group in (0, *GROUPS):
            for controller in (None, OF_TARGET):
                with_keys = proves(hashes=(hashed,), groups=(group,), controller=controller)
                h = Host(address, SUBSYSTEM, authenticate=with_keys)
                equal(h.queues[0].blocks(0).status, OK, "a read of an authenticated host")
                h.close()
    # Digests, and the preference of the controller.
    q = Queue(address, SUBSYSTEM, digests=3)
    check(q.requires & AUTHENTICATE >> 16, "the Connect does not ask for an authentication")
    equal(authenticate(q, HOST, SUBSYSTEM, KEY), (3, 2), "hash function and group")
    equal(q.property(0x08, long=False).status, OK, "a property of an authenticated host")
    # A queue is authenticated once.
    equal(receive(q).status, SEQUENCE_ERROR, "a message after the authentication")
    q.close()
    shown = s.json("target", "show", TARGET)
    check(shown["has_dhchap_key"] and shown["initiators"][0]["has_dhchap_key"], "the keys are not shown")
    check("DHHC" not in str(shown), "a key is shown")


@test
def nvme_commands_before_the_authentication_fail(t):
    s, address = served(t)
    q = Queue(address, SUBSYSTEM)
    equal(q.command(IDENTIFY, words=(1,), expects=4096).status, REQUIRED, "an admin command")
    equal(q.property(0x14, 0x00460001).status, REQUIRED, "a property")
    negotiate(q, (1,), (0,))
    message(q)
    equal(q.command(IDENTIFY, words=(1,), expects=4096).status, REQUIRED, "an admin command after the challenge")
    # A host that does not continue is cut off after some commands.
    ended = False
    try:
        for _ in range(20):
            equal(q.command(FABRICS, namespace=4, tail=bytes(8)).status, REQUIRED, "a command of many")
    except (Closed, ConnectionError):
        ended = True
    check(ended, "a host without a proof keeps its connection")
    # Each queue is authenticated, and a queue without is no queue of the controller yet.
    h = Host(address, SUBSYSTEM, queues=0, authenticate=proves())
    q = h.queue(1, authenticate=None)
    equal(q.command(READ, expects=BLOCK, words=(0, 0, 0)).status, REQUIRED, "a read")
    authenticate(q, HOST, SUBSYSTEM, KEY)
    equal(q.blocks(0).status, OK, "a read after the authentication")
    # Sessions without authentication are not listed as sessions of the target.
    waits = Queue(address, SUBSYSTEM, host_id=b"another".ljust(16))
    equal(len(s.json("target", "show", TARGET)["sessions"]), 1, "sessions")
    waits.close()
    # Other hosts do not learn that the target exists.
    refused(INVALID_HOST, Queue, address, SUBSYSTEM, host=HOST + "2")


@test
def nvme_proofs_that_are_wrong_are_refused(t):
    s, address = served(t)
    fresh = lambda: Queue(address, SUBSYSTEM)  # noqa: E731

    def spoiled(change, **more):
        return lambda: authenticate(fresh(), HOST, SUBSYSTEM, KEY, spoil=change, **more)

    rejected(FAILED, spoiled(lambda r, c: r[:16] + bytes(1) + r[17:], groups=(0,), hashes=(1,)))
    # The target has no key; and the controller's challenge is sent back to it.
    rejected(FAILED, lambda: authenticate(fresh(), HOST, SUBSYSTEM, KEY, controller=OTHER, groups=(0,)))
    reflect = lambda r, c: r[:8] + b"\1" + r[9 : 16 + len(c)] + c + r[16 + 2 * len(c) :]  # noqa: E731
    rejected(FAILED, spoiled(reflect, groups=(0,)))
    for values in (lambda r, c: r[:40], lambda r, c: r[:6] + b"\x10" + r[7:]):
        rejected(PAYLOAD, spoiled(values, groups=(0,), hashes=(1,)))
    trivial = lambda r, c: r[: 16 + 2 * len(c)] + bytes(383) + b"\1"  # noqa: E731
    rejected(PAYLOAD, spoiled(trivial))
    rejected(PAYLOAD, spoiled(lambda r, c: r[:4] + b"\x08" + r[5:]))
    for offer, why in ((((9,), (0,)), HASH), (((1,), (4, 5)), GROUP)):
        q = fresh()
        negotiate(q, *offer)
        rejected(why, message, q)
    q = fresh()
    send(q, bytes((1, 4)) + bytes(14))
    rejected(MESSAGE, message, q)
    try:
        receive(q)
        raise Wrong("a connection continues after its authentication has failed")
    except (Closed, ConnectionError):
        pass
    equal(receive(fresh()).status, SEQUENCE_ERROR, "a message before the negotiation")
    h = Host(address, SUBSYSTEM, authenticate=proves())
    equal(h.queues[0].blocks(0).status, OK, "a read of the right host")


@test
def nvme_guesses_of_keys_are_slowed_down(t):
    """A host is admitted while others guess its key from another address."""
    s, address = served(t)
    Host(address, SUBSYSTEM, authenticate=proves()).close()
    stop, counts = threading.Event(), [0] * 6

    def guess(n):
        while not stop.is_set():
            try:
                wrong = key(os.urandom(32))
                queue = Queue(address, SUBSYSTEM, source=ELSEWHERE)
                authenticate(queue, HOST, SUBSYSTEM, wrong, hashes=(1,), groups=(0,))
            except Rejected:
                counts[n] += 1
            except (Failed, Closed, ConnectionError):
                pass

    guessing = [threading.Thread(target=guess, args=(n,)) for n in range(len(counts))]
    for thread in guessing:
        thread.start()
    wait_for(lambda: sum(counts) >= 3, "some guesses")
    h = Host(address, SUBSYSTEM, authenticate=proves())
    equal(h.queues[0].blocks(0).status, OK, "a read while others guess")
    h.close()
    stop.set()
    for thread in guessing:
        thread.join()
    check("an NVMe connection ended: a Connect was refused" in s.log_tail(1000), "the log does not tell of guesses")


@test
def nvme_keys_can_be_changed_and_survive_restarts(t):
    s, address = served(t)
    h = Host(address, SUBSYSTEM, authenticate=proves())
    # The same key changes nothing, another one ends the controller.
    s.cli("target", "allow", TARGET, HOST, "--dhchap-key-file", secret_file(t, KEY))
    equal(h.queues[0].blocks(0).status, OK, "a read after the same key was set")
    s.cli("target", "allow", TARGET, HOST, "--dhchap-key-file", secret_file(t, OTHER))
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of the controller")
    rejected(FAILED, lambda: Queue(address, SUBSYSTEM, authenticate=proves()))
    s.kill()
    s.start()
    address = portal(s)
    h = Host(address, SUBSYSTEM, authenticate=proves(OTHER))
    equal(h.queues[0].blocks(0).status, OK, "a read with the new key after a kill")
    # A host that need not authenticate itself any more stays; a key that is demanded again ends it.
    s.cli("target", "allow", TARGET, HOST)
    equal(h.queues[0].blocks(0).status, OK, "a read without a key")
    plain = Host(address, SUBSYSTEM, host_id=b"second".ljust(16))
    check(not plain.admin.requires & AUTHENTICATE >> 16, "an authentication is asked for")
    s.cli("target", "allow", TARGET, HOST, "--dhchap-key-file", secret_file(t, KEY))
    wait_for(lambda: not s.json("target", "show", TARGET)["sessions"], "the end of both controllers")
    # With CHAP for iSCSI, only hosts with a key are admitted, and discover the target.
    chap = ("--chap-user", "u", "--chap-secret-file", secret_file(t, "a secret of CHAP"))
    s.cli("target", "create", "iqn.2026-01.org.example:chap", "--open", *chap)
    subsystem = "nqn.2026-01.org.example:chap"
    refused(INVALID_HOST, Queue, address, subsystem)

    def listed():
        h = Host(address, DISCOVERY, queues=0)
        return h.admin.log(0x70, 4096).data.count(subsystem.encode())

    equal(listed(), 0, "entries before the host has a key")
    s.cli("target", "allow", "iqn.2026-01.org.example:chap", HOST, "--dhchap-key-file", secret_file(t, KEY))
    equal(listed(), 1, "entries of a host with a key")
    q = Queue(address, subsystem, authenticate=proves())
    q.close()
    # What is no key, and names that are no hosts.
    for text, why in (("secret", "DHHC-1"), (KEY[:-9] + "A" + KEY[-8:], "checksum")):
        said = s.refused("target", "allow", TARGET, HOST, "--dhchap-key-file", secret_file(t, text))
        check(why in said and text not in said, f"an invalid key is answered by {said}")
    initiator = "iqn.2026-01.org.example:i"
    said = s.refused("target", "allow", TARGET, initiator, "--dhchap-key-file", secret_file(t, KEY))
    check("no NVMe host" in said, f"an iSCSI initiator with a key: {said}")
