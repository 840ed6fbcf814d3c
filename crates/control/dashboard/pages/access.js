// Tokens of clients over TCP; only administrators see this page.

import { call, get, ignoreSignOut, url } from "../api.js";
import { copyText } from "../connect.js";
import { ask, formDialog, showDialog, showProblem } from "../dialog.js";
import { badge, button, h, pageHead } from "../dom.js";
import { parseCount, time } from "../format.js";
import { scopeText, who } from "../session.js";
import { actionsColumn, Table } from "../table.js";

const DAY_S = 86400;
const ROLES = [
  ["reader", "reader: looks at disks"],
  ["operator", "operator: resets, limits and snapshots disks of its scope"],
  ["provisioner", "provisioner: also creates, clones and removes disks of its scope"],
  ["administrator", "administrator: everything"],
];

const isLimited = (role) => role === "operator" || role === "provisioner";

function scopeOf({ scope, disks, tenant }) {
  if (scope === "disks") return { disks: disks.split(/[\s,]+/).filter(Boolean) };
  return scope === "tenant" ? { tenant } : undefined;
}

function createToken(refresh) {
  // From the first token on, this page needs a session, too: that of the new token.
  const isFirst = who().via === "loopback";
  formDialog({
    title: "Create a token",
    action: "Create",
    intro: isFirst
      ? h(
          "p",
          {},
          "From now on, every client over TCP needs a token. This page continues with the rights of the new one, so it should be that of an administrator.",
        )
      : null,
    fields: [
      { name: "name", label: "Name", required: true },
      {
        name: "role",
        label: "Role",
        type: "select",
        options: ROLES,
        value: isFirst ? "administrator" : "reader",
      },
      {
        name: "scope",
        label: "Scope",
        type: "select",
        value: "all",
        when: (v) => v.role !== "administrator",
        options: [
          ["all", "the whole server"],
          ["disks", "disks by name"],
          ["tenant", "disks of a tenant"],
        ],
        help: "An operator needs a scope, a provisioner one of disks by name.",
      },
      {
        name: "disks",
        label: "Disks",
        placeholder: "web-* db",
        required: true,
        when: (v) => v.role !== "administrator" && v.scope === "disks",
        help: "Names or patterns; * stands for any characters",
      },
      {
        name: "tenant",
        label: "Tenant",
        required: true,
        when: (v) => v.role !== "administrator" && v.scope === "tenant",
      },
      {
        name: "max_disks",
        label: "Maximum number of disks",
        parse: parseCount,
        placeholder: "10,000",
        when: (v) => isLimited(v.role),
        help: "The token creates no disk while its scope has so many, snapshots and images included.",
      },
      { name: "days", label: "Valid for days", value: "365", required: true, parse: parseCount },
    ],
    submit: async (values) => {
      const body = {
        name: values.name,
        role: values.role,
        scope: scopeOf(values),
        max_disks: isLimited(values.role) ? values.max_disks : undefined,
        expires_in_s: values.days * DAY_S,
      };
      const secret = isFirst ? await createFirst(body) : (await call("POST", "/tokens", { body })).secret;
      // After the form has closed, so that the focus returns to the page.
      setTimeout(() => showSecret(values.name, secret, isFirst ? () => location.reload() : null));
      if (!isFirst) await refresh();
    },
  });
}

/** Creates the first token, and logs in with it. */
async function createFirst(body) {
  // Requests of the page may be refused before the response arrives.
  const heed = ignoreSignOut();
  try {
    const { secret } = await call("POST", "/tokens", { body });
    // If this fails, the secret is shown nevertheless, and the page asks for it when it is loaded again.
    await call("POST", "/session", { body: { token: secret } }).catch(showProblem);
    return secret;
  } catch (problem) {
    heed();
    throw problem;
  }
}

function showSecret(name, secret, closed) {
  const text = h("input", {
    type: "text",
    readonly: true,
    value: secret,
    class: "secret",
    "aria-label": `Secret of ${name}`,
    onfocus: () => text.select(),
  });
  const copy = button("Copy", () => copyText(secret, () => text.select()));
  const dialog = showDialog(
    `Token ${name}`,
    h(
      "p",
      {},
      "This is the only time that the secret is shown. Clients send it as ",
      h("code", {}, "Authorization: Bearer SECRET"),
      ".",
    ),
    h("div", { class: "secret-row" }, text, copy),
  );
  if (closed) dialog.addEventListener("close", closed);
}

export function accessPage(context) {
  const table = new Table({
    caption: "Tokens",
    columns: [
      {
        id: "name",
        label: "Name",
        value: (t) => t.name,
        text: (t) => `${t.name}/${t.expired}`,
        wide: true,
        node: (t) =>
          h(
            "span",
            { class: "named" },
            t.name,
            t.expired ? badge("expired", "warn") : null,
            t.name === who().name && who().via === "session" ? badge("this session", "info") : null,
          ),
      },
      { id: "role", label: "Role", value: (t) => t.role },
      { id: "scope", label: "Scope", value: (t) => scopeText(t.scope), minor: true },
      {
        id: "created",
        label: "Created",
        value: (t) => t.created_ms,
        text: (t) => time(t.created_ms),
        number: true,
        minor: true,
      },
      {
        id: "expires",
        label: "Expires",
        value: (t) => t.expires_ms ?? Infinity,
        text: (t) => (t.expires_ms ? time(t.expires_ms) : "never"),
        number: true,
        minor: true,
      },
      {
        id: "used",
        label: "Last used",
        value: (t) => t.last_used_ms ?? 0,
        text: (t) => (t.last_used_ms ? time(t.last_used_ms) : "never"),
        number: true,
      },
      actionsColumn(
        (t) => t.name,
        (t) =>
          button(
            "Revoke",
            () =>
              ask({
                title: `Revoke the token ${t.name}?`,
                action: "Revoke",
                danger: true,
                done: `Revoked ${t.name}`,
                intro: "Its clients and sessions are refused at once. This cannot be undone.",
                submit: async () => {
                  await call("DELETE", url`/tokens/${t.name}`);
                  await refresh();
                },
              }),
            "small danger",
          ),
        (t) => t.name,
      ),
    ],
    key: (t) => t.name,
    search: (t) => `${t.name} ${t.role} ${scopeText(t.scope)}`,
    empty: "There are no tokens. On a loopback address, every local user may do everything.",
  });
  const refresh = context.refresh(["security"], async () => table.update(await get("/tokens")), 15000);
  return [
    pageHead(
      "Access",
      button("Create a token", () => createToken(() => refresh()), "primary"),
    ),
    h("section", { class: "card flush" }, table.element),
  ];
}
