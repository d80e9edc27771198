// The page: reads the contents, shows them and, where it is served, asks for what is new.

const FAST = 1000, SLOW = 5000; // milliseconds between requests, while a run is under way and when none is
const page = document.getElementById("page");
const state = { contents: null, folders: new Map(), lines: new Map(), chosen: null };
const charts = new Charts();
const parts = { head: element("header"), overview: element("div"), details: element("div"), error: element("p", { class: "error", hidden: "" }) };

// ---------------------------------------------------------------- contents

// New rows are appended; a history that was rewritten replaces the one before.
function take(contents) {
  state.contents = contents;
  bare(contents.colours);
  const names = new Set(contents.folders.map((folder) => folder.name));
  for (const name of state.folders.keys()) if (!names.has(name)) state.folders.delete(name);
  for (const [id, line] of state.lines) if (!names.has(line.folder)) state.lines.delete(id);
  for (const folder of contents.folders) {
    [folder.settings, folder.timing, folder.columns].forEach(bare);
    state.folders.set(folder.name, folder);
    for (const line of folder.lines) lineOf(contents, folder, line, folder.first === 0);
    const { columns } = folder;
    (columns.run ?? []).forEach((number, row) => {
      const into = state.lines.get(`${folder.name}/${number}`).columns;
      for (const name in columns) (into[name] ??= []).push(columns[name][row]);
    });
  }
}

// Names that a run folder gives, such as "constructor", must not find what every object inherits.
function bare(object = {}) {
  return Object.setPrototypeOf(object, null);
}

function lineOf(contents, folder, { run, name, seed, answer }, anew) {
  const id = `${folder.name}/${run}`;
  const group = contents.folders.length === 1 ? name : `${folder.name}: ${name}`;
  const line = state.lines.get(id) ?? { folder: folder.name, run, seed, shown: true };
  Object.assign(line, { name, group, answer: bare(answer), title: `${group}, seed ${seed}`, colour: contents.colours[group] ?? "#888888" });
  if (anew || !line.columns) line.columns = bare();
  state.lines.set(id, line);
}

function firstLine(folder) {
  return folder.lines.length ? state.lines.get(`${folder.name}/${folder.lines[0].run}`) : null;
}

// ---------------------------------------------------------------- view

function show() {
  const { contents } = state;
  document.title = `${contents.title} – dnasa`;
  const folder = state.folders.get(state.chosen) ?? contents.folders[0];
  if (!folder) return wait(contents);
  state.chosen = folder.name;
  parts.head.replaceChildren(element("h1", {}, contents.title), ...summary(contents, folder));
  charts.set(contents.metrics, contents.axes, Array.from(state.lines.values()));
  charts.node.hidden = state.lines.size === 0;
  keepPlaces(parts.overview, () => overview(contents));
  keepPlaces(parts.details, () => [choice(contents), ...details(folder)]);
}

function wait(contents) {
  const line = element("p", { role: "status" }, badge("waiting"), " There is no run in this folder yet. It is shown here when it begins.");
  parts.head.replaceChildren(element("h1", {}, contents.title), line);
  [parts.overview, parts.details].forEach((part) => part.replaceChildren());
  charts.node.hidden = true;
}

// Updates leave alone what a reader has opened or scrolled.
function keepPlaces(host, make) {
  const content = make().filter(Boolean);
  const before = { open: Array.from(host.querySelectorAll("details"), (one) => one.open), scrolls: Array.from(host.querySelectorAll(".scroll"), (one) => one.scrollTop) };
  const known = host.hasChildNodes();
  host.replaceChildren(...content);
  if (!known) return;
  host.querySelectorAll("details").forEach((one, i) => before.open[i] !== undefined && (one.open = before.open[i]));
  host.querySelectorAll(".scroll").forEach((one, i) => (one.scrollTop = before.scrolls[i] ?? 0));
}

function badge(name) {
  return element("span", { class: `badge ${name}` }, name);
}

function summary(contents, folder) {
  if (contents.folders.length > 1) {
    const counts = contents.folders.reduce((all, one) => ({ ...all, [one.state]: (all[one.state] ?? 0) + 1 }), {});
    return [element("p", {}, `${contents.folders.length} runs: `, ...Object.entries(counts).flatMap(([name, count]) => [`${count} `, badge(name), " "]))];
  }
  return [element("p", {}, badge(folder.state), ` step ${progress(folder)}${folder.source ? `, ${folder.source}` : ""}`)];
}

