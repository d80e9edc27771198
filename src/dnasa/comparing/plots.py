"""The parts of figures, and histories, all in the current style (`dnasa.comparing.style`)."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, product
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.arrays import crc32
from dnasa.comparing import statistics
from dnasa.comparing.style import DASHES, MARKERS, NETWORK_COLORS, NETWORK_DASHES, NETWORKS, OWN_COLORS, OWN_MARKERS, current
from dnasa.core import InputError
from dnasa.extras import needed_by
from dnasa.files import write_output
from dnasa.problems.metrics import in_percent
from dnasa.rules.registry import BUILT_IN, COMPARED, CUSTOM, RULES, Look, look
from dnasa.runs.names import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["draw_history", "panels", "save_figure"]

LABELS = {
    "train_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "test_rmse": "test RMSE",
    "test_r2": "test R²",
    "grad_norm": "gradient norm at the mean iterate",
    "consensus": "consensus error",
    "stationarity": "stationarity",
    "tracking": "tracking error",
}
SYMBOLS = {"grad_norm": r"$\Vert\nabla f(\bar{x})\Vert$"}  # on axes; tables and pages have the words
LINEAR = {"test_accuracy", "validation_accuracy", "test_r2"}
SMALLEST, LARGEST = 1e-100, 1e100  # matplotlib's scales overflow near the limits of float64
PLAIN = 1e-3, 1e5  # limits of a logarithmic axis that need no powers of ten
TICKS = [1, 2, 5, 10]  # first digits of the distance between ticks
NARROW = 2  # inches, below which a horizontal axis has fewer ticks
HISTORY = ("test_loss", "train_loss", "test_accuracy", "test_rmse", "grad_norm", "consensus")
MAX_PANELS = 8  # of a history
DIVERGED, OFF = ABOVE = "diverged", "off axis"  # what markers above an axis mean
SOLID = {*"osD^vP<>dXph"}  # markers
HANDLE = 8  # letters that a line in a legend takes
MAX_LEGEND = 12  # lines, beyond which there are no bands and markers either

Looks = Mapping[str, Look]  # of rules that may not be registered here, as a run folder has stored them
NONE: Looks = {}


def look_of(rule: str, stored: Looks = NONE) -> Look:
    """The registered or stored look of a rule; rules without a name are "custom rule 1", "custom rule 2", ..."""
    kind, _, number = rule.partition(" ")
    unnamed = Look(f"custom rule {number}".rstrip() if kind == CUSTOM else rule)
    return look(rule) or stored.get(rule, unnamed)


def title(rule: str, stored: Looks = NONE) -> str:
    return look_of(rule, stored).title


def label(rule: Any, schedule: Any = None, eta: Any = None, number: int = 1, stored: Looks = NONE) -> str:
    """What distinguishes a variant; of rules without a stepsize, the schedule only where it is not the default."""
    name, _, default = look_of(str(rule), stored)
    if isinstance(schedule, str) and schedule not in (default, CUSTOM):
        name += f" ({schedule})"
    if isinstance(eta, float) and np.isfinite(eta):
        name += f", eta = {eta:.3g}"
    return name if number == 1 else f"{name}, no. {number}"


def short_labels(variants: Sequence[Sequence[Any]]) -> list[str]:
    """Labels without stepsizes, and without the schedule if all rules with a stepsize have it; where that is enough."""
    common = {*common_schedules(variants)}
    short = [label(rule, None if {schedule} == common else schedule) for rule, schedule, *_ in variants]
    return short if len({*short}) == len(short) else [label(*variant) for variant in variants]


def common_schedules(variants: Iterable[Sequence[Any]]) -> list[str]:
    """The schedules of the rules that need a stepsize."""
    found = dict.fromkeys(schedule for rule, schedule, *_ in variants if look_of(str(rule)).schedule is None)
    return [name for name in found if isinstance(name, str) and name != CUSTOM]


def names_of(variants: Sequence[Sequence[Any]]) -> list[str]:
    """The label of each line; in print without the schedule that all have."""
    names = short_labels(variants) if current().printed else [label(*variant) for variant in variants]
    return [name.replace("eta =", r"$\eta$ =") for name in names]


def axis_name(metric: str) -> str:
    return SYMBOLS.get(metric) or LABELS.get(metric) or metric.replace("_", " ")


def colors(rules: Iterable[str], stored: Looks = NONE) -> dict[str, str]:
    """The color of each rule, always the same.

    One that is not built in has its registered or stored color, if no built-in rule has it, or one that goes with its name.
    """
    names = list(dict.fromkeys(rules))
    known, own = {RULES[name].color for name in BUILT_IN}, _own_numbers(names)
    chosen = {}
    for name in names:
        color = (look_of(name, stored).color or "").lower()
        if name in own and (color in known or not re.fullmatch("#[0-9a-f]{6}", color)):
            color = OWN_COLORS[own[name] % len(OWN_COLORS)]
        chosen[name] = color
    return chosen


def _own_numbers(rules: Iterable[str]) -> dict[str, int]:
    return _numbers({*rules} - BUILT_IN, len(OWN_COLORS))


def _numbers(names: Iterable[str], looks: int, known: Sequence[str] = ()) -> dict[str, int]:
    """A number for the look of each name: its place among the known ones, or that of its hash, or the next that is free.

    Numbers beyond those of the looks are used once all are taken. What is combined with "+" comes last.
    """
    wanted = {*names}
    numbers = {name: known.index(name) for name in known if name in wanted}
    for name in sorted(wanted - {*known}, key=lambda name: ("+" in name, name)):
        first = crc32(name.encode()) % looks
        places = ((first + i) % looks + i // looks * looks for i in count())
        numbers[name] = next(place for place in places if place not in numbers.values())
    return numbers


def network_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Name in the legend, color, dash and marker of each network, always the same unless another has them."""
    looks, size = {}, len(NETWORK_COLORS)
    for name, number in _numbers(names, size, NETWORKS).items():
        turn = number + number // size
        look = {
            "color": NETWORK_COLORS[number % size],
            "linestyle": NETWORK_DASHES[turn % size],
            "marker": MARKERS[turn % size],
        }
        looks[name] = {"label": name} | look
    return looks


