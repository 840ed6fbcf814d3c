"""NFSv3, clause by clause of RFC 1813 with a client of the tests, and with libnfs and QEMU."""

import os
import random
import socket
import struct
import threading

import nfs_client as nfs
from clients_lost import lose_memory
from harness import MIB, Skipped, check, equal, run, test
from hosts import free_port
from nfs_client import Client, opaque, words


def serve(t, *args):
    """A server of NFS, and its port."""
    port = free_port()
    return t.server("--nfs", f"127.0.0.1:{port}", *args), port


def fails(status, function, *args, **options):
    """Calls a function that fails with this status. Returns a reader of the results."""
    try:
        function(*args, **options)
    except nfs.Failed as failed:
        equal(failed.status, status, f"status of {function.__name__} {args[1:]}")
        return getattr(failed, "reader", None)
    raise AssertionError(f"{function.__name__} {args[1:]} succeeds, expected status {status}")


def refused(why, function, *args, **options):
    """Makes a call that RPC refuses."""
    try:
        function(*args, **options)
    except nfs.Refused as error:
        equal(error.why[: len(why)], why, "refusal")
        return
    raise AssertionError(f"a call succeeds that has to be refused with {why}")


@test
def nfs_rpc_and_mount(t):
    port = free_port()
    portmap = free_port()
    rules = ("--nfs-access", "127.0.0.2,ro", "--nfs-access", "127.0.0.1")
    s = t.server("--nfs", f"127.0.0.1:{port}", "--nfs-portmap", f"127.0.0.1:{portmap}", *rules)
    c = Client(port)
    # RFC 5531: versions, programs, procedures, credentials.
    c.call(nfs.NFS, nfs.NULL)
    c.call(nfs.NFS, nfs.NULL, flavor=0)
    refused(("accepted", 2), c.call, nfs.NFS, nfs.NULL, version=4)
    refused(("accepted", 1), c.call, 100227, nfs.NULL)
    refused(("accepted", 3), c.call, nfs.NFS, 22)
    refused(("accepted", 4), c.call, nfs.NFS, nfs.GETATTR, words(99))
    refused(("denied", 1, 5), c.call, nfs.NFS, nfs.NULL, flavor=6)
    c.send(words(7, 0, 3, nfs.NFS, 3, 0, 0, 0, 0, 0))
    refused(("denied", 0, 2, 2), c.receive)
    # A call in fragments.
    xid, message = c.message(nfs.NFS, nfs.FSINFO, opaque(c.mount()))
    c.send(message, fragments=5)
    equal(c.receive()[0], xid, "number of the reply to a call in fragments")
    # Appendix I: mounts.
    root = c.mount(b"/")
    equal(c.getattr(root)["kind"], nfs.DIR, "type of the root")
    c.mkdir(root, b"datastore")
    c.create(root, b"file")
    equal(c.mount(b"/datastore"), c.lookup(root, b"datastore"), "handle of a mounted directory")
    equal(c.mount(b"//datastore/"), c.lookup(root, b"datastore"), "handle of a mounted directory")
    fails(nfs.NOENT, c.mount, b"/none")
    fails(nfs.NOTDIR, c.mount, b"/file")
    dump = c.call(nfs.MOUNT, 2)
    check(b"/datastore" in dump.data, "the mount is not listed")
    c.call(nfs.MOUNT, 3, opaque(b"/datastore"))
    check(b"/datastore" in c.call(nfs.MOUNT, 2).data, "another path was unmounted")
    c.call(nfs.MOUNT, 4)
    check(b"/" not in c.call(nfs.MOUNT, 2).data, "mounts are left")
    exports = c.call(nfs.MOUNT, 5).data
    check(b"127.0.0.2/32" in exports and b"127.0.0.1/32" in exports, "the rules are not listed")
    # The port mapper, RFC 1833.
    p = Client(portmap)
    for program, version, protocol, found in (
        (nfs.NFS, 3, 6, port),
        (nfs.MOUNT, 3, 6, port),
        (nfs.NFS, 4, 6, 0),
        (nfs.NFS, 3, 17, 0),
        (100021, 4, 6, 0),
    ):
        equal(p.call(nfs.PORTMAP, 3, words(program, version, protocol, 0), version=2).u32(), found, "port")
    refused(("accepted", 1), p.call, nfs.NFS, nfs.NULL)
    # Rules by address.
    ro = Client.__new__(Client)
    ro.address, ro.credential, ro.xid = ("127.0.0.1", port), (0, 0, ()), 1
    ro.sock = socket.create_connection(ro.address, timeout=120, source_address=("127.0.0.2", 0))
    equal(ro.access(root) & 0x1C, 0, "permissions of a client that may only read")
    fails(nfs.ROFS, ro.create, root, b"new")
    fails(nfs.ROFS, ro.write, c.lookup(root, b"file"), 0, b"x")
    other = socket.create_connection(ro.address, timeout=120, source_address=("127.0.0.3", 0))
    equal(other.recv(1), b"", "answer to a client without a rule")
    # Remote addresses need a flag.
    found = run(s.bin, "serve", "--data", t.path("other"), "--nfs", "0.0.0.0:2049", check=False)
    check(found.returncode != 0 and "--nfs-allow-remote" in found.stderr, found.stderr)


