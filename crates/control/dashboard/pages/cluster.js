// The nodes and the shards of a cluster.

import { get } from "../api.js";
import { badge, card, h, pageHead, replace } from "../dom.js";
import { count } from "../format.js";
import { plainTable } from "../table.js";

const STATES = { up: "good", draining: "warn", suspect: "bad" };

const NODE_COLUMNS = ["Node", "State", "Address", ["Shards", "num"], ["Home of", "num"]];
const SHARD_COLUMNS = [["Shard", "num"], "Owner", "Home", "Pool"];

const nodeRow = (node) => [
  node.name,
  badge(node.state, STATES[node.state] ?? "plain"),
  node.address || "–",
  count(node.owned),
  count(node.homes),
];

function shardRow(shard) {
  const moves = shard.owner !== shard.home;
  return [
    count(shard.number),
    [shard.owner ?? "–", moves ? [" ", badge("moves", "warn")] : null],
    shard.home ?? "–",
    h("code", {}, shard.pool),
  ];
}

export function clusterPage(context) {
  const nodes = h("div");
  const shards = h("div");
  const name = h("code");
  context.poll(async () => {
    const found = await get("/cluster");
    name.textContent = found.cluster;
    replace(nodes, plainTable("Nodes", NODE_COLUMNS, found.nodes.map(nodeRow), "No node has joined."));
    replace(shards, plainTable("Shards", SHARD_COLUMNS, found.shards.map(shardRow), "The cluster has no shards."));
  }, 2000);
  const intro = h(
    "p",
    { class: "note" },
    "Volumes, images and tokens are those of the whole cluster. The other pages show the shard that is chosen above.",
  );
  return [pageHead("Cluster", [], name), intro, card("Nodes", nodes), card("Shards", shards)];
}
