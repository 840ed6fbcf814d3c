// The dialogs that create and change volumes.

import { call, get, getOr, url } from "../api.js";
import { ask, formDialog } from "../dialog.js";
import { h, pagePath } from "../dom.js";
import { bytes, count, parseCount, parseSize, size } from "../format.js";
import { may } from "../session.js";

const SYNC = [
  ["flush", "flush: durable when the guest flushes"],
  ["always", "always: each write is durable"],
  ["never", "never: no guarantee"],
];

/** Maximum number of clients that a message names. */
const NAMED = 3;

const nameField = (label, value) => ({ name: "name", label, value, required: true });
const sizeField = (value) => ({
  name: "size_bytes",
  label: "Size",
  value,
  required: true,
  parse: parseSize,
  placeholder: "10 GiB",
  help: "With a unit: 512 MiB, 10 GiB, 2 TiB",
});

export function createVolume() {
  formDialog({
    title: "Create a volume",
    action: "Create",
    fields: [
      nameField("Name"),
      sizeField(""),
      { name: "sync", label: "Durability of writes", type: "select", options: SYNC, value: "flush" },
      {
        name: "dedup_domain",
        label: "Deduplication domain",
        value: "0",
        parse: parseCount,
        help: "Identical blocks are stored once among the disks of a domain.",
      },
    ],
    submit: (body, key) => call("POST", "/volumes", { body, key }),
    done: (disk) => `Created ${disk.name}`,
  });
}

/** Clones of a disk; `source` can be chosen if it is not given. */
export async function cloneDisks(source) {
  const names = source ? [] : (await get("/images")).map((image) => image.name);
  formDialog({
    title: source ? `Clone ${source}` : "Create clones",
    action: "Create",
    fields: [
      {
        name: "source",
        label: "Source",
        value: source ?? (names.length === 1 ? names[0] : ""),
        required: true,
        list: names,
        help: "An image, a volume, or VOLUME@SNAPSHOT",
      },
      { ...nameField("Name"), help: "With a number of clones, the prefix: NAME-001, NAME-002 …" },
      {
        name: "count",
        label: "Number of clones",
        value: "",
        parse: parseCount,
        placeholder: "one clone, without a number",
      },
      {
        name: "desktop",
        label: "Desktops: writes stay in memory until a reset",
        type: "checkbox",
        help: "The writes of a desktop are lost when the server stops; its contents are those of the source again.",
      },
      {
        name: "write_cache",
        label: "Memory for the writes of each desktop",
        value: "256 MiB",
        parse: parseSize,
        when: (v) => v.desktop,
        required: true,
      },
      {
        name: "reset",
        label: "Reset",
        type: "select",
        value: "never",
        when: (v) => v.desktop,
        options: [
          ["never", "on request, and when the server starts"],
          ["disconnect", "also when the last client disconnects"],
        ],
      },
      {
        name: "sync",
        label: "Durability of writes",
        type: "select",
        options: SYNC,
        value: "flush",
        when: (v) => !v.desktop,
      },
    ],
    submit: (values, key) => {
      const body = { source: values.source, name: values.name };
      if (values.count !== undefined) body.count = values.count;
      if (values.desktop) Object.assign(body, { write_cache_bytes: values.write_cache, reset: values.reset });
      else body.sync = values.sync;
      return call("POST", "/clones", { body, key });
    },
    done: (disks) => (disks.length === 1 ? `Created ${disks[0].name}` : `Created ${count(disks.length)} clones`),
  });
}

/** Snapshots of volumes, with the same name. */
export function createSnapshots(volumes) {
  const of = volumes.length === 1 ? volumes[0] : `${count(volumes.length)} volumes`;
  formDialog({
    title: `Create a snapshot of ${of}`,
    action: "Create",
    intro: h("p", {}, "It contains every write acknowledged before."),
    fields: [nameField("Name of the snapshot")],
    submit: (body, key) =>
      each(volumes, "have no new snapshot", (name) =>
        // A key is for one request.
        call("POST", url`/volumes/${name}/snapshots`, { body, key: `${key}-${volumes.indexOf(name)}` }),
      ),
    done: (_, { name }) => (volumes.length === 1 ? `Created ${volumes[0]}@${name}` : `Created ${name} of ${of}`),
  });
}

export function resizeVolume(disk) {
  formDialog({
    title: `Resize ${disk.name}`,
    action: "Resize",
    fields: [sizeField(size(disk.size_bytes))],
    intro: h("p", {}, "A smaller size discards the data beyond the new end."),
    submit: ({ size_bytes: bytesWanted }, key) => {
      if (bytesWanted >= disk.size_bytes)
        return call("POST", url`/volumes/${disk.name}/resize`, { body: { size_bytes: bytesWanted }, key });
      confirmShrink(disk, bytesWanted);
      return disk;
    },
    done: (result, values) =>
      values.size_bytes < disk.size_bytes ? "Confirm the smaller size" : `Resized ${disk.name}`,
  });
}

