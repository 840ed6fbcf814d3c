// The frame of the dashboard: session, navigation, and the page that the address names.

import { call, get, getOr, onSignedOut, setShard } from "./api.js";
import { redrawCharts } from "./chart.js";
import { showProblem } from "./dialog.js";
import { h, icon, link, replace, setText } from "./dom.js";
import { conditions } from "./health.js";
import { live, oneAtATime, poll } from "./live.js";
import { may, scopeText, setClient, who } from "./session.js";
import { accessPage } from "./pages/access.js";
import { cachePage } from "./pages/cache.js";
import { clusterPage } from "./pages/cluster.js";
import { eventsPage } from "./pages/events.js";
import { imagePage, imagesPage } from "./pages/images.js";
import { iscsiPage, targetPage } from "./pages/iscsi.js";
import { jobsPage } from "./pages/jobs.js";
import { showLogin } from "./pages/login.js";
import { overviewPage } from "./pages/overview.js";
import { poolsPage } from "./pages/pools.js";
import { tenantsPage } from "./pages/tenants.js";
import { volumePage } from "./pages/volume.js";
import { volumesPage } from "./pages/volumes.js";

const PAGES = [
  { path: "overview", label: "Overview", page: overviewPage, may: may.readServer },
  { path: "cluster", label: "Cluster", page: clusterPage, may: () => may.readServer() && who().cluster === true },
  { path: "volumes", label: "Volumes & desktops", page: volumesPage, detail: volumePage, may: () => true },
  { path: "images", label: "Images", page: imagesPage, detail: imagePage, may: () => true },
  { path: "tenants", label: "Tenants", page: tenantsPage, may: () => true },
  { path: "iscsi", label: "iSCSI", page: iscsiPage, detail: targetPage, may: may.readServer },
  { path: "pools", label: "Pools", page: poolsPage, may: may.readServer },
  { path: "cache", label: "Cache statistics", page: cachePage, may: may.readServer },
  { path: "jobs", label: "Jobs", page: jobsPage, may: () => true },
  { path: "events", label: "Events", page: eventsPage, may: () => true },
  { path: "access", label: "Access", page: accessPage, may: may.administer },
];

const app = document.getElementById("app");
const SESSION_KEY = "forebay-signed-out";
const SHARD_KEY = "forebay-shard";
const EVENT_PAUSE_MS = 700;

/** What a page uses while it is shown; everything ends with it. */
class Context {
  #ends = [];
  #running = new Set();
  #leaves = false;

  constructor(title) {
    this.title = title;
  }

  onEnd(end) {
    this.#ends.push(end);
  }

