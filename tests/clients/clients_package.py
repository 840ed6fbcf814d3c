"""The Debian package, in short: its contents, scripts and units. `make test-package` installs it on clean
roots."""

import os
import re
import shutil
import subprocess
import sys

from forebay import binary, run
from harness import Skipped, check, equal, test

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The exposure that systemd-analyze may find at most, times ten.
MOST_EXPOSED = 30


def build_package(directory, revision="-1"):
    """Builds the package from the binary under test; returns its path."""
    script = os.path.join(ROOT, "packaging", "debian", "build.sh")
    env = {**os.environ, "FOREBAY_DEB_REVISION": revision, "FOREBAY_DEB_COMPRESSION": "gzip"}
    return run(script, binary(), directory, env=env).stdout.strip()


def settings_of(path):
    """The lines of each section of a unit."""
    sections = {}
    with open(path) as f:
        for line in f.read().splitlines():
            if line.startswith("["):
                lines = sections.setdefault(line.strip("[]"), [])
            elif line and not line.startswith("#"):
                lines.append(line)
    return sections


@test
def the_package_has_what_it_promises(t):
    if shutil.which("dpkg-deb") is None:
        raise Skipped("needs dpkg-deb")
    package = build_package(t.path("out"))
    listed = {}
    for line in run("dpkg-deb", "--contents", package).stdout.splitlines():
        mode, owner, _, _, _, name = line.split(maxsplit=5)
        listed[name.lstrip(".")] = (mode, owner)
    for path, mode in (
        ("/usr/bin/forebay", "-rwxr-xr-x"),
        ("/etc/forebay/forebay.toml", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay.service", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay.socket", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay-control.socket", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay@.service", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay@.socket", "-rw-r--r--"),
        ("/usr/lib/systemd/system/forebay-control@.socket", "-rw-r--r--"),
        ("/usr/share/man/man1/forebay.1.gz", "-rw-r--r--"),
        ("/usr/share/bash-completion/completions/forebay", "-rw-r--r--"),
        ("/usr/share/zsh/vendor-completions/_forebay", "-rw-r--r--"),
        ("/usr/share/fish/vendor_completions.d/forebay.fish", "-rw-r--r--"),
        ("/usr/share/doc/forebay/copyright", "-rw-r--r--"),
        ("/usr/share/doc/forebay/examples/forebay-alerts.yml", "-rw-r--r--"),
    ):
        equal(listed.get(path), (mode, "root/root"), path)
    check(not any(name.startswith("/var") for name in listed), "the package owns nothing below /var")
    unpacked = t.path("unpacked")
    run("dpkg-deb", "--raw-extract", package, unpacked)
    equal(open(f"{unpacked}/DEBIAN/conffiles").read(), "/etc/forebay/forebay.toml\n", "configuration files")
    run(binary(), "config", "check", f"{unpacked}/etc/forebay/forebay.toml")
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", f"{unpacked}/DEBIAN/{script}")
    # Links of the documentation work without the repository.
    docs = f"{unpacked}/usr/share/doc/forebay"
    run(sys.executable, os.path.join(ROOT, "scripts", "check-links.py"), docs)
    check(open(f"{docs}/introduction.md").read().startswith("# Forebay"), "the introduction is the README")
    check(os.path.exists(f"{docs}/quickstart/libvirt.md"), "pages in folders")
    control = open(f"{unpacked}/DEBIAN/control").read()
    check(re.search(r"^Depends: libc6 \(>= 2\.\d+\), ", control, re.M), f"dependencies in {control}")
    service = open(f"{unpacked}/usr/lib/systemd/system/forebay.service").read()
    check("ExecStart=/usr/bin/forebay serve" in service, "the unit starts the binary of the package")
    for setting in ("WatchdogSec=", "NotifyAccess=all", "Sockets=forebay.socket", "ExecReload=", "Restart=always"):
        check(setting in service, f"the unit has {setting}")
    # Without it, systemd gives up after five ends within ten seconds.
    for name in ("forebay.service", "forebay@.service"):
        sections = settings_of(f"{unpacked}/usr/lib/systemd/system/{name}")
        check("StartLimitIntervalSec=0" in sections["Unit"], f"{name} is started again without limit")
        # A host stops its guests, then the server, then the Ceph that holds the pool.
        words = [word for line in sections["Unit"] for word in line.replace("=", " ").split()]
        check("ceph.target" in words, f"{name} stops before Ceph")
        equal("libvirt-guests.service" in words, name == "forebay.service", f"{name} stops after guests of libvirt")
        equal("pve-guests.service" in words, name == "forebay.service", f"{name} stops after guests of Proxmox VE")
    # Instances share neither paths nor units with each other, or with the single server.
    for name in ("forebay@.service", "forebay@.socket", "forebay-control@.socket"):
        with open(f"{unpacked}/usr/lib/systemd/system/{name}") as f:
            settings = [line for line in f if not line.startswith("#")]
        for line in settings:
            paths = re.findall(r"(?:/run|/etc|Directory=)[^ ]*forebay[^ ]*|\S*forebay\S*\.(?:service|socket)", line)
            check(all("%i" in path for path in paths), f"{name}: {line}")
    if shutil.which("lintian"):
        found = run("lintian", "--fail-on", "error", "--no-tag-display-limit", package, check=False)
        equal(found.returncode, 0, f"lintian: {found.stdout}")


@test
def the_unit_is_confined(t):
    if shutil.which("systemd-analyze") is None:
        raise Skipped("needs systemd-analyze")
    unit = os.path.join(ROOT, "packaging", "systemd", "forebay.service")
    argv = ["systemd-analyze", "--offline=true", f"--threshold={MOST_EXPOSED}", "security", unit]
    found = subprocess.run(argv, capture_output=True, text=True)
    if "unrecognized option" in found.stderr:
        raise Skipped("needs systemd-analyze 250 or later")
    equal(found.returncode, 0, f"exposure: {found.stdout.splitlines()[-1:]}")


def run_postinst(t, name, states, version):
    """Runs the script of an installation, with units in these states. Returns the commands executed."""
    root = t.path(name)
    stubs, log = f"{root}/bin", f"{root}/log"
    for directory in (stubs, f"{root}/run/systemd/system", f"{root}/var/lib/forebay", f"{root}/var/lib/systemd"):
        os.makedirs(directory)
    text = open(os.path.join(ROOT, "packaging", "debian", "postinst")).read()
    script = f"{root}/postinst"
    with open(script, "w") as f:
        f.write(text.replace("/run/systemd", f"{root}/run/systemd").replace("/var/lib/", f"{root}/var/lib/"))
    known = "".join(f'"is-active {unit}") echo {state} ;;\n' for unit, state in states.items())
    instances = "".join(f"echo {unit} loaded;" for unit in states if "@" in unit)
    bodies = {
        "systemctl": f'case "$*" in\n{known}list-units*) {instances} true ;;\nesac\n',
        "forebay": "",
        "deb-systemd-invoke": "",
        "deb-systemd-helper": "",
        "getent": "",
    }
    for command, body in bodies.items():
        path = f"{stubs}/{command}"
        with open(path, "w") as f:
            f.write(f'#!/bin/sh\necho {command} "$@" >>{log}\n{body}')
        os.chmod(path, 0o755)
    run("sh", script, "configure", *version, env={**os.environ, "PATH": f"{stubs}:/usr/bin:/bin"})
    with open(log) as f:
        return f.read()


@test
def an_upgrade_of_the_package_starts_no_server_that_was_stopped(t):
    service, old = "forebay.service", ["0.0.1-1"]
    starts, upgrades, restarts = "deb-systemd-invoke start", "control.sock upgrade", "systemctl restart"
    done = run_postinst(t, "first", {service: "inactive"}, [])
    check(starts in done, f"the first installation: {done}")
    done = run_postinst(t, "stopped", {service: "inactive", "forebay@b.service": "inactive"}, old)
    check(not any(word in done for word in (starts, upgrades, restarts)), f"servers that were stopped: {done}")
    done = run_postinst(t, "active", {service: "active", "forebay@b.service": "inactive"}, old)
    check(done.count(upgrades) == 1 and starts not in done, f"a server that runs: {done}")
    done = run_postinst(t, "failed", {service: "failed"}, old)
    check(f"{starts} {service}" in done, f"a server that has failed: {done}")
    done = run_postinst(t, "standby", {service: "activating"}, old)
    check(f"{restarts} --no-block {service}" in done, f"a standby: {done}")
