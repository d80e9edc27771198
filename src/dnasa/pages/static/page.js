"use strict";

const view = { axis: 0, log: new Map(), hidden: new Set(), range: null };
let plots = [];

function number(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  const short = Number(value.toPrecision(6)), size = Math.abs(short);
  return size >= 1e6 || size < 1e-3 ? short.toExponential() : short.toLocaleString("en", { maximumSignificantDigits: 6 });
}

// Draw every chart anew, from the data in the page.
function draw() {
  plots.forEach((plot) => plot.destroy());
  const { axes, lines } = JSON.parse(document.getElementById("charts").textContent);
  for (const button of document.querySelectorAll(".legend button")) button.setAttribute("aria-pressed", !view.hidden.has(button.dataset.group));
  plots = Array.from(document.querySelectorAll("figure[data-metric]"), (figure, metric) => chart(figure, metric, axes[view.axis], lines));
  if (view.range) plots[0]?.setScale("x", view.range);
}

function chart(figure, metric, axis, lines) {
  const toggle = figure.querySelector("input");
  toggle.checked = view.log.get(figure.dataset.metric) ?? toggle.defaultChecked;
  const drawable = (y) => (y === null || (toggle.checked && y <= 0) ? null : y);
  const tables = lines.map((line) => [line.axes[view.axis], line.metrics[metric].map(drawable)]);
  const data = tables.length ? uPlot.join(tables) : [[]];
  const log = toggle.checked && data.slice(1).some((column) => column.some((y) => y !== null));
  const logs = log ? data.slice(1).flatMap((column) => column.filter((y) => y > 0).map(Math.log10)) : [];
  const span = logs.reduce((high, y) => Math.max(high, y), -Infinity) - logs.reduce((low, y) => Math.min(low, y), Infinity);
  const many = span > 8 ? { splits: powers, filter: (_, splits) => splits } : {}; // uPlot would number no decade, or too many
  const values = (_, splits) => splits.map((value) => (value === null ? "" : number(value)));
  const host = figure.querySelector(".plot"), grid = { stroke: "#8883", width: 1 };
  let nearest = null;
  const readout = (plot) => {
    const row = nearest === null ? null : plot.cursor.idxs[nearest];
    const y = row === null ? null : plot.data[nearest][row];
    figure.querySelector("output").textContent = y === null || y === undefined ? "" : `${lines[nearest - 1].title}, ${axis} ${number(plot.data[0][row])}: ${number(y)}`;
  };
  return new uPlot({
    width: host.clientWidth,
    height: host.clientHeight,
    legend: { show: false },
    focus: { alpha: 0.3 },
    cursor: { focus: { prox: 1e6 }, hover: { skip: [null, undefined] }, sync: { key: "charts", scales: ["x", null] } },
    scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: log ? { distr: 3, range: (_, low, high) => logRange(low, high) } : {} },
    axes: [{ grid, values, label: axis, labelSize: 20, size: 32, ticks: { show: false } }, { grid, values, size: 64, ticks: { show: false }, ...many }],
    series: [{}, ...lines.map((line) => ({
      stroke: line.color,
      width: lines.length > 20 ? 1 : 1.5,
      show: !view.hidden.has(line.group),
      spanGaps: true,
      points: { show: line.axes[0].length === 1, size: 6 },
    }))],
    hooks: {
      setCursor: [readout],
      setSeries: [(plot, i) => { nearest = i; readout(plot); }],
      setScale: [(plot, key) => { if (key === "x") view.range = zoomed(plot); }],
    },
  }, data, host);
}

// Ends with one digit, or whole decades where there are many.
function logRange(low, high) {
  if (low === null) return [0.1, 1];
  if (high / low >= 1e3) return uPlot.rangeLog(low, high, 10, true);
  const round = (value, way) => { const unit = 10 ** Math.floor(Math.log10(value)); return Number((way(value / unit) * unit).toPrecision(1)); };
  const ends = [round(low, Math.floor), round(high, Math.ceil)];
  return ends[0] < ends[1] ? ends : [ends[0] / 2, ends[1] * 2];
}

function powers(plot, axis, min, max) {
  const [first, last] = [Math.ceil(Math.log10(min)), Math.floor(Math.log10(max))];
  const step = Math.max(1, Math.ceil((last - first) / 6));
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => Number(`1e${first + i * step}`));
}

function zoomed({ data: [x], scales: { x: { min, max } } }) {
  return min !== null && (min > x[0] || max < x.at(-1)) ? { min, max } : null;
}

function sort(head) {
  const place = head.cellIndex, body = head.closest("table").tBodies[0];
  const order = head.dataset.order === "up" ? -1 : 1;
  head.dataset.order = order > 0 ? "up" : "down";
  const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent;
  body.append(...Array.from(body.rows).sort((a, b) => order * (key(a) - key(b) || key(a).localeCompare(key(b), "en", { numeric: true }))));
}

document.addEventListener("change", ({ target }) => {
  if (target.id === "axis") [view.axis, view.range] = [Number(target.value), null];
  else view.log.set(target.closest("figure").dataset.metric, target.checked);
  draw();
});

document.addEventListener("click", ({ target }) => {
  const button = target.closest(".legend button"), head = target.closest("thead th");
  if (head && !head.closest(".matrix")) sort(head);
  if (!button) return;
  const { group } = button.dataset;
  if (!view.hidden.delete(group)) view.hidden.add(group);
  draw();
});

addEventListener("resize", draw);

draw();
document.documentElement.dataset.ready = "";
