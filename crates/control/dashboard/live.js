// What the page follows: samples of the counters, and events. Nothing is requested while the tab is hidden.

import { follow, get } from "./api.js";
import { may } from "./session.js";

const SAMPLE_MS = 2000;
const SAMPLES = 180;
const EVENTS = 2000;
/** In place of events that are not available any more: pages that follow a topic read everything again. */
const MISSED = ["volume", "job", "security"].map((topic) => ({ topic }));
const RETRY_MS = [1000, 2000, 4000, 8000];

/** Wraps `work` so that it never runs twice at the same time: a call while it runs waits for one more run, which
 *  begins afterwards and which all such calls share. */
export function oneAtATime(work) {
  let running = null;
  let next = null;
  const run = () => {
    if (running) {
      next ??= running.then(() => {
        next = null;
        return run();
      });
      return next;
    }
    const ended = () => {
      running = null;
    };
    const result = work();
    running = result.then(ended, ended);
    return result;
  };
  return run;
}

/** Runs `work` at once and then every `ms` while the tab is visible; never twice at the same time. Returns
 *  the function that ends it. */
export function poll(work, ms) {
  let timer = null;
  let stopped = false;
  let running = false;
  const run = async () => {
    timer = null;
    if (stopped || running || document.hidden) return;
    running = true;
    try {
      await work();
    } catch (problem) {
      if (problem.code === undefined) console.error(problem);
    }
    running = false;
    if (!stopped && timer === null) timer = setTimeout(run, ms);
  };
  const wake = () => {
    if (!document.hidden && timer === null) run();
  };
  document.addEventListener("visibilitychange", wake);
  run();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

/** The increase of a counter. One that became smaller belongs to a server that was started in between. */
export const grown = (before, now) => (now < before ? now : now - before);

class Subject {
  #readers = new Set();

  subscribe(reader) {
    this.#readers.add(reader);
    return () => this.#readers.delete(reader);
  }

  publish(value) {
    for (const reader of [...this.#readers]) reader(value);
  }
}

class Live {
  samples = [];
  events = [];
  online = new Subject();
  sampled = new Subject();
  health = new Subject();
  happened = new Subject();
  #after = "0";
  #stream = null;
  #failed = { sample: false, stream: false };
  #wasOnline = true;

  start() {
    if (may.readServer()) {
      poll(() => this.#sample(), SAMPLE_MS);
      // The first rates need two samples.
      setTimeout(() => this.#sample().catch(() => {}), SAMPLE_MS / 3);
    }
    this.#follow();
  }

  async #sample() {
    try {
      const [stats, health] = await Promise.all([get("/stats"), get("/health")]);
      this.samples.push({ at: performance.now(), time: Date.now(), stats });
      if (this.samples.length > SAMPLES) this.samples.shift();
      this.#connection("sample", false);
      this.sampled.publish(stats);
      this.health.publish(health);
    } catch (problem) {
      this.#connection("sample", problem.code === "offline" || problem.status >= 500);
      throw problem;
    }
  }

  #connection(what, failed) {
    this.#failed[what] = failed;
    const isOnline = !this.#failed.sample && !this.#failed.stream;
    if (isOnline !== this.#wasOnline) {
      this.#wasOnline = isOnline;
      this.online.publish(isOnline);
    }
  }

  async #follow() {
    let failures = 0;
    for (;;) {
      await visible();
      this.#stream = new AbortController();
      const hide = () => document.hidden && this.#stream.abort();
      document.addEventListener("visibilitychange", hide);
      try {
        await follow(this.#after, this.#stream.signal, (events) => {
          failures = 0;
          this.#connection("stream", false);
          this.#receive(events);
        });
      } catch (problem) {
        if (problem.name !== "AbortError") {
          failures += 1;
          this.#connection("stream", problem.code === "offline");
        }
      }
      document.removeEventListener("visibilitychange", hide);
      await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
    }
  }

  #receive(received) {
    const events = [];
    for (const { id, kind, data } of received) {
      // Before the first event, everything was missed.
      if (kind === "missed" && this.#after !== "0") this.happened.publish(MISSED);
      else if (kind !== "missed") events.push(JSON.parse(data));
      if (id) this.#after = id;
    }
    if (events.length === 0) return;
    this.events.push(...events);
    if (this.events.length > EVENTS) this.events.splice(0, this.events.length - EVENTS);
    this.happened.publish(events);
  }

  /** The last sample and the one at least `seconds` before it, or the oldest one; `null` with fewer than two. */
  window(seconds) {
    const last = this.samples.at(-1);
    if (this.samples.length < 2) return null;
    const before = this.samples.findLast((sample) => last.at - sample.at >= seconds * 1000) ?? this.samples[0];
    return { before: before.stats, now: last.stats, seconds: (last.at - before.at) / 1000 };
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", () => resolve(), { once: true }));
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export const live = new Live();

/** Operations and bytes per second between two samples of the counters of guests. */
export function guestRates(before, now, seconds) {
  const rate = (of) => grown(of(before), of(now)) / seconds;
  const readOps = rate((g) => g.read.ops);
  const writeOps = rate((g) => g.write.ops);
  const other = rate((g) => g.discard.ops) + rate((g) => g.flush_ops);
  return {
    readOps,
    writeOps,
    ops: readOps + writeOps + other,
    readBytes: rate((g) => g.read.bytes),
    writeBytes: rate((g) => g.write.bytes),
  };
}

/** The activity of disks: rates now and before, by name. */
export class Activity {
  disks = new Map();
  #last = null;

  /** Adds a sample, the response of `/activity`. */
  add(list) {
    const at = performance.now();
    const seconds = this.#last ? (at - this.#last) / 1000 : 0;
    this.#last = at;
    const disks = new Map();
    for (const found of list) {
      const known = this.disks.get(found.name);
      const rates = known && seconds > 0 ? guestRates(known.counters, found, seconds) : null;
      const history = known?.history ?? [];
      if (rates) history.push(rates.ops);
      if (history.length > 60) history.shift();
      disks.set(found.name, { counters: found, rates, history });
    }
    this.disks = disks;
  }

  get(name) {
    return this.disks.get(name);
  }
}

/** Shared by the pages, so that sparklines continue from page to page. */
export const activity = new Activity();

export async function sampleActivity() {
  activity.add(await get("/activity"));
}
