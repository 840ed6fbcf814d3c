// Tenants: limits and quotas of several volumes together.

import { call, get, url } from "../api.js";
import { ask, formDialog } from "../dialog.js";
import { button, h, pageHead } from "../dom.js";
import { bytes, count, parseSize, percent, size } from "../format.js";
import { may } from "../session.js";
import { actionsColumn, numberColumn, Table } from "../table.js";
import { LIMITS, limitFields, limitTexts } from "./volume_actions.js";

const QUOTA = ["quota", "Quota: bytes that its volumes may occupy", parseSize];

function changeTenant(tenant) {
  formDialog({
    title: tenant ? `Limits of the tenant ${tenant.name}` : "Create a tenant",
    action: tenant ? "Apply" : "Create",
    intro: h("p", {}, "They apply to all volumes of the tenant together. Empty: no limit."),
    fields: [
      !tenant && { name: "name", label: "Name", required: true },
      ...limitFields([QUOTA, ...LIMITS], tenant?.limits ?? {}),
    ].filter(Boolean),
    submit: ({ name, ...limits }) => call("PUT", url`/tenants/${tenant?.name ?? name}`, { body: limits }),
    done: "Changed the limits",
  });
}

function useText({ usage, limits }) {
  if (!usage) return "–";
  const share = limits.quota ? ` (${percent(usage.used_bytes / limits.quota)})` : "";
  return `${bytes(usage.used_bytes)}${share}${usage.counting ? ", still counting" : ""}`;
}

export function tenantsPage(context) {
  const table = new Table({
    caption: "Tenants",
    columns: [
      { id: "name", label: "Name", value: (t) => t.name, wide: true },
      numberColumn("disks", "Disks", (t) => t.disks, count),
      {
        id: "quota",
        label: "Quota",
        value: (t) => t.limits.quota ?? 0,
        text: (t) => (t.limits.quota ? size(t.limits.quota) : "–"),
        number: true,
        minor: true,
        first: "descending",
      },
      {
        id: "used",
        label: "Occupied",
        value: (t) => t.usage?.used_bytes ?? 0,
        text: useText,
        number: true,
        first: "descending",
      },
      numberColumn("refused", "Refused writes", (t) => t.usage?.refused ?? 0, count, { minor: true }),
      {
        id: "limits",
        label: "Limits",
        minor: true,
        wide: true,
        text: (t) =>
          limitTexts(t.limits)
            .map(([label, value]) => `${label}: ${value}`)
            .join(", ") || "–",
      },
      may.administer() &&
        actionsColumn(
          (t) => JSON.stringify(t.limits),
          (t) =>
            h(
              "div",
              { class: "row-actions" },
              button("Change", () => changeTenant(t), "small"),
              button(
                "Remove",
                () =>
                  ask({
                    title: `Remove the limits of ${t.name}?`,
                    action: "Remove",
                    danger: true,
                    intro: "Its volumes keep their label.",
                    done: `Removed the limits of ${t.name}`,
                    submit: async () => {
                      await call("DELETE", url`/tenants/${t.name}`);
                      await refresh();
                    },
                  }),
                "small danger",
              ),
            ),
          (t) => t.name,
        ),
    ],
    key: (t) => t.name,
    search: (t) => t.name,
    empty: "There are no tenants. A volume gets one with its limits.",
  });
  const refresh = context.refresh(["volume"], async () => table.update(await get("/tenants")), 3000);
  const actions = may.administer() ? [button("Create a tenant", () => changeTenant(null), "primary")] : [];
  return [pageHead("Tenants", actions), h("section", { class: "card flush" }, table.element)];
}
