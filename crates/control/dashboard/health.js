// The conditions that require an administrator, on top of every page.

import { h, link, replace, setText } from "./dom.js";
import { clock } from "./format.js";
import { live } from "./live.js";

const MAKE_ROOM = [
  ["#/pools", "Go to Pools to reclaim space"],
  ["#/volumes", "Go to Volumes to delete some"],
];
/** The pages on which an administrator acts on a condition, by its code. */
const ACTIONS = { full: MAKE_ROOM, low: MAKE_ROOM, memory_lost: [["#/volumes", "Go to Volumes"]] };

const sentence = ({ message }) => `${message.charAt(0).toUpperCase()}${message.slice(1)}.`;

function condition({ code, state, message, remedy, since_ms, disks }) {
  return h(
    "li",
    { class: `condition ${state}` },
    h("strong", {}, sentence({ message })),
    ` Since ${clock(since_ms)}.`,
    disks.length > 0 ? ` Disks: ${disks.join(", ")}.` : null,
    ` To do: ${remedy}.`,
    (ACTIONS[code] ?? []).map(([page, text]) => [" ", link(page, text)]),
  );
}

/** The list of conditions, which follows the server. A screen reader announces a new condition once: not the whole
 *  list, and not each change of a number in it. */
export function conditions() {
  const list = h("ul", { id: "conditions", "aria-label": "Conditions that need attention", hidden: true });
  const announced = h("div", { class: "hidden", role: "status", "aria-live": "polite" });
  let shown = "";
  let known = new Set();
  live.health.subscribe(({ conditions: present }) => {
    const now = JSON.stringify(present);
    if (now === shown) return;
    shown = now;
    list.hidden = present.length === 0;
    replace(list, present.map(condition));
    const begun = present.filter((one) => !known.has(one.code));
    if (begun.length > 0) setText(announced, begun.map(sentence).join(" "));
    known = new Set(present.map((one) => one.code));
  });
  return h("div", {}, announced, list);
}
