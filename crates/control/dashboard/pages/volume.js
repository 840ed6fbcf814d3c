// One volume: activity, properties, snapshots, block classes, limits.

import { call, get, getOr, url } from "../api.js";
import { TimeChart } from "../chart.js";
import { connectToDisk } from "../connect.js";
import { act, showProblem } from "../dialog.js";
import {
  badge,
  button,
  card,
  cardWith,
  diskLink,
  facts,
  h,
  link,
  pageHead,
  pagePath,
  progress,
  replace,
} from "../dom.js";
import { bytes, count, counted, duration, freedText, percent, perSecond, size, time, usedText } from "../format.js";
import { grown, guestRates } from "../live.js";
import { may } from "../session.js";
import { actionsColumn, numberColumn, plainTable, spaceColumn, Table } from "../table.js";
import {
  cloneDisks,
  createImageOf,
  createSnapshots,
  disconnectClient,
  limitTexts,
  limitVolumes,
  persistVolume,
  removeSnapshot,
  removeVolumes,
  renameVolume,
  resetVolumes,
  resizeVolume,
  resumeVolume,
  rollBack,
} from "./volume_actions.js";
import { isDesktop, kindText, troubles } from "./volumes.js";

const SAMPLES = 120;

function imageOrVolumeLink(name) {
  return name.includes("@") ? diskLink(name) : link(pagePath("images", name), name);
}

function properties(disk, stats) {
  return facts([
    ["Kind", kindText(disk)],
    ["Size", size(disk.size_bytes)],
    disk.origin ? ["Created from", imageOrVolumeLink(disk.origin)] : null,
    ["Clients", count(disk.clients)],
    isDesktop(disk)
      ? ["Writes in memory", `${bytes(stats.cached_bytes)} of ${bytes(disk.write_cache_bytes)}`]
      : ["Durability of writes", disk.sync],
    stats.overflow
      ? ["Overflows to the store", `${count(stats.overflow.ops)} · ${bytes(stats.overflow.bytes)}`]
      : null,
    isDesktop(disk) ? ["Reset", disk.reset === "disconnect" ? "when the last client disconnects" : "on request"] : null,
    stats.space ? ["Occupied", bytes(stats.space.mapped_bytes)] : null,
    ["Used", usedText(disk)],
    ["Freed by deleting", freedText(disk)],
    ["Tenant", disk.tenant ?? "–"],
    ["Deduplication domain", String(disk.dedup_domain)],
    ["Created", time(disk.created_ms)],
    ["UUID", h("code", {}, disk.uuid)],
  ]);
}

/** The classes of a disk, with a bar for each. */
export function classesCard(name, classes, refresh) {
  const scan = may.operate()
    ? button(
        "Scan now",
        (event) =>
          act(
            event.target,
            async () => {
              await call("POST", url`/volumes/${name}/classes`);
              await refresh();
            },
            `Scanned ${name}`,
          ),
        "small",
      )
    : null;
  if (!classes) return null;
  const most = Math.max(1, ...classes.classes.map((one) => one.bytes));
  const rows = classes.classes.map((one) => [
    one.class,
    progress(one.bytes, most, `Share of ${one.class}`),
    bytes(one.bytes),
    bytes(one.written_bytes),
    count(one.read_hits + one.read_misses),
    percent(one.hit_rate ?? NaN),
  ]);
  const table = plainTable(
    "Block classes",
    [
      "Class",
      ["", "minor"],
      ["Size", "number"],
      ["Written", "number"],
      ["Reads (sample)", "number minor"],
      ["Served from RAM", "number"],
    ],
    rows,
    "The disk was not scanned yet, or no file system was recognized.",
  );
  const learned = classes.learned_ms ? `${classes.file_systems.join(", ")}; scanned ${time(classes.learned_ms)}` : "";
  return cardWith("Block classes", scan, table, learned ? h("p", { class: "note" }, learned) : null);
}

