"""Classes of blocks: the server's classification of an NTFS disk compared with ntfs-3g's tools for every
cluster."""

import glob
import os
import struct
import subprocess

from forebay import Failed
from clients_filesystems import NTFS, Fuse, Mount, need_fuse_and_loop
from harness import BLOCK, MIB, check, connect, equal, run, test, wait_for

PARTITION = MIB
SIZE = 64 * MIB
CLUSTER = 4096
KINDS = ("other", "page", "temporary", "code", "metadata", "free")
PAGE_FILES = ("/pagefile.sys", "/hiberfil.sys", "/swapfile.sys")
TEMPORARY = ("/Windows/Temp/", "/Users/anna/AppData/Local/Temp/")
PROGRAMS = "/usr/lib/python3/dist-packages/distlib/*.exe"


def write(root, path, data):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as f:
        f.write(data)


def programs():
    files = sorted(glob.glob(PROGRAMS))
    check(len(files) == 6, "no programs of python3-distlib (make setup installs it)")
    contents = []
    for file in files:
        with open(file, "rb") as f:
            contents.append(f.read())
    return contents


def fill(t, root):
    for n, program in enumerate(programs()):
        write(root, f"Windows/System32/program{n}.exe", program)
    write(root, "pagefile.sys", t.random.randbytes(6 * MIB))
    write(root, "hiberfil.sys", t.random.randbytes(MIB))
    for n in range(20):
        write(root, f"Windows/Temp/t{n}", t.random.randbytes(5000 + 3000 * n))
    write(root, "Users/anna/AppData/Local/Temp/setup.exe", programs()[0])
    for n in range(60):
        write(root, f"Users/anna/letters/{n}", t.random.randbytes(700 * n))


def change(t, root):
    """Moves files between classes, and lets files grow alternately, so that their clusters are
    interleaved."""
    temp, home = os.path.join(root, "Windows/Temp"), os.path.join(root, "Users/anna")
    os.rename(os.path.join(home, "AppData/Local/Temp/setup.exe"), os.path.join(home, "setup.exe"))
    os.rename(os.path.join(home, "letters/59"), os.path.join(temp, "59"))
    os.rename(os.path.join(temp, "t19"), os.path.join(home, "t19"))
    os.rename(os.path.join(root, "hiberfil.sys"), os.path.join(home, "hiberfil.sys"))
    for _ in range(30):
        write(root, "pagefile.sys", t.random.randbytes(20_000))
        write(root, "Windows/System32/program3.exe", t.random.randbytes(9_000))
        write(root, "Users/anna/letters/58", t.random.randbytes(5_000))
    for n in range(0, 50, 2):
        os.unlink(os.path.join(home, f"letters/{n}"))


