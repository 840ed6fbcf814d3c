// What a client needs in order to use a disk or a target, to copy. The texts are those of the API.

import { get, url } from "./api.js";
import { showDialog, showProblem, toast } from "./dialog.js";
import { button, h } from "./dom.js";

/** The protocols of the API, for people. */
const PROTOCOLS = { nbd: "NBD", iscsi: "iSCSI", nvme: "NVMe/TCP" };

/** Copies a text. Without the right to do that, `select` marks it, so that the user can. */
export async function copyText(text, select) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied", "good");
  } catch {
    select();
    toast("Press Ctrl+C to copy");
  }
}

/** A text with a title and a button that copies it. */
function copyable(title, text) {
  const lines = h("pre", { class: "copy-text", tabindex: "0", "aria-label": title }, text);
  const mark = () => getSelection().selectAllChildren(lines);
  const copy = button("Copy", () => copyText(text, mark), "small");
  copy.setAttribute("aria-label", `Copy: ${title}`);
  return h("div", { class: "copy" }, h("div", { class: "copy-head" }, h("h3", {}, title), copy), lines);
}

/** The ways by one address: their notes once, then their texts. */
function place(ways) {
  const [{ address, target, lun, notes, for: client }] = ways;
  const isNvme = client === "nvme";
  const number = lun === null ? "" : isNvme ? `, namespace ${lun + 1}` : `, LUN ${lun}`;
  const names = isNvme ? ["Address", "Subsystem"] : ["Portal", "Target"];
  const titles = target ? [copyable(names[0], address), copyable(`${names[1]}${number}`, target)] : [];
  const commands = isNvme ? "Commands of Linux (nvme-cli)" : "Commands of Linux (open-iscsi)";
  const protocol = target ? (isNvme ? "NVMe/TCP" : "iSCSI") : "NBD";
  return h(
    "section",
    {},
    h("h2", { class: "copy-place" }, `${protocol} at ${address}`),
    notes.map((note) => h("p", { class: "note" }, note)),
    titles,
    ways.map((way) => copyable(way.target ? commands : way.title, way.text)),
  );
}

/** Shows how clients connect; `path` is that of the disk or the target. */
async function show(name, path) {
  const { ways, missing } = await get(`${path}/connect`);
  const places = new Map();
  for (const way of ways) {
    const key = `${way.target ?? ""} ${way.address}`;
    places.set(key, [...(places.get(key) ?? []), way]);
  }
  showDialog(
    `Connect to ${name}`,
    [...places.values()].map(place),
    missing.map((one) =>
      h("p", { class: "note" }, h("strong", {}, `${PROTOCOLS[one.protocol]}: `), `${one.message}.`),
    ),
  );
}

export const connectToDisk = (name) => button("Connect", () => show(name, url`/volumes/${name}`).catch(showProblem));
export const connectToTarget = (name) => button("Connect", () => show(name, url`/targets/${name}`).catch(showProblem));
