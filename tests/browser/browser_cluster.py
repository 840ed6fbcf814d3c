"""The dashboard at a node of a cluster."""

from browser import browser
from clients_cluster import ShardedCluster
from clients_rados import CLUSTER
from harness import alone, check, needs, test


@needs(CLUSTER)
@alone
@test
def a_node_shows_the_cluster_and_each_shard(t):
    cluster = ShardedCluster(t, "pages", 4)
    cluster.add("n1", "n2", args=["--http", "127.0.0.1:0"])
    cluster.start("n1", "n2")
    cluster.wait_owned({"n1": 2, "n2": 2})
    n1, n2 = cluster.nodes["n1"], cluster.nodes["n2"]
    n1.cli("volume", "create", "at-the-first", "--size", "1M")
    n2.cli("volume", "create", "at-the-second", "--size", "1M")
    b = browser(t, f"http://{n1.ready()['http']}")
    b.open()
    b.go("#/cluster")
    b.shows("rados:test/pages.00004")
    page = b.script("return document.getElementById('main').textContent")
    check("n1" in page and "n2" in page and "up" in page, page)
    # Volumes are those of all shards; each can be opened.
    b.go("#/volumes")
    b.shows("at-the-first")
    b.shows("at-the-second")
    # The chosen shard has at most one of them.
    for name in ("at-the-first", "at-the-second"):
        b.go(f"#/volumes/{name}")
        b.shows("1 MiB")
    # The pages of a server are those of the chosen shard, also of a shard at the other node.
    for shard in cluster.status()["shards"]:
        number = str(shard["number"])
        if b.script("return document.querySelector('select.server').value") != number:
            b.script(
                "const choice = document.querySelector('select.server'); choice.value = arguments[0];"
                "choice.dispatchEvent(new Event('change'));",
                number,
            )
        chosen = "return document.querySelector('select.server')?.value"
        b.until(lambda: b.script(chosen) == number, f"shard {number} is not chosen")  # noqa: B023
        b.go("#/pools")
        b.shows(shard["pool"])
        b.go("#/overview")
        b.shows("Store")
    # A node that stops ends the streams of its pages, which the console reports.
    b.close()
    for node in cluster.nodes.values():
        node.stop()
