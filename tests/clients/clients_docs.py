"""The examples in the documentation are run.

The first line of each fenced block has, after the language, one of

    run              the block is run: a shell script, or a file that is checked
    output           what the last shell block of the page that was run prints; see `shape`
    not-run=REASON   it cannot be run here; REASON is one of `REASONS`

so a new block without one of them fails. All shell blocks of a page are one script, which runs in separate
namespaces: with empty directories for the paths that pages name, the addresses that they use, and no
other process. An HTML comment that begins with `<!-- test` is part of that script: it prepares what the page
assumes.
"""

import glob
import json
import os
import re
import shlex
import tomllib
import xml.etree.ElementTree as xml

import yaml

from forebay import binary
from harness import Failed, Skipped, check, equal, run, test

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
REASONS = {
    "build": "builds or installs the software",
    "host": "changes users, packages or services of the host",
    "kernel": "needs a module of the kernel",
    "libvirt": "needs libvirt",
    "esxi": "needs VMware ESXi",
    "windows": "needs Windows",
    "proxmox": "needs Proxmox VE",
    "ceph": "needs a Ceph cluster; tests/clients/clients_rados.py has such tests",
    "long": "runs for minutes or hours",
    "session": "needs the state of a session: a terminal, a running upgrade, a loss",
    "other": "configures another program",
    "part": "is a part, or abbreviated",
    "certificates": "needs certificates; clients_tls.py and clients_access.py have such tests",
}
SHELL, FILES = ("sh",), ("toml", "yaml", "json", "xml")
# Made from the table of flags, with which a Rust test compares it.
GENERATED = "docs/cli.md"
# Addresses that pages use as those of the server.
ADDRESSES = ("10.0.0.5", "10.0.0.11")
# Empty directories in the namespace of a page.
PLACES = ("/srv", "/var/lib", "/run", "/tmp", "/var/log", "/root")


class Block:
    """A fenced block, or a comment for the test, of a page."""

    def __init__(self, page, line, language, mark, text):
        self.page, self.line, self.language, self.mark, self.text = page, line, language, mark, text
        self.where = f"{page}:{line}"

    def is_script(self):
        return self.mark == "run" and self.language in SHELL


def pages():
    """All pages with examples, relative to the repository."""
    found = ["README.md"]
    for pattern in ("docs/*.md", "docs/quickstart/*.md", "docs/concepts/*.md"):
        found += sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern)))
    return [page for page in found if page != GENERATED]


