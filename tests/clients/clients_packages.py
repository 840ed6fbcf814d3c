"""What `make release` makes: packages, the container image, the bill of materials and the apt repository.

All are made from the binary under test, with a key that is thrown away. `make test-package` installs the
packages, also from the repository, on clean roots.
"""

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile

from clients_package import ROOT, build_package
from forebay import binary, run
from harness import Skipped, check, equal, need_root, test, wait_for

BUILD = os.path.join(ROOT, "packaging", "release", "build.sh")
SIGN = os.path.join(ROOT, "packaging", "release", "sign.sh")
IMAGE = os.path.join(ROOT, "packaging", "container", "image.py")
REPOSITORY = os.path.join(ROOT, "packaging", "apt", "repository.py")


def need_debian_12():
    """Skips the test elsewhere: a release is built on the oldest Debian that it supports."""
    with contextlib.suppress(OSError), open("/etc/os-release") as f:
        if "VERSION_CODENAME=bookworm\n" in f.read():
            return
    raise Skipped("releases are built on Debian 12")


def make_key(t, name):
    """A new key in a separate keyring; its fingerprint, and an environment for gpg."""
    home = t.path(name)
    os.mkdir(home, 0o700)
    env = {**os.environ, "GNUPGHOME": home}
    t.defer(run, "gpgconf", "--kill", "all", env=env, check=False)
    run("gpg", "--batch", "--passphrase", "", "--quick-gen-key", f"{name}@example.org", "ed25519", "sign", "never", env=env)
    listed = run("gpg", "--list-secret-keys", "--with-colons", env=env).stdout
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr")), env


def make_release(t, name, key, env, **more):
    """A release in the directory `name`. Compressed badly, because that is faster."""
    out = t.path(name)
    env = {**env, "FOREBAY_RELEASE_BIN": binary(), "FOREBAY_DEB_COMPRESSION": "gzip", **more}
    run(BUILD, out, env=env)
    run(SIGN, out, key, env=env)
    return out


def sums_of(directory):
    """The checksum of each file below a directory, by path."""
    sums = {}
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            with open(path, "rb") as f:
                sums[os.path.relpath(path, directory)] = hashlib.sha256(f.read()).hexdigest()
    return sums


