"""A server with an iSCSI target, and common helpers for it."""

import re

from forebay import Failed
from harness import equal, wait_for
from initiator import Refused

TARGET = "iqn.2026-01.org.example:t"


def target(t, *volumes, size="64M", create=(), lun=(), serve=(), data="data"):
    """A server with one target that has these volumes; and its address."""
    s = t.server("--iscsi", "127.0.0.1:0", *serve, data=data)
    s.cli("target", "create", TARGET, *(create or ["--open"]))
    for volume in volumes:
        s.cli("volume", "create", volume, "--size", size)
        s.cli("lun", "map", TARGET, volume, *lun)
    return s, portal(s)


def portal(s):
    """The address of the running server's iSCSI portal, from its last line about being ready."""

    def ready():
        return [line for line in s.log_tail(1000).splitlines() if "forebay is ready" in line]

    wait_for(lambda: len(ready()) == s.starts, "the address in the server's log")
    host, port = re.search(r", iscsi ([\d.]+|\[[\da-f:]+\]):(\d+)", ready()[-1]).groups()
    return host.strip("[]"), int(port)


def url(address, lun=0):
    return f"iscsi://{address[0]}:{address[1]}/{TARGET}/{lun}"


def refused(status, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Refused as e:
        equal(f"{e.status:#06x}", f"{status:#06x}", "status of the login")
        return
    raise Failed(f"the login succeeded; it should fail with {status:#06x}")
