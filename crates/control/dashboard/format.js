// Numbers, sizes and times as text. Sizes are binary, with their unit; times are those of the browser's clock.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const NONE = "–";

/** A number and its noun: "1 client", "2 clients". */
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

export const count = (n) => (Number.isFinite(n) ? grouped.format(n) : NONE);

function significant(n) {
  if (n >= 100 || n === 0) return n.toFixed(0);
  return n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

export function bytes(n) {
  if (!Number.isFinite(n)) return NONE;
  let unit = 0;
  while (Math.abs(n) >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(n)} B` : `${significant(n)} ${UNITS[unit]}`;
}

/** A size that is usually a round number: as few digits as it has. */
export function size(n) {
  let unit = 0;
  while (n >= 1024 && n % 1024 === 0 && unit < UNITS.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return n >= 10000 ? bytes(n * 1024 ** unit) : `${n} ${UNITS[unit]}`;
}

export function perSecond(n) {
  if (!Number.isFinite(n)) return NONE;
  if (n === 0) return "0";
  if (n < 10) return n < 0.05 ? "<0.1" : n.toFixed(1);
  return grouped.format(n);
}

export const throughput = (n) => (Number.isFinite(n) ? `${bytes(n)}/s` : NONE);

export function percent(part) {
  if (!Number.isFinite(part)) return NONE;
  const value = 100 * part;
  const digits = value === 0 || value === 100 || Math.abs(value) < 10 ? 1 : value > 99 ? 2 : 1;
  return `${value.toFixed(digits)} %`;
}

/** A larger ratio says that nearly nothing is stored, not how well data is reduced. */
const MOST_RATIO = 1000;

export function ratio(n) {
  if (!Number.isFinite(n)) return NONE;
  return n > MOST_RATIO ? `over ${MOST_RATIO} : 1` : `${significant(n)} : 1`;
}

export function micros(us) {
  if (!Number.isFinite(us)) return NONE;
  if (us < 1000) return `${significant(us)} µs`;
  return us < 1e6 ? `${significant(us / 1000)} ms` : `${significant(us / 1e6)} s`;
}

export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** The time since `then` in its largest whole unit. */
export function ago(then) {
  const s = Math.max(0, Math.floor((Date.now() - then) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  return s < 86400 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86400)} d ago`;
}

const NOT_MEASURED = "not measured yet";

/** What a disk uses: the data that its origin does not have. */
export const usedText = (disk) => (disk.used_bytes == null ? NOT_MEASURED : bytes(disk.used_bytes));

/** What deleting a disk would free, and how old that figure is. */
export function freedText(disk) {
  if (disk.exclusive_bytes == null) return NOT_MEASURED;
  return `${bytes(disk.exclusive_bytes)}, ${ago(disk.exclusive_as_of_ms)}`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(ms) {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

export function time(ms) {
  if (!ms) return NONE;
  const t = new Date(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(ms)}`;
}

const FACTORS = { "": 1, b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3, t: 1024 ** 4, p: 1024 ** 5 };

/** Reads a size such as `10 GiB`, `512M` or `4096`. Throws an error that says what is wrong. */
export function parseSize(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([bkmgtp]?)(?:ib|b)?\s*$/i.exec(text);
  const value = found ? Number(found[1]) * FACTORS[found[2].toLowerCase()] : NaN;
  if (!Number.isSafeInteger(value)) throw new Error(`'${text.trim()}' is not a size; write for example 10 GiB`);
  return value;
}

/** Reads a whole number. */
export function parseCount(text) {
  const value = Number(text.trim().replaceAll(",", ""));
  if (!text.trim() || !Number.isSafeInteger(value) || value < 0)
    throw new Error(`'${text.trim()}' is not a whole number`);
  return value;
}