def layers_of(archive):
    """The configuration and the layers of an image, whose checksums are verified."""
    with tarfile.open(archive) as tar:
        read = lambda name: tar.extractfile(name).read()  # noqa: E731

        def blob(descriptor):
            content = read(f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}")
            found = (f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))
            equal(found, (descriptor["digest"], descriptor["size"]), "a descriptor of the image")
            return content

        index = json.loads(read("index.json"))
        manifest = json.loads(blob(index["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
        found = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        equal(found, config["rootfs"]["diff_ids"], "checksums of the layers")
        docker = json.loads(read("manifest.json"))[0]
        equal(hashlib.sha256(read(docker["Config"])).hexdigest(), os.path.basename(docker["Config"]), "the config for Docker")
        equal([gzip.decompress(read(layer)) for layer in docker["Layers"]] == layers, True, "the layers for Docker")
    return config["config"], layers


@test
def equal_sources_give_equal_releases(t):
    need_debian_12()
    key, env = make_key(t, "key")
    first = make_release(t, "first", key, env)
    version = run(binary(), "--version").stdout.split()[1]
    # Whatever differs between machines, apart from compilers: the time, its zone, the umask, the directory.
    other = {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "TMPDIR": t.path("scratch")}
    os.mkdir(other["TMPDIR"])
    os.umask(0o077)
    second = make_release(t, "second", key, env, **other)
    # Signatures have their time.
    signed = ("InRelease", "Release.gpg", "SHA256SUMS.asc")
    sums = [{name: s for name, s in sums_of(d).items() if os.path.basename(name) not in signed} for d in (first, second)]
    equal(sums[0], sums[1], "checksums of two releases")
    for name in (f"forebay_{version}-1_amd64.deb", f"forebay-proxmox_{version}_all.deb", f"forebay-{version}-amd64.oci.tar"):
        check(name in sums[0], f"{name} is among {sorted(sums[0])}")
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=first)
    run("gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS", cwd=first, env=env)
    with open(f"{first}/forebay-{version}.cdx.json") as f:
        equal(json.load(f)["metadata"]["component"]["version"], version, "the version in the bill of materials")
    with open(f"{first}/forebay-{version}.cdx.json", "a") as f:
        f.write("\n")
    for release, signer in ((second, "0" * 40), (first, key)):
        done = run(SIGN, release, signer, env=env, check=False)
        check(done.returncode != 0, "a key that gpg lacks, or a file that has changed, was accepted")


@test
def the_container_image_has_all_that_the_server_needs(t):
    need_debian_12()
    need_root("chroot")
    run(IMAGE, build_package(t.path("out")), t.path("image.tar"))
    config, layers = layers_of(t.path("image.tar"))
    root = t.path("root")
    for n, layer in enumerate(layers):
        with open(t.path(f"layer-{n}"), "wb") as f:
            f.write(layer)
        os.makedirs(root, exist_ok=True)
        run("tar", "-x", "--same-owner", "-p", "-C", root, "-f", f.name)
    # As a container engine does it: the user, the environment and the arguments of the image.
    os.makedirs(f"{root}/dev/shm")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", f"{root}/dev/shm")
    t.defer(run, "umount", f"{root}/dev/shm")
    env = dict(setting.split("=", 1) for setting in config["Env"])
    user = config["User"]
    enter = ["/usr/sbin/chroot", f"--userspec={user}:{user}", root]
    with open(t.path("log"), "wb") as log:
        argv = [*enter, *config["Entrypoint"], "--nbd", "unix:/run/forebay/nbd.sock"]
        server = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    t.defer(server.wait, 60)
    t.defer(server.kill)

    def answers():
        check(server.poll() is None, f"the server of the image ended: {open(t.path('log')).read()}")
        return subprocess.run([*enter, *config["Healthcheck"]["Test"][1:]], env=env, capture_output=True).returncode == 0

    wait_for(answers, "the health check of the image")
    run(*enter, "forebay", "volume", "create", "v", "--size", "64M", env=env)
    size = run("nbdinfo", "--size", "nbd+unix:///v?socket=nbd.sock", cwd=f"{root}/run/forebay").stdout.strip()
    equal(size, str(64 << 20), "size of a volume in the container")
    # librados reads the configuration, and finds no monitor in it.
    with open(f"{root}/tmp/ceph.conf", "w") as f:
        f.write("[global]\n")
    done = run(*enter, "forebay", "pool", "list", "none", "--ceph-conf", "/tmp/ceph.conf", env=env, check=False)
    check("no monitor or no key" in done.stderr, f"librados in the image: {done.stderr}")
    listed = os.listdir(f"{root}/var/lib/dpkg/status.d")
    check({"forebay", "libc6", "librados2"} <= set(listed), f"packages in the image: {listed}")
    for package in listed:
        check(os.path.exists(f"{root}/usr/share/doc/{package}/copyright"), f"the licence of {package}")


class Apt:
    """apt on a local repository, with separate directories, so that it changes nothing of this machine."""

    def __init__(self, t, name, repository):
        self.dir, self.repository = t.path(name), repository
        for part in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d"):
            os.makedirs(f"{self.dir}/{part}")
        open(f"{self.dir}/status", "w").close()
        self.settings = ["-o", f"Dir::State::Lists={self.dir}/lists", "-o", f"Dir::Cache={self.dir}/cache"]
        for key, value in (("Dir::Etc", "etc"), ("Dir::State::status", "status")):
            self.settings += ["-o", f"{key}={self.dir}/{value}"]
        # Paths of a test are not readable for the user of apt's downloads.
        self.settings += ["-o", "APT::Sandbox::User=", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Languages=none"]
        self.settings += ["-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64"]

    def trust(self, keyring, suite="bookworm"):
        with open(f"{self.dir}/etc/sources.list", "w") as f:
            f.write(f"deb [signed-by={keyring}] file:{self.repository} {suite} main\n")

    def run(self, *args, check=True):
        return run("apt-get", *self.settings, *args, check=check, cwd=self.dir)

    def update_fails(self, what):
        done = self.run("update", check=False)
        check(done.returncode != 0, f"apt accepted {what}: {done.stdout}{done.stderr}")


@test
def apt_accepts_the_repository_and_no_other(t):
    need_debian_12()
    key, env = make_key(t, "key")
    plugin = run(os.path.join(ROOT, "packaging", "proxmox", "build-deb"), t.path("packages")).stdout.strip()
    packages = [build_package(t.path("packages")), plugin]
    repository = t.path("repository")
    run(REPOSITORY, repository, key, packages[0], env=env)
    # A later release is added to the same directory.
    run(REPOSITORY, repository, key, packages[1], env=env)
    apt = Apt(t, "apt", repository)
    keyring = f"{repository}/forebay-archive-keyring.gpg"
    for suite in ("bookworm", "trixie"):
        apt.trust(keyring, suite)
        apt.run("update")
        for package, name in zip(packages, ("forebay", "forebay-proxmox")):
            apt.run("download", name)
            with open(f"{apt.dir}/{os.path.basename(package)}", "rb") as a, open(package, "rb") as b:
                equal(a.read() == b.read(), True, f"{name} as apt has it")
            os.unlink(f"{apt.dir}/{os.path.basename(package)}")

    _, other = make_key(t, "other")
    with open(t.path("other.gpg"), "wb") as f:
        subprocess.run(["gpg", "--export"], env=other, stdout=f, check=True)
    stranger = Apt(t, "stranger", repository)
    stranger.trust(t.path("other.gpg"))
    stranger.update_fails("a repository that another key has signed")

    changed = t.path("changed")
    shutil.copytree(repository, changed)
    for name in ("Packages", "Packages.gz"):
        path = f"{changed}/dists/bookworm/main/binary-amd64/{name}"
        with open(path, "rb") as f:
            text = f.read()
        text = gzip.decompress(text) if name.endswith("gz") else text
        text = text.replace(b"Section: admin", b"Section: games")
        with open(path, "wb") as f:
            f.write(gzip.compress(text) if name.endswith("gz") else text)
    victim = Apt(t, "victim", changed)
    victim.trust(keyring)
    victim.update_fails("a list of packages that was changed")

    shutil.rmtree(changed)
    shutil.copytree(repository, changed)
    with open(f"{changed}/pool/main/{os.path.basename(packages[0])}", "r+b") as f:
        f.seek(100)
        f.write(b"changed")
    victim = Apt(t, "victim-2", changed)
    victim.trust(keyring)
    victim.run("update")
    done = victim.run("download", "forebay", check=False)
    check(done.returncode != 0, f"apt accepted a changed package: {done.stdout}{done.stderr}")

    done = run(REPOSITORY, changed, key, packages[0], env=env, check=False)
    check("never change" in done.stderr, f"another package of the same version: {done.stderr}")