@test
def nfs_names_and_attributes(t):
    _, port = serve(t)
    c = Client(port)
    root = c.mount()
    # 3.3.1 to 3.3.4: attributes, and the guard of SETATTR.
    file = c.create(root, b"file", mode=0o640, uid=1000, gid=100)
    before = c.attributes
    equal([before[k] for k in ("kind", "mode", "nlink", "uid", "gid", "size")], [1, 0o640, 1, 1000, 100, 0], "new")
    check(c.wcc["before"]["mtime"] < c.wcc["after"]["mtime"], "the directory has not changed")
    wcc = c.setattr(file, mode=0o600, mtime=(5, 6), atime=True)
    equal(wcc["before"]["ctime"], before["ctime"], "ctime before a change")
    equal((wcc["after"]["mode"], wcc["after"]["mtime"]), (0o600, (5, 6)), "attributes after a change")
    fails(nfs.NOT_SYNC, c.setattr, file, guard=before["ctime"], mode=0o644)
    c.setattr(file, guard=wcc["after"]["ctime"], size=10000)
    equal(c.read(file, 0, 20000), (bytes(10000), True), "data of a file that was extended")
    fails(nfs.FBIG, c.setattr, file, size=1 << 60)
    fails(nfs.STALE, c.getattr, file[:-4] + b"\x77\0\0\0")
    fails(nfs.BADHANDLE, c.getattr, b"\x01" * 20)
    fails(nfs.BADHANDLE, c.getattr, b"")
    # 3.3.3: names. 3.3.5: links.
    fails(nfs.NOENT, c.lookup, root, b"none")
    fails(nfs.NOTDIR, c.lookup, file, b"name")
    fails(nfs.NAMETOOLONG, c.lookup, root, b"n" * 256)
    equal(c.lookup(root, b".."), root, "the parent of the root")
    link = c.symlink(root, b"link", b"../some/target")
    equal((c.attributes["kind"], c.readlink(link)), (nfs.LNK, b"../some/target"), "a link")
    fails(nfs.INVAL, c.readlink, file)
    # 3.3.8: UNCHECKED, GUARDED and EXCLUSIVE.
    fails(nfs.EXIST, c.create, root, b"file")
    equal(c.create(root, b"file", nfs.UNCHECKED, mode=0o777), file, "an unchecked create of a file that exists")
    equal(c.attributes["size"], 10000, "size after an unchecked create")
    c.create(root, b"file", nfs.UNCHECKED, size=0)
    equal(c.getattr(file)["size"], 0, "size after an unchecked create with size 0")
    exclusive = c.create(root, b"lck", nfs.EXCLUSIVE, b"verifier")
    equal(c.create(root, b"lck", nfs.EXCLUSIVE, b"verifier"), exclusive, "a repeated exclusive create")
    fails(nfs.EXIST, c.create, root, b"lck", nfs.EXCLUSIVE, b"another8")
    fails(nfs.EXIST, c.create, root, b"file", nfs.EXCLUSIVE, b"verifier")
    # 3.3.9 and 3.3.13: directories.
    directory = c.mkdir(root, b"dir", mode=0o755)
    fails(nfs.EXIST, c.mkdir, root, b"dir")
    inner = c.create(directory, b"inner")
    fails(nfs.NOTEMPTY, c.rmdir, root, b"dir")
    fails(nfs.ISDIR, c.remove, root, b"dir")
    fails(nfs.NOTDIR, c.rmdir, root, b"file")
    fails(nfs.INVAL, c.rmdir, root, b".")
    # 3.3.11: MKNOD. A FIFO is not supported, and a regular file is not a node.
    fails(nfs.NOTSUPP, c.nfs, nfs.MKNOD, opaque(root) + opaque(b"fifo") + words(7) + nfs.sattr())
    fails(nfs.BADTYPE, c.nfs, nfs.MKNOD, opaque(root) + opaque(b"fifo") + words(1))
    # 3.3.14 and 3.3.15: RENAME and LINK.
    attributes, wcc = c.link(file, directory, b"second")
    equal((attributes["nlink"], wcc["after"]["kind"]), (2, nfs.DIR), "a second name")
    fails(nfs.EXIST, c.link, file, directory, b"second")
    c.rename(root, b"file", directory, b"second")
    equal(c.getattr(file)["nlink"], 2, "names after a rename between two names of one file")
    before, after = c.rename(root, b"lck", directory, b"inner")
    check(all(w["before"]["ctime"] < w["after"]["ctime"] for w in (before, after)), "no change of directories")
    fails(nfs.STALE, c.getattr, inner)
    equal(c.lookup(directory, b"inner"), exclusive, "the renamed file")
    fails(nfs.INVAL, c.rename, root, b"dir", directory, b"below")
    fails(nfs.EXIST, c.rename, root, b"dir", root, b"file")
    c.mkdir(root, b"empty")
    c.rename(root, b"dir", root, b"empty")
    equal(c.lookup(root, b"empty"), directory, "a directory that has replaced another one")
    # 3.3.12: REMOVE. 3.3.18 to 3.3.20: limits.
    wcc = c.remove(root, b"file")
    check(wcc["before"]["mtime"] < wcc["after"]["mtime"], "the directory has not changed")
    equal(c.getattr(file)["nlink"], 1, "names after one was removed")
    fails(nfs.NOENT, c.remove, root, b"file")
    info = c.nfs(nfs.FSINFO, opaque(root))
    info.post_op()
    equal([info.u32() for _ in range(7)], [MIB, MIB, 4096, MIB, MIB, 4096, 65536], "sizes")
    equal((info.u64(), info.time(), info.u32()), (16 << 40, (0, 1), 0x1B), "limits and properties")
    info.end()
    stat = c.nfs(nfs.FSSTAT, opaque(root))
    stat.post_op()
    total, free, available, files, free_files = (stat.u64() for _ in range(5))
    check(total >= free == available > 0 and files > free_files > 100000, "FSSTAT")
    conf = c.nfs(nfs.PATHCONF, opaque(root))
    conf.post_op()
    equal([conf.u32() for _ in range(6)], [1 << 17, 255, 1, 1, 0, 1], "PATHCONF")
    # Users.
    user = Client(port, uid=1000, gid=100)
    fails(nfs.ACCES, user.create, root, b"denied")
    fails(nfs.PERM, user.setattr, exclusive, mode=0o777)
    c.setattr(root, mode=0o1777)
    own = user.create(root, b"own", mode=0o600)
    stranger = Client(port, uid=2000, gid=2000)
    fails(nfs.ACCES, stranger.read, own, 0, 1)
    equal(stranger.access(own), 0, "permissions of a stranger")
    equal(user.access(own), 0x0D, "permissions of the owner")
    fails(nfs.ACCES, stranger.remove, root, b"own")
    fails(nfs.PERM, user.setattr, own, uid=2000)
    squashed = t.server("--nfs", f"127.0.0.1:{(other := free_port())}", "--nfs-access", "127.0.0.1,root-squash", data="s")
    c = Client(other)
    fails(nfs.ACCES, c.create, c.mount(), b"denied")
    squashed.stop()


