// Tables that are sorted, filtered and shown in pages. Rows keep their elements while they are visible, so that
// an update moves neither the focus nor a selection.
//
// Elements exist only for the rows of the present page, however many rows there are. A new table first draws the rows
// that fit on the screen, and the others after they are painted: layout and painting take most of the time.
//
// A column: `id`, `label`, `value` (of a row, to sort by; without it the column is not sortable), `text` (default:
// the value), `node` (an element instead of a text; made again when the text changes), `live` (called with the row
// and its cell at each update), `number` (aligned), `minor` (hidden on narrow screens), `extra` (shown on
// wide screens only), `wide` (its text is wrapped),
// `grow` (takes the room that is left), `right` (aligned, for buttons), `first` (descending first).

import { h, setText } from "./dom.js";
import { count } from "./format.js";

const PAGE = 100;
/** The least height of a row, in pixels. */
const ROW_PX = 30;
/** Time from the frame with the first rows of a table until the others are drawn: the browser shows the frame, and
 *  other responses arrive. */
const REST_MS = 50;

/** A column of numbers, of which the greatest come first; `text` is that of a value. `more` has further properties. */
export function numberColumn(id, label, value, text, more) {
  return { id, label, value, text: (row) => text(value(row)), number: true, first: "descending", ...more };
}

/** A column of sizes, the greatest first; `text` is that of a row. Sizes that are not known are the least. */
export function spaceColumn(id, label, value, text) {
  return { id, label, value: (row) => value(row) ?? -1, text, number: true, first: "descending", minor: true };
}

/** The column of a row's buttons; they are made again when the text changes. `name` is what the buttons act on: a
 *  screen reader reads it after the text of the button, which is the same in every row. */
export function actionsColumn(text, node, name) {
  return { id: "actions", label: "Actions", right: true, text, node: (row) => named(node(row), name(row)) };
}

function named(element, name) {
  if (!(element instanceof Element)) return element;
  const buttons = element.matches("button") ? [element] : element.querySelectorAll("button");
  for (const one of buttons) one.setAttribute("aria-label", `${one.textContent} ${name}`);
  return element;
}

export class Table {
  #columns;
  #rows = [];
  #shown = [];
  #known = new Map();
  #sort;
  #page = 0;
  /** Number of rows of a page to draw at present. */
  #limit = Math.ceil(innerHeight / ROW_PX);
  #selected = new Set();
  #options;

