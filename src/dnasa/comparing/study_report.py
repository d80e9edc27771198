"""What a study ends in: one figure with a panel for each cell, one table, and the numbers of both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa import latex, tables
from dnasa.comparing import captions, drawing, rank_drawing
from dnasa.comparing.comparison import DRAWN, Comparison, with_eta
from dnasa.comparing.ranking import Ranking, costs
from dnasa.comparing.run_table import data_text, graph_text, split_text
from dnasa.comparing.study_file import Cell, Study, source_name
from dnasa.plots import label, panels
from dnasa.statistics import VARIANT, in_percent, with_the_best
from dnasa.style import current

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = {
    "*": "the best of its column",
    "=": "no clear difference to the best: the 95 % interval of the paired difference contains 0",
    "^": "the stepsize is at an edge of its grid, so the best may lie beyond",
}
EXACT = "finite-time"  # the graph exact in the header of a LaTeX table
MOST_COLUMNS, MOST_ROWS = 4, 30  # of a LaTeX table, so that it fits a page


@dataclass(frozen=True)
class StudyReport:
    """`numbers` are those of the table, `drawn` those of the figure; in both, the first columns name the cell."""

    study: Study
    found: list[tuple[Cell, Comparison]]
    left_out: list[str]

    # ------------------------------------------------------------ numbers

    def numbers(self) -> pd.DataFrame:
        """For each cell and rule: the chosen stepsize, its results, and the paired difference to the best of the cell."""
        parts = []
        for cell, comparison in self.found:
            rows = comparison.summary().merge(comparison.choice[[*VARIANT, "edge"]], on=list(VARIANT), how="left")
            parts.append(_of_cell(cell, rows.assign(metric=comparison.metric, chosen_by=comparison.selection.metric)))
        return pd.concat(parts, ignore_index=True)

    def drawn(self) -> pd.DataFrame:
        parts = [_of_cell(cell, self._panel(comparison)) for cell, comparison in self.found]
        return pd.concat(parts, ignore_index=True)

    def _panel(self, comparison: Comparison) -> pd.DataFrame:
        return comparison.curves() if self.study.figure == "curves" else comparison.stepsizes()

    # ------------------------------------------------------------ tables

    def tables(self) -> dict[str, pd.DataFrame]:
        """The table as text, one part for each problem: rows are rules, columns graphs and partitions."""
        return {problem: self._table(found) for problem, found in self._problems()}

    def _problems(self) -> Iterator[tuple[str, list[tuple[Cell, Comparison]]]]:
        for problem in dict.fromkeys(cell.problem for cell, _ in self.found):
            yield problem, [(cell, comparison) for cell, comparison in self.found if cell.problem == problem]

    def _table(self, found: list[tuple[Cell, Comparison]]) -> pd.DataFrame:
        columns = {}
        for cell, comparison in found:
            rows = comparison.summary().assign(edge=comparison.choice.edge)
            names = [label(row.rule, row.schedule) for row in rows.itertuples()]
            same = with_the_best(rows) & ~rows.best
            texts = [_text(comparison.metric, row) for _, row in rows.assign(same=same).iterrows()]
            columns[_heading(cell)] = pd.Series(texts, names)
            if len(found) == 1:
                gaps = [tables.with_interval(comparison.metric, row) for _, row in rows.iterrows()]
                columns["difference to the best"] = pd.Series(gaps, names)
        every = [label(*method) for method in _methods(found)]
        frame = pd.DataFrame(columns).reindex(every).fillna("-")
        return frame.rename_axis("method").reset_index()

    def titles(self) -> dict[str, str]:
        """The title of each part of the table: what was run and measured."""
        out = {}
        for problem, found in self._problems():
            cell, comparison = found[0]
            seeds = cell.settings["seeds"]
            runs = f"{seeds} seed{'s' if seeds > 1 else ''}"
            out[problem] = f"{captions.metric_title(comparison.metric)} on {self._what(cell)}, {runs}"
        return out

    def _what(self, cell: Cell) -> str:
        """What was run in all cells of a problem."""
        quick = ", quick run" if self.study.quick else ""
        nodes, steps = cell.settings["nodes"], cell.settings["steps"]
        return f"{source_name(cell.problem)}: {nodes} nodes, {steps:,} steps{quick}"

    def _setting(self, found: list[tuple[Cell, Comparison]]) -> str:
        """What all of these cells share, in the words of a caption."""
        cell, varied = found[0][0], _varied(found)
        parts = [f"{cell.settings['nodes']} nodes", f"{cell.settings['steps']:,} steps", "quick run" * self.study.quick]
        if len(varied["partition"]) == 1 and cell.partition != "iid":
            parts.insert(1, split_text(cell.partition or ""))
        if len(varied["graph"]) == 1:
            parts.insert(1, graph_text(cell.graph))
        return f"{data_text(source_name(cell.problem))}: {', '.join(filter(None, parts))}"

    def latex(self) -> str:
        """A booktabs table for each problem, or several where one would not fit a page.

        Bold are the best of a column and what does not differ clearly from it, unless no method does.
        """
        return "\n".join(self._latex(found) for _, found in self._problems())

    def _latex(self, found: list[tuple[Cell, Comparison]]) -> str:
        cell, comparison = found[0]
        methods, seeds = _methods(found), cell.settings["seeds"]
        panels = _latex_panels(found, methods)
        choice, chosen = _choices(found)
        exact = len(_varied(found)["graph"]) > 1 and any(each.graph == "exact" for each, _ in found)
        signs = [f"{EXACT.capitalize()}: one-peer consensus graphs."] * exact + captions.dagger(choice)
        signs += captions.explained(panels[0])
        schedule = captions.schedule(choice) if chosen else ""
        caption = captions.caption(comparison.metric, self._setting(found), seeds, [*chain(*panels)], signs, schedule)
        history = pd.concat([with_eta(each.history) for _, each in found])
        stepsizes = f"{captions.tuning(choice, chosen)} {captions.grids(history, comparison.extend)}".strip()
        sent = pd.concat([each.sent() for _, each in found])
        facts = (comparison.model, comparison.batch, "", sent, stepsizes, seeds, comparison.own_partitions)
        name, protocol = f"{self.study.name}-{source_name(cell.problem)}", captions.protocol(*facts)
        if len(panels) * len(methods) <= MOST_ROWS:
            return latex.table(panels, caption, name, protocol)
        return "\n".join(
            latex.table([panel], caption, f"{name}-{i}", protocol) for i, panel in enumerate(panels, start=1)
        )

    def notes(self, problem: str | None = None) -> list[str]:
        """How stepsizes were chosen, and what the marks of the table mean: of one problem, or of all."""
        found = [(cell, comparison) for cell, comparison in self.found if problem in (None, cell.problem)]
        _, chosen = _choices(found)
        lines = [f"Stepsizes were chosen by {' or '.join(chosen)}."] if chosen else ["Nothing was tuned."]
        parts = [table for name, table in self.tables().items() if problem in (None, name)]
        shown = " ".join(text for table in parts for text in table.iloc[:, 1:].to_numpy().ravel())
        used = [f"{mark} {meaning}" for mark, meaning in KEY.items() if f" {mark}" in shown]
        if used:
            lines.append(f"Marks: {'; '.join(used)}.")
        return lines

    # ------------------------------------------------------------ ranks

    @cached_property
    def ranking(self) -> Ranking:
        """The methods over all cells."""
        names = self._names()
        cells = {}
        for cell, comparison in self.found:
            rows = comparison.summary()
            own = [names[str(row.rule), str(row.schedule)] for row in rows.itertuples()]
            cells[cell.title] = costs(comparison.metric, rows["mean"].set_axis(own))
        return Ranking.of(cells)

    def _names(self) -> dict[tuple[str, str], str]:
        """The name of every rule and schedule of the study."""
        methods = list(dict.fromkeys(method for _, found in self._problems() for method in _methods(found)))
        return dict(zip(methods, captions.method_names(methods), strict=True))

    def rank_figures(self) -> "dict[str, tuple[Callable[[], Figure], pd.DataFrame]]":
        """The figures of the ranking and their numbers; none where the study is too small."""
        if self.ranking.reason_to_leave_out:
            return {}
        figures = {"ranks": (lambda: self._noted(rank_drawing.figure_of_ranks(self.ranking)), self.ranking.ranks())}
        profiles = self.ranking.profiles()
        rules = {name: rule for (rule, _), name in self._names().items() if name in self.ranking.table}
        if len(profiles):
            draw = partial(rank_drawing.figure_of_profiles, profiles, list(rules), list(rules.values()))
            figures["profiles"] = (lambda: self._noted(draw()), profiles)
        return figures

    # ------------------------------------------------------------ figure

    def draw(self) -> "Figure":
        """A panel for each cell; with several graphs, they are the columns. A single cell is drawn as by `compare`."""
        if len(self.found) == 1 and self.study.figure == "curves":
            return self._noted(self.found[0][1].draw_curves())
        count = len(self.found)
        columns = _across(count, len({cell.graph for cell, _ in self.found}))
        figure, axes = panels(columns, ceil(count / columns), height=3.4)
        line_styles = drawing.line_styles(pd.DataFrame(_methods(self.found), columns=drawing.LINE))
        notes: dict[str, None] = {}
        for axis, (_, comparison) in zip(axes.flat, self.found, strict=False):
            table = self._panel(comparison)
            if self.study.figure == "curves":
                given = (table.assign(eta=np.nan), DRAWN[self.study.x], comparison.metric, line_styles)
                drawing.draw_curves(axis, *given, smooth=self.study.smooth, bars=True)
                notes[drawing.spread_note(table)] = None
            else:
                drawing.draw_stepsizes(axis, table, comparison.metric, given=line_styles)
        titles = [cell.title.replace("_", "\N{NO-BREAK SPACE}") for cell, _ in self.found]
        drawing.finish_panels(figure, axes, titles, "; ".join(notes))
        return self._noted(figure)

    def _noted(self, figure: "Figure") -> "Figure":
        if self.study.quick:
            figure.suptitle("Quick run: a tenth of the steps, at most two seeds")
        return figure


def _across(count: int, graphs: int) -> int:
    """How many panels lie next to each other: one for each graph, and on a printed page twice as many where they fit."""
    columns = graphs if 1 < graphs < count and count % graphs == 0 else ceil(sqrt(count))
    twice = 2 * columns
    fits = current().printed and current().columns(twice) == twice < count and count % twice == 0
    return current().columns(twice if fits else columns)


def _heading(cell: Cell) -> str:
    return ", ".join(filter(None, (cell.graph, cell.partition)))


def _methods(found: list[tuple[Cell, Comparison]]) -> list[tuple[str, str]]:
    """The rules and schedules of these cells, in the order of the file."""
    order = [rule.partition(":")[0] for rule in found[0][0].settings["rules"]]
    lines = pd.concat([comparison.choice for _, comparison in found])
    lines = lines.sort_values("rule", key=lambda rules: rules.map(order.index), kind="stable")
    return list(dict.fromkeys((str(row.rule), str(row.schedule)) for row in lines.itertuples()))


def _varied(found: list[tuple[Cell, Comparison]]) -> dict[str, set[str | None]]:
    return {"graph": {cell.graph for cell, _ in found}, "partition": {cell.partition for cell, _ in found}}


def _rows(comparison: Comparison, methods: list[tuple[str, str]]) -> pd.DataFrame:
    """The results of each method, empty where it was left out."""
    rows = comparison.summary().assign(edge=comparison.choice.edge)
    return rows.set_index(["rule", "schedule"]).reindex(pd.MultiIndex.from_tuples(methods))


def _latex_columns(found: list[tuple[Cell, Comparison]], methods: list[tuple[str, str]]) -> list[latex.Column]:
    """A column for each cell: its graph below its partition, where there are several.

    The caption has the metric, in percent or not; the title has a power of ten.
    """
    metric, columns, varied = found[0][1].metric, [], _varied(found)
    for cell, comparison in found:
        some = _rows(comparison, methods)
        unit, edges = latex.unit(metric, some), [bool(edge) for edge in some.edge.fillna("")]
        graph = EXACT if cell.graph == "exact" else cell.graph.replace("_", " ")
        names = {"graph": graph, "partition": split_text(cell.partition or "")}
        own = [latex.text(names[key]) for key in names if len(varied[key]) > 1]
        if own and unit and not in_percent(metric):
            own[0] += f" ({unit})"
        title, *groups = own or [captions.column_title(metric, unit)]
        columns.append(latex.Column(title, latex.results(metric, some, edges), groups=tuple(reversed(groups))))
    return columns


def _latex_panels(found: list[tuple[Cell, Comparison]], methods: list[tuple[str, str]]) -> list[list[latex.Column]]:
    """The cells, as many next to each other as fit, and what was sent as a further column where they leave room for it."""
    names = latex.names("Method", captions.method_names(methods))
    columns, sent = _latex_columns(found, methods), _sent_column(found, methods)
    width, with_sent = (
        _panel_width(found, len(latex.fit([*first, *columns], len(first) + 1)) - len(first))
        for first in ([names], [names, *sent])
    )
    last = sent if with_sent == width else []
    panels = [[names, *columns[i : i + width], *last] for i in range(0, len(columns), width)]
    return [latex.fit(panel, len(panel)) for panel in panels]


def _sent_column(found: list[tuple[Cell, Comparison]], methods: list[tuple[str, str]]) -> list[latex.Column]:
    """What a node sends, where it depends on the method alone."""
    sent = pd.DataFrame({cell.title: comparison.sent() for cell, comparison in found}).reindex(methods)
    same = sent.max(axis=1) < 1.001 * sent.min(axis=1)
    return captions.sent_column(sent.max(axis=1)) if same.all() else []


def _panel_width(found: list[tuple[Cell, Comparison]], fitting: int) -> int:
    """How many cells are next to each other: at most four, and all graphs of a partition if they fit."""
    graphs, most = len({cell.graph for cell, _ in found}), max(1, min(MOST_COLUMNS, fitting))
    return most if graphs > most else most // graphs * graphs


def _choices(found: list[tuple[Cell, Comparison]]) -> tuple[pd.DataFrame, list[str]]:
    """The chosen stepsizes of these cells, and what they were chosen by."""
    chosen = {str(comparison.selection): None for _, comparison in found if comparison.tuned}
    return pd.concat([comparison.choice for _, comparison in found]), list(chosen)


def _of_cell(cell: Cell, rows: pd.DataFrame) -> pd.DataFrame:
    names = {"problem": cell.problem, "graph": cell.graph, "partition": cell.partition or ""}
    return rows.assign(**names)[[*names, *rows.columns]]


def _text(metric: str, row: Any) -> str:
    """Mean ± spread with its marks."""
    marks = [mark for mark, applies in (("^", row.edge), ("=", row.same), ("*", row.best)) if applies]
    return " ".join([tables.with_spread(metric, row), *marks])