@test
def nfs_listings(t):
    _, port = serve(t)
    c = Client(port)
    root = c.mount()
    directory = c.mkdir(root, b"dir")
    names = {b"%03d%s" % (n, b"x" * (n % 200)) for n in range(400)}
    for name in sorted(names):
        c.create(directory, name)
    for count in (512, 4096, 65536, MIB):
        equal(sorted(c.names(directory, count)), sorted(names), f"names, listed in {count} bytes")
    fails(nfs.TOOSMALL, c.page, directory, count=100)
    fails(nfs.NOTDIR, c.page, c.lookup(directory, sorted(names)[0]))
    entries, _ = c.page(directory, plus=True, count=8192)
    for entry in entries:
        equal(entry["attributes"], c.getattr(entry["handle"]), f"attributes of {entry['name']}")
        equal(entry["fileid"], entry["attributes"]["fileid"], "number")
    equal([entry["name"] for entry in entries[:2]], [b".", b".."], "the first entries")
    # Entries come and go while the directory is listed: those that stay appear once (3.3.16).
    seen, cookie, eof, n = [], 0, False, 0
    gone = set()
    while not eof:
        entries, eof = c.page(directory, cookie, 600)
        seen += [entry["name"] for entry in entries]
        cookie = entries[-1]["cookie"] if entries else cookie
        for entry in entries[-1:]:
            if entry["name"] in names:
                c.remove(directory, entry["name"])
                gone.add(entry["name"])
        if n < 100:
            c.create(directory, b"new%d" % n)
        n += 1
    equal(len(seen), len(set(seen)), "number of names, each once")
    check(names <= set(seen), "an entry was left out")