  /** Options: `caption`, `columns`, `key` (of a row), `search` (text of a row that the filter looks in), `sort`
   *  (`[id, descending]`), `empty` (text, or a function that returns it), `select` (called with the selected keys),
   *  `filters` (elements), `small` (the filter is shown only with more rows than fit on a page). */
  constructor(options) {
    this.#options = options;
    this.#columns = options.columns.filter(Boolean);
    this.#sort = options.sort ?? [this.#columns[0].id, false];
    this.head = h("tr");
    this.body = h("tbody");
    this.table = h(
      "table",
      {},
      h("caption", { class: "hidden" }, options.caption),
      h("thead", {}, this.head),
      this.body,
    );
    const scroller = h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "group", "aria-label": options.caption },
      this.table,
    );
    this.summary = h("span", { class: "table-summary", "aria-live": "polite" });
    this.pager = h("div", { class: "pager" });
    this.filter = options.search
      ? h("input", {
          type: "search",
          placeholder: "Filter",
          "aria-label": `Filter ${options.caption.toLowerCase()}`,
          class: "filter",
          oninput: () => this.#turn(0),
        })
      : null;
    this.tools = h("div", { class: "table-tools", hidden: options.small }, this.filter, options.filters, this.summary);
    const tools = options.search || options.filters ? this.tools : null;
    this.element = h("div", { class: "table" }, tools, scroller, this.pager);
    this.#drawHead();
  }

  get selected() {
    return [...this.#selected];
  }

  clearSelection() {
    this.#selected.clear();
    this.refresh();
  }

  update(rows) {
    this.#rows = rows;
    if (this.#options.select) {
      const keys = new Set(rows.map(this.#options.key));
      for (const key of this.#selected) if (!keys.has(key)) this.#selected.delete(key);
    }
    this.refresh();
  }

  #turn(page) {
    this.#page = page;
    this.refresh();
  }

  #drawHead() {
    this.headings = new Map();
    const cells = this.#columns.map((column) => {
      const attributes = { scope: "col", class: cellClass(column) };
      if (!column.value) return h("th", attributes, column.label);
      const label = h("button", { type: "button", class: "sort", onclick: () => this.#sortBy(column) }, column.label);
      const cell = h("th", attributes, label);
      this.headings.set(column.id, cell);
      return cell;
    });
    if (this.#options.select) {
      this.all = h("input", {
        type: "checkbox",
        "aria-label": "Select all rows that match the filter",
        onchange: () => this.#selectAll(),
      });
      cells.unshift(h("th", { scope: "col", class: "tick" }, this.all));
    }
    this.head.replaceChildren(...cells);
  }

  #sortBy(column) {
    const [id, descending] = this.#sort;
    this.#sort = id === column.id ? [id, !descending] : [column.id, column.first === "descending"];
    this.#turn(0);
  }

  #selectAll() {
    for (const row of this.#matching) {
      const key = this.#options.key(row);
      if (this.all.checked) this.#selected.add(key);
      else this.#selected.delete(key);
    }
    this.refresh();
  }

  #matching = [];
  #isDrawingRest = false;

  #match() {
    const wanted = (this.filter?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (row) => {
      const text = this.#options.search(row).toLowerCase();
      return wanted.every((word) => text.includes(word));
    };
    const found = wanted.length ? this.#rows.filter(matches) : [...this.#rows];
    const [id, descending] = this.#sort;
    const column = this.#columns.find((c) => c.id === id);
    const keyed = found.map((row) => [column.value(row), this.#options.key(row), row]);
    keyed.sort(([a, i], [b, j]) => compare(a, b) * (descending ? -1 : 1) || compare(i, j));
    this.#matching = keyed.map(([, , row]) => row);
  }

  /** Draws the present page again. */
  refresh() {
    this.#match();
    const pages = Math.max(1, Math.ceil(this.#matching.length / PAGE));
    this.#page = Math.min(this.#page, pages - 1);
    const first = this.#page * PAGE;
    this.#shown = this.#matching.slice(first, first + Math.min(PAGE, this.#limit));
    const [id, descending] = this.#sort;
    for (const [column, cell] of this.headings) {
      if (column === id) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    const known = new Map();
    const lines = this.#shown.map((row) => {
      const key = this.#options.key(row);
      const line = this.#known.get(key) ?? this.#createLine(key);
      known.set(key, line);
      this.#updateLine(line, row);
      return line.element;
    });
    this.#known = known;
    if (lines.length === 0) lines.push(this.#emptyLine());
    // Elements that are in place are not moved: a move would end the focus.
    const present = this.body.children;
    lines.forEach((line, n) => {
      if (present[n] !== line) this.body.insertBefore(line, present[n] ?? null);
    });
    while (present.length > lines.length) present[lines.length].remove();
    if (this.#limit < PAGE && this.#shown.length === this.#limit) this.#drawRestSoon();
    this.#drawPager(pages);
    if (this.#options.select) {
      const ticked = this.#matching.filter((row) => this.#selected.has(this.#options.key(row))).length;
      this.all.checked = ticked > 0 && ticked === this.#matching.length;
      this.all.indeterminate = ticked > 0 && ticked < this.#matching.length;
      this.#options.select(this.selected);
    }
  }

  /** Draws the other rows of the page when the first ones are painted. */
  #drawRestSoon() {
    if (this.#isDrawingRest) return;
    this.#isDrawingRest = true;
    requestAnimationFrame(() =>
      setTimeout(() => {
        this.#limit = PAGE;
        if (this.element.isConnected) this.refresh();
      }, REST_MS),
    );
  }

  #emptyLine() {
    const width = this.#columns.length + (this.#options.select ? 1 : 0);
    const { empty } = this.#options;
    const none = typeof empty === "function" ? empty() : empty;
    const text = this.#rows.length ? "Nothing matches the filter." : none;
    return h("tr", { class: "empty" }, h("td", { colspan: width }, text));
  }

  #createLine(key) {
    const cells = this.#columns.map((column) => h("td", { class: cellClass(column) }));
    const element = h("tr", {}, cells);
    let tick = null;
    if (this.#options.select) {
      const change = () => {
        if (tick.checked) this.#selected.add(key);
        else this.#selected.delete(key);
        this.refresh();
      };
      tick = h("input", { type: "checkbox", "aria-label": `Select ${key}`, onchange: change });
      element.prepend(h("td", { class: "tick" }, tick));
    }
    return { element, cells, tick, key, texts: [] };
  }

  #updateLine(line, row) {
    if (line.tick) line.tick.checked = this.#selected.has(line.key);
    this.#columns.forEach((column, n) => {
      const cell = line.cells[n];
      if (column.text || column.value) {
        const text = String(column.text ? column.text(row) : column.value(row));
        if (line.texts[n] !== text) {
          line.texts[n] = text;
          if (column.node) cell.replaceChildren(column.node(row));
          else setText(cell, text);
        }
      } else if (column.node && line.texts[n] === undefined) {
        line.texts[n] = "";
        cell.replaceChildren(column.node(row));
      }
      column.live?.(row, cell);
    });
  }

  #drawPager(pages) {
    const all = this.#rows.length;
    const found = this.#matching.length;
    const summary = found === all ? `${count(all)} in total` : `${count(found)} of ${count(all)}`;
    setText(this.summary, summary);
    if (this.#options.small) this.tools.hidden = all <= PAGE;
    if (pages === 1) {
      this.pager.replaceChildren();
      this.pages = null;
      return;
    }
    if (!this.pages) {
      const turn = (label, to) =>
        h("button", { type: "button", class: "button", onclick: () => this.#turn(to(this.#page)) }, label);
      const [first, previous] = [turn("First", () => 0), turn("Previous", (page) => Math.max(0, page - 1))];
      const [next, last] = [turn("Next", (page) => page + 1), turn("Last", () => Infinity)];
      this.pages = { back: [first, previous], on: [next, last], text: h("span", { class: "number" }) };
      this.pager.replaceChildren(first, previous, this.pages.text, next, last);
    }
    setText(this.pages.text, `page ${this.#page + 1} of ${pages}`);
    for (const one of this.pages.back) one.disabled = this.#page === 0;
    for (const one of this.pages.on) one.disabled = this.#page === pages - 1;
  }
}

function cellClass(column) {
  const classes = [
    column.number && "number",
    column.minor && "minor",
    column.extra && "extra",
    column.wide && "wide",
    column.grow && "grow",
    column.right && "right",
  ].filter(Boolean);
  return classes.length ? classes.join(" ") : undefined;
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  if (typeof a === "string" || typeof b === "string") return collator.compare(String(a ?? ""), String(b ?? ""));
  return (a ?? -1) - (b ?? -1);
}

/** A table without sorting or filters, of few rows. Cells are texts or elements; `columns` are labels, or
 *  `[label, class]`. */
export function plainTable(caption, columns, rows, empty) {
  const labels = columns.map((column) => (Array.isArray(column) ? column : [column, undefined]));
  const head = labels.map(([label, kind]) => h("th", { scope: "col", class: kind }, label));
  const lines = rows.map((cells) =>
    h(
      "tr",
      {},
      cells.map((cell, n) => h("td", { class: labels[n][1] }, cell)),
    ),
  );
  if (lines.length === 0) lines.push(h("tr", { class: "empty" }, h("td", { colspan: labels.length }, empty)));
  const table = h(
    "table",
    {},
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, lines),
  );
  return h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": caption }, table);
}
