// What there is to say about one run folder besides its curves.

const KINDS = { __proto__: null, gradient: "#4c78a8", exchange: "#e45756", rule: "#54a24b", evaluation: "#b279a2", waiting: "#f58518" };

const BEND = 0.12; // of a directed edge

function details(folder) {
  return [members(folder), tests(folder), nodes(folder), graph(folder), settings(folder), timeline(folder)].filter(Boolean);
}

function nodeName(folder, i) {
  return folder.sites[i] ?? `node ${i}`;
}

// The lines of this kind, "failures" or "warnings", of all folders.
function listed(title, kind, folders) {
  const lines = folders.flatMap((folder) => folder[kind].map((line) => (folders.length > 1 ? `${folder.name}: ${line}` : line)));
  return lines.length ? section(title, element("ul", { class: kind }, ...lines.map((line) => element("li", {}, line)))) : null;
}

function settings(folder) {
  return Object.keys(folder.settings).length ? section("Settings", pairs(folder.settings)) : null;
}

// ---------------------------------------------------------------- the graph

function graph(folder) {
  const found = folder.graph;
  if (!found) return null;
  const rho = found.rho ? `, rho = ${number(found.rho)}` : "";
  const caption = element("p", {}, `${found.name}, ${found.nodes} nodes${rho}. The thicker a line, the larger its weight.`);
  if (!found.edges) return section("Graph", element("p", {}, `${found.name}, ${number(found.nodes)} nodes: too many edges to draw.`));
  return section("Graph", drawGraph(found, folder), caption);
}

function drawGraph(found, folder) {
  const name = (i) => nodeName(folder, i);
  const places = scaled(found.places);
  const heaviest = Math.max(...found.edges.map((edge) => edge[2]), 1e-12);
  const size = Math.max(3, Math.min(16, 220 / Math.sqrt(found.nodes) / 4));
  const edges = found.edges.map(([i, j, weight]) => {
    const line = drawn("path", { d: path(places[i], places[j], found.directed), "stroke-width": 0.5 + (5 * weight) / heaviest });
    const target = drawn("path", { d: path(places[i], places[j], found.directed), class: "target" });
    const head = found.directed ? arrow(places[i], places[j]) : null;
    const between = found.directed ? `${name(i)} → ${name(j)}` : `${name(i)} – ${name(j)}`;
    return hoverable(drawn("g", { class: "edge", "data-weight": weight }, line, head, target), between, `weight ${number(weight)}`);
  });
  const circles = places.map(([x, y], i) => {
    const inside = { x, y, dy: "0.35em" }, below = { x, y: y + size, dy: "1.1em", class: "site" };
    const text = found.nodes > 50 ? null : folder.sites[i] ? drawn("text", below, folder.sites[i].slice(0, 16)) : drawn("text", inside, String(i));
    const node = drawn("g", { class: "node" }, drawn("circle", { cx: x, cy: y, r: size }), text);
    return hoverable(node, name(i), `${number(found.messages[i])} messages sent per exchange`, ...measuredOf(folder, i));
  });
  return drawn("svg", { viewBox: "0 0 480 360", class: "graph", role: "img", "aria-label": `graph ${found.name}` }, ...edges, ...circles);
}

// What was measured of a node: at its site, and of its own model.
function measuredOf({ tests: found }, i) {
  const place = found ? found.members.indexOf(i) : -1;
  return place < 0 ? [] : Object.entries(found.nodes).map(([title, values]) => `${title} ${number(values[place])}`);
}

function scaled(places) {
  const ends = [0, 1].map((axis) => places.map((place) => place[axis])).map((values) => [Math.min(...values), Math.max(...values)]);
  const size = Math.min(...ends.map(([low, high], axis) => ([480, 360][axis] - 48) / Math.max(high - low, 1e-9)));
  const middle = ends.map(([low, high]) => (low + high) / 2);
  return places.map(([x, y]) => [240 + size * (x - middle[0]), 180 - size * (y - middle[1])]);
}

