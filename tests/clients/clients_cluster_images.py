"""Images of a cluster: imported once, and cloned at every node, also while their home does not answer."""

import random

from clients_cluster import STATE_S, ShardedCluster
from clients_rados import CLUSTER
from forebay import run
from harness import alone, check, equal, needs, test, wait_for

MIB = 1 << 20
SIZE = 24 * MIB


def golden(t):
    """A raw image with text, data that does not compress, equal blocks, and holes."""
    path, source = t.path("golden.raw"), random.Random(7)
    with open(path, "wb") as f:
        f.truncate(SIZE)
        f.write(b"a line of a configuration file\n" * 200_000)
        f.seek(10 * MIB)
        f.write(source.randbytes(6 * MIB))
        f.seek(18 * MIB)
        f.write(source.randbytes(4096) * 512)
    return path


def images(cluster):
    """The images of the cluster by name, as an administrator sees them."""
    return {image["name"]: image for image in cluster.status().get("images", [])}


def wait_live(cluster, name):
    """Waits until every shard can clone the image."""
    is_live = lambda: images(cluster).get(name, {}).get("state") == "live"  # noqa: E731
    wait_for(is_live, f"the image {name} is published", STATE_S)


def segments(cluster):
    """The objects in Ceph that hold images of the cluster."""
    listed = run("rados", "--conf", CLUSTER.conf, "-p", "test", "-N", f"{cluster.name}.images", "ls")
    return listed.stdout.split()


def same(t, node, volume, expected):
    """Compares a volume with a file, through the socket of a node."""
    copy = t.path(f"copy-{node.name}-{volume}")
    run("nbdcopy", f"nbd+unix:///{volume}?socket={node.data}/nbd.sock", copy)
    run("cmp", copy, expected)


def owner_of(cluster, node, volume):
    shard = node.get(f"volumes/{volume}/location")["shard"]
    return {s["number"]: s["owner"] for s in cluster.status()["shards"]}[shard]


@needs(CLUSTER)
@alone
@test
def cluster_images_are_cloned_at_every_node(t):
    cluster = ShardedCluster(t, "images", 4)
    cluster.add("n1", "n2")
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    n1, n2 = cluster.nodes["n1"], cluster.nodes["n2"]
    path = golden(t)
    n1.cli("image", "import", "golden", path, "--format", "raw")
    wait_live(cluster, "golden")
    image = images(cluster)["golden"]
    equal(owner_of(cluster, n1, "golden"), "n1", "the home of the image")
    check(0 < image["stored_bytes"] < 10 * MIB, f"stored once, compressed, and equal blocks once: {image}")

    # Clones are made in shards of the node that is asked, and have the contents of the image.
    n1.cli("volume", "clone", "golden", "a")
    n2.cli("volume", "clone", "golden", "b", "--count", "3")
    equal([owner_of(cluster, n1, name) for name in ("a", "b-001", "b-003")], ["n1", "n2", "n2"], "owners of clones")
    for node, volume in ((n1, "a"), (n2, "b-001"), (n1, "b-002")):
        same(t, node, volume, path)
    equal(n2.json("volume", "show", "b-001")["origin"], "golden", "the origin of a clone")
    more = n2.json("volume", "clone", "golden", "b", "--count", "2", "--more")
    equal([disk["name"] for disk in more], ["b-004", "b-005"], "numbers after the existing ones")

    # Clones are ordinary volumes: they are written, snapshotted, reset and cloned.
    uri = f"nbd+unix:///b-001?socket={n2.data}/nbd.sock"
    run("qemu-io", "-f", "raw", "-c", "write -P 7 10M 64k", "-c", "flush", uri)
    n2.cli("snapshot", "create", "b-001", "s")
    n2.cli("volume", "clone", "b-001@s", "c")
    run("qemu-io", "-f", "raw", "-c", "read -P 7 10M 64k", f"nbd+unix:///c?socket={n1.data}/nbd.sock")
    n2.cli("volume", "reset", "b-002")
    same(t, n2, "b-002", path)

    # A fleet gets another image, which was made from a volume at the other node.
    n2.cli("volume", "clone", "golden", "master")
    master = f"nbd+unix:///master?socket={n2.data}/nbd.sock"
    run("qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", "-c", "flush", master)
    n2.cli("image", "create", "next", "master")
    wait_live(cluster, "next")
    n1.cli("volume", "clone", "golden", "g", "--count", "2")
    n1.cli("volume", "reset", "g-*", "--to", "next", "--yes")
    run("nbdcopy", master, t.path("next.raw"))
    for volume in ("g-001", "g-002"):
        same(t, n1, volume, t.path("next.raw"))
        equal(n1.json("volume", "show", volume)["origin"], "next", "the origin after the reset")
    for volume in ("g-001", "g-002", "master"):
        n1.cli("volume", "rm", volume)
    n1.cli("image", "rm", "next")

    # An image is not removed while a shard has clones of it, whichever node is asked.
    for node in (n1, n2):
        refused = node.cli("image", "rm", "golden", check=False)
        check(refused.returncode != 0 and "clones" in refused.stderr, refused.stderr)
    n1.cli("volume", "rm", "a")
    refused = n1.cli("image", "rm", "golden", check=False)
    check("has" in refused.stderr and "clones in shard" in refused.stderr, refused.stderr)
    equal(images(cluster)["golden"]["state"], "live", "the image after refused removals")
    n2.cli("volume", "clone", "golden", "d")
    same(t, n2, "d", path)

    # The home fails. The others clone the image at once.
    n1.kill()
    n2.cli("volume", "clone", "golden", "e")
    same(t, n2, "e", path)
    wait_for(lambda: (cluster.owned() or {}).get("n2") == 4, "a takeover", STATE_S)
    for volume in ("b-003", "d", "e"):
        same(t, n2, volume, path)

    # Without clones it is removed, and so are its objects.
    check(segments(cluster), "the image has objects")
    for disk in n2.json("volume", "list"):
        if disk["name"].startswith("b-001"):
            continue
        n2.cli("volume", "rm", disk["name"])
    n2.cli("snapshot", "rm", "b-001", "s")
    n2.cli("volume", "rm", "b-001")
    n2.cli("image", "rm", "golden")
    equal(n2.json("image", "list"), [], "images")
    wait_for(lambda: not segments(cluster), "the objects of the image are removed", STATE_S)
    wait_for(lambda: not images(cluster), "the image is removed", STATE_S)
    # The name is free at once.
    n2.cli("image", "import", "golden", path, "--format", "raw")
    wait_live(cluster, "golden")
    n2.cli("volume", "clone", "golden", "f")
    same(t, n2, "f", path)
    n2.stop()


