// The conditions that require an administrator, on top of every page.

import { h, link, replace } from "./dom.js";
import { clock } from "./format.js";
import { live } from "./live.js";

/** Where an administrator acts on a condition, by its code. */
const ACTIONS = {
  full: ["#/pools", "Reclaim space", "#/volumes", "Delete volumes"],
  low: ["#/pools", "Reclaim space", "#/volumes", "Delete volumes"],
  memory_lost: ["#/volumes", "Show volumes"],
};

function actions(code) {
  const links = ACTIONS[code] ?? [];
  const all = [];
  for (let n = 0; n < links.length; n += 2) all.push(" ", link(links[n], links[n + 1]));
  return all;
}

function condition({ code, state, message, remedy, since_ms, disks }) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return h(
    "li",
    { class: `condition ${state}` },
    h("strong", {}, `${text}.`),
    ` Since ${clock(since_ms)}.`,
    disks.length > 0 ? ` Disks: ${disks.join(", ")}.` : null,
    ` To do: ${remedy}.`,
    actions(code),
  );
}

/** The list of conditions, which follows the server. A screen reader announces a change, not each sample. */
export function conditions() {
  const list = h("ul", { id: "conditions", "aria-label": "Conditions that need attention", hidden: true });
  let shown = "";
  live.health.subscribe((health) => {
    const now = JSON.stringify(health.conditions);
    if (now === shown) return;
    shown = now;
    list.hidden = health.conditions.length === 0;
    replace(list, health.conditions.map(condition));
  });
  return h("div", { role: "status", "aria-live": "polite" }, list);
}