/** The page of the volume is left for that of its new name by `leave`. */
export async function renameVolume(name, leave) {
  formDialog({
    blocked: await usedBy(name),
    title: `Rename ${name}`,
    action: "Rename",
    fields: [nameField("New name", name)],
    intro: h("p", {}, "Its snapshots stay with it. Clients find the volume under the new name only."),
    submit: (body, key) =>
      leave(pagePath("volumes", body.name), () => call("POST", url`/volumes/${name}/rename`, { body, key })),
    done: (_, values) => `Renamed ${name} to ${values.name}`,
  });
}

function confirmShrink(disk, wanted) {
  // After the dialog before it has closed, so that the focus returns to the page.
  setTimeout(() =>
    formDialog({
      title: `Shrink ${disk.name} to ${size(wanted)}?`,
      action: "Shrink",
      danger: true,
      confirm: disk.name,
      intro: h("p", {}, `The last ${bytes(disk.size_bytes - wanted)} of its data are discarded.`),
      submit: (_, key) => call("POST", url`/volumes/${disk.name}/resize`, { body: { size_bytes: wanted }, key }),
      done: `Resized ${disk.name}`,
    }),
  );
}

/** Why a volume cannot be changed now; null if it can. */
async function usedBy(name) {
  const clients = await getOr(url`/volumes/${name}/clients`, []);
  if (clients.length === 0) return null;
  const names = clients.slice(0, NAMED).map((client) => client.initiator ?? client.client);
  const more = clients.length > NAMED ? ", …" : "";
  const [are, it] = clients.length === 1 ? ["1 client is", "it"] : [`${count(clients.length)} clients are`, "them"];
  return `${are} connected (${names.join(", ")}${more}); stop ${it} first.`;
}

export async function resetVolumes(names) {
  const one = names.length === 1;
  formDialog({
    blocked: one ? await usedBy(names[0]) : null,
    title: one ? `Reset ${names[0]}?` : `Reset ${count(names.length)} clones?`,
    action: "Reset",
    danger: true,
    confirm: one ? names[0] : `reset ${names.length} clones`,
    intro: h(
      "p",
      {},
      "All writes since the clone was created, or was last reset, are discarded. Clients must be disconnected.",
    ),
    submit: (_, key) => call("POST", "/resets", { body: { volumes: names }, key }),
    done: one ? `Reset ${names[0]}` : `Reset ${count(names.length)} clones`,
  });
}

export async function rollBack(volume, snapshot) {
  formDialog({
    blocked: await usedBy(volume),
    title: `Roll ${volume} back to ${snapshot}?`,
    action: "Roll back",
    danger: true,
    confirm: volume,
    intro: h("p", {}, "All writes after the snapshot are discarded. Clients must be disconnected."),
    submit: (_, key) => call("POST", url`/volumes/${volume}/rollback`, { body: { snapshot }, key }),
    done: `Rolled ${volume} back to ${snapshot}`,
  });
}

export function removeSnapshot(volume, snapshot) {
  ask({
    title: `Delete the snapshot ${snapshot}?`,
    action: "Delete",
    danger: true,
    done: `Deleted ${volume}@${snapshot}`,
    intro: `${volume} cannot be rolled back to it any more.`,
    submit: () => call("DELETE", url`/volumes/${volume}/snapshots/${snapshot}`),
  });
}

/** Deletes volumes one after the other; those that cannot be deleted stay. The page calls the deletion by `remove`. */
export async function removeVolumes(names, remove) {
  const one = names.length === 1;
  formDialog({
    blocked: one ? await usedBy(names[0]) : null,
    title: one ? `Delete ${names[0]}?` : `Delete ${count(names.length)} volumes?`,
    action: "Delete",
    danger: true,
    confirm: one ? names[0] : `delete ${names.length} volumes`,
    intro: h("p", {}, one ? "Its data is lost." : "Their data is lost."),
    submit: () => remove(() => each(names, "were not deleted", (name) => call("DELETE", url`/volumes/${name}`))),
    done: one ? `Deleted ${names[0]}` : `Deleted ${count(names.length)} volumes`,
  });
}