def blocks(page):
    """The blocks of a page, in their order."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = f.read()
    found = []
    fence = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
    comment = re.compile(r"^<!-- test\n(?P<text>.*?)^-->$", re.M | re.S)
    for match in fence.finditer(text):
        words = match["info"].split()
        language, mark = (words + ["", ""])[:2]
        content = re.sub(f"^{match['indent']}", "", match["text"], flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        found.append((match.start(), Block(page, line, language, mark, content)))
    for match in comment.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append((match.start(), Block(page, line, "sh", "run", match["text"])))
    return [block for _, block in sorted(found, key=lambda pair: pair[0])]


def all_blocks():
    return [block for page in pages() for block in blocks(page)]


@test
def every_example_is_run_or_says_why_not(t):
    wrong = []
    for block in all_blocks():
        reason = block.mark.removeprefix("not-run=")
        if block.mark == "run":
            known = block.language in SHELL + FILES
        else:
            known = block.mark == "output" or (block.mark != reason and reason in REASONS)
        if not known:
            wrong.append(f"{block.where}: '{block.language} {block.mark}'")
    what = "mark these blocks with run, output or not-run=REASON, as tests/clients/clients_docs.py describes:\n"
    check(not wrong, what + "\n".join(wrong))


# Commands and flags.


def known_flags():
    """The flags of each command, from the reference."""
    with open(os.path.join(ROOT, GENERATED), encoding="utf-8") as f:
        sections = re.split(r"^### forebay ", f.read(), flags=re.M)[1:]
    flags = {}
    for section in sections:
        name, _, rest = section.partition("\n")
        flags[name.strip()] = set(re.findall(r"^\| `(--[a-z-]+)", rest, re.M))
    return flags


def commands(text):
    """The command lines of `forebay` in a script, in words."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for part in re.split(r"\||&&|;|\$\(", re.sub(r"(^|\s)#.*", "", line)):
            if re.match(r"\s*forebay [a-z-]", part):
                yield part.split()[1:]


def commands_in_text(page, names):
    """Those in the sentences of a page, between backticks, with or without `forebay`."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = re.sub(r"^ *```.*?^ *```$", "", f.read(), flags=re.M | re.S)
    for code in re.findall(r"`([^`]+)`", text):
        words = code.removeprefix("forebay ").split()
        if " ".join(words[:2]) in names or (words and code.startswith("forebay ")):
            yield words


@test
def examples_use_commands_and_flags_that_exist(t):
    flags = known_flags()
    check(len(flags) > 40, f"{GENERATED} has {len(flags)} commands")
    everywhere = {"--json", "--socket", "--data", "--shard", "--help", "--version"}
    used = [(b.where, words) for b in all_blocks() if b.language in SHELL for words in commands(b.text)]
    used += [(page, words) for page in pages() for words in commands_in_text(page, flags)]
    check(len(used) > 200, f"only {len(used)} commands were found")
    wrong = []
    for where, words in used:
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in flags), None)
        unknown = {word.split("=")[0] for word in words if word.startswith("--")} - flags.get(name, set()) - everywhere
        if unknown:
            wrong.append(f"{where}: forebay {name or ' '.join(words[:2])} has no {', '.join(unknown)}")
    check(not wrong, "\n".join(wrong))


@test
def examples_for_other_systems_name_what_the_server_has(t):
    """Blocks for ESXi, Windows and Kubernetes use the targets and ports of the commands on their page."""
    for page in pages():
        of_page = blocks(page)
        made = set(re.findall(r"target create (iqn\.\S+)", "\n".join(b.text for b in of_page if b.is_script())))
        if not page.startswith("docs/quickstart/"):
            continue
        for block in of_page:
            targets = set(re.findall(r"\biqn\.2026-01\.org\.example:[\w-]+", block.text))
            check(targets <= made, f"{block.where}: target {targets - made} is not created on this page")
            for address in ADDRESSES:
                ports = set(re.findall(rf"{re.escape(address)}:(\d+)", block.text))
                check(ports <= {"3260"}, f"{block.where}: port {ports} of {address}")
            names = re.findall(r"\b(?:iqn|eui|naa)\.[^\s'\",;]+", block.text)
            for name in names:
                check(re.fullmatch(r"[\w.:-]{1,223}", name), f"{block.where}: '{name}' is no name of iSCSI")


# Files.


def check_file(t, block):
    """Checks an example that is a file, without a server."""
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        for document in yaml.safe_load_all(block.text):
            check(isinstance(document, dict) and document, f"{block.where}: no mapping")
            if "apiVersion" in document:
                check(document.get("kind") and document["metadata"]["name"], f"{block.where}: kind and name are needed")
    elif block.language == "xml":
        disk = xml.fromstring(block.text)
        equal(disk.find("source").get("protocol"), "nbd", f"{block.where}: protocol")
    else:
        # Most examples are a section of the file.
        text = block.text if "data" in tomllib.loads(block.text) else f'data = "/var/lib/forebay"\n{block.text}'
        file = t.path(f"example-{block.line}.toml")
        with open(file, "w") as f:
            f.write(text)
        run(binary(), "config", "check", file)


@test
def example_files_are_accepted(t):
    files = [block for block in all_blocks() if block.mark == "run" and block.language in FILES]
    check(len(files) > 10, f"only {len(files)} files were found")
    for block in files:
        try:
            check_file(t, block)
        except (Failed, ValueError, KeyError, AttributeError, xml.ParseError, yaml.YAMLError) as e:
            raise Failed(f"{block.where}: {e}") from e


# Scripts.

# QEMU of the examples, without KVM, a display or a guest: it opens its disks and quits.
QEMU = """#!/bin/bash
arguments=()
for a in "$@"; do a=${a/accel=kvm/accel=tcg}; a=${a/#host/max}; [[ $a == ... ]] || arguments+=("$a"); done
echo quit | exec timeout 60 /usr/bin/qemu-system-x86_64 -S -display none -monitor stdio "${arguments[@]}"
"""

PRELUDE = """
set -eu -o pipefail
mount -t proc proc /proc
# What is needed stays visible if it is below one of the places: work tree and server.
exec {tree}<TREE {server}<SERVER
for place in PLACES; do mount -t tmpfs tmpfs $place; done
[[ -e TREE ]] || { mkdir -p TREE && mount --no-canonicalize --bind /proc/self/fd/$tree TREE; }
[[ -e SERVER ]] || {
    mkdir -p "$(dirname SERVER)" && touch SERVER
    mount --no-canonicalize --bind /proc/self/fd/$server SERVER
}
exec {tree}<&- {server}<&-
# A copy, because a directory is added. Not every user may read all of it.
mkdir /run/etc
cp -a /etc/. /run/etc/ 2>/dev/null || true
mount --bind /run/etc /etc
mkdir -p /etc/forebay /run/forebay /var/lib/forebay $HOME /tmp/work
ip link set lo up
for address in ADDRESSES; do ip address add $address/32 dev lo; done
cd /tmp/work
# Waits for the server that was started last; the arguments are those of a client.
__ready() {
    for _ in {1..300}; do
        forebay stats --json "$@" >/dev/null 2>&1 && return
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start"
    return 1
}
"""


def with_waits(text):
    """A script that waits for each server that it starts."""
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if re.match(r"\s*forebay serve .*&\s*(#.*)?$", line):
            lines.append("__ready " + " ".join(re.findall(r"--data \S+", line)))
    return "\n".join(lines) + "\n"


def script(of_page, outputs):
    """The script of a page. The output of each block goes to a separate file."""
    prelude = PRELUDE.replace("PLACES", " ".join(PLACES)).replace("ADDRESSES", " ".join(ADDRESSES))
    for word, path in ("TREE", ROOT), ("SERVER", os.path.realpath(binary())):
        prelude = re.sub(rf"\b{word}\b", lambda _, path=path: shlex.quote(str(path)), prelude)
    parts = [prelude]
    for block in of_page:
        if block.is_script():
            output = shlex.quote(os.path.join(outputs, str(block.line)))
            parts.append(f"exec >{output} 2>&1\n{with_waits(block.text)}")
        elif block.mark == "run" and block.language == "xml":
            parts += [f"exec >{shlex.quote(os.path.join(outputs, str(block.line)))} 2>&1\n", open_as_libvirt_does(block)]
    return "".join(parts)


def open_as_libvirt_does(block):
    """Opens the disk of a domain with the options that libvirt gives to QEMU."""
    disk = xml.fromstring(block.text)
    source, reconnect = disk.find("source"), disk.find("source/reconnect")
    host = source.find("host")
    if host.get("transport") != "unix":
        return ""
    options = {"driver": "nbd", "server.type": "unix", "server.path": host.get("socket"), "export": source.get("name")}
    if reconnect is not None:
        options["reconnect-delay"] = reconnect.get("delay")
    image = ",".join(f"{name}={value}" for name, value in options.items())
    return f"qemu-img info --image-opts {shlex.quote(image)}\n"


def shape(line):
    """A line without what differs from run to run: numbers, their units, whether a disk was measured yet, and
    the width of columns."""
    line = re.sub(r"[\d.,]*\d( ?([KMGT]i?)?B\b| ?(%|ms|s|min|h)(?!\w))?", "#", line)
    line = re.sub(r"# \(# ago\)|not measured yet", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def compare(block, printed):
    """Each line of the example is in what was printed, in this order. `...` is any number of lines."""
    lines = iter([shape(line) for line in printed.splitlines()])
    for line in block.text.splitlines():
        wanted = shape(line)
        if wanted not in ("", "...", "- ...") and not any(wanted in line for line in lines):
            raise Failed(f"{block.where}: '{line}' was not printed. The output is:\n{printed}")


def run_page(t, page):
    of_page = blocks(page)
    name = re.sub(r"\W", "-", page)
    outputs, tools = t.path(f"{name}-out"), t.path(f"{name}-bin")
    os.mkdir(outputs)
    os.mkdir(tools)
    # The directories of the page hide those of the test, and the socket of a server needs a short path.
    os.symlink(os.path.realpath(binary()), os.path.join(tools, "forebay"))
    with open(os.path.join(tools, "qemu-system-x86_64"), "w", opener=lambda p, f: os.open(p, f, 0o755)) as f:
        f.write(QEMU)
    path = t.path(f"{name}.sh")
    with open(path, "w") as f:
        f.write(script(of_page, outputs))
    environment = {"PATH": f"{tools}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root/user"}
    environment |= {"LANG": "C.UTF-8", "FOREBAY_LOG": "warn", "FOREBAY_MEMORY_DIR": t.memory}
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        namespaces.append("--map-root-user")
        if run(*namespaces, "true", check=False).returncode != 0:
            raise Skipped("needs root, or namespaces of users")
    done = run(*namespaces, "bash", path, env=environment, check=False, timeout=180)
    printed = {}
    for file in os.listdir(outputs):
        with open(os.path.join(outputs, file), errors="replace") as f:
            printed[int(file)] = f.read()
    if done.returncode != 0:
        last = max(printed, default=0)
        raise Failed(f"{page}:{last}: exit status {done.returncode}\n{printed.get(last, '')}{done.stderr}")
    before = 0
    for block in of_page:
        if block.is_script():
            before = block.line
        elif block.mark == "output":
            compare(block, printed.get(before, ""))


def is_run(page):
    return any(block.is_script() for block in blocks(page))


@test
def examples_of_quick_starts_work(t):
    for page in filter(is_run, pages()):
        if "quickstart" in page or page == "README.md":
            run_page(t, page)


@test
def examples_of_operation_work(t):
    for page in filter(is_run, pages()):
        if "quickstart" not in page and page != "README.md":
            run_page(t, page)
