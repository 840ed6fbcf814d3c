// The conditions that require an administrator, on top of every page.

import { h, link, replace } from "./dom.js";
import { clock } from "./format.js";
import { live } from "./live.js";

const MAKE_ROOM = [
  ["#/pools", "Reclaim space"],
  ["#/volumes", "Delete volumes"],
];
/** The pages on which an administrator acts on a condition, by its code. */
const ACTIONS = { full: MAKE_ROOM, low: MAKE_ROOM, memory_lost: [["#/volumes", "Show volumes"]] };

function condition({ code, state, message, remedy, since_ms, disks }) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return h(
    "li",
    { class: `condition ${state}` },
    h("strong", {}, `${text}.`),
    ` Since ${clock(since_ms)}.`,
    disks.length > 0 ? ` Disks: ${disks.join(", ")}.` : null,
    ` To do: ${remedy}.`,
    (ACTIONS[code] ?? []).map(([page, text]) => [" ", link(page, text)]),
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
