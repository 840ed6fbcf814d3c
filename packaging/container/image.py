#!/usr/bin/env python3
"""Writes the archive of a container image from the Debian package: image.py PACKAGE.deb ARCHIVE.tar

`podman load` and `docker load` read the archive: it is an OCI image layout, and has the `manifest.json` of
older releases of Docker, too. Neither a container engine nor root is needed, and nothing is downloaded.

The image has no distribution below it: the server of the package, and from this machine, which has to be the
oldest Debian that is supported, the libraries that the server and librados2 load, and Mozilla's CA
certificates. /var/lib/dpkg/status.d names the Debian packages that these are from, in the form that
scanners of images read. There is no shell; `podman exec NAME forebay ...` works. The Containerfile next to
this file builds an image on Debian instead.

Equal inputs give equal archives. SOURCE_DATE_EPOCH is the time of all files.
"""

import glob
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600"))
USER = 990
SETTINGS = {
    "User": "forebay",
    "Env": [
        "PATH=/usr/bin",
        "FOREBAY_SOCKET=/run/forebay/control.sock",
        "FOREBAY_DATA=/var/lib/forebay",
    ],
    "Entrypoint": ["forebay", "serve"],
    # NBD has no authentication without TLS: publish the port only where the guests' hosts alone reach it.
    "Cmd": ["--nbd", "0.0.0.0:10809", "--nbd-allow-remote"],
    "Volumes": {"/var/lib/forebay": {}},
    "ExposedPorts": {"10809/tcp": {}, "3260/tcp": {}},
    "StopSignal": "SIGTERM",
    # Not part of the OCI specification, but Docker reads it.
    "Healthcheck": {"Test": ["CMD", "forebay", "stats"], "Interval": 30 * 10**9, "Timeout": 10 * 10**9},
}
PASSWD = f"""root:x:0:0:root:/root:/usr/sbin/nologin
forebay:x:{USER}:{USER}:Forebay storage server:/var/lib/forebay:/usr/sbin/nologin
"""
GROUP = f"root:x:0:\nforebay:x:{USER}:\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


def output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout


class Layer:
    """Files of a layer, by path."""

    def __init__(self):
        self.entries = {}

    def add(self, path, kind, mode, content=b"", link="", owner=0):
        parent = os.path.dirname(path)
        if parent and parent not in self.entries:
            self.directory(parent)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.linkname = kind, mode, link
        entry.uid = entry.gid = owner
        entry.size, entry.mtime = len(content), EPOCH
        self.entries[path] = (entry, content)

    def directory(self, path, mode=0o755, owner=0):
        self.add(path, tarfile.DIRTYPE, mode, owner=owner)

    def link(self, path, to):
        self.add(path, tarfile.SYMTYPE, 0o777, link=to)

    def file(self, path, content, mode=0o644):
        self.add(path, tarfile.REGTYPE, mode, content)

    def tar(self):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(self.entries):
                entry, content = self.entries[path]
                tar.addfile(entry, io.BytesIO(content))
        return file.getvalue()


def shared_libraries(path):
    """The libraries that a program or library loads, with the loader."""
    found = []
    for line in output("ldd", path).decode().splitlines():
        words = line.split()
        if "=>" in words and words[2] == "not":
            sys.exit(f"image.py: {path} needs {words[0]}, which this machine lacks")
        if "=>" in words:
            found.append(words[2])
        elif words[0].startswith("/"):
            found.append(words[0])
    return found


def librados():
    """The library for pools in Ceph, which the server loads when it needs it."""
    for line in output("/sbin/ldconfig", "-p").decode().splitlines():
        if line.split()[0] == "librados.so.2":
            return line.split()[-1]
    sys.exit("image.py: librados.so.2 is missing: install librados2, so that the image can use pools in Ceph")