@needs(CLUSTER)
@test
def cluster_images_are_removed_beside_clones_and_stopped_owners(t):
    """An image is deleted at one node while another node clones it, with one of the owners stopped and
    continued. Whichever comes first: every clone that exists can be read."""
    cluster = ShardedCluster(t, "racing", 3)
    cluster.add("n1", "n2", "n3")
    cluster.start("n1", "n2", "n3")
    cluster.wait_owned({"n1": 1, "n2": 1, "n3": 1})
    n1, n2, n3 = cluster.nodes.values()
    path = golden(t)
    for number in range(3):
        name = f"g{number}"
        n1.cli("image", "import", name, path, "--format", "raw")
        wait_live(cluster, name)
        n2.cli("volume", "clone", name, f"b{number}")
        n2.cli("volume", "rm", f"b{number}")
        stopped = (n2, n3, n1)[number]
        cloning = n3.begin("volume", "clone", name, f"c{number}")
        stopped.signal("STOP")
        removing = n1.begin("image", "rm", name)
        # A stopped owner loses its shard, and finds that out when it continues.
        is_moved = lambda: all(s["owner"] != stopped.name for s in cluster.status()["shards"])  # noqa: E731
        wait_for(is_moved, f"the shards of {stopped.name} have another owner", STATE_S)
        stopped.signal("CONT")
        answers = [cloning.wait(STATE_S), removing.wait(STATE_S)]
        cluster.wait_owned({"n1": 1, "n2": 1, "n3": 1})
        names = [disk["name"] for disk in n2.json("volume", "list")]
        exists = f"c{number}" in names
        print(f"round {number}: statuses {answers}, the clone exists: {exists}, images {images(cluster)}")
        if exists:
            same(t, n2, f"c{number}", path)
            n2.cli("volume", "rm", f"c{number}")
        if name in [image["name"] for image in n2.json("image", "list")]:
            n2.cli("image", "rm", name)
            wait_for(lambda: not images(cluster), "the image is removed in the end", STATE_S)  # noqa: B023
        wait_for(lambda: not segments(cluster), "its objects are removed", STATE_S)
    for node in cluster.nodes.values():
        node.stop()
