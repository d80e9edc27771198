// Curves: one chart for each metric, one line for each run. Charts are made when they come into view.

const MOST_CELLS = 2e6; // of the table that a chart is drawn from
const dark = matchMedia("(prefers-color-scheme: dark)");

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A colour that can be seen on the background: dark ones are lightened on a dark page.
function visible(colour) {
  const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const light = (0.3 * parts[0] + 0.6 * parts[1] + 0.1 * parts[2]) / 255;
  if (!dark.matches || light > 0.35) return colour;
  return `rgb(${parts.map((part) => Math.round(part + 0.55 * (255 - part))).join(",")})`;
}

// ---------------------------------------------------------------- the table of a chart

// uPlot wants one column of x for all lines: the values that any of them has.
function aligned(lines, axis, metric, log) {
  const drawable = (y, step) => y !== null && !(log && y <= 0) && !(metric === "consensus" && step === 0); // all nodes begin at the same point
  const columns = lines.map((line) => line.columns[axis] ?? []);
  const shared = columns.every((x) => equal(x, columns[0]));
  const values = lines.map((line) => (line.columns[metric] ?? []).map((y, i) => (drawable(y, line.columns.step[i]) ? y : null)));
  if (shared && increasing(columns[0] ?? [])) return [columns[0] ?? [], ...values];
  const all = Float64Array.from(new Set(columns.flat().filter((x) => x !== null))).sort();
  const place = new Map(Array.from(all, (x, i) => [x, i]));
  return [
    Array.from(all),
    ...values.map((y, l) => {
      const column = new Array(all.length).fill(null);
      columns[l].forEach((x, i) => x !== null && (column[place.get(x)] = y[i] ?? null));
      return column;
    }),
  ];
}

function equal(a, b) {
  return a === b || (a.length === b.length && a.every((value, i) => value === b[i]));
}

function increasing(x) {
  return x.every((value, i) => value !== null && (i === 0 || value > x[i - 1]));
}

// Axes on which the lines would have too many different places are left out.
function usableAxes(axes, lines) {
  return axes.filter((axis) => {
    const places = new Set(lines.flatMap((line) => line.columns[axis] ?? []));
    return axis === "step" || (places.size > 1 && places.size * lines.length <= MOST_CELLS);
  });
}

// ---------------------------------------------------------------- a chart

class Chart {
  constructor(metric, charts) {
    this.metric = metric;
    this.charts = charts;
    this.log = metric.log;
    this.plot = null;
    const toggle = element("input", { type: "checkbox", onchange: () => { this.log = toggle.checked; this.rebuild(); } });
    toggle.checked = this.log;
    this.host = element("div", { class: "plot" });
    this.node = element(
      "figure",
      { "data-metric": metric.name },
      element("figcaption", {}, metric.label, element("label", {}, toggle, "log")),
      this.host,
    );
  }

  get built() {
    return this.plot !== null;
  }

  rebuild() {
    this.plot?.destroy();
    this.host.replaceChildren();
    const { lines, axis } = this.charts;
    let data = aligned(lines, axis, this.metric.name, this.log);
    const log = this.log && data.slice(1).some((column) => column.some((y) => y !== null));
    if (this.log && !log) data = aligned(lines, axis, this.metric.name, false);
    this.plot = new uPlot(this.options(lines, axis, log), data, this.host);
    if (log) fewerNumbers(this.plot);
    if (this.charts.range) this.plot.setScale("x", this.charts.range);
  }

  update() {
    this.plot.setData(aligned(this.charts.lines, this.charts.axis, this.metric.name, this.log), this.charts.range === null);
    if (this.charts.range) this.plot.setScale("x", this.charts.range);
  }