function clientsTable(name) {
  const mayEnd = (one) => (one.protocol === "nbd" ? may.operate() : may.administer());
  return new Table({
    caption: "Clients",
    columns: [
      { id: "protocol", label: "Protocol", value: (c) => (c.protocol === "nbd" ? "NBD" : "iSCSI"), minor: true },
      { id: "client", label: "Client", value: (c) => c.client, wide: true },
      { id: "initiator", label: "Initiator", value: (c) => c.initiator ?? "–", minor: true },
      { id: "access", label: "Access", value: (c) => (c.read_only ? "read" : "read, write"), minor: true },
      { id: "since", label: "Since", value: (c) => c.since_ms, text: (c) => time(c.since_ms), minor: true },
      actionsColumn(JSON.stringify, (c) =>
        mayEnd(c) ? button("Disconnect", () => disconnectClient(name, c), "small danger") : "",
        (c) => c.initiator ?? c.client,
      ),
    ],
    key: (c) => `${c.protocol} ${c.id}`,
    search: (c) => `${c.client} ${c.initiator ?? ""}`,
    sort: ["since", false],
    empty: "No clients.",
    small: true,
  });
}

function snapshotsTable(volume) {
  const nameOf = (snapshot) => snapshot.name.slice(volume.length + 1);
  const actions = (snapshot) =>
    h(
      "div",
      { class: "row-actions" },
      may.provision() && button("Clone", () => cloneDisks(snapshot.name).catch(showProblem), "small"),
      may.provision() && button("Image", () => createImageOf(snapshot.name), "small"),
      may.operate() && button("Roll back", () => rollBack(volume, nameOf(snapshot)).catch(showProblem), "small"),
      may.operate() && button("Delete", () => removeSnapshot(volume, nameOf(snapshot)), "small danger"),
    );
  return new Table({
    caption: "Snapshots",
    columns: [
      { id: "name", label: "Name", value: nameOf },
      numberColumn("created", "Created", (s) => s.created_ms, time),
      spaceColumn("freed", "Freed by deleting", (s) => s.exclusive_bytes, freedText),
      numberColumn("clones", "Clones", (s) => s.clones, count, { minor: true }),
      actionsColumn((s) => s.name, actions, nameOf),
    ],
    key: (s) => s.name,
    search: nameOf,
    sort: ["created", false],
    empty: "No snapshots.",
    small: true,
  });
}

function limitsCard(disk, stats) {
  const texts = limitTexts(disk.limits);
  const waited = stats.limited.requests
    ? h(
        "p",
        { class: "note" },
        `${counted(stats.limited.requests, "request")} waited for limits, ${duration(stats.limited.waited_us / 1000)} in total.`,
      )
    : null;
  return cardWith(
    "Limits",
    may.operate() && button("Change", () => limitVolumes([disk.name]).catch(showProblem), "small"),
    texts.length ? facts(texts) : h("p", { class: "note" }, "No limits."),
    waited,
  );
}

function actionsOf(context, disk) {
  const { name } = disk;
  return [
    disk.memory_lost && may.operate() && button("Resume", () => resumeVolume(name), "danger"),
    connectToDisk(name),
    may.operate() && button("Snapshot", () => createSnapshots([name])),
    may.provision() && button("Clone", () => cloneDisks(name).catch(showProblem)),
    may.provision() && button("Create an image", () => createImageOf(name)),
    may.provision() && button("Rename", () => renameVolume(name, (hash, work) => context.leave(hash, work)).catch(showProblem)),
    may.provision() && button("Resize", () => resizeVolume(disk)),
    may.provision() && isDesktop(disk) && button("Make persistent", () => persistVolume(name)),
    may.operate() && disk.origin && button("Reset", () => resetVolumes([name]).catch(showProblem)),
    may.provision() &&
      button("Delete", () => removeVolumes([name], (work) => context.leave("#/volumes", work)).catch(showProblem), "danger"),
  ].filter(Boolean);
}

/** The rates of a disk over time. */
class DiskChart {
  #last = null;
  #data = [[], [], []];

  constructor(name) {
    this.name = name;
    this.chart = new TimeChart(
      `Operations of ${name}`,
      [
        { label: "Reads/s", color: "guest" },
        { label: "Writes/s", color: "store" },
      ],
      perSecond,
    );
  }

