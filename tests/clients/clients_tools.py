"""Common NBD tools: nbdinfo, nbdcopy, qemu-io, qemu-img, fio."""

import json
import os

from harness import MIB, check, equal, run, test


@test
def nbdinfo_lists_every_export(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "64M")
    s.cli("image", "import", "golden", t.noise_file("golden.raw", 4 * MIB))
    s.cli("snapshot", "create", "disk", "monday")
    listed = json.loads(run("nbdinfo", "--list", "--json", s.uri("")).stdout)
    found = {e["export-name"]: e for e in listed["exports"]}
    equal(sorted(found), ["disk", "disk@monday", "golden"], "exports")
    equal(found["disk"]["export-size"], 64 * MIB, "size of the volume")
    equal(found["golden"]["export-size"], 4 * MIB, "size of the image")
    for name, export in found.items():
        equal(export["is_read_only"], name != "disk", f"{name} read-only")
        for feature in ("can_flush", "can_multi_conn", "can_df"):
            check(export[feature], f"{name}: {feature} is off")
        equal(export["block_size_maximum"] >= 32 * MIB, True, f"{name}: requests of 32 MiB")
        check("base:allocation" in export["contexts"], f"{name}: no base:allocation")
    for feature in ("can_fua", "can_trim", "can_zero", "can_fast_zero", "can_cache"):
        check(found["disk"][feature], f"disk: {feature} is off")


