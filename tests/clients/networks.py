"""Hosts in separate networks on this machine, and packet filters between them. All of it ends with the test.

The process of the test moves into a new network, the hub: what it starts from then on is there.
Further hosts are network namespaces that are connected to the hub only.
"""

import ctypes
import os

from forebay import run, spawn
from harness import Skipped, wait_for

HUB = "10.213.0.1"
CLONE_NEWNET = 0x40000000
TABLE = "inet faults"


def enter_hub():
    """Moves this process into a new network with the address `HUB`; skips the test if that is not
    possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise Skipped(f"needs root for network namespaces: {os.strerror(ctypes.get_errno())}")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{HUB}/32", "dev", "lo")
    filters = run("nft", "add", "table", *TABLE.split(), check=False)
    if filters.returncode:
        raise Skipped(f"needs packet filters: {filters.stderr.strip()}")


def connect_hosts():
    """Makes the hub forward packets between its hosts."""
    for name in ("ip_forward", "conf/all/proxy_arp"):
        with open(f"/proc/sys/net/ipv4/{name}", "w") as f:
            f.write("1")


class Host:
    """A host with one link to the hub. `prefix` makes a command run on it."""

    def __init__(self, t, number):
        self.address = f"10.213.0.{number + 1}"
        self.holder = spawn(["unshare", "--net", "sleep", "infinity"])
        t.defer(self.holder.kill)
        network = f"/proc/{self.holder.pid}/ns/net"
        wait_for(lambda: os.readlink(network) != os.readlink("/proc/self/ns/net"), "a network namespace")
        self.prefix = ["nsenter", f"--net={network}"]
        link = f"host{number}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "hub", "netns", self.holder.pid)
        run("ip", "link", "set", link, "up")
        for command in ("link set lo up", f"address add {self.address}/32 dev hub", "link set hub up"):
            self.run("ip", *command.split())
        run("ip", "route", "add", f"{self.address}/32", "dev", link)
        self.run("ip", "route", "add", "default", "dev", "hub", "src", self.address)

    def run(self, *argv, **kwargs):
        return run(*self.prefix, *argv, **kwargs)

    def drop(self, *rules):
        """Drops packets from now on: rules are such as `input tcp sport 80`, and `output` for those
        it sends."""
        chains = {name: [] for name in ("input", "output")}
        for rule in rules:
            chain, _, match = rule.partition(" ")
            chains[chain].append(f"{match} drop")
        text = [f"add table {TABLE}", f"flush table {TABLE}"]
        for name, lines in chains.items():
            text.append(f"add chain {TABLE} {name} {{ type filter hook {name} priority 0; }}")
            text += [f"add rule {TABLE} {name} {line}" for line in lines]
        self.run("nft", "\n".join(text))

    def heal(self):
        """Ends all faults."""
        self.run("nft", "delete", "table", *TABLE.split())
