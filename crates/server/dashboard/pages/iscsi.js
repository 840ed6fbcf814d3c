// iSCSI targets: LUNs, initiators, sessions, reservations.

import { call, get, getOr, url } from "../api.js";
import { ask, formDialog, showDialog, showProblem } from "../dialog.js";
import { badge, button, cardWith, card, diskLink, facts, h, link, pageHead, pagePath, replace } from "../dom.js";
import { bytes, count, parseCount, time } from "../format.js";
import { may } from "../session.js";
import { plainTable, Table } from "../table.js";

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

function createTarget() {
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
    done: (target) => `Created ${target.name}`,
  });
}

function removeTarget(context, target) {
  const isUsed = target.sessions.length > 0;
  formDialog({
    title: `Delete the target ${target.name}?`,
    action: "Delete",
    danger: true,
    confirm: target.name,
    intro: h("p", {}, isUsed ? `${count(target.sessions.length)} sessions are ended. ` : "", "The disks are kept."),
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
      { name: "disk", label: "Disk", required: true, list: volumes.slice(0, 500).map((disk) => disk.name) },
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
  context.refresh([], async () => table.update(await get("/targets")), 3000);
  const actions = may.administer() ? [button("Create a target", createTarget, "primary")] : [];
  return [pageHead("iSCSI", actions), h("section", { class: "card flush" }, table.element)];
}

export function targetPage(context, name) {
  const head = h("div");
  const body = h("div", { class: "stack" });
  let drawn = "";
  const refresh = context.refresh(
    [],
    async () => {
      const target = await getOr(url`/targets/${name}`, null);
      const text = JSON.stringify(target);
      if (text === drawn) return;
      drawn = text;
      if (!target) {
        replace(
          head,
          pageHead(name),
          h("p", { class: "note" }, "There is no such target. ", link("#/iscsi", "All targets")),
        );
        replace(body);
        return;
      }
      const administers = may.administer();
      replace(
        head,
        pageHead(
          name,
          administers ? [button("Delete", () => removeTarget(context, target), "danger")] : [],
          h(
            "p",
            { class: "sub" },
            target.open ? badge("open to every initiator", "warn") : badge("only allowed initiators"),
            target.chap_user ? badge(`CHAP ${target.chap_user}`) : null,
            target.mutual_user ? badge("mutual CHAP") : null,
          ),
        ),
      );
      const luns = target.luns.map((lun) => [
        String(lun.lun),
        lun.disk ? diskLink(lun.disk) : "–",
        lun.size_bytes === null ? "missing" : bytes(lun.size_bytes),
        `${lun.read_only ? "read-only" : "read-write"}, ${lun.write_back ? "write-back" : "write-through"}`,
        h(
          "div",
          { class: "row-actions" },
          button("Reservations", () => showReservations(target, lun, () => refresh()).catch(showProblem), "small"),
          administers && button("Options", () => changeLun(target, lun), "small"),
          administers && button("Unmap", () => unmapLun(target, lun), "small danger"),
        ),
      ]);
      const initiators = target.initiators.map((one) => [
        one.name,
        one.luns ? one.luns.join(", ") : "all",
        one.chap_user ?? "–",
        administers
          ? h(
              "div",
              { class: "row-actions" },
              button("Change", () => allowInitiator(target, one), "small"),
              button(
                "Remove",
                () =>
                  ask({
                    title: "Remove the initiator?",
                    action: "Remove",
                    danger: true,
                    done: `Removed ${one.name}`,
                    intro: `${one.name} cannot log in to ${name} any more.`,
                    submit: () => call("DELETE", url`/targets/${name}/initiators/${one.name}`),
                  }),
                "small danger",
              ),
            )
          : "",
      ]);
      const sessions = target.sessions.map((one) => [
        one.initiator,
        one.address,
        time(one.since_ms),
        administers ? button("Disconnect", () => disconnectSession(target, one), "small danger") : "",
      ]);
      replace(
        body,
        cardWith(
          "LUNs",
          administers && button("Map a disk", () => mapLun(target).catch(showProblem), "small"),
          plainTable(
            "LUNs",
            [["LUN", "number"], "Disk", ["Size", "number"], ["Options", "minor"], ["Actions", "right"]],
            luns,
            "No disks are mapped.",
          ),
        ),
        cardWith(
          "Allowed initiators",
          administers && button("Allow an initiator", () => allowInitiator(target), "small"),
          plainTable(
            "Allowed initiators",
            ["Name", "LUNs", ["CHAP user", "minor"], ["Actions", "right"]],
            initiators,
            target.open ? "Every initiator is admitted." : "None: no initiator can log in.",
          ),
        ),
        card(
          "Sessions",
          plainTable(
            "Sessions",
            ["Initiator", "Address", ["Since", "number minor"], ["Actions", "right"]],
            sessions,
            "No initiator is connected.",
          ),
        ),
      );
    },
    3000,
  );
  return [head, body];
}
