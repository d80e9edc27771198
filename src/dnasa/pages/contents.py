"""What a page shows, read from run folders. Anybody may have written them, so every part is checked."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from dnasa.checks import digits, first_line
from dnasa.comparing import tables
from dnasa.comparing.plots import LABELS, LINEAR, Looks, colors, label, title
from dnasa.comparing.run_table import as_words, data_name
from dnasa.core import InputError
from dnasa.data.columns import MISSING, as_csv
from dnasa.data.encoding import Encoding
from dnasa.files import fits, read_bytes, read_json
from dnasa.runs.folder import RunFolder
from dnasa.runs.names import COLUMNS, node_name
from dnasa.runs.result import is_answer, parse_rows
from dnasa.trained import evaluation, results
from dnasa.trained.evaluation import Evaluation, Part

DEPTH = 3  # folders below the one that was given: studies have folders of folders
AXES = ("step", "epochs", "seconds", "clock_seconds", "messages", "bytes")  # what a curve can be drawn against
DIGITS = 7  # of the numbers in a page
WHOLE = 2**53  # whole numbers below it are exact in a browser
LARGEST_NUMBER = 1e300  # sums of a few smaller numbers do not overflow
INTERVALS = "In brackets: 95 % intervals."
UNITS = (
    "Numbers are in their columns' units, after recoding, or those of 'if missing'; a category or flag is 1 where true, else 0."
)
ROUNDED = "Counts within the training rows are rounded to multiples of {}, the largest so that their sum is right."
SHRUNK = "The weights are shrunk for calibrated risks, so they are not estimates of effects: dnasa fit makes these."
PLAIN = "The weights are for predictions and have no intervals: dnasa fit estimates effects."
DRAWN = "Curves are reconstructed from cells of at least {} rows, of all shown sites together unless they are named."
MOST_EVENTS = 200  # of a log, the last ones
COMPARED = ("eta", "mean", "spread", "low", "high", "runs", "diverged", "difference")  # columns of its table
ENDED = {
    "killed": "The process ended without notice, as by SIGKILL or a power failure: `dnasa resume {}` continues the run.",
    "interrupted": "The run was interrupted: `dnasa resume {}` continues it.",
    "diverged": "Every run diverged: no result can be used. Try a smaller stepsize, or a rule that needs none.",
    "unknown": "status.json does not say how the run ended.",
}


def read(path: Path, threshold: float | None = None) -> dict[str, Any]:
    """Everything that a page shows of the run in a folder, or of all runs that it holds; `threshold` is that of decisions."""
    folders = [_contents(folder, path, threshold) for folder in _run_folders(path)]
    if not folders:
        missing = "run in" if path.is_dir() else "folder"
        raise InputError(f"There is no {missing} {path}: give a run's folder, or one that holds runs.")
    _name_lines(folders)
    columns: dict[str, list[Any]] = {}  # of all runs together
    for line in (line for folder in folders for line in folder["lines"]):
        for name, values in line["columns"].items():
            columns.setdefault(name, []).extend(values)
    first = folders[0] if len(folders) == 1 and folders[0]["tests"] else None
    if first and first["tests"]["binary"]:  # there, its accuracy is that at the threshold
        columns = {name: values for name, values in columns.items() if "accuracy" not in name}
        first["notes"] = [line for line in first["notes"] if "accuracy" not in line]
    metrics = [name for name, values in columns.items() if name not in AXES and any(isinstance(v, float) for v in values)]
    order = [name for name in LABELS if name in metrics] + [name for name in metrics if name not in LABELS]
    return {
        "title": first["tests"]["title"] if first and first["inputs"] else text(path.resolve().name),
        "folders": folders,
        "metrics": [
            {"name": name, "label": LABELS.get(name) or text(name)}
            | {"log": name not in LINEAR if name in LABELS else all(v is None or v > 0 for v in columns[name])}
            for name in order
        ],
        "axes": [axis for axis in AXES if axis in columns],
    }


def _run_folders(path: Path) -> list[Path]:
    """The run folder itself with the stepsizes that were added to it, or those below. Links are not followed."""
    try:
        if (path / "config.json").is_file():
            found = [path, *(part for part in path.glob("extension-*") if (part / "config.json").is_file())]
        else:
            found = [file.parent for depth in range(1, DEPTH + 1) for file in path.glob("*/" * depth + "config.json")]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. Choose another folder.") from error
    return sorted(folder for folder in found if not _is_linked(folder, path))


def _is_linked(folder: Path, root: Path) -> bool:
    part = folder.relative_to(root)
    return any((root / place).is_symlink() for place in (part, *part.parents[:-1]))


def _name_lines(folders: list[dict[str, Any]]) -> None:
    """Give each curve its group in the legend and a color; the first curve of a rule has the rule's color."""
    groups: dict[str, str] = {}
    looks: dict[str, Any] = {}
    for folder in folders:
        looks |= folder.pop("looks")
        for line in folder["lines"]:
            line["group"] = line["name"] if len(folders) == 1 else f"{folder['name']}: {line['name']}"
            groups.setdefault(line["group"], line["rule"])
    rules = list(groups.values())
    keys = [f"{rule}, no. {i}" if rule in rules[:i] else rule for i, rule in enumerate(rules)]
    chosen = colors(keys, looks)
    by_group = {group: chosen[key] for group, key in zip(groups, keys, strict=True)}
    for folder in folders:
        for line in folder["lines"]:
            line["color"] = by_group[line["group"]]


