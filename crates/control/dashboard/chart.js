// Charts of the last minutes (uPlot), and sparklines.

import { h, setText, svg } from "./dom.js";
import { clock } from "./format.js";
import UPlot from "./vendor/uplot/uPlot.esm.js";

const HEIGHT = 200;
/** The least time that a chart shows, in seconds: the first samples are at its right end. */
const MIN_SPAN_S = 60;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Charts that are drawn again when the theme changes. */
const charts = new Set();
export function redrawCharts() {
  for (const chart of charts) chart.draw();
}

/** A chart of series over time: `[{label, color}]`, values as `format` shows them. */
export class TimeChart {
  #series;
  #format;
  #label;
  #data = [[]];
  #plot = null;

  constructor(label, series, format) {
    [this.#label, this.#series, this.#format] = [label, series, format];
    this.canvas = h("div", { class: "chart", role: "img", "aria-label": label });
    this.values = series.map(() => h("span", { class: "number" }));
    const names = series.map((one, n) =>
      h("li", {}, h("span", { class: "swatch", vars: { color: `var(--${one.color})` } }), one.label, this.values[n]),
    );
    this.element = h("div", { class: "chart-box" }, h("ul", { class: "legend inline" }, names), this.canvas);
    this.observer = new ResizeObserver(() => {
      if (!this.canvas.clientWidth) return;
      if (this.#plot) this.#plot.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
      else if (this.#data[0].length > 0) this.draw();
    });
    this.observer.observe(this.canvas);
    charts.add(this);
  }

  destroy() {
    charts.delete(this);
    this.observer.disconnect();
    this.#plot?.destroy();
  }

  /** `data`: times in seconds, then the values of each series. */
  set(data) {
    // A single time would be shown as a day.
    const pad = (values, n) => (n === 0 ? [values[0] - MIN_SPAN_S, values[0]] : [null, values[0]]);
    this.#data = data[0].length === 1 ? data.map(pad) : data;
    const last = this.#series.map((one, n) => `${one.label} ${this.#format(data[n + 1].at(-1) ?? 0)}`);
    this.values.forEach((value, n) => setText(value, this.#format(data[n + 1].at(-1) ?? 0)));
    this.canvas.setAttribute("aria-label", `${this.#label}: ${last.join(", ")}`);
    if (this.#plot) this.#plot.setData(this.#data);
    else if (this.canvas.isConnected && this.canvas.clientWidth) this.draw();
  }

  draw() {
    this.#plot?.destroy();
    if (!this.canvas.clientWidth) return;
    const axis = {
      stroke: color("muted"),
      grid: { stroke: color("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    const options = {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      padding: [8, 26, 0, 0],
      scales: {
        x: { range: (_, min, max) => [Math.min(min, max - MIN_SPAN_S), max] },
        y: { range: (_, __, max) => [0, Math.max(max, 1) * 1.08] },
      },
      axes: [
        { ...axis, size: 30, space: 80, values: (_, times) => times.map((time) => clock(time * 1000)) },
        { ...axis, size: 64, values: (_, values) => values.map((value) => this.#format(value)) },
      ],
      series: [
        {},
        ...this.#series.map((one) => ({
          label: one.label,
          stroke: color(one.color),
          fill: `${color(one.color)}22`,
          width: 2,
          points: { show: false },
        })),
      ],
    };
    this.#plot = new UPlot(options, this.#data, this.canvas);
  }
}

const WIDTH = 96;
const TALL = 22;

/** A small line of the last values, which a screen reader need not read: the number is next to it. */
class Sparkline {
  #line = svg("polyline", { points: "" });

  constructor() {
    this.element = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${TALL}`, class: "sparkline", "aria-hidden": "true" },
      this.#line,
    );
  }

  set(values) {
    const most = Math.max(1, ...values);
    const step = WIDTH / 59;
    const begin = WIDTH - step * (values.length - 1);
    const points = values.map(
      (value, n) => `${(begin + n * step).toFixed(1)},${(TALL - 2 - ((TALL - 4) * value) / most).toFixed(1)}`,
    );
    this.#line.setAttribute("points", points.join(" "));
  }
}

/** A sparkline in a cell of a table, which is updated in place. */
const lines = new WeakMap();
export function sparkCell(cell, values) {
  let line = lines.get(cell);
  if (!line) {
    line = new Sparkline();
    lines.set(cell, line);
    cell.replaceChildren(line.element);
  }
  line.set(values ?? []);
}
