"""What a host imposes on a server: other users, limits of memory and of files, file systems that refuse what
they seemed to permit, and secrets as orchestrators provide them."""

import json
import os
import shutil
import subprocess
import tempfile

from clients_failures import mount_tmpfs, one_line
from clients_memory import content, data_of, no_room, written
from clients_tls import authorities, free_port
from forebay import SHARED_MEMORY
from harness import BLOCK, MIB, Skipped, check, connect, equal, need_root, run, test, wait_for

# Users without any rights. Nothing on the host belongs to them.
ATTACKER, SERVER = 12345, 12346


def shared_memory(t):
    """A directory for retained memory in which all users can make files, as in /dev/shm."""
    path = os.path.join(t.memory, "shared")
    os.mkdir(path)
    os.chmod(path, 0o1777)
    return path


def only(directory):
    (name,) = os.listdir(directory)
    return os.path.join(directory, name)


@test
def a_local_user_can_neither_prevent_a_start_nor_destroy_writes(t):
    need_root("making files of another user")
    s = t.server(start=False)
    s.memory = shared_memory(t)
    # The attacker has taken the name of the server's directory.
    taken = os.path.join(s.memory, f"forebay-{os.geteuid()}")
    os.mkdir(taken)
    os.chown(taken, ATTACKER, ATTACKER)
    s.start()
    (name,) = set(os.listdir(s.memory)) - {os.path.basename(taken)}
    own = os.path.join(s.memory, name)
    equal(os.stat(own).st_mode & 0o7777, 0o700, "permissions of the server's directory")
    s.cli("volume", "create", "disk", "--size", "1M")
    written(s, "disk", 1, flush=True)
    h = connect(s, "disk")
    h.pwrite(data_of(2), 0)
    s.kill()
    # The attacker also takes all names that the file can have.
    name = os.path.basename(only(own))
    for path in (os.path.join(s.memory, name), os.path.join(s.memory, name.rsplit("-", 3)[0])):
        with open(path, "w") as f:
            os.fchown(f.fileno(), ATTACKER, ATTACKER)
    s.start()
    equal(content(s, "disk"), data_of(2), "the acknowledged write")
    listed = json.loads(run(s.bin, "--data", s.data, "memory", "list", "--memory-dir", s.memory, "--json").stdout)
    in_use = [found["file"] for found in listed if found["state"] == "in_use"]
    equal(in_use, [os.path.join(own, name)], "the files that are in use")
    # Without a memory that the superblock names, and after it was lost.
    s.stop()
    s.start()
    s.kill()
    shutil.rmtree(own)
    s.start()


@test
def memory_of_an_earlier_release_in_a_shared_directory_is_taken_over_and_upgraded(t):
    s = t.server(start=False)
    s.memory = shared_memory(t)
    s.start()
    s.cli("volume", "create", "disk", "--size", "1M")
    written(s, "disk", 1, flush=True)
    h = connect(s, "disk")
    h.pwrite(data_of(2), 0)
    s.kill()
    own = only(s.memory)
    # Earlier releases made the file in the directory itself.
    new = only(own)
    old = os.path.join(s.memory, os.path.basename(new))
    os.rename(new, old)
    s.start()
    equal(content(s, "disk"), data_of(2), "the acknowledged write")
    h = connect(s, "disk")
    h.pwrite(data_of(3), BLOCK)
    s.upgrade()
    h.pwrite(data_of(4), 2 * BLOCK)
    check(os.path.exists(old) and not os.listdir(own), "the file keeps its place, for a process of that release")
    s.kill()
    s.start()
    equal(content(s, "disk", 3 * BLOCK), data_of(2) + data_of(3) + data_of(4), "the acknowledged writes")
    s.stop()
    s.start()
    check(not os.path.exists(old) and len(os.listdir(own)) == 1, "the next memory is in the server's directory")


def control_group(t, limit):
    """The file that moves a process to a new control group with this limit of memory."""
    need_root("making a control group")
    base, name = "/sys/fs/cgroup", "memory.max"
    if os.path.isdir(f"{base}/memory"):
        base, name = f"{base}/memory", "memory.limit_in_bytes"
    group = f"{base}/forebay-test-{os.getpid()}-{limit // MIB}"
    try:
        os.mkdir(group)
        t.defer(os.rmdir, group)
        with open(f"{group}/{name}", "w") as f:
            f.write(str(limit))
    except OSError as e:
        raise Skipped(f"needs a control group with a limit of memory: {e}") from e
    return f"{group}/cgroup.procs"


def within(t, limit, *options, config=None):
    """A server in a control group with this limit, which 200 MB are written to and read from."""
    procs = control_group(t, limit)
    data = f"data-{limit // MIB}-{len(options)}"
    s = t.server(*options, data=data, start=False, config=config)
    s.prefix = ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh"]
    s.start()
    t.defer(s.close)
    return s


@test
def budgets_fit_the_limit_of_the_control_group(t):
    noise = t.noise_file("noise", 200 * MIB)
    # Default budgets, and a cache that is configured to be larger than the limit.
    for limit, options in ((400 * MIB, ()), (401 * MIB, ("--cache", "1G"))):
        s = within(t, limit, *options)
        s.cli("volume", "create", "disk", "--size", "400M")
        run("nbdcopy", "--destination-is-zero", noise, s.uri("disk"), timeout=300)
        for _ in range(2):
            run("nbdcopy", s.uri("disk"), "null:", timeout=300)
        equal(s.process.poll(), None, f"exit status in a control group of {limit // MIB} MiB, with {options}")
        s.stop()
        for path in os.listdir(t.memory):
            os.unlink(os.path.join(t.memory, path))