@test
def nfs_data_and_durability(t):
    s, port = serve(t)
    c = Client(port)
    root = c.mount()
    file = c.create(root, b"file", mode=0o644)
    # 3.3.6 and 3.3.7: reads and writes.
    equal(c.read(file, 0, 100), (b"", True), "data of an empty file")
    committed, verifier = c.write(file, 5000, b"unstable")
    equal(committed, nfs.UNSTABLE, "stability")
    equal(c.wcc["after"]["size"], 5008, "size after a write")
    equal(c.read(file, 4998, 100), (b"\0\0unstable", True), "the end of the file")
    equal(c.read(file, 4998, 4), (b"\0\0un", False), "data before the end")
    equal(c.read(file, 6000, 4), (b"", True), "data after the end")
    for stable in (nfs.DATA_SYNC, nfs.FILE_SYNC):
        equal(c.write(file, 0, b"stable", stable), (nfs.FILE_SYNC, verifier), "a stable write")
    equal(c.write(file, 77, b""), (nfs.UNSTABLE, verifier), "an empty write")
    equal(c.commit(file), verifier, "verifier of COMMIT")
    data = os.urandom(MIB)
    c.write(file, 12345, data)
    equal(c.read(file, 12345, MIB)[0], data, "a megabyte")
    refused(("accepted", 4), c.write, file, 0, bytes(MIB + 4))
    fails(nfs.ISDIR, c.read, root, 0, 1)
    fails(nfs.ISDIR, c.write, root, 0, b"x")
    fails(nfs.FBIG, c.write, file, 1 << 45, b"x")
    fails(nfs.FBIG, c.write, file, (1 << 64) - 1, b"x")
    c.setattr(file, size=13000)
    c.setattr(file, size=14000)
    equal(c.read(file, 12345, MIB), (data[:655] + bytes(1000), True), "data after a truncation")
    # A killed server finds its write buffers again: the verifier stays, and so does the data.
    c.write(file, 0, b"kept")
    s.kill()
    s.start()
    c.connect()
    equal(c.read(file, 0, 4)[0], b"kept", "unstable data after a kill")
    equal(c.commit(file), verifier, "verifier after a kill")
    equal(c.lookup(root, b"file"), file, "handle after a restart")
    # The write buffers are lost with the memory of the host: the verifier changes, and stable data stays.
    c.write(file, 0, b"stable", nfs.FILE_SYNC)
    c.write(file, 100, b"unstable, committed")
    c.commit(file)
    created = c.create(root, b"created")
    c.write(file, 0, b"unstable")
    lose_memory(s)
    c.connect()
    check(c.commit(file) != verifier, "the verifier is the same although unstable data may be lost")
    check(c.read(file, 0, 6)[0] in (b"stable", b"unstab"), "stable data is lost")
    equal(c.read(file, 100, 19)[0], b"unstable, committed", "committed data")
    equal(c.lookup(root, b"created"), created, "a file that was created")
    s.stop()
    run(s.bin, "check", "--data", s.data)