  async sample() {
    const stats = await get(url`/stats/${this.name}`);
    const at = performance.now();
    if (this.#last) {
      const rates = guestRates(this.#last.stats, stats, (at - this.#last.at) / 1000);
      [Date.now() / 1000, rates.readOps, rates.writeOps].forEach((value, n) => this.#data[n].push(value));
      if (this.#data[0].length > SAMPLES) this.#data.forEach((values) => values.shift());
      this.chart.set(this.#data);
    }
    const before = this.#last?.stats;
    this.#last = { at, stats };
    return { stats, before };
  }
}

export function volumePage(context, name) {
  const head = h("div");
  const side = h("div", { class: "stack" });
  const counters = h("div");
  const snapshotsOf = snapshotsTable(name);
  const clientsOf = clientsTable(name);
  const create = may.operate() && button("Create a snapshot", () => createSnapshots([name]), "small");
  // The tables of snapshots and clients are kept, with their sorting, filter and page; the others are made again.
  const classesBox = h("div", { class: "stack" });
  const clientsBox = card("Clients", clientsOf.element);
  const lunsBox = h("div", { class: "stack" });
  const rest = h(
    "div",
    { class: "stack", hidden: true },
    cardWith("Snapshots", create, snapshotsOf.element),
    classesBox,
    clientsBox,
    lunsBox,
  );
  const chart = new DiskChart(name);
  context.onEnd(() => chart.chart.destroy());

  const refresh = context.refresh(
    ["volume", "job"],
    async () => {
      const path = (what) => url`/volumes/${name}` + what;
      const disk = await getOr(path(""), null);
      if (!disk) {
        replace(
          head,
          pageHead(name),
          h("p", { class: "note" }, "There is no such volume. ", link("#/volumes", "All volumes")),
        );
        replace(side);
        rest.hidden = true;
        return;
      }
      const [stats, snapshots, classes, clients, targets] = await Promise.all([
        get(url`/stats/${name}`),
        get(path("/snapshots")),
        getOr(path("/classes"), null),
        getOr(path("/clients"), []),
        may.readServer() ? getOr("/targets", []) : [],
      ]);
      replace(
        head,
        pageHead(
          name,
          actionsOf(context, disk),
          h(
            "p",
            { class: "sub" },
            badge(kindText(disk)),
            troubles(disk),
            isDesktop(disk) ? badge("writes in memory") : null,
          ),
        ),
      );
      replace(side, card("Properties", properties(disk, stats)), limitsCard(disk, stats));
      const luns = targets.flatMap((target) =>
        target.luns
          .filter((lun) => lun.disk === name)
          .map((lun) => [
            link(pagePath("iscsi", target.name), target.name),
            String(lun.lun),
            lun.write_back ? "write-back" : "write-through",
            count(target.sessions.length),
          ]),
      );
      snapshotsOf.update(snapshots);
      clientsOf.update(clients);
      clientsBox.hidden = clients.length === 0;
      const put = (box, content) => {
        box.hidden = !content;
        replace(box, content);
      };
      put(classesBox, classesCard(name, classes, () => refresh()));
      const columns = ["Target", ["LUN", "number"], "Cache", ["Sessions", "number"]];
      put(lunsBox, luns.length ? card("iSCSI", plainTable("LUNs of this volume", columns, luns)) : null);
      rest.hidden = false;
    },
    10000,
  );
  context.poll(async () => {
    const { stats, before } = await chart.sample();
    const since = (of) => (before ? grown(of(before), of(stats)) : 0);
    replace(
      counters,
      facts([
        ["Reads", `${count(stats.read.ops)} · ${bytes(stats.read.bytes)}`],
        ["Writes", `${count(stats.write.ops)} · ${bytes(stats.write.bytes)}`],
        ["Discards", `${count(stats.discard.ops)} · ${bytes(stats.discard.bytes)}`],
        ["Flushes", count(stats.flush_ops)],
        since((s) => s.limited.requests) ? ["Limited", "requests wait for a limit at present"] : null,
      ]),
    );
  }, 2000);
  return [
    head,
    h(
      "div",
      { class: "columns" },
      h("div", { class: "stack" }, card("Activity", chart.chart.element, counters), rest),
      side,
    ),
  ];
}
