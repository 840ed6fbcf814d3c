"""The environment of iSCSI tests: Linux hosts in emulated guests, and a network with faults."""

import base64
import functools
import os
import socket
import struct
import sys
import tempfile
import threading
import time

from forebay import Failed, run
from harness import Skipped

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo")
sys.path.append(DEMO)

from guest import Accel, Guest  # noqa: E402

# Far longer than an emulated guest needs on a busy machine: only for guests that hang.
TIMEOUT_S = 600
# The address at which a guest reaches 127.0.0.1 of this machine.
GATEWAY = "10.0.2.2"
# The guest has no service manager and no udev, so this script replaces them.
SET_UP = f"""
modprobe -a virtio_net iscsi_tcp sd_mod
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
echo "InitiatorName=$NAME" >/etc/iscsi/initiatorname.iscsi
cat >>/etc/iscsi/iscsid.conf <<END
$CONF
END
iscsid
"""


@functools.cache
def image():
    """The directory with the guests' image. Building it takes minutes, once."""
    root = os.geteuid() == 0
    made = run(os.path.join(DEMO, "build-image.sh"), "initiator", check=root, timeout=3600, stderr=None)
    if made.returncode != 0:
        raise Skipped("needs root once, to build the guests' image")
    return made.stdout.strip()


@functools.cache
def accel():
    """The acceleration of guests on this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        return Accel.choose(os.path.join(image(), "vmlinuz"), scratch)


def free_port():
    """An unused TCP port of 127.0.0.1."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ScriptedGuest(Guest):
    """A guest that executes scripts as root. `drive` is its disk, in QEMU's syntax."""

    def __init__(self, t, server, name, drive, args):
        append = "init=/usr/local/sbin/forebay-agent"
        super().__init__(name, image(), drive, accel(), t.dir, server.sockets, args, append)
        t.defer(self.kill)

    def wait_up(self):
        """Waits until the guest is up."""
        self.expect("up", time.monotonic() + TIMEOUT_S)
        return self

    def run(self, script, status=0, timeout=TIMEOUT_S):
        """Runs a script in the guest and returns its output; `Failed` if its exit status is not `status`."""
        self.say(base64.b64encode(script.encode()).decode())
        found, *said = self.next("the end of a script", time.monotonic() + timeout)
        said = base64.b64decode("".join(said)).decode(errors="replace")
        if int(found) != status:
            raise Failed(f"{self.name}: exit status {found}, not {status}, of:\n{script.strip()}\n{said}".rstrip())
        return said.strip()

    def dmesg(self):
        """The kernel's messages since its start."""
        return self.run("dmesg")


class LinuxHost(ScriptedGuest):
    """A guest with open-iscsi and a local disk. `conf` are lines for its iscsid.conf."""

    def __init__(self, t, server, name, iqn, conf=""):
        disk = t.path(f"{name}.qcow2")
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", os.path.join(image(), "disk.qcow2"), disk)
        drive = f"driver=qcow2,file.driver=file,file.filename={disk},cache.no-flush=on"
        network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
        super().__init__(t, server, name, drive, network)
        self.set_up = SET_UP.replace("$NAME", iqn).replace("$CONF", conf)

    def wait_up(self):
        """Waits until the guest is up, and prepares its network and its initiator."""
        super().wait_up()
        self.run(self.set_up)
        return self

    def login(self, target, port, status=0):
        """Logs in to a target at a port of this machine."""
        node = f"iscsiadm -m node -T {target} -p {GATEWAY}:{port}"
        return self.run(f"{node} -o new; {node} --login", status)

    def disk(self, lun):
        """The name of the block device of this LUN, such as sda."""
        return self.run(f"ls /sys/bus/scsi/devices/*:0:0:{lun}/block")


class Network:
    """Forwards connections to a port, with faults on request."""

    def __init__(self, t, to):
        self.to, self.pairs, self.frozen = to, [], []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        t.defer(self.close)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the server is not running
                client.close()
                continue
            pair = (client, server)
            with self.lock:
                self.pairs.append(pair)
            for ends in (pair, pair[::-1]):
                threading.Thread(target=self._forward, args=(pair, *ends), daemon=True).start()

    def _forward(self, pair, source, to):
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    if pair in self.frozen:
                        return
                to.sendall(data)
        except OSError:
            pass
        self._reset(pair)

    def _reset(self, pair):
        with self.lock:
            for end in pair if pair not in self.frozen else ():
                # Closed by a reset, even with data in transit; shutdown() wakes a thread in recv().
                try:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def cut(self):
        """Resets all connections, as a firewall that lost its state does."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            self._reset(pair)

    def freeze(self):
        """Stops forwarding on all existing connections without closing them, as when a switch fails."""
        with self.lock:
            self.frozen += self.pairs
            self.pairs = []

    def close(self):
        self.listener.close()
        with self.lock:
            self.pairs += self.frozen
            self.frozen = []
        self.cut()