@test
def nfs_repeated_calls(t):
    s, port = serve(t)
    c = Client(port)
    root = c.mount()
    # Calls that are repeated with the same number are performed once, across connections and restarts.
    calls = {
        "create": (nfs.CREATE, opaque(root) + opaque(b"file") + words(nfs.GUARDED) + nfs.sattr(mode=0o644)),
        "mkdir": (nfs.MKDIR, opaque(root) + opaque(b"dir") + nfs.sattr(mode=0o755)),
        "link": (nfs.LINK, None),
        "rename": (nfs.RENAME, opaque(root) + opaque(b"file") + opaque(root) + opaque(b"renamed")),
        "remove": (nfs.REMOVE, opaque(root) + opaque(b"renamed")),
        "rmdir": (nfs.RMDIR, opaque(root) + opaque(b"dir")),
    }
    for n, (name, (procedure, args)) in enumerate(calls.items()):
        if args is None:
            args = opaque(c.lookup(root, b"file")) + opaque(root) + opaque(b"second")
        xid, message = c.message(nfs.NFS, procedure, args)
        answers = []
        for turn in range(3):
            c.send(message)
            reader = c.receive()[1]
            equal(reader.u32(), nfs.OK, f"status of {name}, sent for the {turn + 1}th time")
            if procedure in (nfs.CREATE, nfs.MKDIR):
                reader.u32()
                answers.append(reader.opaque())
            c.close()
            if turn == 1 and n % 2:
                s.kill()
                s.start()
            elif turn == 1:
                s.stop()
                s.start()
            c.connect()
        equal(len(set(answers)), min(len(answers), 1), f"handles in the replies of {name}")
        # Another call with the same arguments is performed.
        try:
            c.nfs(procedure, args)
            check(procedure == nfs.RENAME, f"a second {name} succeeds")
        except nfs.Failed as failed:
            check(failed.status in (nfs.EXIST, nfs.NOENT), f"a second {name}: {failed}")
    equal(c.names(root), [b"second"], "names at the end")
    # Two connections send the same call at once: it is performed once.
    other = Client(port)
    for n in range(30):
        xid, message = c.message(nfs.NFS, nfs.CREATE, opaque(root) + opaque(b"%d" % n) + words(1) + nfs.sattr())
        for client in (c, other):
            client.send(message)
        handles = set()
        for client in (c, other):
            reader = client.receive()[1]
            equal(reader.u32(), nfs.OK, "status")
            reader.u32()
            handles.add(reader.opaque())
        equal(len(handles), 1, "handles")