// Curved where it is directed, so that both directions can be seen.
function path(from, to, directed) {
  return directed ? `M${from}Q${bent(from, to)} ${to}` : `M${from}L${to}`;
}

function bent([x, y], [u, v]) {
  return [(x + u) / 2 + (v - y) * BEND, (y + v) / 2 - (u - x) * BEND];
}

// At three quarters of such a curve, towards the receiver.
function arrow(from, to) {
  const middle = bent(from, to);
  const place = from.map((start, i) => (start + 6 * middle[i] + 9 * to[i]) / 16);
  const [dx, dy] = from.map((start, i) => 3 * to[i] - 2 * middle[i] - start);
  const angle = (180 / Math.PI) * Math.atan2(dy, dx);
  return drawn("path", { d: "M-6,-6L8,0L-6,6Z", class: "arrow", transform: `translate(${place}) rotate(${angle})` });
}

// ---------------------------------------------------------------- nodes

// What a node has sent is its share of all messages, since every message of a step has the same size.
function nodes(folder) {
  const { graph: found, tests: measured, lost } = folder;
  const sent = found?.messages && !lost ? found.messages : null;
  const columns = Object.entries(measured?.nodes ?? {}); // title and values
  const first = firstLine(folder);
  if (!columns.length && !sent) return null;
  const total = sent ? sent.reduce((a, b) => a + b, 0) : 0;
  const last = (name) => first?.columns[name]?.at(-1) ?? null;
  const [messages, size] = [last("messages"), last("bytes")];
  if (sent && total && size !== null) columns.push(["messages sent", sent.map((count) => (messages * count) / total)], ["bytes sent", sent.map((count) => (size * count) / total)]);
  const members = measured?.members ?? sent.map((_, i) => i);
  const names = members.map((i) => nodeName(folder, i));
  const title = folder.sites.length ? "Sites" : "Nodes";
  const rows = names.map((name, place) => [name, ...columns.map(([, values]) => values[place])]);
  const which = folder.lines.length > 1 && size !== null ? element("p", { class: "note" }, `Messages and bytes of ${first.title}.`) : null;
  const charts = Object.entries(measured?.nodes ?? {}).map(([what, values]) => bars(values, what, names));
  return section(title, element("div", { class: "charts", style: "margin-bottom: 8px" }, ...charts), table([title.slice(0, -1).toLowerCase(), ...columns.map(([name]) => name)], rows), which);
}