def _contents(path: Path, root: Path, threshold: float | None) -> dict[str, Any]:
    """One run folder below `root`. What cannot be read is a failure that the page reports; the rest is shown."""
    damage: list[str] = []

    def attempt(file: str, read: Callable[[], Any], default: Any) -> Any:
        try:
            return read()
        except InputError as error:
            damage.append(str(error))
        except Exception as error:
            damage.append(f"{path / file} is damaged ({first_line(error)[:80]}).")
        return default

    run: RunFolder = attempt("config.json", lambda: RunFolder(path, resume=True), RunFolder(path))
    sites, looks, options = list(map(text, run.sites)), run.looks, run.options
    lines = attempt("history.csv", lambda: read_history(path / "history.csv", looks), [])
    stored = attempt("settings.json", lambda: result_settings(path), {"work": [], "notes": []})
    settings = attempt("config.json", lambda: shown_settings(run, options), {})
    terms = attempt("model.safetensors", lambda: equation(path, _stored(path, "model.json") or {}), None)
    log = [line[:300] for line in attempt("log.txt", lambda: _log_lines(path), [])[-MOST_EVENTS:]]
    lost = [event[20:] for event in log if event[20:].startswith("Lost ")]
    out = {
        "name": text(path.relative_to(root) if path != root else path.resolve().name),
        "state": run.state,
        "step": max([short(run.step) or 0, *(line["columns"]["step"][-1] for line in lines)]),
        "steps": short(run.settings.get("steps")),
        "source": text(data_name(options)) if options else "",
        "settings": settings,
        "lines": lines,
        "looks": looks,
        "sites": sites,
        "tests": attempt("evaluation.json", lambda: tests(path, sites, threshold, settings, terms), None),
        "inputs": attempt("model.json", lambda: inputs(path), None),
        "comparison": attempt("table.csv", lambda: comparison(path, looks), []),
        **stored,
        "events": log,
        "warnings": attempt("log.txt", lambda: warnings(path), []),
    }
    lost += attempt("runs.csv", lambda: diverged(path, lines, sites), [])
    return out | {"failures": list(map(text, [*ended(run.state, path, log), *lost, *damage]))}


