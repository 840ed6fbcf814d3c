// Who uses the page, and what that client may do. The server decides; this only hides what it would refuse.

let client = null;

export function setClient(found) {
  client = found;
}

export const who = () => client;

export const may = {
  /** Change everything. */
  administer: () => client?.role === "administrator",
  /** Create, clone, resize and remove volumes, and make images of them. */
  provision: () => may.administer() || client?.role === "provisioner",
  /** Reset, roll back, limit and scan volumes, and make snapshots. */
  operate: () => may.provision() || client?.role === "operator",
  /** See what concerns the whole server. */
  readServer: () => client !== null && client.scope === null,
  /** Import files of the server. */
  local: () => client?.via === "socket",
};

export function scopeText(scope) {
  if (!scope) return "whole server";
  return scope.tenant !== undefined ? `tenant ${scope.tenant}` : `disks ${scope.disks.join(", ")}`;
}
