// Golden images: imports, boot profiles, clones.

import { call, get, getOr, newKey, uploadFile, url } from "../api.js";
import { connectToDisk } from "../connect.js";
import { act, ask, formDialog, showProblem } from "../dialog.js";
import { badge, button, card, cardWith, facts, h, link, pageHead, pagePath, replace } from "../dom.js";
import { bytes, count, freedText, size, time, usedText } from "../format.js";
import { may } from "../session.js";
import { actionsColumn, numberColumn, plainTable, spaceColumn, Table } from "../table.js";
import { isRunning, jobProgress } from "./jobs.js";
import { classesCard } from "./volume.js";
import { cloneDisks } from "./volume_actions.js";

const FORMATS = [
  ["auto", "detect"],
  ["raw", "raw"],
  ["qcow2", "qcow2"],
  ["vmdk", "vmdk"],
  ["vhd", "vhd"],
  ["vhdx", "vhdx"],
];

function importImage() {
  const isLocal = may.local();
  // The file that was uploaded, and its upload: another format can be tried without sending it again.
  let sent = {};
  const dialog = formDialog({
    title: "Import an image",
    action: "Import",
    intro: h(
      "p",
      {},
      isLocal
        ? "The server downloads the URL, receives the file from this computer, or reads its own file."
        : "The server downloads the URL, or receives the file from this computer.",
    ),
    fields: [
      { name: "name", label: "Name", required: true },
      {
        name: "from",
        label: "Source",
        type: "select",
        value: "url",
        options: [
          ["url", "URL"],
          ["upload", "file on this computer"],
          ["file", "file on the server"],
        ].slice(0, isLocal ? 3 : 2),
      },
      { name: "url", label: "URL", required: true, placeholder: "https://…", when: (v) => v.from === "url" },
      { name: "upload", label: "File", type: "file", required: true, when: (v) => v.from === "upload" },
      {
        name: "file",
        label: "Path on the server",
        required: true,
        placeholder: "/…",
        when: (v) => v.from === "file",
      },
      { name: "format", label: "Format", type: "select", options: FORMATS, value: "auto" },
    ],
    submit: async ({ name, format, from, url: address, file, upload }, key, { report, signal }) => {
      const source = { [from]: { url: address, file }[from] };
      if (from === "upload" && sent.file !== upload) {
        const show = (done) => report(done, upload.size, `${bytes(done)} of ${bytes(upload.size)} sent`);
        show(0);
        sent = { file: upload, id: await uploadFile(name, upload, signal, show) };
      }
      if (from === "upload") source.upload = sent.id;
      try {
        return await call("POST", "/images", {
          body: { name, format, source },
          key: from === "upload" ? newKey() : key,
          headers: { Prefer: "respond-async" },
        });
      } catch (problem) {
        // The upload has expired.
        if (problem.code === "not_found") sent = {};
        throw problem;
      }
    },
    done: (job) => `The import of ${job.disk} has begun`,
  });
  // An import that has begun does not need the upload any more.
  dialog.addEventListener("close", () => sent.id && call("DELETE", url`/uploads/${sent.id}`).catch(() => {}));
}

function removeImage(context, name) {
  formDialog({
    title: `Delete the image ${name}?`,
    action: "Delete",
    danger: true,
    confirm: name,
    intro: h("p", {}, "Its data is lost. An image with clones cannot be deleted."),
    submit: () => context.leave("#/images", () => call("DELETE", url`/images/${name}`)),
    done: `Deleted ${name}`,
  });
}

/** The running and the recently failed imports. */
function importsOf(jobs) {
  const recent = Date.now() - 10 * 60 * 1000;
  return jobs.filter(
    (job) => job.kind === "import" && (isRunning(job) || (job.state === "failed" && job.ended_ms > recent)),
  );
}

export function imagesPage(context) {
  const imports = h("section", { class: "card", hidden: true });
  const table = new Table({
    caption: "Images",
    columns: [
      {
        id: "name",
        label: "Name",
        value: (d) => d.name,
        node: (d) => link(pagePath("images", d.name), d.name),
        wide: true,
      },
      numberColumn("size", "Size", (d) => d.size_bytes, size),
      spaceColumn("used", "Used", (d) => d.used_bytes, usedText),
      { ...spaceColumn("freed", "Freed by deleting", (d) => d.exclusive_bytes, freedText), extra: true },
      numberColumn("clones", "Clones", (d) => d.clones, count),
      { id: "domain", label: "Dedup domain", value: (d) => d.dedup_domain, number: true, minor: true },
      numberColumn("created", "Created", (d) => d.created_ms, time, { minor: true }),
      may.provision() &&
        actionsColumn(
          (d) => d.name,
          (d) => button("Clone", () => cloneDisks(d.name).catch(showProblem), "small"),
          (d) => d.name,
        ),
    ],
    key: (d) => d.name,
    search: (d) => d.name,
    empty: "There are no images yet.",
  });
  // The end of an import is an event of its job.
  context.refresh(["volume", "job"], async () => table.update(await get("/images")));
  context.refresh(
    ["job"],
    async () => {
      const jobs = importsOf(await get("/jobs"));
      imports.hidden = jobs.length === 0;
      replace(
        imports,
        h("h2", {}, "Imports"),
        jobs.map((job) =>
          isRunning(job)
            ? jobProgress(job)
            : h(
                "div",
                { class: "job" },
                badge("failed", "bad"),
                h("span", { class: "job-name" }, job.disk),
                h("span", {}, job.error?.message ?? ""),
              ),
        ),
      );
    },
    2000,
  );
  const actions = may.administer() ? [button("Import an image", importImage, "primary")] : [];
  return [pageHead("Images", actions), imports, h("section", { class: "card flush" }, table.element)];
}

