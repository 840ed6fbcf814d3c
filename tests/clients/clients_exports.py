"""Exports: files that other programs read, by the command line and over TCP, and exports that end early."""

import http.client
import json
import os
import signal
import subprocess

from clients_api import pool
from forebay import spawn
from harness import BLOCK, MIB, check, connect, equal, run, test, wait_for


def written(s, t, size=64 * MIB):
    """A volume with data and holes, and a raw file with the same contents."""
    s.cli("volume", "create", "db", "--size", str(size))
    h = connect(s, "db")
    copy = t.path("copy.raw")
    with open(copy, "wb") as f:
        f.truncate(size)
        for at in (0, 5 * MIB + BLOCK, size // 2 - MIB, size - 3 * MIB):
            data = t.random.randbytes(3 * MIB)
            h.pwrite(data, at)
            f.seek(at)
            f.write(data)
    h.flush()
    return h, copy


def same(one, one_format, two):
    run("qemu-img", "compare", "-q", "-f", one_format, "-F", "raw", one, two)


def ended_jobs(s):
    """The exports that have ended."""
    return [job for job in s.json("job", "list") if job["kind"] == "export" and job["ended_ms"]]


@test
def exported_files_are_read_by_qemu_and_imported_again(t):
    s = t.server()
    h, copy = written(s, t)
    s.cli("snapshot", "create", "db", "monday")
    qcow2, raw = t.path("db.qcow2"), t.path("db.raw")
    done = s.cli("volume", "export", "db@monday", qcow2)
    check("exported 'db@monday' (qcow2): 64 MiB" in done.stdout, done.stdout)
    equal(s.json("volume", "export", "db", raw)["size_bytes"], 64 * MIB, "the size in JSON")
    run("qemu-img", "check", "-q", "-f", "qcow2", qcow2)
    for file, form in ((qcow2, "qcow2"), (raw, "raw")):
        same(file, form, copy)
        check(os.stat(file).st_blocks * 512 < 16 * MIB, f"{form}: holes take space")
        equal(os.stat(file).st_mode & 0o777, 0o600, f"{form}: the mode")
    # QEMU writes to the file.
    run("qemu-io", "-f", "qcow2", "-c", "write -P 7 20M 1M", "-c", "write -P 8 0 64k", qcow2)
    run("qemu-img", "check", "-q", "-f", "qcow2", qcow2)

    s.cli("image", "import", "again", raw)
    s.cli("image", "export", "again", t.path("again.qcow2"))
    same(t.path("again.qcow2"), "qcow2", copy)
    for args, form in (((), "raw"), (("--format", "qcow2"), "qcow2")):
        with open(t.path(f"stdout.{form}"), "wb") as f:
            argv = [s.bin, "--socket", s.control, "volume", "export", "db", "-", *args]
            subprocess.run(argv, stdout=f, check=True)
        same(t.path(f"stdout.{form}"), form, copy)
    equal(os.path.getsize(t.path("stdout.raw")), 64 * MIB, "the bytes on standard output")

    line = s.refused("volume", "export", "db", raw)
    check("--force" in line, line)
    h.pwrite(b"new", 0)
    h.flush()
    s.cli("volume", "export", "db", raw, "--force")
    with open(raw, "rb") as f:
        equal(f.read(3), b"new", "the replaced file")
    line = s.refused("volume", "export", "dbb", t.path("x"))
    check("did you mean 'db'" in line or "named 'dbb'" in line, line)
    line = s.refused("volume", "export", "db", t.path("none/x"))
    check("none/x" in line, line)
    equal(sorted(name for name in os.listdir(t.dir) if "part" in name), [], "temporary files")


@test
def an_export_has_one_moment_while_a_client_writes(t):
    s = t.server("--http", "127.0.0.1:0")
    h, copy = written(s, t)
    api = json.loads(pool(s))["http"].removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(api, timeout=60)
    connection.request("GET", "/api/v1/volumes/db/export?format=raw")
    answer = connection.getresponse()
    equal((answer.status, answer.headers["content-length"]), (200, str(64 * MIB)), "the response")
    for at in range(0, 64 * MIB, 16 * MIB):
        h.pwrite(b"\xee" * 16 * MIB, at)
    h.flush()
    with open(t.path("exported"), "wb") as f:
        while piece := answer.read(MIB):
            f.write(piece)
    connection.close()
    same(t.path("exported"), "raw", copy)


@test
def an_export_over_tcp_needs_a_token_of_a_provisioner(t):
    s = t.server("--http", "127.0.0.1:0")
    _, copy = written(s, t)
    s.cli("volume", "create", "mail", "--size", "8M")
    api = json.loads(pool(s))["http"].removeprefix("http://").rstrip("/")
    tokens = {
        role: s.cli("token", "create", role, "--role", role, "--disks", "db").stdout.split()[-1]
        for role in ("operator", "provisioner")
    }

    def curl(disk, secret, *args):
        header = ["-H", f"Authorization: Bearer {secret}"] if secret else []
        url = f"http://{api}/api/v1/volumes/{disk}/export"
        return subprocess.run(["curl", "-sS", "--fail", *header, *args, url], capture_output=True, text=True, check=False)

    file = t.path("db.qcow2")
    for disk, secret, status in (
        ("db", None, "401"),
        ("db", tokens["operator"], "403"),
        ("mail", tokens["provisioner"], "404"),
    ):
        refused = curl(disk, secret)
        check(refused.returncode != 0 and status in refused.stderr, f"{disk}, {status}: {refused.stderr}")
    done = curl("db", tokens["provisioner"], "-o", file)
    equal(done.returncode, 0, done.stderr)
    run("qemu-img", "check", "-q", "-f", "qcow2", file)
    same(file, "qcow2", copy)


@test
def an_export_that_ends_early_leaves_nothing(t):
    s = t.server()
    written(s, t, 512 * MIB)
    target = t.path("db.raw")

    def begin():
        """An export whose reader takes the first bytes and then nothing."""
        argv = [s.bin, "--socket", s.control, "volume", "export", "db", "-"]
        job = spawn(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        equal(len(job.stdout.read(BLOCK)), BLOCK, "the first bytes")
        return job

    job = begin()
    job.send_signal(signal.SIGINT)
    wait_for(lambda: ended_jobs(s), "the end of the export")
    job.stdout.read()
    check(job.wait(60) != 0, "an interrupted export succeeds")
    job = begin()
    number = next(str(j["id"]) for j in s.json("job", "list") if not j["ended_ms"])
    s.cli("job", "cancel", number)
    job.stdout.read()
    check(job.wait(60) != 0, "a cancelled export succeeds")
    check(b"cancelled" in (error := job.stderr.read()), error)
    check(all(j["state"] == "cancelled" for j in ended_jobs(s)), str(ended_jobs(s)))

    # The server is killed, and removes the copy when it starts again.
    job = begin()
    s.kill()
    job.stdout.read()
    check(job.wait(60) != 0, "an export of a killed server succeeds")
    s.start()
    with open(s.log) as f:
        check("removing 1 interrupted imports and copies" in f.read(), "the log")
    s.cli("volume", "export", "db", target)
    equal(os.path.getsize(target), 512 * MIB, "the size")
    s.stop()
    check("error" not in run(s.bin, "check", "--data", s.data).stdout.lower(), "the pool")