@test
def nfs_hostile_clients(t):
    s, port = serve(t)
    rng = random.Random(int(os.environ.get("FOREBAY_SEED", "1")))
    c = Client(port)
    root = c.mount()
    file = c.create(root, b"file", mode=0o644)
    c.write(file, 0, b"data", nfs.FILE_SYNC)
    _, valid = c.message(nfs.NFS, nfs.WRITE, opaque(file) + struct.pack(">QII", 9000, 8, 0) + opaque(b"hostile!"))
    record = words(len(valid) | 1 << 31) + valid
    beginnings = (b"GET / HTTP/1.1\r\n\r\n", words(1 << 31 | 9) + bytes(9), words(0xFFFFFFFF), words(0) * 9, bytes(100))
    for n in range(400):
        sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        if n < 2 * len(beginnings):
            sock.sendall(beginnings[n // 2])
        else:
            broken = bytearray(record * 3)
            for _ in range(rng.randrange(1, 6)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                sock.sendall(bytes(broken[: rng.randrange(20, len(broken))]))
            except OSError:
                pass
        try:
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass
        sock.close()
    # A client that sends half of a large call does not hold others up.
    slow = socket.create_connection(("127.0.0.1", port), timeout=60)
    slow.sendall(words(MIB | 1 << 31) + valid[: len(valid) // 2])
    equal(c.read(file, 0, 4)[0], b"data", "data beside hostile clients")
    equal(c.names(root), [b"file"], "names beside hostile clients")
    equal(s.json("status")["server"]["nfs"], [f"127.0.0.1:{port}"], "address in the status")
    s.stop()
    check("panic" not in open(s.log, encoding="utf-8").read(), "the server has panicked")


@test
def nfs_files_at_the_command_line(t):
    s, port = serve(t)
    c = Client(port)
    root = c.mount()
    directory = c.mkdir(root, b"dir", mode=0o755)
    golden = c.create(directory, b"golden", mode=0o640)
    data = os.urandom(MIB)
    c.write(golden, 4096, data)
    c.create(directory, b"small", mode=0o644)
    listed = {file["name"]: file for file in s.json("file", "ls", "/dir")}
    equal(sorted(listed), ["golden", "small"], "names")
    found = [listed["golden"][key] for key in ("kind", "size", "mode")]
    equal(found, ["file", MIB + 4096, 0o640], "a file")
    check("golden" in s.cli("file", "ls", "dir").stdout, "the table has no row of a file")
    before = s.json("stats")["stored_bytes"]
    s.cli("file", "clone", "/dir/golden", "/dir/clone")
    clone = c.lookup(directory, b"clone")
    equal(c.read(clone, 4096, MIB)[0], data, "data of a clone")
    c.write(golden, 4096, b"changed", nfs.FILE_SYNC)
    equal(c.read(clone, 4096, MIB)[0], data, "data of a clone after a write to the file")
    check(s.json("stats")["stored_bytes"] - before < MIB // 2, "a clone has copied its data")
    for error in (s.refused("file", "ls", "/none"), s.refused("file", "clone", "/dir/golden", "/dir/clone")):
        check("/none" in error or "/dir/clone" in error, error)
    page = 1100
    for n in range(page):
        c.create(root, b"many%d" % n)
    equal(len(s.json("file", "ls", "/")), page + 1, "number of entries, in pages")
    s.stop()
    s.args = []
    s.start()
    check("--nfs" in s.refused("file", "ls", "/"), "the error does not name the option")
    equal(s.json("volume", "list"), [], "volumes")


@test
def nfs_many_clients(t):
    """Threads work on the same directory, each on its files, and list it."""
    s, port = serve(t)
    first = Client(port)
    root = first.mount()
    errors = []

    def work(number):
        try:
            client = Client(port)
            for n in range(25):
                name = b"%d-%d" % (number, n)
                file = client.create(root, name, mode=0o644)
                data = bytes([number + 1]) * (100 if n % 2 else 20000)
                client.write(file, 0, data, n % 3)
                client.rename(root, name, root, name + b"r")
                equal(client.read(file, 0, 30000)[0], data, "data")
                if n % 5 == 0:
                    client.remove(root, name + b"r")
                if n % 7 == 0:
                    client.names(root)
        except Exception as error:  # noqa: BLE001  reported by the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, f"{errors}")
    expected = {b"%d-%dr" % (a, n) for a in range(8) for n in range(25) if n % 5}
    equal(set(first.names(root)), expected, "names")
    s.kill()
    s.start()
    first.connect()
    equal(set(first.names(root)), expected, "names after a kill")
    for name in sorted(expected)[:40]:
        number, n = (int(part) for part in name.rstrip(b"r").split(b"-"))
        data = first.read(first.lookup(root, name), 0, 30000)[0]
        equal(data, bytes([number + 1]) * (100 if n % 2 else 20000), f"data of {name}")
    s.stop()
    run(s.bin, "check", "--data", s.data)


@test
def nfs_libnfs_and_qemu(t):
    if os.geteuid() != 0:
        raise Skipped("needs root: clients ask port 111 for the port of NFS")
    # A separate address, whose port 111 no other port mapper has.
    host, port = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}", free_port()
    s = t.server("--nfs", f"{host}:{port}", "--nfs-portmap", f"{host}:111")
    # libnfs 4.0 cannot mount the root itself for a file in it.
    Client(port, host=host).mkdir(Client(port, host=host).mount(), b"store", mode=0o755)
    url = f"nfs://{host}/store/"
    small, large = t.noise_file("small", 3000), t.noise_file("large", 3 * MIB + 77)
    for source in (small, large):
        name = os.path.basename(source)
        run("nfs-cp", source, f"{url}{name}")
        run("nfs-cp", f"{url}{name}", t.path(f"{name}.back"))
        run("cmp", source, t.path(f"{name}.back"))
    listed = run("nfs-ls", url).stdout
    check(all(f"{size} {name}" in " ".join(listed.split()) for size, name in ((3000, "small"), (3 * MIB + 77, "large"))), listed)
    run("sh", "-c", f"nfs-cat {url}small >{t.path('cat')}")
    run("cmp", small, t.path("cat"))
    # QEMU: an image is created, written, read and converted; a kill between write and read.
    disk = f"{url}disk.qcow2"
    run("qemu-img", "create", "-q", "-f", "raw", f"{url}disk.raw", "64M")
    run("qemu-io", "-f", "raw", f"{url}disk.raw", "-c", "write -P 7 1M 2M", "-c", "flush", "-c", "write -P 8 63M 1M", "-c", "flush")
    s.kill()
    s.start()
    out = run("qemu-io", "-f", "raw", f"{url}disk.raw", "-c", "read -P 0 0 1M", "-c", "read -P 7 1M 2M", "-c", "read -P 8 63M 1M").stdout
    check("Pattern verification failed" not in out, out)
    raw = t.noise_file("image", 8 * MIB, holes=True)
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", raw, f"{url}copy.raw")
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, f"{url}copy.raw")
    run("qemu-img", "create", "-q", "-f", "qcow2", disk, "1G")
    run("qemu-io", "-f", "qcow2", disk, "-c", "write -P 3 500M 5M", "-c", "discard 501M 1M", "-c", "flush")
    run("qemu-img", "check", "-f", "qcow2", disk)
    s.stop()
    run(s.bin, "check", "--data", s.data)