@test
def nbdinfo_maps_allocated_blocks(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "8M")
    run("qemu-io", "-f", "raw", "-c", "write -P 7 1M 1M", "-c", "write -P 8 3M 64k", "-c", "flush", s.uri("disk"))
    equal(data_extents(s.uri("disk")), [(MIB, MIB), (3 * MIB, 65536)], "allocated parts")
    run("qemu-io", "-f", "raw", "-c", "discard 1M 512k", "-c", "flush", s.uri("disk"))
    equal(data_extents(s.uri("disk")), [(MIB + MIB // 2, MIB // 2), (3 * MIB, 65536)], "after a discard")


def data_extents(uri):
    """The data extents of `nbdinfo --map`, adjacent ones joined; the map must cover the disk without gaps."""
    extents = json.loads(run("nbdinfo", "--map", "--json", uri).stdout)
    out, end = [], 0
    for e in extents:
        equal(e["offset"], end, "start of an extent")
        end += e["length"]
        if e["type"] != 0:
            continue
        if out and sum(out[-1]) == e["offset"]:
            out[-1] = (out[-1][0], out[-1][1] + e["length"])
        else:
            out.append((e["offset"], e["length"]))
    equal(end, json.loads(run("nbdinfo", "--json", uri).stdout)["exports"][0]["export-size"], "end of the map")
    return out


@test
def nbdcopy_both_ways(t):
    s = t.server()
    # The size is not a multiple of a block, and the file has holes.
    size = 37 * MIB + 3 * 512
    source = t.noise_file("source", size, holes=True)
    for name in ("a", "b"):
        s.cli("volume", "create", name, "--size", str(size))
    run("nbdcopy", "--flush", source, s.uri("a"))
    run("nbdcopy", "--flush", "--connections=4", "--requests=64", s.uri("a"), s.uri("b"))
    run("nbdcopy", "--synchronous", s.uri("b"), t.path("back"))
    run("cmp", source, t.path("back"))
    check(allocated(s, "a") < 20 * MIB, "holes of the file are allocated on the volume")


def allocated(server, export):
    return sum(length for _, length in data_extents(server.uri(export)))


@test
def qemu_io_patterns(t):
    """Writes, zeroes and discards of all alignments, executed on the disk and on a file, which must then be
    equal."""
    s = t.server()
    size = 4 * MIB
    s.cli("volume", "create", "disk", "--size", str(size))
    with open(t.path("model"), "wb") as f:
        f.truncate(size)
    commands = []
    for i in range(150):
        offset = t.random.randrange(0, size - 1)
        if i % 2:
            offset -= offset % 4096
        length = min(size - offset, t.random.choice([1, 511, 512, 4095, 4096, 4097, 70000, 262144]))
        kind = t.random.choice(["write -P %d" % t.random.randrange(1, 255), "write -z", "write -z -u", "write -f -P 9"])
        commands += ["-c", f"{kind} {offset} {length}"]
        if i % 10 == 9:
            # A discard leaves partial blocks unchanged, so the model may contain only whole blocks.
            start = t.random.randrange(0, size // 4096) * 4096
            length = min(size - start, 65536)
            commands += ["-c", f"discard {start} {length}", "-c", f"read -P 0 {start} {length}"]
    for target in (s.uri("disk"), t.path("model")):
        # For a mismatch of a read's pattern, qemu-io prints a message but does not fail.
        done = run("qemu-io", "-f", "raw", "-d", "unmap", *commands, "-c", "flush", target)
        check("verification failed" not in done.stdout.lower(), f"qemu-io on {target}: {done.stdout}")
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", t.path("model"), s.uri("disk"))
    s.kill()
    s.start()
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", t.path("model"), s.uri("disk"))


@test
def qemu_img_converts_in_and_out(t):
    s = t.server()
    raw = t.noise_file("raw", 24 * MIB, holes=True)
    run("qemu-img", "convert", "-O", "qcow2", raw, t.path("in.qcow2"))
    s.cli("volume", "create", "disk", "--size", str(24 * MIB))
    run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", t.path("in.qcow2"), s.uri("disk"))
    run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", t.path("in.qcow2"), s.uri("disk"))
    for form in ("qcow2", "vmdk", "raw"):
        out = t.path(f"out.{form}")
        run("qemu-img", "convert", "-f", "raw", "-O", form, s.uri("disk"), out)
        run("qemu-img", "compare", "-f", form, "-F", "raw", out, raw)


@test
def images_of_every_format_are_imported(t):
    s = t.server()
    raw = t.noise_file("raw", 12 * MIB, holes=True)
    variants = {
        "raw": ("raw", []),
        "qcow2": ("qcow2", []),
        "packed": ("qcow2", ["-c"]),
        "old": ("qcow2", ["-o", "compat=0.10,cluster_size=4k"]),
        "vmdk": ("vmdk", []),
        "stream": ("vmdk", ["-o", "subformat=streamOptimized"]),
        "vhdx": ("vhdx", []),
    }
    for name, (form, options) in variants.items():
        path = t.path(f"{name}.{form}")
        run("qemu-img", "convert", "-f", "raw", "-O", form, *options, raw, path)
        s.cli("image", "import", name, path)
        # VHDX rounds the size of a disk up; the rest must read as zeroes, which compare accepts.
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, s.uri(name))
    equal(len(s.json("image", "list")), len(variants), "images")


@test
def fio_verifies_its_writes(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "192M")
    jobs = [
        ("blocks", "bs=4k", "rw=randwrite", "iodepth=32"),
        ("mixed", "bsrange=512-128k", "blockalign=512", "rw=randwrite", "iodepth=16"),
        ("large", "bs=1m", "rw=write", "iodepth=4"),
        ("trims", "bs=64k", "rw=randtrimwrite", "iodepth=8"),
    ]
    # Trims have a separate range, after the others, because fio cannot verify trimmed blocks.
    text = ["[global]", "ioengine=nbd", f"uri={s.uri('disk')}", "size=48m", "verify_fatal=1", "randseed=7"]
    for i, (name, *settings) in enumerate(jobs):
        text += [f"[{name}]", f"offset={i * 48}m", *settings]
        text += [] if name == "trims" else ["verify=crc32c", "do_verify=1", "fsync=64"]
    with open(t.path("job.fio"), "w") as f:
        f.write("\n".join(text) + "\n")
    out = run("fio", "--output-format=json", t.path("job.fio"), cwd=t.dir, timeout=300).stdout
    for job in json.loads(out[out.index("{"):])["jobs"]:
        equal(job["error"], 0, f"errors of job {job['jobname']}")
        if job["jobname"] != "trims":
            check(job["read"]["io_bytes"] >= 40 * MIB, f"job {job['jobname']} verified too little")


@test
def many_connections_at_once(t):
    s = t.server()
    s.cli("volume", "create", "disk", "--size", "64M")
    out = run(
        *("fio", "--name=many", "--ioengine=nbd", f"--uri={s.uri('disk')}", "--rw=randrw", "--bs=4k", "--size=1m"),
        *("--numjobs=48", "--offset_increment=1m", "--iodepth=4", "--group_reporting", "--output-format=json"),
        *("--verify=crc32c", "--verify_fatal=1"),
        cwd=t.dir,
    ).stdout
    equal(json.loads(out[out.index("{"):])["jobs"][0]["error"], 0, "errors")
    check(os.path.exists(s.nbd), "the server has ended")
