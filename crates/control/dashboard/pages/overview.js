// The state of the server at a glance: how much work the store is spared, latency, space, memory, health.

import { TimeChart, sparkCell } from "../chart.js";
import { badge, bar, card, cardWith, diskLink, facts, h, legend, link, pageHead, replace, setText } from "../dom.js";
import { bytes, clock, count, counted, micros, perSecond, percent, ratio, throughput } from "../format.js";
import { activity, grown, guestRates, live, sampleActivity } from "../live.js";
import { plainTable, Table } from "../table.js";
import { eventText } from "./events.js";

const RECENT_S = 20;
const BUSIEST = 8;
const EVENTS = 8;

/** Rates between two samples of the statistics. */
function poolRates({ before, now, seconds }) {
  const store = (of) => grown(of(before.store), of(now.store)) / seconds;
  const guest = guestRates(before.guest, now.guest, seconds);
  const storeReadOps = store((s) => s.read.ops);
  const storeWriteOps = store((s) => s.write.ops);
  const asked = guest.readOps + guest.writeOps;
  const caused = storeReadOps + storeWriteOps;
  return {
    guest,
    storeReadOps,
    storeWriteOps,
    storeOps: caused,
    storeReadBytes: store((s) => s.read.bytes),
    storeWriteBytes: store((s) => s.write.bytes),
    offload: asked > 0 ? 1 - caused / asked : null,
    asked,
  };
}

/** The quantile of the requests in buckets, interpolated within its bucket. */
export function quantile(bounds, buckets, q) {
  const total = buckets.reduce((sum, n) => sum + n, 0);
  if (total === 0) return null;
  let rank = q * total;
  for (let n = 0; n < buckets.length; n += 1) {
    if (rank <= buckets[n] && buckets[n] > 0) {
      const low = n === 0 ? 0 : bounds[n - 1];
      const high = bounds[n] ?? low;
      return low + ((high - low) * rank) / buckets[n];
    }
    rank -= buckets[n];
  }
  return bounds.at(-1);
}

const PATHS = {
  ram: "Reads from RAM",
  store: "Reads from the store",
  buffered: "Writes to RAM",
  durable: "Durable writes and flushes",
};

function latencyRows({ before, now, seconds }) {
  const bounds = now.latency.bounds_us;
  const rows = [];
  now.latency.paths.forEach((path, n) => {
    const old = before.latency.paths[n]?.buckets ?? [];
    const buckets = path.buckets.map((found, k) => grown(old[k] ?? 0, found));
    const requests = buckets.reduce((sum, found) => sum + found, 0);
    if (requests === 0) return;
    const front = path.front_end === "nbd" ? "NBD" : "iSCSI";
    rows.push([
      PATHS[path.path] ?? path.path,
      front,
      perSecond(requests / seconds),
      micros(quantile(bounds, buckets, 0.5)),
      micros(quantile(bounds, buckets, 0.99)),
    ]);
  });
  return rows;
}

function memoryParts(stats) {
  const parts = [
    { label: "Read cache", value: stats.read_cache.bytes, color: "var(--c1)" },
    { label: "Desktops' writes", value: stats.desktops.cached_bytes, color: "var(--c2)" },
    { label: "Write buffers", value: stats.dirty_bytes, color: "var(--c3)" },
    { label: "Map cache", value: stats.map_cache.bytes, color: "var(--c4)" },
    { label: "Dedup index", value: stats.reduction.index.bytes, color: "var(--c5)" },
    { label: "Clients", value: stats.clients.memory_bytes, color: "var(--c6)" },
  ];
  const known = parts.reduce((sum, part) => sum + part.value, 0);
  parts.push({ label: "Other", value: Math.max(0, stats.memory_bytes - known), color: "var(--c7)" });
  return parts;
}

