// Long work: imports, reclaims, scans, recordings.

import { call, get, url } from "../api.js";
import { ask } from "../dialog.js";
import { badge, button, h, pageHead, progress } from "../dom.js";
import { bytes, count, duration, percent, time } from "../format.js";
import { may } from "../session.js";
import { actionsColumn, Table } from "../table.js";

const STATES = { running: "info", cancelling: "warn", done: "good", failed: "bad", cancelled: "plain" };

export const isRunning = (job) => job.state === "running" || job.state === "cancelling";

function progressText(job) {
  const { phase, done, total } = job.progress;
  const amount = ["import", "export"].includes(job.kind) ? bytes(done) : count(done);
  const share = total ? ` (${percent(done / total)})` : "";
  return [phase, `${amount}${share}`].filter(Boolean).join(": ");
}

function resultText(job) {
  if (job.error) return job.error.message;
  if (isRunning(job)) return progressText(job);
  if (job.kind === "gc" && job.result) return `${bytes(job.result.freed_bytes ?? 0)} freed`;
  return job.state === "done" ? "" : progressText(job);
}

/** A bar with the progress of a running job. */
export function jobProgress(job) {
  return h(
    "div",
    { class: "job" },
    h("span", { class: "job-name" }, `${job.kind} ${job.disk ?? ""}`),
    progress(job.progress.done, job.progress.total, `Progress of ${job.kind} ${job.disk ?? ""}`),
    h("span", { class: "number" }, progressText(job)),
    may.administer() && job.cancellable && job.state === "running"
      ? button("Cancel", () => cancelJob(job), "small")
      : null,
  );
}

function cancelJob(job) {
  ask({
    title: `Cancel the ${job.kind}?`,
    action: "Cancel the job",
    danger: true,
    done: "The job is being cancelled",
    intro:
      job.kind === "import"
        ? `The import of ${job.disk} is rolled back.`
        : `The ${job.kind} of ${job.disk ?? "the pool"} ends.`,
    submit: () => call("DELETE", url`/jobs/${job.id}`),
  });
}

const isCancellable = (job) => job.cancellable && job.state === "running";

export function jobsPage(context) {
  const table = new Table({
    caption: "Jobs",
    columns: [
      {
        id: "started",
        label: "Started",
        value: (j) => j.started_ms,
        text: (j) => time(j.started_ms),
        first: "descending",
        minor: true,
      },
      { id: "kind", label: "Kind", value: (j) => j.kind },
      { id: "disk", label: "Disk", value: (j) => j.disk ?? "", wide: true },
      { id: "state", label: "State", value: (j) => j.state, node: (j) => badge(j.state, STATES[j.state]) },
      {
        id: "result",
        label: "Progress and result",
        text: resultText,
        wide: true,
        grow: true,
        node: (j) =>
          isRunning(j)
            ? h(
                "div",
                { class: "job" },
                progress(j.progress.done, j.progress.total, "Progress"),
                h("span", { class: "number" }, progressText(j)),
              )
            : document.createTextNode(resultText(j)),
      },
      {
        id: "took",
        label: "Duration",
        number: true,
        minor: true,
        value: (j) => (j.ended_ms ?? Date.now()) - j.started_ms,
        text: (j) => duration((j.ended_ms ?? Date.now()) - j.started_ms),
      },
      { id: "owner", label: "Started by", value: (j) => j.owner, extra: true },
      may.administer() &&
        actionsColumn(
          (j) => `${isCancellable(j)}`,
          (j) => (isCancellable(j) ? button("Cancel", () => cancelJob(j), "small") : ""),
          (j) => `the ${j.kind} of ${j.disk ?? "the pool"}`,
        ),
    ],
    key: (j) => String(j.id),
    search: (j) => `${j.kind} ${j.disk ?? ""} ${j.state} ${j.owner}`,
    sort: ["started", true],
    empty: "No job has run since the server was started.",
  });
  context.refresh(["job"], async () => table.update(await get("/jobs")), 5000);
  return [pageHead("Jobs"), h("section", { class: "card flush" }, table.element)];
}
