// Who uses the page, and what that client may do. The server decides; this only hides what it would refuse.

let client = null;

export function setClient(found) {
  client = found;
}

export const who = () => client;

export const may = {
  /** Change everything. */
  administer: () => client?.role === "administrator",
  /** Reset, roll back, limit and scan volumes, and make snapshots. */
  operate: () => client?.role === "administrator" || client?.role === "operator",
  /** See what concerns the whole server. */
  readServer: () => client !== null && client.scope === null,
  /** Import files of the server. */
  local: () => client?.via === "socket",
};

export function scopeText(scope) {
  if (!scope) return "whole server";
  return scope.tenant !== undefined ? `tenant ${scope.tenant}` : `disks ${scope.disks.join(", ")}`;
}
