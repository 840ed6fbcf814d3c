"""The storage plug-in for Proxmox VE: its tests are in Perl, as it is, in tests/proxmox."""

import os

from clients_cluster import ShardedCluster
from clients_rados import CLUSTER
from forebay import binary, run
from harness import check, needs, test

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROXMOX = os.path.join(ROOT, "tests", "proxmox")
PACKAGING = os.path.join(ROOT, "packaging", "proxmox")


@test
def proxmox_plugin(ctx):
    """Each method of the plug-in, on the base classes that it may expect, with a real server and real
    QEMU."""
    ran = run("prove", "--jobs", "2", os.path.join(PROXMOX, "t"), env=environment(ctx), timeout=900, check=False)
    check(ran.returncode == 0, f"prove failed:\n{ran.stdout}{ran.stderr}")
    check("All tests successful" in ran.stdout, f"prove ran no tests:\n{ran.stdout}")


@needs(CLUSTER)
@test
def cluster_is_a_storage_of_proxmox(t):
    """One storage, `shared`, whose volumes each node serves at its sockets."""
    cluster = ShardedCluster(t, "proxmox", 4)
    cluster.add("n1", "n2")
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    nodes = ":".join(node.data for node in cluster.nodes.values())
    env = {**environment(t), "FOREBAY_NODES": nodes, "FOREBAY_CLUSTER": cluster.address}
    ran = run("prove", os.path.join(PROXMOX, "cluster"), env=env, timeout=300, check=False)
    check(ran.returncode == 0, f"prove failed:\n{ran.stdout}{ran.stderr}")
    for node in cluster.nodes.values():
        node.stop()


@test
def proxmox_package(ctx):
    """The package has the plug-in, which compiles, restarts PVE's daemons, and is reproducible."""
    for name in ("one", "two"):
        run(os.path.join(PACKAGING, "build-deb"), ctx.path(name))
    packages = [os.path.join(ctx.path(name), file) for name in ("one", "two") for file in os.listdir(ctx.path(name))]
    check(len(packages) == 2, f"two packages expected: {packages}")
    run("cmp", *packages)
    fields = run("dpkg-deb", "--field", packages[0]).stdout
    check("Architecture: all\n" in fields and "libpve-storage-perl" in fields, fields)

    root = ctx.path("root")
    run("dpkg-deb", "--raw-extract", packages[0], root)
    with open(os.path.join(root, "DEBIAN", "triggers")) as triggers:
        check("activate-noawait pve-api-updates\n" in triggers.readlines(), "PVE's daemons are not restarted")
    lib = os.path.join(root, "usr/share/perl5")
    found = sorted(os.path.join(at, name)[len(lib) + 1 :] for at, _, names in os.walk(lib) for name in names)
    # PVE loads all modules in that directory as plug-ins.
    custom = [path for path in found if path.startswith("PVE/")]
    check(custom == ["PVE/Storage/Custom/ForebayPlugin.pm"], f"files of PVE: {custom}")
    for path in found:
        run("perl", "-T", "-W", f"-I{lib}", f"-I{PROXMOX}/contract", "-c", os.path.join(lib, path))
    run("prove", os.path.join(PROXMOX, "t", "settings.t"), env={**environment(ctx), "FOREBAY_PLUGIN_LIB": lib})


def environment(ctx):
    """The tests find the server, and make their files in the directory of this test."""
    return {**os.environ, "FOREBAY_BIN": binary(), "TMPDIR": ctx.dir}
