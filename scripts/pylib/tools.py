"""Tools that tests use and that a machine may lack. Each is fetched once, to `.cache/tools`.

Without a network they are not available, and a test that needs one is skipped.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
CACHE = os.path.join(ROOT, ".cache", "tools")
# Tests depend on what it generates, so its releases are tried before they are used.
SCHEMATHESIS = "4.32.5"
FETCH_S = 300


class Unavailable(Exception):
    """A tool cannot be fetched; the text is the reason, in one line."""


@contextlib.contextmanager
def locked(name):
    """Lets one process fetch a tool; yields its directory."""
    directory = os.path.join(CACHE, name)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def fetch(what, *argv, **kwargs):
    """Runs a command that needs the network."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S, **kwargs)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Unavailable(f"{what} cannot be fetched: {e}") from e
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Unavailable(f"{what} cannot be fetched ({argv[0]} {argv[1]}: {last})")


def schemathesis():
    """The path of schemathesis: SCHEMATHESIS, or one release of it from PyPI in a virtual environment."""
    given = os.environ.get("SCHEMATHESIS")
    if given:
        return given
    with locked(f"schemathesis-{SCHEMATHESIS}") as directory:
        tool = os.path.join(directory, "bin", "schemathesis")
        if not os.path.exists(os.path.join(directory, "complete")):
            fetch("schemathesis", sys.executable, "-m", "venv", directory)
            pip = os.path.join(directory, "bin", "pip")
            fetch("schemathesis", pip, "install", "-q", "--disable-pip-version-check", f"schemathesis=={SCHEMATHESIS}")
            open(os.path.join(directory, "complete"), "w").close()
    return tool


def promtool():
    """The path of promtool: an installed one, or one from Debian's package prometheus."""
    installed = shutil.which("promtool")
    if installed:
        return installed
    with locked("promtool") as directory:
        tool = os.path.join(directory, "usr", "bin", "promtool")
        if not os.path.exists(tool):
            fetch("promtool", "apt-get", "download", "prometheus", cwd=directory)
            packages = glob.glob(os.path.join(directory, "prometheus_*.deb"))
            if not packages:
                raise Unavailable("promtool cannot be fetched: apt-get has downloaded no package prometheus")
            package = packages[0]
            fetch("promtool", "dpkg-deb", "--extract", package, os.path.join(directory, "new"))
            os.makedirs(os.path.dirname(tool), exist_ok=True)
            os.rename(os.path.join(directory, "new", "usr", "bin", "promtool"), tool)
            shutil.rmtree(os.path.join(directory, "new"))
            os.unlink(package)
    return tool
