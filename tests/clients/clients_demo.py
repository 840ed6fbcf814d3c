"""Scripts of the demo: the package mirror that build-image.sh uses, and tables that fit a terminal."""

import os
import sys

from harness import check, equal, run, test

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo")
TERMINAL_COLUMNS = 120


def mirror(sources, environment=None):
    """Runs `debian_mirror bookworm` on a directory of apt sources."""
    script = f'set -euo pipefail; source "{DEMO}/mirror.sh"; debian_mirror bookworm "{sources}"'
    variables = {"PATH": os.environ["PATH"], **(environment or {})}
    return run("bash", "-c", script, check=False, env=variables)


def write_sources(t, name, files):
    """A directory with source files of apt, by their path in /etc/apt."""
    root = t.path(name)
    os.makedirs(os.path.join(root, "sources.list.d"))
    for path, text in files.items():
        with open(os.path.join(root, path), "w") as f:
            f.write(text)
    return root


@test
def the_image_mirror_is_the_one_of_apt(t):
    cases = {
        "one_line": ("http://one.example/debian", {
            "sources.list": "# deb http://comment.example/debian bookworm main\n"
            "deb-src http://source.example/debian bookworm main\n"
            "deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian bookworm main contrib # a comment\n"
            "deb http://later.example/debian bookworm main\n",
        }),
        "list_directory": ("https://two.example/pub/debian/", {
            "sources.list": "\n",
            "sources.list.d/a.list": "deb https://tools.example/debian bookworm stable\n",
            "sources.list.d/b.list": "deb https://two.example/pub/debian/ trixie main\n",
            "sources.list.d/c.list.disabled": "deb http://disabled.example/debian bookworm main\n",
        }),
        "deb822": ("http://three.example/debian", {
            "sources.list.d/debian.sources": "# The archive\n"
            "Types: deb\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n"
            "Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n\n"
            "types: deb deb-src\n# a comment in a stanza\nURIs:\n http://three.example/debian\n"
            "Suites: bookworm\n bookworm-updates\nComponents: main non-free-firmware\nSigned-By: /k.gpg\n",
        }),
        "other_path": ("http://four.example/mirror/bookworm", {
            "sources.list.d/a.list": "deb http://vendor.example/apt nodistro main\n"
            "deb http://four.example/mirror/bookworm bookworm main\n",
        }),
    }
    for name, (expected, files) in cases.items():
        done = mirror(write_sources(t, name, files))
        equal((done.returncode, done.stdout.strip()), (0, expected), f"{name}: mirror ({done.stderr.strip()})")


@test
def the_image_mirror_can_be_set_and_must_exist(t):
    empty = write_sources(t, "empty", {"sources.list": "deb http://vendor.example/apt nodistro main\n"})
    done = mirror(empty, {"DEBIAN_MIRROR": "http://set.example/debian"})
    equal((done.returncode, done.stdout.strip()), (0, "http://set.example/debian"), "DEBIAN_MIRROR")
    done = mirror(empty)
    equal((done.returncode, done.stdout), (1, ""), "exit status and output without a mirror")
    check("set DEBIAN_MIRROR" in done.stderr, f"the error does not name the variable: {done.stderr}")
    equal(len(done.stderr.splitlines()), 1, "lines of the error")


@test
def demo_tables_fit_a_terminal(t):
    sys.path.insert(0, DEMO)
    import report
    import slow_boot

    names = [f"guest-{i}" for i in (1, 2, 999)]
    phases = ("boot", "work", "shutdown")

    def sample(n, guests):
        counters = {kind: {"ops": n * 9_999_999, "bytes": n * (9_999 << 30)} for kind in ("read", "write")}
        return {"store": counters, "guests": {name: counters for name in guests}}

    cold = [sample(n, ["reference"]) for n in range(4)]
    storm = [sample(n, names) for n in range(4)]
    ways = [(4, way[0], 12_345.6, 12_345.6, 1_234_567, 123_456 << 20) for way in slow_boot.WAYS]
    for text in (report.table(phases, cold, storm, names), slow_boot.table(ways)):
        for line in text.splitlines():
            check(len(line) <= TERMINAL_COLUMNS, f"{len(line)} columns: {line}")