def read_history(file: Path, looks: Looks) -> list[dict[str, Any]]:
    """The runs of a history, each with its name, seed, answer and columns; none before the first evaluation."""
    data = read_bytes(file) if os.path.lexists(file) else b""
    complete = data[: data.rfind(b"\n") + 1].decode()  # of a run under way, the last row may not be
    found: dict[int, dict[str, Any]] = {}
    names: set[tuple[str, Any]] = set()
    shown = ("consensus", *AXES)
    for number, row in enumerate(parse_rows(complete), start=1):
        if None in row or not all(type(row.get(name)) is int and abs(row[name]) < WHOLE for name in ("run", "step")):
            raise ValueError(f"row {number} is not an evaluation")
        run, seed = row["run"], short(row.get("seed"))
        if run not in found:
            eta = float(row["eta"]) if isinstance(row.get("eta"), int) else row.get("eta")
            variant = row.get("rule"), row.get("schedule"), eta
            numbered = (text(label(*variant, i, looks)) for i in count(1))  # runs with the same name are numbered
            name = next(name for name in numbered if (name, seed) not in names)
            names.add((name, seed))
            own = {"run": run, "name": name, "seed": seed, "rule": str(row.get("rule"))}
            found[run] = own | {"answer": {}, "columns": {}}
        values = {name: short(value) for name, value in row.items() if name in shown or name not in COLUMNS}
        for name, value in values.items():
            found[run]["columns"].setdefault(name, []).append(value)
        if is_answer(row):
            found[run]["answer"] = values
    return list(found.values())


def shown_settings(run: RunFolder, options: Mapping[str, Any]) -> dict[str, str]:
    """The options that were given, files without their folders, and in any case the model, its parameters, batch and seed."""
    always = {"model": (_stored(run.path, "model.json") or {}).get("model"), "seed": options.get("seed")}
    always |= {name: run.settings.get(name) for name in ("parameters", "batch")}
    always |= {"dnasa": run.config.get("versions", {}).get("dnasa"), "begun": next(iter(_log_lines(run.path)), "")[:16] or None}
    shown = {name.replace("_", "-"): value for name, value in options.items() if value not in (None, False, [])}
    shown |= {name: value for name, value in always.items() if value is not None}
    return {text(name): text(re.sub("(^|, )/[^,]*/", r"\1", str(as_words(value)))) for name, value in shown.items()}


def result_settings(path: Path) -> dict[str, Any]:
    """`settings.json`, written at the end: seconds by kind of work, and sentences."""
    stored = _stored(path, "settings.json") or {}
    timing = stored.get("timing", {})
    _check(fits(timing, {}) and all(map(is_number, timing.values())))
    kinds = [name for name in timing if name.endswith("_seconds")]
    work = [[text(name.removesuffix("_seconds")), short(timing[name])] for name in kinds]
    return {"work": work, "notes": tables.notes(stored)}


def tests(path: Path, sites: Sequence[str], threshold: float | None, settings: Any, terms: Any) -> dict[str, Any] | None:
    """What the trained model did on the test rows, and at each site; `terms` are those of a linear model."""
    if (found := evaluation.read(path)) is None:
        return None
    numbers, cohort = results.numbers(found, sites, threshold), _cohort(path, found)
    notes = {"Each class": [INTERVALS], "Training rows": [], "Confusion matrix": []}
    remarks = [INTERVALS, *results.remarks(found, sites)]
    shown = [table(title, of, notes.get(title, remarks)) for title, of in results.tables(found, sites, threshold)]
    if terms is not None:
        shown.append(_model(terms, found, settings))
        long = terms.reset_index(names="measure").melt("measure", var_name="group")
        numbers = pd.concat([numbers, long.dropna().assign(table="model")])
    training = cohort["rows"][0][-1] if cohort else f"{sum(found.training):,}" if found.training else ""
    return {
        "title": text(f"Prediction of {found.target}"),
        "abstract": text(results.abstract(found, numbers, settings.get("model", ""), training)),
        "binary": len(found.names) == 2,
        "tables": shown + [cohort] * bool(cohort),
        "csv": as_csv(numbers),
        "curves": [_curve(*curve) for curve in results.curves(found, sites)],
        "drawn": DRAWN.format(found.min_count) if found.parts and not found.common else "",
    }