def styles(rules: Sequence[str]) -> list[dict[str, Any]]:
    """Color, dash and marker of each line, always those of its rule; further lines of a rule have others that are free."""
    chosen, numbers = colors(rules), _own_numbers(rules)
    built_in = [name for name in dict.fromkeys([*reversed(COMPARED), *RULES]) if name in BUILT_IN]
    pairs: dict[int, tuple[Any, Any]] = {}
    for i in sorted(range(len(rules)), key=lambda i: rules[i] in rules[:i]):
        number, markers = (numbers[rules[i]], OWN_MARKERS) if rules[i] in numbers else (built_in.index(rules[i]), MARKERS)
        shift = markers is MARKERS and 10 <= number < 18  # light greys have other dashes
        turn = number + number // len(DASHES) * (markers is OWN_MARKERS)  # other markers with the same dashes
        pair = DASHES[(number + shift) % len(DASHES)], markers[turn % len(markers)]
        dashes, used = ([*column] for column in zip(*pairs.values(), strict=True)) if pairs else ([], [])
        if pair in pairs.values():
            free = [each for each in product(DASHES, markers) if each not in pairs.values()]
            order = [(used.count(mark), dash == pair[0], dashes.count(dash)) for dash, mark in free]
            pair = free[order.index(min(order))] if free else pair
        pairs[i] = pair
    return [{"color": chosen[rule], "linestyle": pairs[i][0], "marker": pairs[i][1]} for i, rule in enumerate(rules)]