function progress(folder) {
  return folder.steps === null ? number(folder.step) : `${number(folder.step)} of ${number(folder.steps)}`;
}

function overview(contents) {
  return [listed("What failed", "failures", contents.folders), listed("Warnings", "warnings", contents.folders), contents.folders.length > 1 ? runs(contents) : null, comparison(contents), results(contents)];
}

// One row for each folder, with the settings in which they differ.
function runs(contents) {
  const names = [...new Set(contents.folders.flatMap((folder) => Object.keys(folder.settings)))];
  const differ = names.filter((name) => new Set(contents.folders.map((folder) => folder.settings[name])).size > 1);
  const rows = contents.folders.map((folder) => [folder.name, badge(folder.state), progress(folder), ...differ.map((name) => folder.settings[name] ?? null)]);
  const select = (i) => { choose(contents.folders[i].name); parts.details.scrollIntoView({ behavior: "smooth" }); };
  return section("Runs", table(["run", "state", "step", ...differ], rows, select), element("p", { class: "note" }, "The settings shown are those in which the runs differ. A name shows that run's details."));
}

// Each method with its chosen stepsize.
function comparison(contents) {
  const several = contents.folders.length > 1;
  const rows = contents.folders.flatMap((folder) => folder.comparison.map((row) => (several ? [folder.name, ...row] : row)));
  const columns = ["method", "schedule", "chosen eta", "mean", "standard deviation", "lowest seed", "highest seed", "seeds", "diverged", "difference to the best"];
  const note = element("p", { class: "note" }, "Of the metric that was compared. Stepsizes are chosen on validation rows, where there are any.");
  return rows.length ? section("Comparison", table(several ? ["run", ...columns] : columns, rows), note) : null;
}

function results(contents) {
  const names = ["step", ...contents.metrics.map((metric) => metric.name)];
  const rows = Array.from(state.lines.values(), (line) => [line.group, line.seed, ...names.map((name) => line.answer[name] ?? null)]);
  const several = contents.folders.length > 1;
  const baselines = contents.folders.flatMap(({ name, baseline }) => baseline.map((line) => (several ? `${name}: ${line}` : line)));
  const kept = "Of the last evaluation or, with early stopping, of the model that was kept.";
  const notes = [kept, ...baselines].map((line) => element("p", { class: "note" }, line));
  return rows.length ? section("Results", table(["run", "seed", "step", ...contents.metrics.map((metric) => metric.label)], rows), ...notes) : null;
}

function choice(contents) {
  if (contents.folders.length === 1) return null;
  const select = element("select", { "aria-label": "run", onchange: () => choose(select.value) }, ...contents.folders.map(({ name }) => element("option", { value: name, selected: name === state.chosen }, name)));
  return element("h2", { class: "chosen" }, "Details of ", select);
}

function choose(name) {
  state.chosen = name;
  show();
}

// ---------------------------------------------------------------- updates

async function poll() {
  try {
    const since = Object.fromEntries(Array.from(state.folders.values(), (folder) => [folder.name, folder.count]));
    const token = new URLSearchParams(location.search).get("token");
    const answer = await fetch(`contents?${new URLSearchParams({ token, since: JSON.stringify(since) })}`);
    if (!answer.ok) throw new Error(await answer.text());
    const before = JSON.stringify([...state.folders.values()].map(({ columns, first, ...rest }) => rest));
    take(await answer.json());
    if (before !== JSON.stringify([...state.folders.values()].map(({ columns, first, ...rest }) => rest))) show();
    parts.error.hidden = true;
  } catch (error) {
    parts.error.textContent = `No update: ${error.message}. Is \`dnasa watch\` still running?`;
    parts.error.hidden = false;
  }
  const folders = [...state.folders.values()];
  const busy = !folders.length || folders.some((folder) => folder.state === "running");
  setTimeout(poll, busy ? FAST : SLOW);
}

const { live, ...contents } = JSON.parse(document.getElementById("contents").textContent);
page.append(parts.head, parts.error, parts.overview, charts.node, parts.details);
take(contents);
show();
if (live) setTimeout(poll, FAST);
document.documentElement.dataset.ready = "";
