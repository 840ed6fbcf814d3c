// iSCSI targets: LUNs, initiators, sessions, reservations.

import { call, get, getOr, url } from "../api.js";
import { connectToTarget } from "../connect.js";
import { ask, formDialog, showDialog, showProblem } from "../dialog.js";
import { badge, button, cardWith, card, diskLink, facts, h, link, pageHead, pagePath, replace } from "../dom.js";
import { bytes, count, counted, parseCount, time } from "../format.js";
import { may } from "../session.js";
import { actionsColumn, numberColumn, plainTable, Table } from "../table.js";

const chapFields = (what, prefix) => [
  { name: `${prefix}_user`, label: `${what}: user`, help: "Empty: none" },
  {
    name: `${prefix}_secret`,
    label: `${what}: secret`,
    type: "password",
    trim: false,
    help: "12 to 16 characters suit all initiators",
  },
];
const chapOf = (values, prefix) =>
  values[`${prefix}_user`] ? { user: values[`${prefix}_user`], secret: values[`${prefix}_secret`] } : undefined;

const UNSERVED = "No initiator can reach it: the server has no iSCSI listener. Start the server with --iscsi HOST:PORT.";

async function createTarget() {
  const isServed = (await get("/pool")).iscsi.length > 0;
  formDialog({
    title: "Create a target",
    action: "Create",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "iqn.2026-01.org.example:cluster" },
      {
        name: "open",
        label: "Admit every initiator",
        type: "checkbox",
        help: "Otherwise only initiators that you allow.",
      },
      ...chapFields("CHAP of initiators", "chap"),
      ...chapFields("CHAP of the target (mutual)", "mutual"),
    ],
    submit: (values, key) =>
      call("POST", "/targets", {
        key,
        body: {
          name: values.name,
          open: values.open,
          chap: chapOf(values, "chap"),
          mutual: chapOf(values, "mutual"),
        },
      }),
    done: (target) => `Created ${target.name}${isServed ? "" : `. ${UNSERVED}`}`,
  });
}

function removeTarget(context, target) {
  const isUsed = target.sessions.length > 0;
  formDialog({
    title: `Delete the target ${target.name}?`,
    action: "Delete",
    danger: true,
    confirm: target.name,
    intro: h("p", {}, isUsed ? `It ends ${counted(target.sessions.length, "session")}. ` : "", "The disks are kept."),
    submit: () =>
      context.leave("#/iscsi", () =>
        call("DELETE", url`/targets/${target.name}` + (isUsed ? "?force=true" : "")),
      ),
    done: `Deleted ${target.name}`,
  });
}

function disconnectSession(target, session) {
  formDialog({
    title: `Disconnect ${session.initiator}?`,
    action: "Disconnect",
    danger: true,
    intro: h("p", {}, "Its session is ended after the commands in progress. Most initiators log in again at once."),
    submit: () => call("DELETE", url`/targets/${target.name}/sessions/${session.id}`),
    done: `Disconnected ${session.initiator}`,
  });
}

const lunOptions = (lun) => [
  { name: "read_only", label: "Read-only", type: "checkbox", value: lun?.read_only },
  {
    name: "write_back",
    label: "Report a volatile write cache (write-back)",
    type: "checkbox",
    value: lun?.write_back,
    help: "Otherwise each write is durable when it is acknowledged.",
  },
];

async function mapLun(target) {
  const volumes = await get("/volumes");
  formDialog({
    title: `Map a disk to ${target.name}`,
    action: "Map",
    fields: [
      { name: "disk", label: "Disk", required: true, list: volumes.map((disk) => disk.name) },
      { name: "lun", label: "LUN", parse: parseCount, placeholder: "the lowest free one" },
      ...lunOptions(),
    ],
    submit: ({ lun, ...body }, key) =>
      lun === undefined
        ? call("POST", url`/targets/${target.name}/luns`, { body, key })
        : call("PUT", url`/targets/${target.name}/luns/${lun}`, { body }),
    done: (lun) => `Mapped ${lun.disk} to LUN ${lun.lun}`,
  });
}

function changeLun(target, lun) {
  formDialog({
    title: `Options of LUN ${lun.lun}`,
    action: "Apply",
    fields: lunOptions(lun),
    submit: (options) =>
      call("PUT", url`/targets/${target.name}/luns/${lun.lun}`, { body: { disk: lun.disk, ...options } }),
    done: `Changed LUN ${lun.lun}`,
  });
}

function unmapLun(target, lun) {
  formDialog({
    title: `Unmap LUN ${lun.lun} (${lun.disk})?`,
    action: "Unmap",
    danger: true,
    confirm: lun.disk,
    intro: h("p", {}, "Initiators that use it lose it at once. The data of the disk is kept."),
    submit: () => call("DELETE", url`/targets/${target.name}/luns/${lun.lun}`),
    done: `Unmapped LUN ${lun.lun}`,
  });
}