  options(lines, axis, log) {
    const paint = { stroke: () => style("--text"), grid: { stroke: () => style("--grid"), width: 1 }, ticks: { show: false } };
    const values = (_, splits) => splits.map((value) => (value === null ? "" : number(value, 3)));
    const width = lines.length > 20 ? 1 : 1.5;
    return {
      width: this.host.clientWidth,
      height: this.host.clientHeight,
      legend: { show: false },
      focus: { alpha: 1 },
      cursor: {
        points: { one: true, size: 8 },
        focus: { prox: 1e6 },
        hover: { skip: [null, undefined] },
        drag: { x: true, y: false, dist: 5 },
      },
      scales: {
        x: { time: false },
        y: log ? { distr: 3, range: (_, low, high) => logRange(low, high) } : {},
      },
      axes: [
        { ...paint, values, label: axis, labelSize: 20, size: 32 },
        { ...paint, values, size: 64, grid: { ...paint.grid, ...(log ? { filter: decades } : {}) } },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          stroke: () => visible(line.colour),
          width,
          show: line.shown,
          spanGaps: true,
          points: { show: () => line.columns.step?.length === 1, size: 6 }, // a line needs two
        })),
      ],
      hooks: {
        setCursor: [(plot) => this.hover(plot)],
        setSeries: [(plot) => this.hover(plot)],
        setScale: [(plot, key) => key === "x" && this.charts.zoomed(this, plot.scales.x)],
      },
    };
  }

  // The nearest line at the pointer: its name, its place and its value.
  hover(plot) {
    const chosen = plot.series.findIndex((series, i) => i > 0 && series._focus);
    const row = chosen > 0 ? plot.cursor.idxs[chosen] : null;
    if (row === null || row === undefined || plot.cursor.left < 0) return hideTooltip();
    const line = this.charts.lines[chosen - 1];
    const [x, y] = [plot.data[0][row], plot.data[chosen][row]];
    const box = plot.over.getBoundingClientRect();
    const place = `${this.charts.axis} ${number(x, 6)}`;
    showTooltip(box.left + plot.cursor.left, box.top + plot.cursor.top, line.title, `${place}: ${number(y, 6)}`);
    Object.assign(tooltip.dataset, { run: line.run, folder: line.folder, x, y });
  }
}

// Ends with one digit; of many decades whole ones, since only these have numbers.
function logRange(low, high) {
  if (low === null) return [0.1, 1];
  if (high / low >= 1e3) return uPlot.rangeLog(low, high, 10, true);
  const round = (value, way) => { const unit = 10 ** Math.floor(Math.log10(value)); return Number((way(value / unit) * unit).toPrecision(1)); };
  const ends = [round(low, Math.floor), round(high, Math.ceil)];
  return ends[0] < ends[1] ? ends : [ends[0] / 2, ends[1] * 2];
}

// Of more than MANY, a few whole decades have a number and a grid line; uPlot would leave all out, or let them touch.
const MANY = 1e8;

function fewerNumbers(plot) {
  const axis = plot.axes[1];
  const { splits, filter } = axis;
  axis.splits = (u, i, min, max, ...rest) => (max / min > MANY ? powers(min, max) : splits(u, i, min, max, ...rest));
  axis.filter = (u, values, ...rest) => (u.scales.y.max / u.scales.y.min > MANY ? values : filter(u, values, ...rest));
  plot.redraw(false, true);
}

function powers(min, max) {
  const [first, last] = [Math.ceil(Math.log10(min)), Math.floor(Math.log10(max))];
  const step = Math.ceil((last - first) / 6);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => Number(`1e${first + i * step}`));
}

// Of many decades, only the whole ones have a grid line.
function decades(plot, splits) {
  const { min, max } = plot.scales.y;
  return max / min < 1e3 ? splits : splits.map((value) => (Number.isInteger(Number(Math.log10(value).toFixed(6))) ? value : null));
}

// ---------------------------------------------------------------- all charts of a page

class Charts {
  constructor() {
    this.lines = [];
    this.axis = "step";
    this.range = null; // of x, when zoomed
    this.list = [];
    this.axes = element("select", { "aria-label": "horizontal axis", onchange: () => this.setAxis(this.axes.value) });
    this.legend = element("div", { class: "legend" });
    this.grid = element("div", { class: "charts" });
    const reset = element("button", { type: "button", onclick: () => this.reset() }, "Reset zoom");
    const help = element("p", { class: "note" }, "Drag across a chart to zoom in, double-click to zoom out. A name shows or hides its curves.");
    this.node = section("Curves", element("div", { class: "bar" }, element("label", {}, "against ", this.axes), reset), this.legend, this.grid, help);
    this.seen = new IntersectionObserver((entries) => this.build(entries), { rootMargin: "200px" });
    this.resized = new ResizeObserver((entries) => entries.forEach((entry) => this.resize(entry.target)));
    addEventListener("beforeprint", () => this.list.forEach((chart) => chart.built || chart.rebuild()));
    dark.addEventListener("change", () => { this.setLegend(); this.list.forEach((chart) => chart.plot?.redraw(false, true)); });
  }