function capacityCard(stats) {
  const other = Math.max(0, stats.store_total_bytes - stats.store_free_bytes - stats.stored_bytes);
  // Of the free space, guests cannot write to the reserve: it is for deletions, checkpoints and reclaims.
  const reserve = Math.min(stats.store_reserve_bytes ?? 0, stats.store_free_bytes);
  const parts = [
    { label: "This pool", value: stats.stored_bytes, color: "var(--c1)" },
    { label: "Other data", value: other, color: "var(--c7)" },
    { label: "Reserve", value: reserve, color: "var(--c5)" },
    { label: "Free for writes", value: stats.store_free_bytes - reserve, color: "var(--track)" },
  ];
  const space = stats.space;
  return [
    h(
      "p",
      { class: "big" },
      percent(stats.store_in_use ?? NaN),
      h("span", { class: "unit" }, ` of ${bytes(stats.store_total_bytes - (stats.store_reserve_bytes ?? 0))} in use`),
    ),
    bar(parts, stats.store_total_bytes, `Capacity: ${parts.map((p) => `${p.label} ${bytes(p.value)}`).join(", ")}`),
    legend(parts, bytes),
    facts([
      space
        ? ["Reduction of stored data", ratio(space.reduction_ratio)]
        : ["Reduction of written data", ratio(stats.reduction.reduction_ratio)],
      space ? ["Deduplication × compression", `${ratio(space.dedup_ratio)} × ${ratio(space.compression_ratio)}`] : null,
      space ? ["Size of all disks", bytes(space.logical_bytes)] : null,
      space ? ["Reclaimable", bytes(space.reclaimable_bytes)] : null,
    ]),
  ];
}

function healthItems(stats) {
  const room = {
    ok: ["Free space", "enough", "good"],
    low: ["Free space", "low: the pool reclaims", "warn"],
    full: ["Free space", "full: writes fail", "bad"],
  };
  const damaged = stats.damaged_blocks;
  const lost = stats.space?.damaged_disks ?? 0;
  const index = stats.reduction.index.segments_left;
  return [
    room[stats.room] ?? ["Free space", stats.room, "warn"],
    ["Damaged blocks", damaged ? `${count(damaged)} read since the start` : "none", damaged ? "bad" : "good"],
    ["Damaged block maps", lost ? counted(lost, "disk") : "none", lost ? "bad" : "good"],
    [
      "Write buffers",
      `${bytes(stats.dirty_bytes)} not durable yet`,
      stats.write_buffer_bytes && stats.dirty_bytes > 0.9 * stats.write_buffer_bytes ? "warn" : "good",
    ],
    index ? ["Dedup index", `${count(index)} segments still to load`, "warn"] : null,
    ["Last recovery", `${micros(stats.recovery_ms * 1000)}, ${count(stats.recovered_batches)} batches`, "good"],
  ].filter(Boolean);
}

const KINDS = { good: "OK", warn: "Note", bad: "Problem" };

/** What the store was spared since the start of the server, as a sentence. */
function sinceTheStart(offload) {
  if (offload === null || offload === undefined) return "No guest has read or written since the start.";
  if (offload < 0.0005) return "Since the start, the disk did all of the guests' I/O.";
  return `Since the start, the store was spared ${percent(offload)} of the guests' operations.`;
}

function busiestTable() {
  return new Table({
    caption: "Busiest disks",
    columns: [
      { id: "name", label: "Disk", text: (d) => d.name, node: (d) => diskLink(d.name), wide: true },
      { id: "ops", label: "Ops/s", number: true, value: (d) => d.ops, text: (d) => perSecond(d.ops) },
      { id: "bytes", label: "Throughput", number: true, text: (d) => throughput(d.bytes), minor: true },
      { id: "line", label: "2 minutes", live: (d, cell) => sparkCell(cell, d.history), minor: true },
    ],
    key: (d) => d.name,
    sort: ["ops", true],
    empty: "No disk is in use at present.",
  });
}