def panels(columns: int, rows: int = 1, width: float = 4.6, height: float = 3.4) -> "tuple[Figure, np.ndarray]":
    """A figure in the current style and its axes as a two-dimensional array; the user's own style is not changed.

    Args:
        columns: The number of panels in a row.
        rows: The number of rows.
        width: The width of a panel on a screen, in inches; in print, the figure has the width of the style.
        height: The height of a panel on a screen, in inches.
    """
    with needed_by("A figure"):
        from matplotlib.figure import Figure

    chosen = current()
    with chosen.applied():
        figure = Figure(figsize=chosen.size(columns, rows, width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)


def panel_list(wanted: int, columns: int, width: float = 4.6, height: float = 3.4) -> "tuple[Figure, list[Axes]]":
    """A figure with this many panels, at least one, in rows of at most so many columns as the style has room for."""
    wanted = max(1, wanted)
    return panel_rows([wanted], min(current().columns(columns), wanted), width, height)


def panel_rows(groups: Sequence[int], columns: int, width: float = 4.6, height: float = 3.4) -> "tuple[Figure, list[Axes]]":
    """A figure with so many panels in each group; groups begin rows."""
    wanted = [i < size for size in groups for i in range(size + -size % columns)]
    figure, axes = panels(columns, len(wanted) // columns, width, height)
    for axis, is_wanted in zip(axes.flat, wanted, strict=True):
        if not is_wanted:
            axis.remove()
    return figure, figure.axes


def finish(axis: "Axes", x: str, y: str, log: bool = False) -> None:
    """Set labels, scales and ticks; accuracies are in percent, and a logarithmic scale needs something positive."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    percent = in_percent(y)
    axis.set(xlabel=x, ylabel=f"{y} (%)" if percent else y)
    if percent:
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.5g}")
    if axis.get_xscale() == "linear":
        if axis.get_xlim()[1] >= 10_000:  # 20k, 100M
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        narrow = axis.get_window_extent().width < NARROW * axis.figure.dpi
        axis.xaxis.set_major_locator(MaxNLocator(3 if narrow else 5, steps=TICKS, min_n_ticks=3))
    with np.errstate(invalid="ignore"):
        positive = any((np.asarray(line.get_ydata(), dtype=float) > 0).any() for line in axis.get_lines())
    if log and positive:
        axis.set_yscale("log", nonpositive="mask")  # a zero would be a vertical line to the lower edge
    name_ticks(axis)


def name_ticks(axis: "Axes") -> None:
    """At least three ticks on a linear vertical axis; names of those of a logarithmic one."""
    from matplotlib.ticker import MaxNLocator

    if axis.get_yscale() == "log":
        return name_decades(axis.yaxis)
    axis.yaxis.set_major_locator(MaxNLocator("auto", steps=TICKS, min_n_ticks=3))


def name_decades(axis: Any) -> None:
    """Name the ticks of a logarithmic x or y axis 0.1, 0.2, 0.5, 1, ... where it has few decades, else by powers of ten."""
    from matplotlib.ticker import LogFormatterMathtext

    power = LogFormatterMathtext()

    def name(value: float, _: Any) -> str:
        low, high = sorted(axis.get_view_interval())
        digit = f"{value:e}"[0]
        if PLAIN[0] <= low and high <= PLAIN[1] and high < (1000 if axis.axis_name == "y" else 50) * low:
            return f"{value:g}" if digit in ("125" if high < 50 * low else "15") or high < 5 * low else ""
        return power(value) if digit == "1" else ""

    axis.set_major_formatter(name)
    axis.set_minor_formatter(name)


def legend_below(figure: "Figure", order: Sequence[str] = ()) -> None:
    """One legend for all panels, outside of them, where it hides no line, in as many columns as the figure has room for."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    handles = {name: handles[name] for name in dict.fromkeys([*order, *handles]) if name in handles}
    if not handles:
        return
    room = int(72 * figure.get_figwidth() / (0.9 * current().font)) - HANDLE
    names = [fill(name, max(room, ceil(0.6 * len(name)))) for name in handles]  # at most two lines
    for rows in range(1, len(names) + 1):
        words: Any = {"fontsize": current().font, "ncols": ceil(len(names) / rows)}
        legend = figure.legend(handles.values(), names, loc="outside lower center", **words)
        box = legend.get_window_extent()
        if rows == len(names) or box.width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def drawable(values: Any) -> Any:
    """A pandas object without what an axis cannot show: infinite and huge values are missing, tiny ones are zero."""
    size = values.abs()
    return values.where(size <= LARGEST).mask(size < SMALLEST, 0.0)


def shown(table: "pd.DataFrame") -> "pd.DataFrame":
    """A frame of `statistics` with only what an axis can show."""
    return table.assign(**drawable(table[["mean", "low", "high"]].astype(float)))


def draw_curve(
    axis: "Axes", rows: "pd.DataFrame", x: str, label: str, band: bool = True, shift: float = 0.0, **style: Any
) -> None:
    """The mean over the seeds against column `x`, and the band between the smallest and the largest.

    The curve ends where the first run diverged, since the mean of the others would be too good. `rows` are of
    `shown(statistics.curves())`; the markers are shifted by a part of their distance, so that those of curves differ.
    """
    mean = rows["mean"]
    distance = max(1, int(mean.count()) // current().marked)
    markers: Any = {"ms": size_of(style.get("marker")), "markevery": (int(shift * distance), distance)}
    (line,) = axis.plot(rows[x], mean, label=label, **markers, **style)
    if band and rows.runs.max() > 1 and mean.count() > 1:
        axis.fill_between(rows[x], rows.low, rows.high, color=line.get_color(), alpha=0.15, linewidth=0)
    if rows.diverged.any() and mean.notna().any():
        mark_above(axis, rows[x][mean.notna()].tail(1), line, DIVERGED)


def size_of(marker: Any) -> float:
    """The size of a marker in points; stars and those of lines alone are larger, since they cover less."""
    return current().marker * (1 if marker in SOLID else 1.5)


def mark_above(axis: "Axes", places: Any, line: "Line2D", kind: str, **style: Any) -> None:
    """Draw a line's marker above the axis, in a row of its own; those of a kind are drawn one after another."""
    from matplotlib.transforms import ScaledTranslation

    marker = line.get_marker() or "x"
    look: Any = {"marker": marker, "ms": 1.3 * size_of(marker), "color": line.get_color(), "linestyle": ""}
    (mark,) = axis.plot(places, [1.0] * len(places), label=f"_{kind}", clip_on=False, **look | style)
    height = rows_above(axis)[-1][1]
    mark.set_transform(axis.get_xaxis_transform() + ScaledTranslation(0, height / 72, axis.figure.dpi_scale_trans))
    axis.update_datalim([(x, 1) for x in places], updatey=False)


def rows_above(axis: "Axes") -> list[tuple[str, float]]:
    """The kind of each row of markers above the axis, and its height in points; kinds are half a row apart.

    Their names are above that of the uppermost tick.
    """
    kinds = [label[1:] for line in axis.get_lines() if (label := str(line.get_label()))[1:] in ABOVE]
    places = [i + 0.5 + 0.5 * len({*kinds[:i], kind}) for i, kind in enumerate(kinds)]
    return [(kind, 0.6 * current().font + 1.75 * current().marker * place) for kind, place in zip(kinds, places, strict=True)]


def draw_history(history: "pd.DataFrame") -> "Figure":
    """Loss, accuracy, gradient norm, consensus and own metrics against steps: mean and range over the seeds of a variant.

    Args:
        history: The history of a `Result`.
    """
    metrics = [] if history.empty else _metrics(history)
    figure, axes = panel_list(len(metrics), max(2, ceil(len(metrics) / 2)))
    if not metrics:
        return figure
    rows = statistics.labeled(history)
    runs = rows.groupby([*statistics.VARIANT, "seed"], dropna=False).run
    rows = rows.assign(number=runs.rank("dense").astype(int))  # tells runs with the same label apart
    few = len(rows[[*statistics.VARIANT, "number"]].drop_duplicates()) <= MAX_LEGEND
    for axis, metric in zip(axes, metrics, strict=True):
        _draw_metric(axis, rows, metric, few)
    if few:
        legend_below(figure)
    return figure


def _draw_metric(axis: "Axes", rows: "pd.DataFrame", metric: str, few: bool) -> None:
    """A panel of a history; many lines have no bands and markers."""
    keys = [*statistics.VARIANT, "number"]
    after_start = rows[rows.step > 0] if metric == "consensus" else rows  # which begins with 0
    lines = list(shown(statistics.curves(after_start, metric, keys=keys)).groupby(keys, sort=False, dropna=False))
    variants = [variant for variant, _ in lines]
    looks = styles([str(rule) for rule, *_ in variants])
    for i, (name, line_style, (_, points)) in enumerate(zip(names_of(variants), looks, lines, strict=True)):
        shift = (i + 0.5) / len(lines)
        draw_curve(axis, points, "step", name, few, shift, **(line_style if few else line_style | {"marker": ""}))
    log = metric not in LINEAR if metric in LABELS else not (rows[metric] <= 0).any()
    finish(axis, "step", axis_name(metric), log)


def _metrics(history: "pd.DataFrame") -> list[str]:
    """The metrics with panels: of the losses, that of the test rows where there is one."""
    known = [name for name in HISTORY if name in history and (name != "train_loss" or "test_loss" not in history)]
    extra = [name for name in history if name not in LABELS and name not in COLUMNS and history[name].dtype.kind == "f"]
    return [*known, *extra][:MAX_PANELS]


def rendered(figure: "Figure", kind: str) -> bytes:
    """The figure as the content of a file: png, pdf, svg, ..."""
    data = io.BytesIO()
    with current().applied():
        figure.savefig(data, format=kind)
    return data.getvalue()


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write the figure; the file is complete or absent. Returns its path.

    Args:
        figure: The figure.
        path: The file; its suffix is the format, such as .png, .pdf or .svg.
    """
    target = Path(path)
    kind = target.suffix.lstrip(".")
    known: Iterable[str] = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InputError(f"Cannot draw a '{target.suffix}' file. Choose from: .{', .'.join(sorted(known))}.")
    write_output(target, rendered(figure, kind))
    return target