function allowInitiator(target, initiator) {
  const luns = initiator?.luns ? initiator.luns.join(", ") : "";
  const parseLuns = (text) => text.split(",").map((one) => parseCount(one));
  formDialog({
    title: initiator ? `Change ${initiator.name}` : "Allow an initiator",
    action: initiator ? "Apply" : "Allow",
    intro: initiator?.chap_user ? h("p", {}, "Enter its CHAP credentials again; they are not shown.") : null,
    fields: [
      !initiator && {
        name: "name",
        label: "Name of the initiator",
        required: true,
        placeholder: "iqn.1998-01.com.vmware:esx-1",
      },
      {
        name: "luns",
        label: "LUNs",
        value: luns,
        parse: parseLuns,
        placeholder: "all",
        help: "Numbers, separated by commas",
      },
      ...chapFields("CHAP of this initiator", "chap"),
    ].filter(Boolean),
    submit: (values) =>
      call("PUT", url`/targets/${target.name}/initiators/${initiator?.name ?? values.name}`, {
        body: { chap: chapOf(values, "chap"), luns: values.luns },
      }),
    done: "Changed the initiators",
  });
}

async function showReservations(target, lun, refresh) {
  const path = url`/targets/${target.name}/luns/${lun.lun}/reservations`;
  const found = await get(path);
  const holder = found.persistent ?? (found.reserve ? { type: "RESERVE (SPC-2)", holder: found.reserve } : null);
  const rows = found.registrations.map((one) => [one.initiator, h("code", {}, one.isid), h("code", {}, one.key)]);
  const clear =
    may.administer() && (holder || rows.length)
      ? button(
          "Clear all",
          () => {
            dialog.close();
            formDialog({
              title: `Clear the reservations of ${found.disk}?`,
              action: "Clear",
              danger: true,
              confirm: found.disk,
              intro: h(
                "p",
                {},
                "A cluster that still uses the disk may damage its data. Do this only when its hosts are stopped.",
              ),
              submit: async () => {
                await call("DELETE", path);
                await refresh();
              },
              done: `Cleared the reservations of ${found.disk}`,
            });
          },
          "danger",
        )
      : null;
  const dialog = showDialog(
    `Reservations of ${found.disk}`,
    facts([
      ["Reservation", holder ? `${holder.type}, held by ${holder.holder.initiator}` : "none"],
      ["Generation", count(found.generation)],
      ["Kept over a restart (APTPL)", found.kept ? "yes" : "no"],
    ]),
    plainTable("Registrations", ["Initiator", "ISID", "Key"], rows, "No registrations."),
    clear,
  );
}

export function iscsiPage(context) {
  const table = new Table({
    caption: "Targets",
    columns: [
      {
        id: "name",
        label: "Name",
        value: (t) => t.name,
        node: (t) => link(pagePath("iscsi", t.name), t.name),
        wide: true,
      },
      { id: "luns", label: "LUNs", value: (t) => t.luns.length, number: true, first: "descending" },
      { id: "sessions", label: "Sessions", value: (t) => t.sessions.length, number: true, first: "descending" },
      {
        id: "initiators",
        label: "Allowed initiators",
        value: (t) => (t.open ? "every" : t.initiators.length),
        minor: true,
        number: true,
      },
      {
        id: "chap",
        label: "CHAP",
        value: (t) => (t.mutual_user ? "mutual" : t.chap_user ? "yes" : "no"),
        minor: true,
      },
    ],
    key: (t) => t.name,
    search: (t) => `${t.name} ${t.luns.map((lun) => lun.disk).join(" ")}`,
    empty: "There are no targets yet.",
  });
  const unserved = h("p", { class: "hint", hidden: true }, "The server has no iSCSI listener: no initiator can reach these targets. Start the server with --iscsi HOST:PORT.");
  context.refresh(
    [],
    async () => {
      const [targets, server] = await Promise.all([get("/targets"), get("/pool")]);
      unserved.hidden = server.iscsi.length > 0 || targets.length === 0;
      table.update(targets);
    },
    3000,
  );
  const actions = may.administer() ? [button("Create a target", () => createTarget().catch(showProblem), "primary")] : [];
  return [pageHead("iSCSI", actions), unserved, h("section", { class: "card flush" }, table.element)];
}

