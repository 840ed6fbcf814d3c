// Requests of the API, and the stream of its events.

const PREFIX = "/api/v1";

/** At a node of a cluster: the shard whose statistics, jobs and events the pages show. */
let shard = null;
export function setShard(number) {
  shard = number;
}

/** What a cluster has as a whole, and what it finds by the name of a disk. Everything else belongs to a shard. */
const OF_CLUSTER = /^\/((cluster|session|tokens|health|volumes|images|clones|resets|targets)([/?]|$)|stats\/)/;

/** The address of a path. An image is imported into the shard whose jobs are shown. */
function address(method, path) {
  const isImport = method === "POST" && path === "/images";
  const isOfShard = shard !== null && (isImport || !OF_CLUSTER.test(path));
  return PREFIX + (isOfShard ? `/shards/${shard}` : "") + path;
}

/** An error of the API, or a server that cannot be reached (`code` is `offline`). */
export class Problem extends Error {
  constructor({ status = 0, code = "internal", title = "Error", detail = "", remedy = "" }) {
    super(detail || title);
    Object.assign(this, { status, code, title, detail, remedy });
  }
}

let signedOut = () => {};
/** Sets what happens when the server does not accept the session any more. */
export function onSignedOut(handler) {
  signedOut = handler;
}

/** Ignores from now on that a session is not accepted; the caller loads the page again. Returns the function that
 *  ends this. */
export function ignoreSignOut() {
  const before = signedOut;
  signedOut = () => {};
  return () => onSignedOut(before);
}

/** Builds a path: the parts between the strings are encoded. */
export function url(strings, ...parts) {
  return strings.reduce((path, text, n) => path + text + (n < parts.length ? encodeURIComponent(parts[n]) : ""), "");
}

/** A key for a request that must not have its effect twice. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // No JSON: what is between this page and the server has answered.
  }
  return new Problem({ title: response.statusText, ...body, status: response.status });
}

async function send(path, options) {
  try {
    // Nothing is left in the cache of the browser after the session.
    return await fetch(address(options.method ?? "GET", path), { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      code: "offline",
      title: "No connection",
      detail: "The server cannot be reached.",
      remedy: "The page tries again.",
    });
  }
}

/** Sends a request and returns the JSON of its response. Throws a `Problem`. */
export async function call(method, path, { body, key, headers = {}, login = false } = {}) {
  const options = { method, headers: { ...headers } };
  if (method !== "GET") options.headers["X-Forebay"] = "1";
  if (key) options.headers["Idempotency-Key"] = key;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await send(path, options);
  if (response.ok) return response.json();
  const problem = await problemOf(response);
  if (problem.status === 401 && !login) signedOut(problem);
  throw problem;
}

/** Bytes of a request of an upload, and how often a request is repeated while the server cannot be reached. */
const PIECE = 1 << 20;
const ATTEMPTS = 60;

/** Sends a file for the import of an image, in pieces. Continues after an interruption of the connection. Calls
 *  `report` with the bytes that the server has received. Returns the number of the upload. */
export async function uploadFile(image, file, signal, report) {
  const body = { image, file_name: file.name, len_bytes: file.size };
  const { id } = await call("POST", "/uploads", { body, key: newKey() });
  try {
    for (let received = 0; received < file.size; report(received)) {
      received = await sendPiece(id, received, file.slice(received, received + PIECE), signal);
    }
  } catch (error) {
    await call("DELETE", url`/uploads/${id}`).catch(() => {});
    throw error;
  }
  return id;
}

async function sendPiece(id, offset, piece, signal) {
  for (let attempt = 1; ; attempt++) {
    try {
      const headers = { "X-Forebay": "1", "Content-Type": "application/octet-stream" };
      const response = await send(url`/uploads/${id}/${offset}`, { method: "PUT", headers, body: piece, signal });
      if (!response.ok) throw await problemOf(response);
      return (await response.json()).received_bytes;
    } catch (problem) {
      const isAnswer = problem instanceof Problem && problem.code !== "offline";
      if (isAnswer || signal.aborted || attempt === ATTEMPTS) throw problem;
      // The connection broke. A piece that was received can be sent again.
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

export const get = (path) => call("GET", path);

/** The result, or `otherwise` if the caller has no right or the resource is gone. */
export async function getOr(path, otherwise) {
  try {
    return await get(path);
  } catch (problem) {
    if (problem.status === 403 || problem.status === 404) return otherwise;
    throw problem;
  }
}

/** Splits a text of server-sent events into events and the incomplete rest. */
export function parseEvents(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    const event = { id: null, kind: "message", data: "" };
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) event.id = line.slice(4);
      else if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    if (event.data) events.push(event);
  }
  return { events, rest };
}

/** Follows the events until `signal` is aborted or the stream ends. `EventSource` cannot tell why a stream
 *  was refused, and cannot begin in the past. */
export async function follow(after, signal, receive) {
  const response = await send("/events", { headers: { "Last-Event-ID": after }, signal });
  if (!response.ok) {
    const problem = await problemOf(response);
    if (problem.status === 401) signedOut(problem);
    throw problem;
  }
  receive([]);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return;
    }
    if (chunk.done) return;
    const { events, rest } = parseEvents(text + chunk.value);
    text = rest;
    if (events.length) receive(events);
  }
}