def output(*argv):
    """The output of a tool as bytes."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"{argv}: {done.stderr.decode(errors='replace')}")
    return done.stdout


class Truth:
    """The classification of a disk with one partition by ntfs-3g's tools."""

    def __init__(self, t, disk):
        self.part = t.path("part")
        with open(disk, "rb") as f, open(self.part, "wb") as part:
            f.seek(PARTITION)
            part.write(f.read())
        self.size = os.path.getsize(self.part)
        self.claims = [set() for _ in range(SIZE // BLOCK)]
        # Blocks of the page file.
        self.page = []
        self.claim("metadata", -PARTITION, 512)
        self.claim("metadata", self.size - 512, 512)
        self.files()
        bitmap = self.cat(6)
        for cluster in range((self.size - 512) // CLUSTER):
            if not bitmap[cluster // 8] >> (cluster % 8) & 1:
                self.claim("free", cluster * CLUSTER, CLUSTER)

    def cat(self, inode):
        return output("ntfscat", "-f", "-i", inode, self.part)

    def claim(self, kind, at, size):
        for block in range((PARTITION + at) // BLOCK, (PARTITION + at + size - 1) // BLOCK + 1):
            self.claims[block].add(kind)
            if kind == "page":
                self.page.append(block)

    def files(self):
        records = self.cat(0)
        for inode in range(len(records) // 1024):
            record = records[inode * 1024:][:1024]
            if record[:4] != b"FILE" or not record[22] & 1 or record[32:40] != bytes(8):
                continue
            kind, path = "other", ""
            for line in output("ntfscluster", "-f", "-I", inode, self.part).decode(errors="replace").splitlines():
                if line.startswith("Dump: "):
                    path = line[6:]
                words = line.split()
                if words and words[0].startswith("0x"):
                    data = words[0] == "0x80" and "non-resident" in line
                    kind = self.kind(inode, path) if data else "metadata"
                elif len(words) >= 3 and all(word.lstrip("-").isdigit() for word in words[:3]):
                    lcn, length = int(words[1]), int(words[2])
                    if lcn >= 0 and kind != "other":
                        self.claim(kind, lcn * CLUSTER, length * CLUSTER)

    def kind(self, inode, path):
        if inode < 24 or path.startswith("/$Extend/"):
            return "metadata"
        if path in PAGE_FILES:
            return "page"
        if path.startswith(TEMPORARY):
            return "temporary"
        content = self.cat(inode)
        at = struct.unpack_from("<I", content, 0x3C)[0] if len(content) > 0x40 else 0
        return "code" if content[:2] == b"MZ" and content[at:at + 4] == b"PE\0\0" else "other"

    def bytes(self):
        """Bytes of each class; a block of several classes is counted by the precedence in docs/guests.md."""
        found = dict.fromkeys(KINDS, 0)
        for claims in self.claims:
            if len(claims) == 1:
                kind = next(iter(claims))
            else:
                kind = next((kind for kind in ("code", "metadata") if kind in claims), "other")
            found[kind] += BLOCK
        return found


def known(s, name, *args):
    """Bytes of each class according to the server; empty if unknown."""
    return {c["class"]: c["bytes"] for c in s.json("volume", "classes", name, *args)["classes"]}


def one(s, name, kind):
    return next(c for c in s.json("volume", "classes", name)["classes"] if c["class"] == kind)


def wait_known(s, name):
    return wait_for(lambda: known(s, name), f"the classes of '{name}'")


def ntfs_image(t):
    """A disk with one filled NTFS partition."""
    need_fuse_and_loop()
    path = t.path("image")
    with open(path, "wb") as f:
        f.truncate(SIZE)
    with open(t.path("table"), "w") as f:
        f.write(f"label: dos\nstart={PARTITION // 512}, type=7\n")
    with open(t.path("table")) as f:
        run("sfdisk", "-q", path, stdin=f)
    part = t.path("new")
    with open(part, "wb") as f:
        f.truncate(SIZE - PARTITION)
    run(*NTFS.make, "-s", "512", "-p", PARTITION // 512, "-c", CLUSTER, part)
    mount = Mount(t, NTFS, part)
    fill(t, mount.dir)
    mount.close()
    with open(part, "rb") as f, open(path, "r+b") as disk:
        disk.seek(PARTITION)
        disk.write(f.read())
    return path


def copied(t, s, name):
    """The content of a disk as a file."""
    path = t.path("copy")
    run("nbdcopy", s.uri(name), path)
    return path


@test
def classes_match_ntfs_3g_also_while_a_clone_changes(t):
    image = ntfs_image(t)
    s = t.server()
    s.cli("image", "import", "golden", image)
    expected = Truth(t, image).bytes()
    check(all(expected[kind] for kind in KINDS), f"all classes are there: {expected}")
    equal(wait_known(s, "golden"), expected, "the image, learned by itself")
    equal(s.json("volume", "classes", "golden")["file_systems"], ["ntfs"], "file systems")
    s.cli("volume", "clone", "golden", "a")
    s.cli("volume", "clone", "golden", "desk", "--desktop")
    for clone in ("a", "desk"):
        equal(known(s, clone), expected, f"'{clone}', inherited")
        # A running clone: the driver has it mounted while it is scanned.
        fuse = Fuse(t, s, clone)
        mount = Mount(t, NTFS, fuse.file, f"offset={PARTITION}")
        change(t, mount.dir)
        run("sync", "-f", mount.dir)
        found = known(s, clone, "--refresh")
        changed = Truth(t, copied(t, s, clone)).bytes()
        check(changed != expected, "something has changed")
        equal(found, changed, f"'{clone}', after files were moved and grown")
        mount.close()
        fuse.close()
        s.wait_unused(clone)
    text = s.cli("volume", "classes", "a").stdout
    check(text.startswith("ntfs; scanned ") and "page " in text, text)
    s.cli("volume", "reset", "desk")
    equal(known(s, "desk"), expected, "a desktop that was reset")
    found = known(s, "a")
    s.cli("snapshot", "create", "a", "now")
    s.kill()
    s.start()
    equal(wait_known(s, "a"), found, "after kill -9")
    equal(known(s, "a@now", "--refresh"), Truth(t, copied(t, s, "a@now")).bytes(), "a snapshot, scanned")
    equal(known(s, "golden"), expected, "the image after kill -9")
    run("ntfsresize", "--info", "--force", t.path("part"))


@test
def classes_of_a_page_file_keep_it_out_of_index_and_cache(t):
    image = ntfs_image(t)
    s = t.server()
    s.cli("image", "import", "golden", image)
    wait_known(s, "golden")
    s.cli("volume", "clone", "golden", "a")
    page = Truth(t, image).page
    h = connect(s, "a")
    h.flush()
    data = [(b"page %d " % block).ljust(64, b"x") * (BLOCK // 64) for block in page[:512]]
    before = s.json("stats")["reduction"]
    # Each content twice: in the first 2 MiB of the page file, and in the next 2 MiB.
    for start in (0, 512):
        for block, content in zip(page[start:start + 512], data):
            h.pwrite(content, block * BLOCK)
        h.flush()
    after = s.json("stats")["reduction"]
    equal(after["index"]["entries"], before["index"]["entries"], "fingerprints in the index")
    equal(after["duplicate_blocks"], before["duplicate_blocks"], "duplicates")
    equal(after["new_bytes"] - before["new_bytes"], 1024 * BLOCK, "bytes stored for 4 MiB that would compress well")
    equal(one(s, "a", "page")["written_bytes"], 1024 * BLOCK, "bytes written, by class")
    reads = s.json("stats")["store"]["read"]["ops"]
    for block, content in zip(page[:64], data):
        equal(bytes(h.pread(BLOCK, block * BLOCK)), content, f"block {block}")
    check(s.json("stats")["store"]["read"]["ops"] - reads >= 64, "the page file was not cached")
    equal(one(s, "a", "page")["hit_rate"], 0.0, "hit rate")
    # Writes outside of files trigger a new scan of the disk.
    learned = s.json("volume", "classes", "a")["learned_ms"]
    for _ in range(70):
        h.pwrite(t.random.randbytes(MIB), SIZE - 4 * MIB)
        h.flush()
    wait_for(
        lambda: s.json("volume", "classes", "a")["learned_ms"] != learned, "a scan of a clone that has changed"
    )
    equal(known(s, "a"), known(s, "golden"), "no file was changed")


@test
def classes_of_corrupt_disks_are_dropped_and_data_is_kept(t):
    image = ntfs_image(t)
    with open(image, "rb") as f:
        golden = f.read()
    mft = PARTITION + struct.unpack_from("<Q", golden, PARTITION + 0x30)[0] * CLUSTER
    mirror = PARTITION + struct.unpack_from("<Q", golden, PARTITION + 0x38)[0] * CLUSTER
    noise = t.random.randbytes
    damage = {
        "table": [(0, noise(512))],
        "boot": [(PARTITION, noise(512)), (SIZE - 512, noise(512))],
        "mft": [(mft, noise(64 << 10)), (mirror, noise(CLUSTER))],
        # A boot sector that points to itself and has excessive sizes.
        "liar": [(PARTITION + 0x0D, b"\x80" + b"\xff" * 6), (PARTITION + 0x28, b"\xff" * 40), (SIZE - 512, bytes(512))],
        "records": [(mft + 1024 * t.random.randrange(16, 90) + t.random.randrange(1024), noise(3)) for _ in range(200)],
    }
    s = t.server("--cache", "16M")
    s.cli("image", "import", "golden", image)
    whole = wait_known(s, "golden")
    for name, changes in damage.items():
        s.cli("volume", "clone", "golden", name)
        h = connect(s, name)
        expected = bytearray(golden)
        for at, data in changes:
            h.pwrite(data, at)
            expected[at:at + len(data)] = data
        h.flush()
        found = known(s, name, "--refresh")
        if name != "records":
            left = {kind: found.get(kind, 0) for kind in ("page", "temporary", "code", "free")}
            equal(left, dict.fromkeys(left, 0), f"'{name}': what is known of it")
        # The disk is served, and writes to the former page file are stored like any other.
        h.pwrite(golden[:8 * MIB], 8 * MIB)
        expected[8 * MIB:16 * MIB] = golden[:8 * MIB]
        h.shutdown()
        expected_file = t.path("expected")
        with open(expected_file, "wb") as f:
            f.write(expected)
        for restart in (False, True):
            if restart:
                s.stop()
                s.start()
            run("cmp", expected_file, copied(t, s, name))
            s.wait_unused(name)
        if name != "records":
            equal(known(s, name).get("free", 0), 0, f"'{name}': what is known of it after a restart")
        s.cli("volume", "reset", name)
        equal(known(s, name), whole, f"'{name}' after a reset")
    s.stop()
    run(s.bin, "check", "--data", s.data)
