"""One guest: a QEMU process, and the line protocol over its second serial port."""

import os
import queue
import socket
import threading
import time

from forebay import Failed, run, spawn

RAM_MIB = 256
# Mitigations slow an emulated guest by seconds; a short timeout would stop services on a busy machine.
QUICK = "mitigations=off audit=0 systemd.default_timeout_start_sec=600"


class Accel:
    """The acceleration of guests: KVM if a guest boots under it, otherwise emulation."""

    def __init__(self, name):
        self.name = name
        # Every feature of `-cpu max` slows emulation; a basic CPU boots a fifth faster.
        cpu = "host" if name == "kvm" else "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"
        self.args = ["-accel", name, "-cpu", cpu]
        if name == "tcg":
            # Guest time follows instructions: otherwise a guest that was not scheduled gets too many timer
            # interrupts.
            self.args += ["-icount", "shift=2"]

    @staticmethod
    def choose(kernel, scratch):
        """KVM if it can boot this kernel. /dev/kvm alone is not sufficient: nested KVM can fail at the first
        page."""
        want = os.environ.get("DEMO_ACCEL", "auto")
        if want in ("kvm", "tcg"):
            return Accel(want)
        if want != "auto":
            raise Failed(f"DEMO_ACCEL={want}: use kvm, tcg or auto")
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return Accel("tcg")
        # Without a root file system the kernel panics within a second or two, and -no-reboot ends QEMU.
        console = os.path.join(scratch, "kvm-probe.log")
        probe = ["qemu-system-x86_64", *machine(Accel("kvm")), "-kernel", kernel, "-append", "console=ttyS0 panic=-1"]
        try:
            run(*probe, "-serial", f"file:{console}", timeout=15)
            with open(console, errors="replace") as f:
                return Accel("kvm" if "Kernel panic" in f.read() else "tcg")
        except Failed:
            return Accel("tcg")


def machine(accel):
    """Arguments of every QEMU here."""
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "pc", "-m", str(RAM_MIB), "-smp", "1"),
        *accel.args,
    ]


class Guest:
    """A guest that boots from `drive`, a block device in QEMU's syntax. Messages arrive as lists of words.

    Its socket is created in `sockets`, whose path must be short.
    """

    def __init__(self, name, image, drive, accel, logs, sockets, args=(), append=""):
        self.name = name
        self.console = os.path.join(logs, f"{name}.console")
        self.messages = queue.Queue()
        self.connection = None
        # The second serial port is a socket on which this process listens, so no message is lost.
        path = os.path.join(sockets, f"{name}.tty")
        if os.path.exists(path):  # the guest ran before
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()
        megabytes = 16 if accel.name == "kvm" else 8
        job = f"forebay.guest={name} forebay.megabytes={megabytes}"
        argv = [
            *("qemu-system-x86_64", "-name", name, *machine(accel)),
            *("-kernel", os.path.join(image, "vmlinuz"), "-initrd", os.path.join(image, "initrd.img")),
            *("-append", f"root=/dev/vda rw console=ttyS0 quiet panic=-1 {QUICK} {job} {append}"),
            *("-blockdev", f"{drive},node-name=disk"),
            *("-device", "virtio-blk-pci,drive=disk"),
            *("-serial", f"file:{self.console}"),
            *("-chardev", f"socket,id=control,path={path}", "-serial", "chardev:control"),
            *args,
        ]
        with open(os.path.join(logs, f"{name}.qemu"), "wb") as log:
            self.process = spawn(argv, stdout=log, stderr=log)

    @classmethod
    def on_export(cls, server, name, image, accel, logs):
        """A guest that boots from the export of its name."""
        drive = f"driver=nbd,server.type=unix,server.path={server.nbd},export={name},cache.direct=on,discard=unmap"
        return cls(name, image, drive, accel, logs, server.sockets)

    def _listen(self, listener):
        self.connection, _ = listener.accept()
        listener.close()
        with self.connection.makefile("r", errors="replace") as lines:
            for line in lines:
                self.messages.put(line.split())

    def say(self, word):
        """Sends a word to the guest."""
        self.connection.sendall(f"{word}\n".encode())

    def next(self, what, deadline):
        """The next message, which must arrive before `deadline`; `what` names the expected one."""
        while True:
            try:
                return self.messages.get(timeout=0.2)
            except queue.Empty:
                if self.process.poll() is not None:
                    raise Failed(f"{self.name}: QEMU ended before '{what}'; see {self.console}") from None
                if time.monotonic() > deadline:
                    raise Failed(f"{self.name}: no '{what}' in time; see {self.console}") from None

    def expect(self, word, deadline):
        """The rest of the next message, which must begin with `word` and arrive before `deadline`."""
        message = self.next(word, deadline)
        if message and message[0] == word:
            return message[1:]
        raise Failed(f"{self.name}: message '{' '.join(message)}' instead of '{word}'; see {self.console}")

    def wait(self, deadline):
        """Waits for the guest to power off."""
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: not powered off in time; see {self.console}")
            time.sleep(0.05)
        if self.process.returncode != 0:
            raise Failed(f"{self.name}: QEMU ended with status {self.process.returncode}")

    def kill(self):
        """Ends QEMU, whatever its state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