def package_of(path):
    """The Debian package that a file belongs to."""
    for name in (path, path.removeprefix("/usr")):
        found = subprocess.run(["dpkg", "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    sys.exit(f"image.py: {path} belongs to no Debian package")


def base_layer(binary):
    """Accounts, directories, libraries and certificates."""
    layer, packages = Layer(), {"ca-certificates"}
    for name in ("bin", "lib", "lib64", "sbin"):
        layer.directory(f"usr/{name}")
        layer.link(name, f"usr/{name}")
    rados = librados()
    for library in {rados, *shared_libraries(binary), *shared_libraries(rados)}:
        real = os.path.realpath(library)
        packages.add(package_of(real))
        with open(real, "rb") as f:
            layer.file(real[1:], f.read(), 0o755)
        # The name by which it is loaded. /lib and /lib64 are links.
        name = library if library.startswith("/usr/") else f"/usr{library}"
        if name != real:
            layer.link(name[1:], os.path.relpath(real, os.path.dirname(name)))
    certificates = sorted(glob.glob("/usr/share/ca-certificates/mozilla/*.crt"))
    if not certificates:
        sys.exit("image.py: no certificates: install ca-certificates")
    # Not the bundle of this machine, which may have certificates that only this machine trusts.
    layer.file("etc/ssl/certs/ca-certificates.crt", b"".join(open(path, "rb").read() for path in certificates))
    for package in sorted(packages):
        layer.file(f"var/lib/dpkg/status.d/{package}", output("dpkg-query", "--status", package))
        with open(f"/usr/share/doc/{package}/copyright", "rb") as f:
            layer.file(f"usr/share/doc/{package}/copyright", f.read())
    layer.file("etc/passwd", PASSWD.encode())
    layer.file("etc/group", GROUP.encode())
    layer.file("etc/nsswitch.conf", NSSWITCH.encode())
    layer.directory("tmp", 0o1777)
    return layer


def server_layer(package):
    """The server of the Debian package and its licence."""
    layer = Layer()
    wanted = {"usr/bin/forebay": 0o755, "usr/share/doc/forebay/copyright": 0o644}
    with tarfile.open(fileobj=io.BytesIO(output("dpkg-deb", "--fsys-tarfile", package))) as tar:
        for entry in tar:
            name = entry.name.removeprefix("./")
            if name in wanted:
                layer.file(name, tar.extractfile(entry).read(), wanted.pop(name))
    if wanted:
        sys.exit(f"image.py: {package} has no {', '.join(wanted)}")
    layer.file("var/lib/dpkg/status.d/forebay", output("dpkg-deb", "--field", package))
    for path in ("var/lib/forebay", "run/forebay"):
        layer.directory(path, 0o750, USER)
    return layer


class Archive:
    """An OCI image layout in a tar file."""

    def __init__(self):
        self.files = Layer()

    def blob(self, content):
        digest = hashlib.sha256(content).hexdigest()
        self.files.file(f"blobs/sha256/{digest}", content)
        return digest

    def descriptor(self, kind, content, **more):
        digest = self.blob(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content), **more}

    def json(self, value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    package, target = sys.argv[1:]
    field = lambda name: output("dpkg-deb", "--field", package, name).decode().strip()  # noqa: E731
    version, machine = field("Version").rsplit("-", 1)[0], field("Architecture")
    server = server_layer(package)
    binary = f"{target}.binary"
    with open(binary, "wb") as f:
        f.write(server.entries["usr/bin/forebay"][1])
    os.chmod(binary, 0o755)
    try:
        layers = [layer.tar() for layer in (base_layer(binary), server)]
    finally:
        os.unlink(binary)

    archive = Archive()
    when = subprocess.run(
        ["date", "-u", "-d", f"@{EPOCH}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True, text=True
    ).stdout.strip()
    labels = {
        "org.opencontainers.image.title": "forebay",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.description": "Storage server for virtual machine disks over NBD and iSCSI",
    }
    config = {
        "created": when,
        "architecture": machine,
        "os": "linux",
        "config": {**SETTINGS, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in layers]},
        "history": [{"created": when, "created_by": text} for text in ("libraries of Debian", f"forebay {version}")],
    }
    oci = "application/vnd.oci.image"
    config = archive.descriptor(f"{oci}.config.v1+json", archive.json(config))
    zipped = [archive.descriptor(f"{oci}.layer.v1.tar+gzip", gzip.compress(tar, 9, mtime=0)) for tar in layers]
    manifest = {"schemaVersion": 2, "mediaType": f"{oci}.manifest.v1+json", "config": config, "layers": zipped}
    name = f"localhost/forebay:{version}"
    notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    manifest = archive.descriptor(f"{oci}.manifest.v1+json", archive.json(manifest), annotations=notes)
    index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [manifest]}
    archive.files.file("index.json", archive.json(index))
    archive.files.file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    path = lambda descriptor: f"blobs/sha256/{descriptor['digest'].split(':')[1]}"  # noqa: E731
    docker = [{"Config": path(config), "RepoTags": [name], "Layers": [path(layer) for layer in zipped]}]
    archive.files.file("manifest.json", archive.json(docker))
    with open(target, "wb") as f:
        f.write(archive.files.tar())
    print(target)


if __name__ == "__main__":
    main()