def as_user(t, data):
    """A server that runs as `SERVER`. Directories of this user hold all of its files."""
    need_root("running as another user")
    places = []
    for parent in ("/tmp", SHARED_MEMORY):
        place = tempfile.mkdtemp(prefix="forebay-test-", dir=parent)
        t.defer(shutil.rmtree, place)
        os.chown(place, SERVER, SERVER)
        places.append(place)
    s = t.server(data=os.path.join(places[0], data), start=False)
    s.log = t.path("user.log")
    s.memory = places[1]
    os.chown(s.sockets, SERVER, SERVER)
    s.prefix = ["setpriv", f"--reuid={SERVER}", f"--regid={SERVER}", "--clear-groups"]
    if run(*s.prefix, s.bin, "--version", check=False).returncode != 0:
        raise Skipped("another user cannot execute the binary here")
    return s, places[0]


@test
def keys_and_secrets_of_root_that_only_the_server_can_read_are_accepted(t):
    s, place = as_user(t, "pool")
    ours, _ = authorities(t)
    tls = os.path.join(place, "tls")
    shutil.copytree(ours.dir, tls)
    secret = os.path.join(place, "secret")
    with open(secret, "wb") as f:
        f.write(b"\xef\xbb\xbfa-secret-of-a-target\r\n")
    files = [secret, *(os.path.join(tls, name) for name in os.listdir(tls))]
    # As a volume of Kubernetes with fsGroup presents a Secret.
    for path in files:
        os.chown(path, 0, SERVER)
        os.chmod(path, 0o440)
    os.chmod(tls, 0o755)
    config = t.path("user.toml")
    with open(config, "w") as f:
        f.write(f'[[iscsi.target]]\nname = "iqn.2026-01.example:t"\nchap_user = "u"\nchap_secret_file = "{secret}"\n')
    os.chmod(t.dir, 0o711)
    shutil.copy(config, place)
    s.args = ["--config", os.path.join(place, "user.toml"), "--nbd", f"127.0.0.1:{free_port()}", "--tls-certificates", tls]
    s.start()
    check("can be read or changed by other users" not in s.log_tail(), f"a warning: {s.log_tail()}")
    s.stop()
    os.chmod(os.path.join(tls, "server-key.pem"), 0o444)
    check("chmod 600" in one_line(s, "a key that all users can read"), "a key that all users can read")


@test
def tokens_are_created_and_revoked_when_the_file_system_is_full(t):
    s = t.server(data=mount_tmpfs(t, "96M"), start=False)
    s.log = t.path("full.log")
    s.start()
    with no_room(s.data):
        wait_for(lambda: os.statvfs(s.data).f_bavail == 0, "the file system is full")
        for name in ("a", "b", "c"):
            s.cli("token", "create", name, "--role", "reader")
        s.cli("token", "revoke", "b")
        s.kill()
        s.start()
        names = [token["name"] for token in json.loads(s.cli("token", "list", "--json").stdout)]
        equal(names, ["a", "c"], "tokens after a restart")
    s.stop()


@test
def a_limit_of_the_size_of_files_is_raised_or_named(t):
    s = t.server(start=False)
    s.prefix = ["prlimit", f"--fsize={MIB}:{MIB}"]
    line = one_line(s, "a limit of the size of files")
    check("ulimit -f" in line and "1 MiB" in line, line)
    if os.geteuid() == 0:
        s.prefix = ["prlimit", f"--fsize={MIB}:unlimited"]
        s.start()
        s.cli("volume", "create", "disk", "--size", "4M")
        written(s, "disk", 1, flush=True)
        s.stop()


# Lets an open with O_DIRECT succeed, and fails each write to such a file, as mergerfs does on some disks.
NO_DIRECT_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>
static int refused(int fd) {
    if (!(fcntl(fd, F_GETFL) & O_DIRECT)) return 0;
    errno = EINVAL;
    return 1;
}
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return refused(fd) ? -1 : real(fd, b, n, o);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { return pwrite64(fd, b, n, o); }
ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t o, int f) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "pwritev2");
    return refused(fd) ? -1 : real(fd, v, n, o, f);
}
"""


@test
def a_file_system_that_opens_for_direct_writes_and_refuses_them_is_written_to_otherwise(t):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Skipped("needs a C compiler")
    library = t.path("no-direct-writes.so")
    argv = [compiler, "-shared", "-fPIC", "-x", "c", "-o", library, "-"]
    built = subprocess.run(argv, input=NO_DIRECT_WRITES, text=True, capture_output=True)
    equal(built.returncode, 0, f"compiling: {built.stderr}")
    s = t.server(start=False)
    s.prefix = ["env", f"LD_PRELOAD={library}", "FOREBAY_IO=threads"]
    s.start()
    check("writes with O_DIRECT fail here" in s.log_tail(), f"the log: {s.log_tail()}")
    s.cli("volume", "create", "disk", "--size", "4M")
    written(s, "disk", 1, flush=True)
    s.kill()
    s.start()
    equal(content(s, "disk"), data_of(1), "what was flushed")
    check(not os.path.exists(os.path.join(s.data, "forebay.probe")), "the file for probing is left")