/** The tables of a target; `current` returns the target, and `refresh` reads it again. */
function lunsTable(current, refresh) {
  const actions = (lun) =>
    h(
      "div",
      { class: "row-actions" },
      button("Reservations", () => showReservations(current(), lun, refresh).catch(showProblem), "small"),
      may.administer() && button("Options", () => changeLun(current(), lun), "small"),
      may.administer() && button("Unmap", () => unmapLun(current(), lun), "small danger"),
    );
  return new Table({
    caption: "LUNs",
    columns: [
      { id: "lun", label: "LUN", value: (l) => l.lun, number: true },
      {
        id: "disk",
        label: "Disk",
        value: (l) => l.disk ?? "–",
        node: (l) => (l.disk ? diskLink(l.disk) : document.createTextNode("–")),
      },
      numberColumn(
        "size",
        "Size",
        (l) => l.size_bytes,
        (size) => (size === null ? "missing" : bytes(size)),
      ),
      {
        id: "options",
        label: "Options",
        value: (l) => `${l.read_only ? "read-only" : "read-write"}, ${l.write_back ? "write-back" : "write-through"}`,
        minor: true,
      },
      actionsColumn(JSON.stringify, actions, (l) => `LUN ${l.lun}`),
    ],
    key: (l) => String(l.lun),
    search: (l) => `${l.lun} ${l.disk ?? ""}`,
    empty: "No disks are mapped.",
    small: true,
  });
}

function initiatorsTable(current) {
  const remove = (one) =>
    ask({
      title: "Remove the initiator?",
      action: "Remove",
      danger: true,
      done: `Removed ${one.name}`,
      intro: `${one.name} cannot log in to ${current().name} any more.`,
      submit: () => call("DELETE", url`/targets/${current().name}/initiators/${one.name}`),
    });
  const actions = (one) =>
    h(
      "div",
      { class: "row-actions" },
      button("Change", () => allowInitiator(current(), one), "small"),
      button("Remove", () => remove(one), "small danger"),
    );
  return new Table({
    caption: "Allowed initiators",
    columns: [
      { id: "name", label: "Name", value: (i) => i.name, wide: true },
      { id: "luns", label: "LUNs", text: (i) => (i.luns ? i.luns.join(", ") : "all") },
      { id: "chap", label: "CHAP user", value: (i) => i.chap_user ?? "–", minor: true },
      may.administer() && actionsColumn(JSON.stringify, actions, (i) => i.name),
    ],
    key: (i) => i.name,
    search: (i) => i.name,
    empty: () => (current().open ? "Every initiator is admitted." : "None: no initiator can log in."),
    small: true,
  });
}

function sessionsTable(current) {
  return new Table({
    caption: "Sessions",
    columns: [
      { id: "initiator", label: "Initiator", value: (s) => s.initiator, wide: true },
      { id: "address", label: "Address", value: (s) => s.address },
      numberColumn("since", "Since", (s) => s.since_ms, time, { minor: true }),
      may.administer() &&
        actionsColumn(
          JSON.stringify,
          (s) => button("Disconnect", () => disconnectSession(current(), s), "small danger"),
          (s) => s.initiator,
        ),
    ],
    key: (s) => String(s.id),
    search: (s) => `${s.initiator} ${s.address}`,
    empty: "No initiator is connected.",
    small: true,
  });
}

export function targetPage(context, name) {
  const head = h("div");
  let target = null;
  let drawn = "";
  const current = () => target;
  const luns = lunsTable(current, () => refresh());
  const initiators = initiatorsTable(current);
  const sessions = sessionsTable(current);
  const mayChange = may.administer();
  const body = h(
    "div",
    { class: "stack", hidden: true },
    cardWith(
      "LUNs",
      mayChange && button("Map a disk", () => mapLun(target).catch(showProblem), "small"),
      luns.element,
    ),
    cardWith(
      "Allowed initiators",
      mayChange && button("Allow an initiator", () => allowInitiator(target), "small"),
      initiators.element,
    ),
    card("Sessions", sessions.element),
  );
  const refresh = context.refresh(
    [],
    async () => {
      const found = await getOr(url`/targets/${name}`, null);
      const text = JSON.stringify(found);
      if (text === drawn) return;
      drawn = text;
      if (!found) {
        replace(
          head,
          pageHead(name),
          h("p", { class: "note" }, "There is no such target. ", link("#/iscsi", "All targets")),
        );
        body.hidden = true;
        return;
      }
      target = found;
      replace(
        head,
        pageHead(
          name,
          [
            connectToTarget(name),
            mayChange && button("Delete", () => removeTarget(context, target), "danger"),
          ].filter(Boolean),
          h(
            "p",
            { class: "sub" },
            target.open ? badge("open to every initiator", "warn") : badge("only allowed initiators"),
            target.chap_user ? badge(`CHAP ${target.chap_user}`) : null,
            target.mutual_user ? badge("mutual CHAP") : null,
          ),
        ),
      );
      luns.update(target.luns);
      initiators.update(target.initiators);
      sessions.update(target.sessions);
      body.hidden = false;
    },
    3000,
  );
  return [head, body];
}