  // What is shown: `lines` have a title, a group, a colour and columns.
  set(metrics, axes, lines) {
    const same = lines.length === this.lines.length && metrics.map((m) => m.name).join() === this.list.map((c) => c.metric.name).join();
    this.lines = lines;
    this.setAxes(usableAxes(axes, lines));
    if (same) return this.list.filter((chart) => chart.built).forEach((chart) => chart.update());
    this.list.forEach((chart) => chart.plot?.destroy());
    this.list = metrics.map((metric) => new Chart(metric, this));
    this.grid.replaceChildren(...this.list.map((chart) => chart.node));
    this.list.forEach((chart) => { this.seen.observe(chart.node); this.resized.observe(chart.host); });
    this.setLegend();
  }

  build(entries) {
    const wanted = entries.filter((entry) => entry.isIntersecting).map((entry) => this.list.find((chart) => chart.node === entry.target));
    for (const chart of wanted) {
      if (chart && !chart.built) setTimeout(() => chart.built || chart.rebuild()); // one task each: the page stays responsive
    }
  }

  resize(host) {
    const chart = this.list.find((one) => one.host === host);
    if (chart?.built && host.clientWidth) chart.plot.setSize({ width: host.clientWidth, height: host.clientHeight });
  }

  setAxes(axes) {
    if (axes.join() === Array.from(this.axes.options, (option) => option.value).join()) return;
    this.axes.replaceChildren(...axes.map((axis) => element("option", { value: axis }, axis)));
    this.axes.value = this.axis = axes.includes(this.axis) ? this.axis : axes[0];
  }

  setAxis(axis) {
    [this.axis, this.range] = [axis, null];
    this.list.filter((chart) => chart.built).forEach((chart) => chart.rebuild());
  }

  setLegend() {
    const groups = grouped(this.lines);
    this.legend.replaceChildren(...Array.from(groups, ([name, lines]) => this.entry(name, lines)));
  }

  entry(name, lines) {
    const swatch = element("span", { class: "swatch", style: `background: ${visible(lines[0].colour)}` });
    const count = lines.length > 1 ? ` (${lines.length} seeds)` : "";
    const button = element("button", { type: "button", "aria-pressed": lines[0].shown }, swatch, name + count);
    button.addEventListener("click", () => {
      const shown = !lines[0].shown;
      lines.forEach((line) => (line.shown = shown));
      button.setAttribute("aria-pressed", shown);
      const places = lines.map((line) => this.lines.indexOf(line) + 1);
      this.list.filter((chart) => chart.built).forEach((chart) => chart.plot.batch(() => places.forEach((i) => chart.plot.setSeries(i, { show: shown }))));
    });
    return button;
  }

  // A zoom of one chart is a zoom of all.
  zoomed(source, { min, max }) {
    if (this.zooming || min === null) return;
    const x = source.plot?.data[0];
    if (!x?.length) return;
    this.range = min > x[0] || max < x[x.length - 1] ? { min, max } : null;
    this.zooming = true;
    for (const chart of this.list) {
      if (chart !== source && chart.built) chart.plot.setScale("x", { min, max });
    }
    queueMicrotask(() => queueMicrotask(() => (this.zooming = false)));
  }

  reset() {
    this.range = null;
    for (const chart of this.list) {
      const x = chart.plot?.data[0];
      if (x?.length) chart.plot.setScale("x", { min: x[0], max: x[x.length - 1] });
    }
  }
}

function grouped(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.group, [...(groups.get(line.group) ?? []), line]);
  return groups;
}
