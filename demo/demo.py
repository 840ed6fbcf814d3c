#!/usr/bin/env python3
"""Boots Debian guests from clones of one golden image, and prints the I/O of the store that this caused.

One guest boots alone first, from a cold server, as the reference; its reads become the image's boot profile.
Then the server restarts with cold caches, and all guests boot at once. Each writes files, reads them back
from its disk and powers off; then the host checks every clone's file system and that it contains only the
files of its guest.

DEMO_GUESTS (4) sets the number of guests, DEMO_ACCEL (auto, kvm, tcg) their acceleration, DEMO_KEEP=1 keeps
all files.
"""

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scripts", "pylib"))

from forebay import Failed, Server, run  # noqa: E402
from guest import Accel, Guest  # noqa: E402
import report  # noqa: E402

PHASES = ("boot", "work", "shutdown")
# Far longer than an emulated guest needs on a busy machine: only for guests that hang.
PHASE_TIMEOUT_S = 900
# Buffered writes reach the store within a second; until this time after its end, writes are counted in a
# phase.
SETTLE_S = 1.3

began = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


def counters(server, names):
    """Guest counters of each volume, and the store's."""
    return {"store": server.json("stats")["store"], "guests": {n: server.json("stats", n) for n in names}}


def run_guests(server, names, image, accel, logs):
    """Boots guests from the volumes `names`, all at once, and takes them through their phases.

    Returns the counters before the first phase and after each, and each guest's report about its files.
    """
    samples = [counters(server, names)]
    guests, reports = [], {}
    try:
        guests = [Guest.on_export(server, name, image, accel, logs) for name in names]
        for phase in PHASES:
            begin, deadline = time.monotonic(), time.monotonic() + PHASE_TIMEOUT_S
            for guest in guests:
                if phase == "boot":
                    guest.expect("up", deadline)
                elif phase == "work":
                    reports[guest.name] = guest.expect("done", deadline)
                else:
                    guest.wait(deadline)
            say(f"  {phase}: {len(names)} guest(s) in {time.monotonic() - begin:.1f} s")
            time.sleep(SETTLE_S)
            samples.append(counters(server, names))
            for guest in guests:
                if phase != "shutdown":
                    guest.say({"boot": "work", "work": "off"}[phase])
    finally:
        for guest in guests:
            guest.kill()
    return samples, reports


def check_clone(server, name, reported, scratch):
    """The clone's file system is clean, and contains exactly the files that this guest reported."""
    raw, out = os.path.join(scratch, f"{name}.raw"), os.path.join(scratch, f"{name}.files")
    run("nbdcopy", server.uri(name), raw)
    run("e2fsck", "-fn", raw)
    listing = run("debugfs", "-R", "ls -p /srv/own", raw).stdout
    owners = [line.split("/")[5] for line in listing.splitlines() if line.count("/") > 5]
    if sorted(owners) != [".", "..", name]:
        raise Failed(f"{name}: /srv/own contains {owners}, expected only '{name}'")
    os.mkdir(out)
    run("debugfs", "-R", f"rdump /srv/own/{name} {out}", raw)
    root = os.path.join(out, name)
    with open(os.path.join(root, "manifest"), "rb") as f:
        manifest = f.read()
    files, digest = reported[1], reported[2]
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise Failed(f"{name}: the manifest is not the one that the guest reported")
    run("sha256sum", "--quiet", "--check", "manifest", cwd=root)
    with open(os.path.join(root, "identity")) as f:
        if f.read().strip() != name:
            raise Failed(f"{name}: its identity file is another guest's")
    shutil.rmtree(out)
    os.unlink(raw)
    return int(files)


def check_same(server, name, image, scratch):
    """A disk has the content of the image file."""
    raw = os.path.join(scratch, f"{name}.raw")
    run("nbdcopy", server.uri(name), raw)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, os.path.join(image, "disk.qcow2"))
    os.unlink(raw)


def demo(scratch, count):
    image = run(os.path.join(HERE, "build-image.sh"), timeout=3600, stderr=None).stdout.strip()
    with ThreadPoolExecutor(1) as pool:
        accel_choice = pool.submit(Accel.choose, os.path.join(image, "vmlinuz"), scratch)
        server = Server(os.path.join(scratch, "data"), log=os.path.join(scratch, "server.log"))
        try:
            say("importing the image")
            server.start()
            server.cli("image", "import", "golden", os.path.join(image, "disk.qcow2"))
            # The server starts gc within a minute; the measurement starts after it has ended.
            server.cli("gc")
            space = server.json("stats")
            packed = space["stored_bytes"] / space["space"]["unique_bytes"]
            say(f"  {space['space']['mapped_bytes'] >> 20} MiB of data, packed to {packed:.0%} of its size")
            accel = accel_choice.result()
            how = "KVM" if accel.name == "kvm" else "emulation (KVM cannot run this guest here)"
            if accel.name == "tcg" and os.environ.get("DEMO_ACCEL") == "tcg":
                how = "emulation (DEMO_ACCEL=tcg)"
            say(f"guests run with {how}")
            return storm(server, image, accel, scratch, count)
        finally:
            server.close()


def boot_profile(server):
    """A description of the boot profile that the server has recorded, once the guest has disconnected."""
    deadline = time.monotonic() + 30
    while not server.json("image", "profile", "golden")["bytes"]:
        if time.monotonic() > deadline:
            raise Failed("the server has no boot profile of the first boot")
        time.sleep(0.1)
    return server.cli("image", "profile", "golden").stdout.strip()


def storm(server, image, accel, scratch, count):
    """The reference boot, the boot storm, and all checks. Returns the exit status."""
    server.cli("volume", "clone", "golden", "reference", "--desktop")
    begin = time.monotonic()
    server.cli("volume", "clone", "golden", "guest", "--count", str(count), "--desktop")
    took = (time.monotonic() - begin) * 1000
    say(f"{count} desktops created in {took:.0f} ms, including process start; their writes stay in RAM")
    names = [f"guest-{i:03}" for i in range(1, count + 1)]

    server.stop()
    server.start()
    say("one guest boots alone, from a cold server: the reference")
    cold, _ = run_guests(server, ["reference"], image, accel, scratch)
    say("  " + boot_profile(server))

    server.stop()
    server.start()
    say(f"{count} guests boot at once, from a cold server that reads the boot profile ahead")
    hot, reports = run_guests(server, names, image, accel, scratch)

    print("", report.table(PHASES, cold, hot, names), "", report.verdicts(cold, hot), "", sep="\n", flush=True)

    say("checking each clone's file system from the host")
    for name in names:
        files = check_clone(server, name, reports[name], scratch)
        say(f"  {name}: file system clean, {files} files verified")
    check_same(server, "golden", image, scratch)
    say("  golden: unchanged")
    begin = time.monotonic()
    server.cli("volume", "reset", *names)
    say(f"  all {count} desktops reset to the image in {(time.monotonic() - begin) * 1000:.0f} ms")
    check_same(server, names[0], image, scratch)
    server.stop()
    run(server.bin, "check", "--data", server.data)
    say("  pool: every map and checksum verified by 'forebay check'")

    say(f"done: {count} real guests ran from clones of one image, and every check passed")
    return 0


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    count = int(os.environ.get("DEMO_GUESTS", "4"))
    base = os.path.join(HERE, "..", ".cache")
    os.makedirs(base, exist_ok=True)
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="demo-", dir=base))
    keep = os.environ.get("DEMO_KEEP") == "1"
    try:
        return demo(scratch, count)
    except Failed as e:
        keep = True
        print(f"demo: FAILED: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    finally:
        if keep:
            print(f"demo: logs and data are in {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
