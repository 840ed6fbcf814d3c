// Creation of elements. Text from the server is only ever inserted as text nodes or attribute values.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. Properties: `on…` are listeners, `vars` are CSS variables, others are attributes. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") setVars(element, value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Sets CSS variables of an element; a style attribute would be refused by the content security policy. */
function setVars(element, vars) {
  for (const [name, value] of Object.entries(vars)) element.style.setProperty(`--${name}`, value);
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Outlines on a grid of 20 by 20.
const ICONS = {
  overview: "M3 11h5v6H3zM12 3h5v14h-5zM3 3h5v4H3z",
  cluster: "M7 3h6v5H7zM2 12h6v5H2zM12 12h6v5h-6zM10 8v2M5 12v-2h10v2",
  volumes: "M3 5c0-1.2 3-2 7-2s7 .8 7 2-3 2-7 2-7-.8-7-2zM3 5v10c0 1.2 3 2 7 2s7-.8 7-2V5M3 10c0 1.2 3 2 7 2s7-.8 7-2",
  images: "M10 2.5 17 6l-7 3.5L3 6zM3 10l7 3.5L17 10M3 14l7 3.5L17 14",
  iscsi: "M4 3h12v5H4zM4 12h12v5H4zM10 8v4M7 5.5h.01M7 14.5h.01",
  pools: "M3 4h14v12H3zM3 8h14M6 12h4",
  tenants: "M7 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2 17c0-3 2-5 5-5s5 2 5 5M13 9a2.5 2.5 0 1 0 0-5M14 12c2.5 .3 4 2.2 4 5",
  jobs: "M10 3a7 7 0 1 0 7 7M10 6v4l3 2M14 3h3v3",
  events: "M4 5h12M4 10h12M4 15h7",
  cache: "M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3",
  access: "M7 9a3.5 3.5 0 1 1 3 3.46V14H8v2H6v2H3v-3l4.2-4.2",
  theme: "M10 3a7 7 0 1 0 7 7 5.5 5.5 0 0 1-7-7z",
  menu: "M3 5h14M3 10h14M3 15h14",
};

/** A decorative icon. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" }, path);
}

/** Replaces the text of an element if it differs, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const CONTROLS = "a, button, input, select, textarea, [tabindex]";
const same = (a, b) =>
  a.tagName === b.tagName &&
  a.textContent === b.textContent &&
  a.getAttribute("aria-label") === b.getAttribute("aria-label");

/** Replaces the children of an element. If one of them has the focus, its successor gets it: the control with the
 *  same text, and as many equal ones before it. */
export function replace(element, ...children) {
  const active = document.activeElement;
  const hadFocus = active !== element && element.contains(active);
  const equal = hadFocus
    ? [...element.querySelectorAll(CONTROLS)].filter((control) => same(control, active)).indexOf(active)
    : -1;
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  if (hadFocus) {
    const successors = [...element.querySelectorAll(CONTROLS)].filter((control) => same(control, active));
    (successors[equal] ?? successors.at(-1))?.focus({ preventScroll: true });
  }
  return element;
}

/** A list of terms and values; values are texts or elements. */
export function facts(pairs) {
  const rows = pairs.filter(Boolean).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)));
  return h("dl", { class: "facts" }, rows);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, title)), ...children);
}

/** A card with elements at the right of its title. */
export function cardWith(title, extra, ...children) {
  const element = card(title, ...children);
  element.firstChild.append(h("div", { class: "card-extra" }, extra));
  return element;
}

export function badge(text, kind = "plain") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function button(label, onclick, kind = "") {
  return h("button", { type: "button", class: `button ${kind}`, onclick }, label);
}

export function link(path, text, attributes = {}) {
  return h("a", { href: path, ...attributes }, text);
}

/** The path of a page in the address bar; parts are encoded. */
export function pagePath(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export const diskLink = (name) => {
  const [volume] = name.split("@");
  return link(pagePath("volumes", volume), name);
};

/** A bar of parts: `[{label, value, color}]` of a total. */
export function bar(parts, total, label) {
  const width = (value) => `${total > 0 ? Math.min(100, (100 * value) / total) : 0}%`;
  const pieces = parts.map((part) =>
    h("span", { class: "bar-part", vars: { width: width(part.value), color: part.color } }),
  );
  return h("div", { class: "bar", role: "img", "aria-label": label }, pieces);
}

export function legend(parts, format) {
  const items = parts.map((part) =>
    h(
      "li",
      {},
      h("span", { class: "swatch", vars: { color: part.color } }),
      h("span", { class: "legend-label" }, part.label),
      h("span", { class: "number" }, format(part.value)),
    ),
  );
  return h("ul", { class: "legend" }, items);
}

export function progress(done, total, label) {
  const element = h("progress", { "aria-label": label });
  if (total) {
    element.max = total;
    element.value = Math.min(done, total);
  }
  return element;
}

/** The top of a page: its title, what belongs to it, and its actions. */
export function pageHead(title, actions = [], extra = null) {
  return h(
    "div",
    { class: "page-head" },
    h("div", {}, h("h1", {}, title), extra),
    h("div", { class: "actions" }, actions),
  );
}