/** Calls `work` for each name; a failure does not stop the others. `what` says what was not done. */
async function each(names, what, work) {
  const failures = [];
  for (const name of names) {
    try {
      await work(name);
    } catch (problem) {
      failures.push(problem);
      if (problem.code === "offline" || problem.status === 401) throw problem;
    }
  }
  if (failures.length === 1) throw failures[0];
  if (failures.length) throw new Error(`${failures.length} volumes ${what}. The first: ${failures[0].message}`);
}

export function persistVolume(name) {
  formDialog({
    title: `Convert ${name} into a persistent volume`,
    action: "Convert",
    intro: h("p", {}, "Its writes are kept, and it is not reset any more."),
    fields: [
      { name: "sync", label: "Durability of writes from then on", type: "select", options: SYNC, value: "flush" },
    ],
    submit: (body, key) => call("POST", url`/volumes/${name}/persist`, { body, key }),
    done: `${name} is persistent`,
  });
}

export function resumeVolume(name) {
  formDialog({
    title: `Admit clients to ${name} again?`,
    action: "Resume",
    danger: true,
    confirm: name,
    intro: h("p", {}, "Writes that clients had acknowledged are lost. Stop the clients that had them first."),
    submit: (_, key) => call("POST", url`/volumes/${name}/resume`, { key }),
    done: `${name} admits all clients`,
  });
}

export function disconnectClient(name, client) {
  const isNbd = client.protocol === "nbd";
  formDialog({
    title: `Disconnect ${isNbd ? client.client : client.initiator}?`,
    action: "Disconnect",
    danger: true,
    intro: h(
      "p",
      {},
      isNbd
        ? `Its connection to ${name} is closed after the requests in progress. `
        : `Its session at ${client.target} is ended, with all disks of the session. `,
      "A client that reconnects by itself returns at once.",
    ),
    submit: () =>
      isNbd
        ? call("DELETE", url`/volumes/${name}/clients/${client.id}`)
        : call("DELETE", url`/targets/${client.target}/sessions/${client.id}`),
    done: `Disconnected ${isNbd ? client.client : client.initiator}`,
  });
}

export function createImageOf(source) {
  formDialog({
    title: `Create an image of ${source}`,
    action: "Create",
    fields: [nameField("Name of the image")],
    submit: ({ name }, key) => call("POST", url`/images/${name}`, { body: { source }, key }),
    done: (image) => `Created ${image.name}`,
  });
}

/** Limits: the field, its label, and how it is read. */
export const LIMITS = [
  ["iops", "Operations per second", parseCount],
  ["iops_read", "Reads per second", parseCount],
  ["iops_write", "Writes per second", parseCount],
  ["iops_burst", "Burst of operations", parseCount],
  ["bandwidth", "Bytes per second", parseSize],
  ["bandwidth_read", "Bytes read per second", parseSize],
  ["bandwidth_write", "Bytes written per second", parseSize],
  ["bandwidth_burst", "Burst of bytes", parseSize],
  ["weight", "Weight", parseCount],
];

export const limitTexts = (limits) =>
  LIMITS.filter(([id]) => limits[id] !== null && limits[id] !== undefined).map(([id, label, parse]) => [
    label,
    parse === parseSize ? bytes(limits[id]) : count(limits[id]),
  ]);

/** Fields of a form with the present limits. */
export function limitFields(limits, present) {
  const value = (id, parse) => {
    const limit = present[id];
    if (limit === null || limit === undefined) return "";
    return parse === parseSize ? size(limit) : String(limit);
  };
  return limits.map(([id, label, parse]) => ({ name: id, label, parse, value: value(id, parse) }));
}

/** The limits of volumes. The form shows those of the first volume. */
export async function limitVolumes(names) {
  const one = names.length === 1;
  const [present, tenants] = await Promise.all([get(url`/volumes/${names[0]}/limits`), getOr("/tenants", [])]);
  const of = one ? names[0] : `${count(names.length)} volumes`;
  const shown = one ? "" : ` The limits of ${names[0]} are shown; they replace those of all ${of}.`;
  formDialog({
    title: `Limits of ${of}`,
    action: "Apply",
    intro: h("p", {}, `Empty: no limit. They are effective at once.${shown}`),
    fields: [
      may.administer() && {
        name: "tenant",
        label: "Tenant",
        value: present.tenant ?? "",
        list: tenants.map((tenant) => tenant.name),
      },
      ...limitFields(LIMITS, present.limits),
    ].filter(Boolean),
    submit: ({ tenant, ...limits }) =>
      each(names, "have their former limits", async (name) => {
        const path = url`/volumes/${name}/limits`;
        // Only an administrator may change the tenant.
        const own = may.administer() ? tenant || null : (await get(path)).tenant;
        await call("PUT", path, { body: { tenant: own, limits } });
      }),
    done: `Changed the limits of ${of}`,
  });
}