export function overviewPage(context) {
  const offload = h("p", { class: "hero-number" }, "–");
  const story = h("p", { class: "hero-text" }, "Waiting for the second sample …");
  const chart = new TimeChart(
    "Operations per second",
    [
      { label: "Guests", color: "guest" },
      { label: "Store", color: "store" },
    ],
    perSecond,
  );
  context.onEnd(() => chart.destroy());
  const traffic = h("div");
  const latency = h("div");
  const capacity = h("div", {}, "…");
  const memory = h("div", {}, "…");
  const health = h("ul", { class: "health" });
  const events = h("ol", { class: "event-list" });
  const busiest = busiestTable();

  const drawRates = () => {
    const window = live.window(RECENT_S);
    if (!window) return;
    const rates = poolRates(window);
    const isIdle = rates.asked < 0.05;
    setText(offload, isIdle ? "Guests are idle" : percent(Math.max(0, rates.offload)));
    offload.classList.toggle("words", isIdle);
    setText(
      story,
      isIdle
        ? sinceTheStart(window.now.offload)
        : `of the guests' operations need no separate operation of the store: ${perSecond(rates.asked)} of guests against ${perSecond(rates.storeOps)} of the store, per second.`,
    );
    replace(
      traffic,
      plainTable(
        "Traffic",
        ["", ["Reads/s", "number"], ["Writes/s", "number"], ["Read", "number minor"], ["Written", "number minor"]],
        [
          [
            "Guests",
            perSecond(rates.guest.readOps),
            perSecond(rates.guest.writeOps),
            throughput(rates.guest.readBytes),
            throughput(rates.guest.writeBytes),
          ],
          [
            "Store",
            perSecond(rates.storeReadOps),
            perSecond(rates.storeWriteOps),
            throughput(rates.storeReadBytes),
            throughput(rates.storeWriteBytes),
          ],
        ],
      ),
    );
    replace(
      latency,
      plainTable(
        "Latency",
        [["Path", "wide"], ["Front end", "minor"], ["Requests/s", "number minor"], ["Median", "number"], ["99 %", "number"]],
        latencyRows(window),
        "No requests in the last seconds.",
      ),
    );
  };
  const drawChart = () => {
    const data = [[], [], []];
    live.samples.forEach((sample, n) => {
      const before = live.samples[n - 1];
      if (!before) return;
      const rates = poolRates({
        before: before.stats,
        now: sample.stats,
        seconds: (sample.at - before.at) / 1000,
      });
      data[0].push(sample.time / 1000);
      data[1].push(rates.guest.readOps + rates.guest.writeOps);
      data[2].push(rates.storeOps);
    });
    if (data[0].length > 0) chart.set(data);
  };
  const drawEvents = () => {
    const last = live.events
      .filter((event) => event.what !== "progress")
      .slice(-EVENTS)
      .reverse();
    const lines = last.map((event) =>
      h(
        "li",
        {},
        h("time", { class: "number" }, clock(event.time_ms)),
        badge(event.topic, `topic-${event.topic}`),
        h("span", {}, eventText(event)),
      ),
    );
    replace(events, lines.length ? lines : h("li", { class: "muted" }, "No events yet."));
  };

  context.onSample((stats) => {
    drawRates();
    drawChart();
    replace(capacity, capacityCard(stats));
    const parts = memoryParts(stats);
    replace(
      memory,
      h("p", { class: "big" }, bytes(stats.memory_bytes), h("span", { class: "unit" }, " resident")),
      bar(parts, Math.max(stats.memory_bytes, 1), "Memory by use"),
      legend(parts, bytes),
    );
    replace(
      health,
      healthItems(stats).map(([what, state, kind]) =>
        h(
          "li",
          {},
          badge(KINDS[kind], kind),
          h("span", { class: "health-what" }, what),
          h("span", { class: "health-state" }, state),
        ),
      ),
    );
  });
  context.onEvents(drawEvents);
  drawEvents();
  context.poll(async () => {
    await sampleActivity();
    const busy = [...activity.disks.values()]
      .filter((disk) => disk.rates?.ops > 0)
      .map((disk) => ({
        name: disk.counters.name,
        ops: disk.rates.ops,
        bytes: disk.rates.readBytes + disk.rates.writeBytes,
        history: disk.history,
      }));
    busy.sort((a, b) => b.ops - a.ops);
    busiest.update(busy.slice(0, BUSIEST));
  }, 2000);

  return [
    pageHead("Overview"),
    h(
      "div",
      { class: "grid" },
      h(
        "section",
        { class: "card hero span-2" },
        h("div", { class: "hero-side" }, h("h2", {}, "Offload of the store"), offload, story),
        chart.element,
      ),
      card("Traffic", traffic),
      cardWith("Latency", h("span", { class: "muted" }, `last ${RECENT_S} s`), latency),
      card("Capacity", capacity),
      cardWith("Memory by use", link("#/cache", "Cache statistics"), memory),
      cardWith("Busiest disks", link("#/volumes", "All volumes"), busiest.element),
      card("Health", health),
      h("div", { class: "span-2" }, cardWith("Recent events", link("#/events", "All events"), events)),
    ),
  ];
}