  poll(work, ms) {
    this.onEnd(poll(() => this.#run(work), ms));
  }

  /** Calls `work` unless the page is about to be left. */
  async #run(work) {
    if (this.#leaves) return;
    const running = work();
    this.#running.add(running);
    try {
      await running;
    } finally {
      this.#running.delete(running);
    }
  }

  /** Removes what the page shows by `work`, and goes to `hash`. The page requests nothing meanwhile: its resource is
   *  gone before the response arrives. */
  async leave(hash, work) {
    this.#leaves = true;
    try {
      await Promise.allSettled(this.#running);
      await work();
      location.hash = hash;
    } catch (problem) {
      this.#leaves = false;
      throw problem;
    }
  }

  onSample(reader) {
    this.onEnd(live.sampled.subscribe(reader));
    const last = live.samples.at(-1);
    if (last) reader(last.stats);
  }

  /** Calls `work` now, after each event of these topics (after a pause as long as the last call), and every `ms`;
   *  never twice at the same time. Returns a function that calls it, too. */
  refresh(topics, work, ms = 30000) {
    let timer = null;
    let failure = null;
    let took = 0;
    const run = oneAtATime(async () => {
      const begun = performance.now();
      try {
        await this.#run(work);
        failure = null;
      } catch (problem) {
        // A failure that lasts is shown once.
        if (problem.code !== "offline" && problem.message !== failure) showProblem(problem);
        failure = problem.message;
      }
      took = performance.now() - begun;
    });
    const soon = (events) => {
      if (timer === null && events.some((event) => topics.includes(event.topic))) {
        timer = setTimeout(() => {
          timer = null;
          run();
        }, Math.max(EVENT_PAUSE_MS, took));
      }
    };
    this.onEnd(live.happened.subscribe(soon));
    this.onEnd(() => clearTimeout(timer));
    this.onEnd(poll(run, ms));
    return run;
  }

  onEvents(reader) {
    this.onEnd(live.happened.subscribe(reader));
  }

  end() {
    for (const end of this.#ends.splice(0)) end();
  }
}

let shown = null;
/** The name of the server's host, if the client may see it. */
let host = "";
let hasShown = false;

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
  const allowed = PAGES.filter((page) => page.may());
  const page = allowed.find((one) => one.path === parts[0]) ?? allowed[0];
  const isDetail = parts[0] === page.path && parts.length > 1 && page.detail;
  shown?.end();
  shown = new Context(isDetail ? parts[1] : page.label);
  document.title = [shown.title, host, "Forebay"].filter(Boolean).join(" – ");
  const main = document.getElementById("main");
  for (const item of document.querySelectorAll("nav a")) {
    if (item.dataset.path === page.path) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  document.body.classList.remove("menu-open");
  document.getElementById("menu-button").setAttribute("aria-expanded", "false");
  replace(main, isDetail ? page.detail(shown, parts[1]) : page.page(shown));
  window.scrollTo(0, 0);
  // After a change of the page, the keyboard continues at its content.
  if (hasShown) main.focus({ preventScroll: true });
  hasShown = true;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function toggleTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  // From now on it does not follow the system.
  delete root.dataset.themeOf;
  try {
    localStorage.setItem("forebay-theme", root.dataset.theme);
  } catch {
    // Storage is disabled: the choice lasts until the page is loaded again.
  }
  redrawCharts();
}

async function logOut() {
  try {
    await call("DELETE", "/session");
  } catch (problem) {
    // Otherwise the session goes on.
    if (problem.status !== 401) {
      showProblem(problem);
      return;
    }
  }
  // Nothing of the session stays in the memory of the page.
  history.replaceState(null, "", "/");
  location.reload();
}

function toggleMenu() {
  const isOpen = document.body.classList.toggle("menu-open");
  document.getElementById("menu-button").setAttribute("aria-expanded", String(isOpen));
}

/** At a node of a cluster: the choice of the shard that the pages concern. */
async function shardChoice() {
  if (!may.readServer()) return null;
  const { shards } = await get("/cluster");
  const numbers = shards.map((one) => String(one.number));
  const kept = sessionStorage.getItem(SHARD_KEY);
  const chosen = numbers.includes(kept) ? kept : numbers[0];
  setShard(chosen);
  const options = shards.map(({ number, owner }) =>
    h("option", { value: String(number), selected: String(number) === chosen }, `Shard ${number} – ${owner ?? "no owner"}`),
  );
  const choose = (event) => {
    sessionStorage.setItem(SHARD_KEY, event.target.value);
    // A new document has nothing of the other shard.
    location.reload();
  };
  return h("select", { class: "server", "aria-label": "Shard", onchange: choose }, options);
}

/** The frame of all pages. `shards` is the choice of the shard at a node of a cluster. `server` is null if the client may not see what concerns the whole server. */
function frame(server, shards) {
  const client = who();
  const items = PAGES.filter((page) => page.may()).map((page) =>
    h("li", {}, link(`#/${page.path}`, [icon(page.path), page.label], { "data-path": page.path })),
  );
  const skip = h(
    "a",
    {
      href: "#main",
      class: "skip",
      onclick: (event) => {
        event.preventDefault();
        document.getElementById("main").focus();
      },
    },
    "Skip to the content",
  );
  const menu = h(
    "button",
    {
      type: "button",
      id: "menu-button",
      class: "icon-button",
      "aria-label": "Menu",
      "aria-expanded": "false",
      "aria-controls": "menu",
      onclick: toggleMenu,
    },
    icon("menu"),
  );
  const theme = h(
    "button",
    { type: "button", class: "icon-button", "aria-label": "Switch between light and dark", onclick: toggleTheme },
    icon("theme"),
  );
  const out =
    client.via === "session"
      ? h("button", { type: "button", class: "button small", onclick: logOut }, "Log out")
      : null;
  const person = h(
    "div",
    { class: "who" },
    h("span", { class: "who-name" }, client.name),
    h("span", { class: "who-role" }, `${client.role}, ${scopeText(client.scope)}`),
  );
  const banner = h("div", { id: "banner", role: "status", "aria-live": "polite", hidden: true });
  live.online.subscribe((isOnline) => {
    banner.hidden = isOnline;
    setText(
      banner,
      isOnline
        ? ""
        : "The connection to the server is lost. Numbers are those of the last sample; the page reconnects by itself.",
    );
  });
  const hint =
    client.via === "loopback"
      ? h(
          "p",
          { class: "hint" },
          "This server has no tokens: every local user may use this page. ",
          link("#/access", "Create a token"),
          " to require one.",
        )
      : null;
  replace(
    app,
    skip,
    h(
      "header",
      { class: "top" },
      menu,
      h("span", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }), "Forebay"),
      server ? h("span", { class: "server", title: server.pool }, server.host) : null,
      shards,
      h("span", { class: "spring" }),
      person,
      theme,
      out,
    ),
    h("nav", { id: "menu", "aria-label": "Pages" }, h("ul", {}, items)),
    h("div", { class: "content" }, banner, conditions(), hint, h("main", { id: "main", tabindex: "-1" })),
  );
}

async function begin() {
  let client;
  try {
    client = await call("GET", "/session", { login: true });
  } catch (problem) {
    if (problem.status === 401) {
      showLogin(app, begin, takeReason());
    } else {
      replace(
        app,
        h("main", { class: "login-page" }, h("p", { role: "alert" }, `${problem.message} ${problem.remedy}`)),
      );
      setTimeout(begin, 3000);
    }
    return;
  }
  setClient(client);
  const shards = client.cluster ? await shardChoice() : null;
  const server = may.readServer() ? await getOr("/pool", null).catch(() => null) : null;
  host = server?.host ?? "";
  frame(server, shards);
  addEventListener("hashchange", route);
  route();
  live.start();
}

/** Why the last session ended, once. */
function takeReason() {
  const reason = sessionStorage.getItem(SESSION_KEY);
  sessionStorage.removeItem(SESSION_KEY);
  return reason;
}

// A browser may keep a page that was left, with its data, for the button "back".
addEventListener("pageshow", (event) => event.persisted && location.reload());

let leaving = false;
onSignedOut((problem) => {
  if (leaving) return;
  leaving = true;
  sessionStorage.setItem(
    SESSION_KEY,
    problem.code === "not_authenticated" ? "The session has ended. Log in again." : problem.message,
  );
  // A new document has nothing of the session.
  replace(app);
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  location.reload();
});

begin();
