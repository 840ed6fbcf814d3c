// The server and its pool: where it is, who owns it, its log and space, and their maintenance.

import { call, get } from "../api.js";
import { act, ask } from "../dialog.js";
import { badge, button, card, facts, h, pageHead, replace } from "../dom.js";
import { bytes, count, duration, micros, ratio, time } from "../format.js";
import { live } from "../live.js";
import { may } from "../session.js";
import { isRunning, jobProgress } from "./jobs.js";

function reclaim() {
  ask({
    title: "Reclaim unused space?",
    action: "Reclaim",
    done: "The reclaim has begun",
    intro:
      "The server also reclaims by itself when space is short. A reclaim reads and rewrites data; guests have precedence.",
    submit: () => call("POST", "/pool/gc", { headers: { Prefer: "respond-async" } }),
  });
}

const listOf = (addresses) =>
  addresses.length
    ? h(
        "div",
        {},
        addresses.map((one) => h("div", {}, h("code", {}, one))),
      )
    : "–";

function standbyList(standbys) {
  if (!standbys) return "…";
  if (standbys.length === 0) return badge("none", "warn");
  return standbys.map((one) =>
    h("div", {}, one.server, " ", one.alive ? badge("waits", "good") : badge("does not answer", "bad")),
  );
}

function ownerFacts(server) {
  const since = time(Date.now() - server.uptime_s * 1000);
  if (!server.owner) {
    return [
      ["Kind", "directory of this host"],
      ["Owner", "this server, exclusively"],
      ["Serving since", since],
    ];
  }
  return [
    ["Kind", "Ceph (RADOS)"],
    ["Owner", server.owner.server],
    ["Serving since", since],
    ["Term of the ownership", count(server.owner.term)],
    ["Lease", `certain for ${micros(server.owner.lease_ms * 1000)}`],
    ["Standbys", standbyList(server.owner.standbys)],
  ];
}

export function poolsPage(context) {
  const gc = h("div");
  const server = card("Server", h("p", { class: "note" }, "…"));
  const owner = card("Pool", h("p", { class: "note" }, "…"));
  const log = h("div");
  const space = h("div");
  context.poll(async () => {
    const found = await get("/pool");
    server.lastChild.replaceWith(
      facts([
        ["Release", found.version],
        ["Running for", duration(found.uptime_s * 1000)],
        ["Process", String(found.pid)],
        ["Data directory", h("code", {}, found.data)],
        ["NBD", listOf(found.nbd)],
        ["iSCSI", listOf(found.iscsi)],
        ["API", found.http ? h("code", {}, found.http) : "control socket only"],
      ]),
    );
    owner.lastChild.replaceWith(facts([["Place", h("code", {}, found.pool)], ...ownerFacts(found)]));
  }, 5000);
  context.refresh(
    ["job"],
    async () => {
      const jobs = (await get("/jobs")).filter((job) => job.kind === "gc" && isRunning(job));
      replace(gc, jobs.map(jobProgress));
    },
    5000,
  );
  context.onSample((stats) => {
    replace(
      space,
      facts([
        ["Stored", `${bytes(stats.stored_bytes)} in ${count(stats.segments)} segments`],
        ["Free in the store", bytes(stats.store_free_bytes)],
        ["State of the space", badge(stats.room, { ok: "good", low: "warn", full: "bad" }[stats.room])],
        ...(stats.space
          ? [
              ["Live", bytes(stats.space.live_bytes)],
              ["Reclaimable", bytes(stats.space.reclaimable_bytes)],
              [
                "Reduction",
                `${ratio(stats.space.reduction_ratio)} (deduplication ${ratio(stats.space.dedup_ratio)}, compression ${ratio(stats.space.compression_ratio)})`,
              ],
              ["As of", time(stats.space.as_of_ms)],
            ]
          : [["Live and reclaimable", "measured by the first reclaim"]]),
        ["Freed since the start", bytes(stats.freed_bytes)],
        ["Moved since the start", bytes(stats.moved_bytes)],
      ]),
    );
    replace(
      log,
      facts([
        ["Last durable batch", count(stats.seq)],
        ["Commits", count(stats.commits)],
        ["Duration of a commit", micros(stats.commit.cost_us)],
        ["Commits by age / by demand", `${count(stats.commit.by_age)} / ${count(stats.commit.by_demand)}`],
        ["Checkpoints", count(stats.checkpoints)],
        ["Recovery at the start", `${micros(stats.recovery_ms * 1000)}, ${count(stats.recovered_batches)} batches`],
      ]),
    );
  });
  const actions = may.administer()
    ? [
        button("Write a checkpoint", (event) =>
          act(event.target, () => call("POST", "/pool/checkpoint"), "Wrote a checkpoint"),
        ),
        button("Reclaim space", reclaim),
      ]
    : [];
  if (live.samples.length === 0) replace(log, h("p", { class: "note" }, "…"));
  return [
    pageHead("Pools", actions),
    gc,
    h("div", { class: "grid" }, owner, server, card("Space", space)),
    h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Expert: log and commits")), log),
  ];
}
