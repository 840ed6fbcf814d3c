"""DH-HMAC-CHAP of an NVMe host for tests, written from the specification (NVMe Base 2.0, 8.13.5) with
Python's own hash functions and integers."""

import base64
import functools
import hashlib
import hmac
import os
import struct
import zlib

from nvme_host import FABRICS, OK, Failed

# Hash functions and Diffie-Hellman groups by their identifiers.
HASHES = {1: "sha256", 2: "sha384", 3: "sha512"}
GROUPS = {1: (2048, 560316), 2: (3072, 2625351), 3: (4096, 5736041)}
SEND, RECEIVE = 5, 6
AUTHENTICATE = 1 << 17
REQUIRED = (1, 0x91)
# Why an authentication fails.
FAILED, HASH, GROUP, PAYLOAD, MESSAGE = 1, 4, 5, 6, 7


class Rejected(Exception):
    """The controller reported that the authentication has failed; `why` is the explanation."""

    def __init__(self, why):
        super().__init__(f"the authentication failed: {why}")
        self.why = why


def key(secret, transform=0):
    """The text of a key, as `nvme gen-dhchap-key` prints it."""
    checked = secret + struct.pack("<I", zlib.crc32(secret))
    return f"DHHC-1:{transform:02x}:{base64.b64encode(checked).decode()}:"


def transformed(text, owner):
    """The bytes that the owner of a key uses."""
    _, transform, encoded, _ = text.split(":")
    secret = base64.b64decode(encoded)[:-4]
    if int(transform, 16) == 0:
        return secret
    return hmac.new(secret, owner.encode() + b"NVMe-over-Fabrics", HASHES[int(transform, 16)]).digest()


@functools.cache
def prime(group):
    """The prime of a group, by the formula of RFC 7919, appendix A."""
    bits, addend = GROUPS[group]
    scale, total, term, n = bits, 0, 1 << bits, 0
    while term:
        total, n = total + term, n + 1
        term //= n
    e = total >> (scale - (bits - 130))
    return (1 << bits) - (1 << (bits - 64)) + ((e + addend) << 64) - 1


def send(queue, message, **more):
    tail = struct.pack("<B3BI", 0, 1, 1, 0xE9, len(message))
    return queue.command(FABRICS, namespace=SEND, tail=tail, data=message, **more)


def receive(queue, room=4096):
    tail = struct.pack("<B3BI", 0, 1, 1, 0xE9, room)
    return queue.command(FABRICS, namespace=RECEIVE, tail=tail, expects=room)


def message(queue):
    """The next message of the controller."""
    done = receive(queue)
    if done.status != OK:
        raise Failed(done.status)
    if done.data[:2] == b"\x00\xf1":
        raise Rejected(done.data[7])
    return done.data


def negotiate(queue, hashes, groups, transaction=7):
    descriptor = struct.pack("<BBBB30s30s", 1, 0, len(hashes), len(groups), bytes(hashes), bytes(groups))
    done = send(queue, struct.pack("<BBHHBB", 0, 0, 0, transaction, 0, 1) + descriptor)
    if done.status != OK:
        raise Failed(done.status)


def proof(secret, name, challenge, sequence, transaction, role, prover, verifier):
    text = challenge + struct.pack("<IHB", sequence, transaction, 0) + role
    return hmac.new(secret, text + prover.encode() + b"\0" + verifier.encode(), name).digest()


def authenticate(queue, host, subsystem, text, controller=None, hashes=(1, 2, 3), groups=(0, 1, 2, 3), spoil=None):
    """Authenticates the host on a queue; with `controller` also the controller by this key. `spoil` is
    applied to the reply before it is sent. Returns the identifiers of hash function and group."""
    transaction = 7
    negotiate(queue, hashes, groups, transaction)
    found = message(queue)
    kind, _, given, length, hashed, group, public_len, sequence = struct.unpack_from("<HHHBxBBHI", found)
    if (kind, given) != (0x0101, transaction):
        raise AssertionError("this is no challenge of the transaction")
    name = HASHES[hashed]
    challenge, theirs = found[16 : 16 + length], found[16 + length : 16 + length + public_len]
    public, session = b"", None
    if group:
        p, exponent = prime(group), int.from_bytes(os.urandom(48))
        size = GROUPS[group][0] // 8
        if len(theirs) != size:
            raise AssertionError("the public value of the controller has another length than the prime")
        public = pow(2, exponent, p).to_bytes(size)
        session = pow(int.from_bytes(theirs), exponent, p).to_bytes(size)

    def augmented(value):
        if session is None:
            return value
        return hmac.new(hashlib.new(name, session).digest(), value, name).digest()

    secret = transformed(text, host)
    response = proof(secret, name, augmented(challenge), sequence, transaction, b"HostHost", host, subsystem)
    own, own_sequence = (os.urandom(length), 99) if controller else (bytes(length), 0)
    reply = struct.pack("<BBHHBBBBHI", 1, 2, 0, transaction, length, 0, bool(controller), 0, len(public), own_sequence)
    reply += response + own + public
    if spoil:
        reply = spoil(reply, challenge)
    done = send(queue, reply)
    if done.status != OK:
        raise Failed(done.status)
    found = message(queue)
    if found[:2] != b"\x01\x03" or found[8] != bool(controller):
        raise AssertionError("this is no success")
    if controller:
        secret = transformed(controller, subsystem)
        expected = proof(secret, name, augmented(own), own_sequence, transaction, b"Controller", subsystem, host)
        if found[16 : 16 + length] != expected:
            raise AssertionError("the controller has not proved its identity")
        done = send(queue, struct.pack("<BBHH10x", 1, 4, 0, transaction))
        if done.status != OK:
            raise Failed(done.status)
    return hashed, group
