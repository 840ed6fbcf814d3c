// Events as they happen.

import { badge, h, pageHead } from "../dom.js";
import { time } from "../format.js";
import { live } from "../live.js";
import { may } from "../session.js";
import { Table } from "../table.js";

const TOPICS = ["volume", "job", "capacity", "error", "security"];

const CHANGES = { limited: "has other limits", rolled_back: "rolled back", client_disconnected: "lost a client: disconnected by an administrator" };

/** An event as a sentence. */
export function eventText(event) {
  const disks = event.disks.join(", ");
  const data = event.data ?? {};
  switch (event.topic) {
    case "job": {
      const job = `${data.kind ?? "job"}${data.disk ? ` of ${data.disk}` : ""}`;
      return `${job.charAt(0).toUpperCase()}${job.slice(1)} ${event.what}${data.error ? `: ${data.error.message}` : ""}`;
    }
    case "capacity":
      return `Free space: ${event.what}`;
    case "error":
      return `${event.what}${disks ? ` (${disks})` : ""}${data.message ? `: ${data.message}` : ""}`;
    case "security":
      return [event.what, data.who, data.method, data.path, data.from && `from ${data.from}`]
        .filter(Boolean)
        .join(" · ");
    default:
      return `${disks} ${CHANGES[event.what] ?? event.what}`;
  }
}

export function eventsPage(context) {
  const topics = TOPICS.filter((topic) => topic !== "security" || may.administer());
  const shown = new Set(topics);
  const withProgress = h("input", { type: "checkbox", onchange: () => draw() });
  const boxes = topics.map((topic) => {
    const change = (event) => {
      if (event.target.checked) shown.add(topic);
      else shown.delete(topic);
      draw();
    };
    return h("label", { class: "chip" }, h("input", { type: "checkbox", checked: true, onchange: change }), topic);
  });
  const table = new Table({
    caption: "Events",
    columns: [
      { id: "time", label: "Time", value: (e) => e.id, text: (e) => time(e.time_ms), first: "descending", wide: true },
      { id: "topic", label: "Topic", value: (e) => e.topic, node: (e) => badge(e.topic, `topic-${e.topic}`) },
      { id: "text", label: "What happened", text: eventText, wide: true, grow: true },
    ],
    key: (e) => String(e.id),
    search: (e) => `${e.topic} ${eventText(e)}`,
    sort: ["time", true],
    empty: "No events yet.",
    filters: h(
      "div",
      { class: "chips", role: "group", "aria-label": "Topics" },
      boxes,
      h("label", { class: "chip" }, withProgress, "progress of jobs"),
    ),
  });
  const draw = () =>
    table.update(
      live.events.filter((event) => shown.has(event.topic) && (withProgress.checked || event.what !== "progress")),
    );
  context.onEvents(draw);
  draw();
  return [pageHead("Events"), h("section", { class: "card flush" }, table.element)];
}
