#!/usr/bin/env python3
"""Adds packages to a signed apt repository: repository.py DIRECTORY KEY PACKAGE.deb...

The directory is served by any web server, or used as file:/. It is made if it does not exist; packages of
earlier releases in it are kept. KEY is the fingerprint of a secret key in the keyring of gpg; its public
part is written to forebay-archive-keyring.gpg, which administrators install.

Each suite has all packages, since one package suits all supported releases of Debian. Apart from the
signatures, equal inputs give equal files. SOURCE_DATE_EPOCH is the date of the repository.
"""

import email.utils
import filecmp
import glob
import gzip
import hashlib
import os
import shutil
import subprocess
import sys

SUITES = {"bookworm": "12", "trixie": "13"}
COMPONENT = "main"
POOL = f"pool/{COMPONENT}"
KEYRING = "forebay-archive-keyring.gpg"


def output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content)


def described(directory, path):
    """Architecture of a package, and its paragraph in the list of packages."""
    with open(path, "rb") as f:
        content = f.read()
    fields = output("dpkg-deb", "--field", path).decode().strip()
    architecture = output("dpkg-deb", "--field", path, "Architecture").decode().strip()
    more = f"Filename: {os.path.relpath(path, directory)}\nSize: {len(content)}\n"
    return architecture, f"{fields}\n{more}SHA256: {hashlib.sha256(content).hexdigest()}\n\n"


def write_suite(directory, suite, packages, date):
    """Writes the lists of packages of a suite, and the file that has their checksums."""
    base = f"{directory}/dists/{suite}"
    shutil.rmtree(base, ignore_errors=True)
    architectures = sorted({a for a, _ in packages} - {"all"})
    sums = []
    for architecture in architectures:
        text = "".join(text for a, text in packages if a in (architecture, "all")).encode()
        for name, content in (("Packages", text), ("Packages.gz", gzip.compress(text, 9, mtime=0))):
            path = f"{COMPONENT}/binary-{architecture}/{name}"
            write(f"{base}/{path}", content)
            sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {path}")
    fields = {
        "Origin": "Forebay",
        "Label": "Forebay",
        "Suite": suite,
        "Codename": suite,
        "Date": date,
        "Architectures": " ".join(architectures),
        "Components": COMPONENT,
        "Description": f"Forebay for Debian {SUITES[suite]}",
    }
    lines = [f"{name}: {value}" for name, value in fields.items()] + ["SHA256:", *sums]
    write(f"{base}/Release", ("\n".join(lines) + "\n").encode())
    return base


def sign(base, key):
    gpg = ["gpg", "--batch", "--yes", "--local-user", key, "--digest-algo", "SHA512", "--armor"]
    output(*gpg, "--output", f"{base}/InRelease", "--clearsign", f"{base}/Release")
    output(*gpg, "--output", f"{base}/Release.gpg", "--detach-sign", f"{base}/Release")


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: repository.py DIRECTORY KEY PACKAGE.deb...")
    directory, key, *new = sys.argv[1:]
    for package in new:
        target = f"{directory}/{POOL}/{os.path.basename(package)}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # A host that has the old list of packages would refuse the new file.
        if os.path.exists(target) and not filecmp.cmp(target, package, shallow=False):
            sys.exit(f"repository.py: {target} exists with another content: packages of a version never change")
        shutil.copyfile(package, target)
    packages = [described(directory, path) for path in sorted(glob.glob(f"{directory}/{POOL}/*.deb"))]
    date = email.utils.formatdate(int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600")), usegmt=True)
    for suite in SUITES:
        sign(write_suite(directory, suite, packages, date), key)
    write(f"{directory}/{KEYRING}", output("gpg", "--batch", "--export", key))
    print(directory)


if __name__ == "__main__":
    main()
