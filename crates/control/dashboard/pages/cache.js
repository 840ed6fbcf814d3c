// What the memory of the server achieves: read cache, map cache, deduplication index, write caches.

import { bar, card, facts, h, pageHead, replace } from "../dom.js";
import { bytes, count, perSecond, percent, ratio } from "../format.js";
import { grown, live } from "../live.js";
import { plainTable } from "../table.js";

const RECENT_S = 60;

const fill = (used, budget, color, label) =>
  bar([{ label, value: used, color }], budget, `${label}: ${bytes(used)} of ${bytes(budget)}`);

function rateOf(window, of) {
  if (!window) return null;
  return grown(of(window.before), of(window.now)) / window.seconds;
}

function cacheCard(window, stats, name, color) {
  const cache = stats[name];
  const hits = rateOf(window, (s) => s[name].hits);
  const misses = rateOf(window, (s) => s[name].misses);
  const recent = hits + misses > 0 ? hits / (hits + misses) : NaN;
  return [
    Number.isFinite(recent)
      ? h("p", { class: "big" }, percent(recent), h("span", { class: "unit" }, ` hits, last ${RECENT_S} s`))
      : h("p", { class: "big" }, h("span", { class: "unit" }, `No look-ups in the last ${RECENT_S} s`)),
    fill(cache.bytes, cache.budget_bytes, color, "Size"),
    facts([
      ["Size", `${bytes(cache.bytes)} of ${bytes(cache.budget_bytes)}`],
      ["Hit rate since the start", percent(cache.hit_rate ?? NaN)],
      ["Hits", hits === null ? count(cache.hits) : `${perSecond(hits)}/s · ${count(cache.hits)}`],
      ["Misses", misses === null ? count(cache.misses) : `${perSecond(misses)}/s · ${count(cache.misses)}`],
      cache.evictions === undefined
        ? null
        : [
            "Evictions",
            `${perSecond(rateOf(window, (s) => s[name].evictions ?? 0) ?? 0)}/s · ${count(cache.evictions)}`,
          ],
    ]),
  ];
}

/** What a larger read cache would achieve, as the server estimates from a sample of its misses. */
function advice(cache) {
  const title = h("h3", {}, "Advice");
  if (!cache.advice?.length)
    return [title, h("p", { class: "note" }, "Not enough misses yet, or a cache under 60 MiB.")];
  if (cache.advice.every((one) => one.saved_reads === 0))
    return [title, h("p", { class: "note" }, "A larger cache would not help yet.")];
  const sentence = (one) => {
    const rate = one.saved_reads_per_s;
    const saves = rate === null ? "would save reads" : `would save ${perSecond(rate)} reads a second`;
    return `${one.more_percent} % more (${bytes(one.size_bytes)}) ${saves}`;
  };
  const rows = cache.advice.map((one) => [sentence(one), count(one.saved_reads)]);
  const columns = [
    ["A larger read cache", "wide"],
    ["Since the start", "number"],
  ];
  return [title, plainTable("Reads that a larger cache would save", columns, rows)];
}

function classes(cache) {
  const read = cache.classes?.filter((one) => one.hits + one.misses > 0) ?? [];
  if (read.length === 0) return null;
  const rows = read.map((one) => [one.class, count(one.hits + one.misses), percent(one.hit_rate ?? NaN)]);
  return [
    h("h3", {}, "By class of blocks"),
    plainTable("Reads by class", ["Class", ["Reads", "number"], ["Served from RAM", "number"]], rows),
  ];
}

export function cachePage(context) {
  const parts = { read: h("div"), map: h("div"), index: h("div"), write: h("div"), reduction: h("div") };
  context.onSample((stats) => {
    const window = live.window(RECENT_S);
    replace(
      parts.read,
      cacheCard(window, stats, "read_cache", "var(--c1)"),
      classes(stats.read_cache),
      advice(stats.read_cache),
    );
    replace(parts.map, cacheCard(window, stats, "map_cache", "var(--c4)"));
    const { index } = stats.reduction;
    replace(
      parts.index,
      h("p", { class: "big" }, count(index.entries), h("span", { class: "unit" }, " fingerprints")),
      fill(index.bytes, index.budget_bytes, "var(--c5)", "Size"),
      facts([
        ["Size", `${bytes(index.bytes)} of ${bytes(index.budget_bytes)}`],
        ["Sampling", index.one_of === 1 ? "every fingerprint" : `1 of ${count(index.one_of)} fingerprints`],
        ["Segments still to load", count(index.segments_left)],
      ]),
    );
    const { desktops } = stats;
    replace(
      parts.write,
      h("h3", {}, "Write buffers"),
      fill(stats.dirty_bytes, stats.write_buffer_bytes, "var(--c3)", "Not durable yet"),
      facts([["Not durable yet", `${bytes(stats.dirty_bytes)} of ${bytes(stats.write_buffer_bytes)}`]]),
      h("h3", {}, "Desktops"),
      fill(desktops.cached_bytes, desktops.budget_bytes, "var(--c2)", "Writes of desktops"),
      facts([
        ["Writes in memory", `${bytes(desktops.cached_bytes)} of ${bytes(desktops.budget_bytes)}`],
        ["Desktops", count(desktops.count)],
        ["Overflows to the store", `${count(desktops.overflow.ops)} · ${bytes(desktops.overflow.bytes)}`],
      ]),
    );
    const r = stats.reduction;
    const blocks = r.new_blocks + r.duplicate_blocks + r.unchanged_blocks + r.zero_blocks;
    const row = (label, n) => [label, count(n), percent(blocks ? n / blocks : NaN)];
    replace(
      parts.reduction,
      plainTable(
        "Blocks written since the start",
        ["Blocks written", ["Number", "number"], ["Share", "number"]],
        [
          row("New", r.new_blocks),
          row("Duplicates", r.duplicate_blocks),
          row("Unchanged", r.unchanged_blocks),
          row("Zeroes", r.zero_blocks),
        ],
      ),
      facts([
        ["Compression of new blocks", ratio(r.compression_ratio ?? NaN)],
        ["Reduction of written data", ratio(r.reduction_ratio ?? NaN)],
      ]),
    );
  });
  return [
    pageHead("Cache statistics"),
    h(
      "div",
      { class: "grid" },
      card("Read cache", parts.read),
      card("Map cache", parts.map),
      card("Deduplication index", parts.index),
      card("Write caches", parts.write),
      card("Data reduction", parts.reduction),
    ),
  ];
}
