// All volumes: thousands, sorted and filtered, with their activity.

import { get } from "../api.js";
import { showProblem } from "../dialog.js";
import { badge, button, h, link, pageHead, pagePath, setText } from "../dom.js";
import { sparkCell } from "../chart.js";
import { count, freedText, perSecond, size, throughput, time, usedText } from "../format.js";
import { activity, sampleActivity } from "../live.js";
import { may } from "../session.js";
import { numberColumn, spaceColumn, Table } from "../table.js";
import { cloneDisks, createSnapshots, createVolume, limitVolumes, removeVolumes, resetVolumes } from "./volume_actions.js";

const SETS = [
  ["all", "All", () => true],
  ["used", "In use", (disk) => clientsOf(disk) > 0],
  ["desktops", "Desktops", isDesktop],
  ["lasting", "Persistent", (disk) => !isDesktop(disk)],
  ["attention", "Need attention", (disk) => disk.memory_lost || disk.map_damaged],
];

export function isDesktop(disk) {
  return disk.write_cache_bytes !== null;
}

const clientsOf = (disk) => activity.get(disk.name)?.counters.clients ?? disk.clients;
const opsOf = (disk) => activity.get(disk.name)?.rates?.ops;

export function kindText(disk) {
  if (isDesktop(disk)) return "desktop";
  return disk.origin ? "clone" : "volume";
}

export function troubles(disk) {
  return [disk.memory_lost && badge("writes lost", "bad"), disk.map_damaged && badge("map damaged", "bad")].filter(
    Boolean,
  );
}

function bytesOf(disk) {
  const rates = activity.get(disk.name)?.rates;
  return rates ? rates.readBytes + rates.writeBytes : undefined;
}

const COLUMNS = [
  {
    id: "name",
    label: "Name",
    value: (d) => d.name,
    text: (d) => `${d.name}/${d.memory_lost}/${d.map_damaged}`,
    wide: true,
    node: (d) => h("span", { class: "named" }, link(pagePath("volumes", d.name), d.name), troubles(d)),
  },
  { id: "kind", label: "Kind", value: kindText, minor: true },
  numberColumn("size", "Size", (d) => d.size_bytes, size, { minor: true }),
  spaceColumn("used", "Used", (d) => d.used_bytes, usedText),
  { ...spaceColumn("freed", "Freed by deleting", (d) => d.exclusive_bytes, freedText), extra: true },
  { id: "origin", label: "Created from", value: (d) => d.origin ?? "", minor: true },
  { id: "tenant", label: "Tenant", value: (d) => d.tenant ?? "", minor: true },
  numberColumn("clients", "Clients", clientsOf, count),
  {
    id: "ops",
    label: "Ops/s",
    value: (d) => opsOf(d) ?? 0,
    text: (d) => perSecond(opsOf(d) ?? 0),
    number: true,
    first: "descending",
  },
  {
    id: "bytes",
    label: "Throughput",
    value: (d) => bytesOf(d) ?? 0,
    text: (d) => throughput(bytesOf(d) ?? 0),
    number: true,
    first: "descending",
    extra: true,
  },
  { id: "line", label: "2 minutes", live: (d, cell) => sparkCell(cell, activity.get(d.name)?.history), extra: true },
  { id: "snapshots", label: "Snapshots", value: (d) => d.snapshots, number: true, first: "descending", extra: true },
  numberColumn("created", "Created", (d) => d.created_ms, (ms) => time(ms).slice(0, 16), { extra: true }),
];

/** Buttons that act on the selected rows. */
function selectionBar(actions, clear) {
  const text = h("span", { class: "number", "aria-live": "polite" });
  const element = h("div", { class: "selection", hidden: true }, text, actions, button("Clear", clear, "small"));
  return {
    element,
    show: (selected) => {
      element.hidden = selected.length === 0;
      setText(text, `${count(selected.length)} selected`);
    },
  };
}

export function volumesPage(context) {
  let disks = null;
  let wanted = SETS[0][2];
  const select = h(
    "select",
    {
      "aria-label": "Kind of volumes",
      onchange: () => {
        wanted = SETS.find(([id]) => id === select.value)[2];
        draw();
      },
    },
    SETS.map(([id, label]) => h("option", { value: id }, label)),
  );
  const chosen = selectionBar(
    [
      may.operate() && button("Snapshot", () => createSnapshots(table.selected), "small"),
      may.operate() && button("Limits", () => limitVolumes(table.selected).catch(showProblem), "small"),
      may.operate() && button("Reset", () => resetVolumes(table.selected).catch(showProblem), "small"),
      may.provision() &&
        button("Delete", () => removeVolumes(table.selected, removeSelected).catch(showProblem), "small danger"),
    ].filter(Boolean),
    () => table.clearSelection(),
  );
  const removeSelected = async (work) => {
    await work();
    table.clearSelection();
  };
  const table = new Table({
    caption: "Volumes",
    columns: COLUMNS,
    key: (d) => d.name,
    search: (d) => `${d.name} ${d.origin ?? ""} ${d.tenant ?? ""} ${kindText(d)}`,
    empty: "There are no volumes yet.",
    filters: select,
    select: may.operate() ? (selected) => chosen.show(selected) : undefined,
  });
  const draw = () => disks && table.update(disks.filter(wanted));
  context.refresh(["volume"], async () => {
    disks = await get("/volumes");
    draw();
  });
  context.poll(async () => {
    await sampleActivity();
    draw();
  }, 2000);
  const actions = may.provision()
    ? [
        button("Create clones", () => cloneDisks().catch(showProblem)),
        button("Create a volume", createVolume, "primary"),
      ]
    : [];
  return [
    pageHead("Volumes & desktops", actions),
    h("section", { class: "card flush" }, chosen.element, table.element),
  ];
}