def equation(folder: Path, about: Mapping[str, Any]) -> pd.DataFrame | None:
    """The terms of a linear model in the columns' units: of the prediction, or of the log odds of each class against the first.

    Also what missing numbers count as. None for other models; `about` is model.json.
    """
    from safetensors.numpy import load

    if about.get("model") != "linear" or not (encoding := Encoding.from_json(about["encoding"])).features:
        return None
    scale, mean = np.array(encoding.scale), np.array(encoding.mean)
    stored = load(read_bytes(folder / "model.safetensors"))
    outputs = np.vstack([stored["0.bias"] - stored["0.weight"] @ (mean / scale), stored["0.weight"].T / scale[:, None]])
    outputs = outputs[:, 1:] - outputs[:, :1] if encoding.classes else outputs
    outputs = encoding.target_values(outputs) - np.vstack([0 * outputs[:1], encoding.target_values(0 * outputs[1:])])
    terms = pd.DataFrame(outputs, columns=[f"log odds of {name}" for name in encoding.classes[1:]] or ["coefficient"])
    numbers = {one.name for one in encoding.features if one.kind == "number"}
    terms["if missing"] = [np.nan, *(m if name in numbers else np.nan for name, m in zip(encoding.inputs, mean, strict=True))]
    return terms.set_axis(["intercept", *(name.replace("=", ": ", 1) for name in encoding.inputs)])


def _model(terms: pd.DataFrame, found: Evaluation, settings: Mapping[str, str]) -> dict[str, Any]:
    """The equation of a linear model, and how to use it."""
    first, *others = map(str, found.names)
    odds = f"s, the log odds against {first}; the risk is"
    what = ["the prediction", f"{odds} 1 / (1 + exp(-s))", f"{odds} in proportion to exp(s), and s = 0 for {first}"]
    use = f"The intercept plus each coefficient times its number is {what[min(len(others), 2)]}."
    cells = terms.map(lambda x: "-" if np.isnan(x) else digits(x, 5)).reset_index(names="input")
    return table("Model", cells, [use, UNITS, SHRUNK if len(others) == 1 and "epsilon" not in settings else PLAIN])


def _cohort(path: Path, found: Evaluation) -> dict[str, Any] | None:
    """What sites told of their training rows, and the classes of their test rows, withheld where the tests are."""
    if not (path / "cohort.csv").is_file():
        return None
    cohort = pd.read_csv(BytesIO(read_bytes(path / "cohort.csv")), dtype=str).rename(columns={"Unnamed: 0": ""})
    lines, classes = [], found.names[len(found.names) == 2 :] if found.task == "classification" else []
    for c, name in enumerate(classes if found.sites and found.common is None else ()):
        counts = [sum(cell[1] for cell in part.scores[c][1]) if isinstance(part, Part) else np.nan for part in found.sites]
        cells = ["withheld" if np.isnan(n) else f"{n:,}" for n in (*counts, sum(counts))]
        lines.append([f"test rows, {found.target}: {name}", *cells])
    shown = pd.concat([cohort[:2], pd.DataFrame(lines, columns=cohort.columns), cohort[2:]])
    return table("Cohort", shown, [ROUNDED.format(found.min_count)])


