"use strict";

// Elements are made from text alone: nothing that a run folder says is read as HTML.

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function section(title, ...children) {
  return element("section", { "aria-label": title }, element("h2", {}, title), ...children);
}

// ---------------------------------------------------------------- numbers

const whole = new Intl.NumberFormat("en");

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return whole.format(value);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(digits)));
}

function percent(value) {
  return value === null ? "–" : `${(100 * value).toFixed(2)} %`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const i = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${number(value / 1000 ** i, 3)} ${units[i]}`;
}

function cell(name, value) {
  return /accuracy|recall|precision/.test(name) && typeof value === "number" ? percent(value) : number(value);
}

// ---------------------------------------------------------------- tables

// A click on a heading sorts. `select(row index)` makes the first cells buttons.
function table(columns, rows, select = null) {
  const body = element("tbody");
  const order = rows.map((_, i) => i);
  const kinds = columns.map((_, place) => (rows.some((row) => typeof row[place] === "number") ? "number" : ""));
  const show = () => body.replaceChildren(...order.map((i) => tableRow(columns, kinds, rows[i], select && (() => select(i)))));
  const heads = columns.map((name, place) => {
    let sign = 1;
    const sort = () => {
      order.sort((a, b) => sign * compared(rows[a][place], rows[b][place]));
      sign = -sign;
      show();
    };
    return element("th", { class: `${kinds[place]} ${name.length > 24 ? "long" : ""}` }, element("button", { type: "button", onclick: sort }, name));
  });
  show();
  return scrolled("", element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
}

// What is wider than the page fades out on the side where there is more, since phones show no scroll bar.
function scrolled(kind, content) {
  const box = element("div", { class: `scroll ${kind}`, tabindex: 0, onscroll: () => mark(box) }, content);
  sized.observe(box);
  return box;
}

function mark(box) {
  box.classList.toggle("more-left", box.scrollLeft > 1);
  box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}

const sized = new ResizeObserver((entries) => entries.forEach((entry) => mark(entry.target)));

function tableRow(columns, kinds, row, select) {
  const cells = row.map((value, place) => {
    const content = value instanceof Node ? value : cell(columns[place], value);
    const first = place === 0 && select ? element("button", { type: "button", onclick: select }, content) : content;
    return element("td", { class: kinds[place] }, first);
  });
  return element("tr", {}, ...cells);
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a === null || b === null) return (a === null) - (b === null);
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function pairs(entries) {
  return element("dl", {}, ...Object.entries(entries).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

// ---------------------------------------------------------------- what is under the pointer

const tooltip = document.getElementById("tooltip");

function showTooltip(x, y, ...lines) {
  tooltip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tooltip.style.left = `${Math.max(4, x + 14 + width > room ? x - width - 14 : x + 14)}px`;
  tooltip.style.top = `${Math.max(4, y - height - 10)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

function hoverable(node, ...lines) {
  node.addEventListener("pointermove", (event) => showTooltip(event.clientX, event.clientY, ...lines));
  node.addEventListener("pointerleave", hideTooltip);
  return node;
}