function profileCard(name, profile, refresh) {
  const change = (label, action, done) =>
    button(
      label,
      (event) =>
        act(
          event.target,
          async () => {
            await call("POST", url`/images/${name}/profile`, { body: { action } });
            await refresh();
          },
          done,
        ),
      "small",
    );
  // An image without a profile waits for a boot without a request, which cannot be taken back.
  const isRequested = profile.recording || (profile.waiting && profile.recorded_ms !== null);
  const state = profile.recording
    ? badge("recording", "info")
    : profile.waiting
      ? badge("the next boot is recorded", "info")
      : null;
  const actions = may.administer()
    ? [
        isRequested ? change("Stop recording", "stop", "Stopped the recording") : null,
        profile.recording || profile.waiting
          ? null
          : change("Record the next boot", "record", "The next boot of a clone is recorded"),
        profile.bytes ? change("Read into the cache", "prefetch", "The profile is in the cache") : null,
        profile.bytes
          ? button(
              "Delete",
              () =>
                ask({
                  title: "Delete the boot profile?",
                  action: "Delete",
                  danger: true,
                  intro: `Boots of clones of ${name} are not prefetched any more.`,
                  done: "Deleted the boot profile",
                  submit: async () => {
                    await call("DELETE", url`/images/${name}/profile`);
                    await refresh();
                  },
                }),
              "small danger",
            )
          : null,
      ].filter(Boolean)
    : [];
  return cardWith(
    "Boot profile",
    actions,
    state,
    facts([
      ["Recorded", profile.recorded_ms ? time(profile.recorded_ms) : "no"],
      profile.recorded_ms ? ["Size", bytes(profile.bytes)] : null,
      profile.recorded_ms ? ["In the cache", bytes(profile.cached_bytes)] : null,
      profile.recorded_ms ? ["Prefetched", `${count(profile.runs)} runs`] : null,
    ]),
  );
}

export function imagePage(context, name) {
  const head = h("div");
  const body = h("div", { class: "columns" });
  const refresh = context.refresh(
    ["volume", "job"],
    async () => {
      const image = await getOr(url`/images/${name}`, null);
      if (!image) {
        replace(
          head,
          pageHead(name),
          h("p", { class: "note" }, "There is no such image. ", link("#/images", "All images")),
        );
        replace(body);
        return;
      }
      const [profile, classes, stats, clones] = await Promise.all([
        get(url`/images/${name}/profile`),
        getOr(url`/volumes/${name}/classes`, null),
        get(url`/stats/${name}`),
        get(`/volumes?limit=50&origin=${encodeURIComponent(name)}`),
      ]);
      replace(
        head,
        pageHead(
          name,
          [
            connectToDisk(name),
            may.provision() && button("Create clones", () => cloneDisks(name).catch(showProblem), "primary"),
            may.provision() && button("Delete", () => removeImage(context, name), "danger"),
          ].filter(Boolean),
          h("p", { class: "sub" }, badge("image"), image.map_damaged ? badge("map damaged", "bad") : null),
        ),
      );
      const rows = clones.map((disk) => [
        link(pagePath("volumes", disk.name), disk.name),
        count(disk.clients),
        time(disk.created_ms),
      ]);
      const more =
        image.clones > rows.length
          ? h("p", { class: "note" }, `${count(rows.length)} of ${count(image.clones)} clones.`)
          : null;
      replace(
        body,
        h(
          "div",
          { class: "stack" },
          profileCard(name, profile, () => refresh()),
          classesCard(name, classes, () => refresh()),
          card(
            "Clones",
            plainTable("Clones", ["Name", ["Clients", "number"], ["Created", "number minor"]], rows, "No clones."),
            more,
          ),
        ),
        h(
          "div",
          { class: "stack" },
          card(
            "Properties",
            facts([
              ["Size", size(image.size_bytes)],
              ["Clones", count(image.clones)],
              ["Deduplication domain", String(image.dedup_domain)],
              stats.space ? ["Occupied", bytes(stats.space.mapped_bytes)] : null,
              ["Used", usedText(image)],
              ["Freed by deleting", freedText(image)],
              ["Created", time(image.created_ms)],
              ["UUID", h("code", {}, image.uuid)],
            ]),
          ),
        ),
      );
    },
    10000,
  );
  return [head, body];
}