def _curve(title: str, x: str, y: str, lines: list[Any], bars: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A curve with the least and largest x and y, ticks, and the points of its lines as SVG has them."""
    each = [np.concatenate([line[k] for line in lines] + [bar[k:] for bar in bars if k == 2]) for k in (1, 2)]
    ends = [float(end) for values in each for end in (min(0, values.min()), 1.04 * values.max() + 1e-9)]  # a margin above
    drawn = [[name, " ".join(f"{a:.4g},{b:.4g}" for a, b in zip(xs, ys, strict=True))] for name, xs, ys in lines]
    drawn_bars = [f"M{a:.4g},{low:.4g}V{high:.4g}" for a, low, high in bars]
    ticks = [round_numbers(*ends[:2]), round_numbers(*ends[2:])]
    return {"title": title, "x": x, "y": y, "ends": ends, "ticks": ticks, "lines": drawn, "bars": "".join(drawn_bars)}


def round_numbers(low: float, high: float) -> list[float]:
    """Three to six multiples of 1, 2 or 5 times a power of ten."""
    unit = 10 ** np.floor(np.log10((high - low) / 3))
    step = unit * max(k for k in (1, 2, 5) if 3 * k * unit <= high - low)
    return [float(f"{k * step:.4g}") for k in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)]


def inputs(path: Path) -> dict[str, Any] | None:
    """The columns that the model uses, and what becomes of missing values."""
    stored = _stored(path, "model.json")
    features = () if stored is None else Encoding.from_json(stored["encoding"]).features
    rows = []
    for one in features:
        filled = "none in training" if one.fill is None else f"the training mean {digits(one.fill, 4)} and a flag"
        words = "a category" if MISSING in one.categories else "all categories 0"
        rows.append([text(one.name), one.kind, len(one.categories) or None, filled if one.kind == "number" else words])
    return {"columns": ["column", "kind", "categories", "missing values become"], "rows": rows} if rows else None


def table(title: str, frame: pd.DataFrame, notes: Sequence[str] = ()) -> dict[str, Any]:
    columns, rows = list(map(text, frame)), [list(map(text, row)) for row in frame.to_numpy()]
    return {"title": text(title), "columns": columns, "rows": rows, "notes": [text(note, 3000) for note in notes]}


def comparison(path: Path, looks: Looks) -> list[list[Any]]:
    """The methods of `dnasa compare` or of a study's cell, with the chosen stepsize of each and its results."""
    rows = _rows(path / "table.csv")
    return [
        [text(title(str(row["rule"]), looks)), text(row.get("schedule")), *(short(row[name]) for name in COMPARED)]
        for row in rows
    ]


def warnings(path: Path) -> list[str]:
    found = dict.fromkeys(line[29:] for line in _log_lines(path) if line[19:29] == " Warning: ")
    return [text(line) for line in found][:MOST_EVENTS]


def _log_lines(path: Path) -> list[str]:
    file = path / "log.txt"
    return read_bytes(file).decode(errors="replace").splitlines() if file.is_file() else []


def ended(state: str, path: Path, events: list[str]) -> list[str]:
    """Why there is no complete result, and what to do."""
    if state == "failed":
        reasons = [event for event in events if " Failed at step " in event]
        return [f"The run failed. {reasons[-1][20:] if reasons else 'log.txt does not say why.'}"]
    return [ENDED[state].format(path)] if state in ENDED else []


def diverged(path: Path, lines: list[dict[str, Any]], sites: Sequence[str]) -> list[str]:
    """Runs that diverged, with step and node, once the run has ended and `runs.csv` says so."""
    names = {line["run"]: f"{line['name']}, seed {line['seed']}" for line in lines}
    out = []
    for row in _rows(path / "runs.csv"):
        step, node = row["diverged"], row["diverged_node"]
        if is_number(step):
            where = f" at {node_name(sites, int(node))}" if is_number(node) else ""
            out.append(f"{names[row['run']]}, diverged at step {step:.0f}{where}.")
    return out


def text(value: Any, most: int = 300) -> str:
    """Shorten text for a page, and remove characters that cannot be encoded."""
    return " ".join(f"{value!s:.{most}}".split()).encode(errors="replace").decode()


def short(value: Any) -> Any:
    """Round a number to a few digits for a page; None where there is none."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a number is finite in a browser, whose whole numbers overflow too."""
    return type(value) in (int, float) and abs(value) < LARGEST_NUMBER


def _stored(path: Path, name: str) -> dict[str, Any] | None:
    file = path / name
    return read_json(file, name) if file.is_file() else None


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = parse_rows(read_bytes(file).decode()) if file.is_file() else []
    _check(bool(rows) or not file.is_file())
    return rows


def _check(fitting: bool) -> None:
    if not fitting:
        raise ValueError("it does not have the form that dnasa writes")
