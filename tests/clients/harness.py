"""A test harness of one page: tests are functions marked `@test`, each with a scratch directory and servers of
its own. A check that fails raises `Failed`; anything else that is raised fails the test as well.
"""

import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
import traceback

from forebay import Failed, Server, run

TESTS = []
MIB = 1 << 20
BLOCK = 4096


class Skipped(Exception):
    """The machine lacks what this test needs; the text says what."""


def test(function):
    """Marks a test. It gets one argument, a `Context`."""
    TESTS.append(function)
    return function


def check(condition, what):
    """Fails the test unless `condition` holds."""
    if not condition:
        raise Failed(what)


def equal(found, expected, what):
    """Fails the test unless both are the same."""
    if found != expected:
        raise Failed(f"{what}: found {found!r}, expected {expected!r}")


class Context:
    """What a test works with. `seed` makes its random data; the same seed gives the same data."""

    def __init__(self, name, base, seed):
        self.dir = os.path.join(base, name)
        os.mkdir(self.dir)
        self.random = random.Random(f"{name}-{seed}")
        self.stack = contextlib.ExitStack()

    def path(self, name):
        """A path in the scratch directory."""
        return os.path.join(self.dir, name)

    def server(self, *args, data="data", start=True):
        """A server on a directory of this test; it ends with the test."""
        server = Server(data if data.startswith("/") else self.path(data), log=self.path("server.log"), args=args)
        self.stack.callback(server.close)
        return server.start() if start else server

    def defer(self, function, *args, **kwargs):
        """Calls `function` at the end of the test, however it ends."""
        self.stack.callback(function, *args, **kwargs)

    def noise_file(self, name, size, holes=False):
        """A file of random bytes; with `holes`, every other MiB of it is a hole."""
        path = self.path(name)
        with open(path, "wb") as f:
            f.truncate(size)
            for offset in range(0, size, MIB):
                if holes and (offset // MIB) % 2:
                    continue
                f.seek(offset)
                f.write(self.random.randbytes(min(MIB, size - offset)))
        return path


def connect(server, export, **settings):
    """A libnbd handle on an export. Imported late: only these tests need the module."""
    import nbd

    handle = nbd.NBD()
    handle.set_handshake_flags(nbd.HANDSHAKE_FLAG_MASK)
    handle.add_meta_context("base:allocation")
    for name, value in settings.items():
        getattr(handle, f"set_{name}")(value)
    handle.connect_uri(server.uri(export))
    return handle


def refused_by_server(errno_name, function, *args):
    """Calls a libnbd function, which has to fail with this errno, such as "ENOSPC"."""
    import nbd

    try:
        function(*args)
    except nbd.Error as e:
        equal(e.errno, errno_name, f"error of {function.__name__}")
        return
    raise Failed(f"{function.__name__} succeeded; it should fail with {errno_name}")


def need_root(what):
    """Skips the test without root."""
    if os.geteuid() != 0:
        raise Skipped(f"needs root, for {what}")


def run_tests(wanted, seed):
    """Runs all tests whose name contains one of `wanted` (all without any). Returns the exit status."""
    here = os.path.dirname(os.path.abspath(__file__))
    cache = os.path.join(here, "..", "..", ".cache")
    os.makedirs(cache, exist_ok=True)
    base = os.path.realpath(tempfile.mkdtemp(prefix="tests-", dir=cache))
    passed = failed = 0
    for function in TESTS:
        name = function.__name__
        if wanted and not any(w in name for w in wanted):
            continue
        begin = time.monotonic()
        context = Context(name, base, seed)
        result, detail = "ok", ""
        try:
            with context.stack:
                function(context)
        except Skipped as e:
            result, detail = "skip", f" -- {e}"
        except Failed as e:
            result, detail = "FAIL", f"\n{indented(str(e))}"
        except Exception:  # a defect of the test, or something unforeseen: a failure all the same
            result, detail = "FAIL", f"\n{indented(traceback.format_exc())}"
        print(f"{result:<4} {name} ({time.monotonic() - begin:.1f} s){detail}", flush=True)
        passed += result == "ok"
        if result == "FAIL":
            failed += 1
            print(indented(f"its files are in {context.dir}; seed {seed}"), flush=True)
        else:
            shutil.rmtree(context.dir, ignore_errors=True)
    if not failed:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{passed} passed, {failed} failed", flush=True)
    if passed + failed == 0:
        print("no test has such a name", file=sys.stderr)
    return 0 if failed == 0 and passed > 0 else 1


def indented(text):
    return "\n".join(f"     {line}" for line in text.rstrip().splitlines())


__all__ = [
    *("BLOCK", "MIB", "Failed", "Skipped", "check", "connect", "equal", "need_root", "refused_by_server"),
    *("run", "run_tests", "test"),
]