// From 0 to 1, the highest accuracy and R2 that there is; an R2 below 0 has no bar.
function bars(values, title, names) {
  const known = values.filter((value) => value !== null);
  const range = known.length ? `: ${cell(title, Math.min(...known))} to ${cell(title, Math.max(...known))}` : "";
  const width = 480 / values.length;
  const shapes = values.map((value, i) => {
    const height = 120 * Math.min(1, Math.max(0, value ?? 0));
    const place = { x: i * width + width * 0.1, width: width * 0.8 };
    const shape = drawn("g", {}, drawn("rect", { ...place, y: 0, height: 120, class: "target" }), drawn("rect", { ...place, y: 120 - height, height, class: "value" }));
    return hoverable(shape, names[i], `${title} ${number(value, 6)}`);
  });
  return element("figure", { class: "bars" },
    element("figcaption", {}, title + range),
    drawn("svg", { viewBox: "0 0 480 120", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, of each node` }, ...shapes));
}

// Who is here, who is lost, and since when, as the events of the sites say.
function members(folder) {
  return folder.members.length ? section("Who takes part", table(["site", "state", "since", "step", "bytes sent"], folder.members)) : null;
}

// ---------------------------------------------------------------- the timeline

function timeline(folder) {
  const seconds = Object.entries(folder.timing).filter(([name]) => name.endsWith("_seconds")).map(([name, value]) => [name.replace("_seconds", ""), value]);
  const work = seconds.filter(([, value]) => value > 0);
  const parts = [work.length ? workBar(work) : null, folder.trace.length ? trace(folder.trace) : null];
  const events = folder.events.length
    ? element("details", { open: folder.events.length <= 8 }, element("summary", {}, `Log (${folder.events.length} line${folder.events.length > 1 ? "s" : ""})`), element("pre", {}, folder.events.join("\n")))
    : null;
  return parts.some(Boolean) || events ? section("Timeline", ...parts, events) : null;
}

function workBar(work) {
  const total = work.reduce((sum, [, value]) => sum + value, 0);
  let x = 0;
  const spans = work.map(([kind, value]) => {
    const width = (480 * value) / total;
    const shape = drawn("rect", { x, y: 0, width, height: 24, fill: KINDS[kind] ?? "#888888" });
    x += width;
    return hoverable(shape, kind, `${number(value)} s, ${percent(value / total)}`);
  });
  return element("figure", { class: "work" }, drawn("svg", { viewBox: "0 0 480 24", preserveAspectRatio: "none", role: "img", "aria-label": "time by kind of work" }, ...spans), key(work.map(([kind, value]) => [kind, `${kind} ${number(value, 3)} s`])));
}

function key(kinds) {
  return element("div", { class: "key" }, ...kinds.map(([kind, text]) => element("span", {}, element("span", { class: "swatch", style: `background: ${KINDS[kind] ?? "#888888"}` }), text)));
}

// A lane for each process and thread.
function trace(spans) {
  const lanes = [...new Set(spans.map(([, rank, thread]) => `${rank}.${thread}`))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const end = spans.reduce((last, [, , , begin, length]) => Math.max(last, begin + length), 1e-9);
  const shapes = spans.map(([kind, rank, thread, begin, length]) => {
    const y = 22 * lanes.indexOf(`${rank}.${thread}`);
    const shape = drawn("rect", { x: (480 * begin) / end, y, width: Math.max(0.3, (480 * length) / end), height: 18, fill: KINDS[kind] ?? "#888888" });
    return hoverable(shape, `rank ${rank}: ${kind}`, `${number(length)} ms from ${number(begin)} ms`);
  });
  return element("figure", { class: "trace" },
    element("figcaption", {}, `The first ${number(end, 3)} ms, a row for each process`),
    drawn("svg", { viewBox: `0 0 480 ${22 * lanes.length}`, preserveAspectRatio: "none", style: `height: ${26 * lanes.length}px`, role: "img", "aria-label": "timeline of the first steps" }, ...shapes),
    key([...new Set(spans.map(([kind]) => kind))].map((kind) => [kind, kind])));
}

// ---------------------------------------------------------------- tests of the trained model

function tests(folder) {
  const found = folder.tests;
  if (!found) return null;
  const tables = found.tables.map(({ title, columns, rows }) => element("details", {}, element("summary", {}, title), table(columns, rows)));
  return section("Tests of the trained model", found.confusion ? confusion(found.confusion) : null, ...tables);
}

function confusion({ names, counts, rows }) {
  const numbers = names.length <= 16;
  const head = element("tr", {}, element("th", {}, "true \\ predicted"), ...names.map((name) => element("th", {}, numbers ? name : "")));
  const body = counts.map((row, i) => {
    const total = Math.max(1, row.reduce((a, b) => a + b, 0));
    const cells = row.map((count, j) => {
      const share = count / total;
      const shade = `background: color-mix(in srgb, var(--accent) ${Math.round(100 * share)}%, var(--surface)); color: ${share > 0.5 ? "var(--surface)" : "var(--text)"}`;
      const node = element("td", { style: shade }, numbers && count ? String(count) : "");
      return hoverable(node, `true ${names[i]}, predicted ${names[j]}`, `${number(count)} rows, ${percent(share)} of the class`);
    });
    return element("tr", {}, element("th", {}, names[i]), ...cells);
  });
  return element("figure", {},
    element("figcaption", {}, `Confusion matrix of ${number(rows)} test rows`),
    scrolled("matrix", element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
}
