"""What a study ends in: one figure with a panel for each cell, one table, and the numbers of both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing import captions, drawing, latex, rank_drawing, tables
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.plots import label, panels
from dnasa.comparing.ranking import Ranking, costs
from dnasa.comparing.statistics import VARIANT, with_the_best
from dnasa.comparing.study_file import Cell, Study, source_name
from dnasa.comparing.style import current
from dnasa.problems.metrics import in_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = {
    "*": "the best of its column",
    "=": "no clear difference to the best: the 95 % interval of the paired difference contains 0",
    "^": "the stepsize is at an edge of its grid, so the best may lie beyond",
}
Cells = list[tuple[Cell, Comparison]]


@dataclass(frozen=True)
class StudyReport:
    """`numbers` are those of the table, `drawn` those of the figure; in both, the first columns name the cell."""

    study: Study
    cells: Cells
    left_out: list[str]

    def _problems(self) -> Iterator[tuple[str, Cells]]:
        for problem in dict.fromkeys(cell.problem for cell, _ in self.cells):
            yield problem, [(cell, comparison) for cell, comparison in self.cells if cell.problem == problem]

    # ------------------------------------------------------------ numbers

    def numbers(self) -> pd.DataFrame:
        """For each cell and rule: the chosen stepsize, its results, and the paired difference to the best of the cell."""
        parts = []
        for cell, comparison in self.cells:
            rows = comparison.summary().merge(comparison.choice[[*VARIANT, "edge"]], on=list(VARIANT), how="left")
            parts.append(_of_cell(cell, rows.assign(metric=comparison.metric, chosen_by=comparison.selection.metric)))
        return pd.concat(parts, ignore_index=True)

    def drawn(self) -> pd.DataFrame:
        parts = [_of_cell(cell, self._panel(comparison)) for cell, comparison in self.cells]
        return pd.concat(parts, ignore_index=True)

    def _panel(self, comparison: Comparison) -> pd.DataFrame:
        return comparison.curves() if self.study.figure == "curves" else comparison.stepsizes()

    # ------------------------------------------------------------ tables

    def tables(self) -> dict[str, pd.DataFrame]:
        """The table as text, one part for each problem: rows are rules, columns graphs and partitions."""
        return {problem: _table(cells) for problem, cells in self._problems()}

    def titles(self) -> dict[str, str]:
        """The title of each part of the table: what was run and measured."""
        out = {}
        for problem, cells in self._problems():
            cell, comparison = cells[0]
            seeds = cell.settings["seeds"]
            runs = f"{seeds} seed{'s' if seeds > 1 else ''}"
            out[problem] = f"{captions.metric_title(comparison.metric)} on {self._what(cell)}, {runs}"
        return out

    def _what(self, cell: Cell) -> str:
        """What was run in all cells of a problem."""
        quick = ", quick run" if self.study.quick else ""
        nodes, steps = cell.settings["nodes"], cell.settings["steps"]
        return f"{source_name(cell.problem)}: {nodes} nodes, {steps:,} steps{quick}"

    def latex(self) -> str:
        """A booktabs table for each problem, or several where one would be too wide.

        Bold are the best of a column and what does not differ clearly from it.
        """
        return "\n".join(text for _, cells in self._problems() for text in self._latex(cells))

    def _latex(self, cells: Cells) -> Iterator[str]:
        (cell, comparison), methods = cells[0], _methods(cells)
        names, columns, sent = (
            captions.method_column(methods),
            _latex_columns(cells, methods),
            _sent_column(cells, methods),
        )
        room = latex.most_columns() - 1
        parts = [columns[i : i + room] for i in range(0, len(columns), room)]
        choice = pd.concat([each.choice for _, each in cells])
        for number, part in enumerate(parts, start=1):
            whole = [names, *part, *(sent if len(part) < room else [])]
            caption = captions.caption(comparison.metric, self._what(cell), cell.settings["seeds"], whole, choice)
            name = f"{self.study.name}-{source_name(cell.problem)}" + f"-{number}" * (len(parts) > 1)
            yield latex.table(whole, caption, name, [*self.notes(cell.problem), captions.formulas(methods)])

    def notes(self, problem: str | None = None) -> list[str]:
        """How stepsizes were chosen, and what the marks of the table mean: of one problem, or of all."""
        cells = [(cell, comparison) for cell, comparison in self.cells if problem in (None, cell.problem)]
        chosen = dict.fromkeys(str(comparison.selection) for _, comparison in cells if comparison.tuned)
        lines = [f"Stepsizes were chosen by {' or '.join(chosen)}."] if chosen else ["Nothing was tuned."]
        parts = [table for name, table in self.tables().items() if problem in (None, name)]
        shown = " ".join(text for table in parts for text in table.iloc[:, 1:].to_numpy().ravel())
        used = [f"{mark} {meaning}" for mark, meaning in KEY.items() if f" {mark}" in shown]
        return lines + ([f"Marks: {'; '.join(used)}."] if used and problem is None else [])

    # ------------------------------------------------------------ ranks

    @cached_property
    def ranking(self) -> Ranking:
        """The methods over all cells."""
        names = self._names()
        by_cell = {}
        for cell, comparison in self.cells:
            rows = comparison.summary()
            own = [names[str(row.rule), str(row.schedule)] for row in rows.itertuples()]
            by_cell[cell.title] = costs(comparison.metric, rows["mean"].set_axis(own))
        return Ranking.of(by_cell)

    def _names(self) -> dict[tuple[str, str], str]:
        """The name of every rule and schedule of the study."""
        methods = list(dict.fromkeys(method for _, cells in self._problems() for method in _methods(cells)))
        return dict(zip(methods, captions.method_names(methods), strict=True))

    def rank_figures(self) -> "dict[str, tuple[Callable[[], Figure], pd.DataFrame]]":
        """The figures of the ranking and their numbers; none where the study is too small."""
        if self.ranking.reason_to_leave_out:
            return {}
        profiles = self.ranking.profiles()
        rules = {name: rule for (rule, _), name in self._names().items() if name in self.ranking.table}

        def draw_ranks() -> "Figure":
            return self._noted(rank_drawing.figure_of_ranks(self.ranking))

        def draw_profiles() -> "Figure":
            return self._noted(rank_drawing.figure_of_profiles(profiles, list(rules), list(rules.values())))

        ranks = {"ranks": (draw_ranks, self.ranking.ranks())}
        return ranks | ({"profiles": (draw_profiles, profiles)} if len(profiles) else {})

    # ------------------------------------------------------------ figure

    def draw(self) -> "Figure":
        """A panel for each cell; with several graphs, they are the columns. A single cell is drawn as by `compare`."""
        if len(self.cells) == 1 and self.study.figure == "curves":
            return self._noted(self.cells[0][1].draw_curves())
        count = len(self.cells)
        columns = _across(count, len({cell.graph for cell, _ in self.cells}))
        figure, axes = panels(columns, ceil(count / columns), height=3.4)
        line_styles = drawing.line_styles(pd.DataFrame(_methods(self.cells), columns=drawing.LINE))
        notes: dict[str, None] = {}
        for axis, (_, comparison) in zip(axes.flat, self.cells, strict=False):
            table = self._panel(comparison)
            if self.study.figure == "curves":
                rows = table.assign(eta=np.nan)
                drawing.draw_curves(axis, rows, self.study.column, comparison.metric, line_styles, bars=True)
                notes[drawing.spread_note(table)] = None
            else:
                drawing.draw_stepsizes(axis, table, comparison.metric, given=line_styles)
        titles = [cell.title.replace("_", "\N{NO-BREAK SPACE}") for cell, _ in self.cells]
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


def _table(cells: Cells) -> pd.DataFrame:
    columns = {}
    for cell, comparison in cells:
        rows = comparison.summary().assign(edge=comparison.choice.edge)
        names = [label(row.rule, row.schedule) for row in rows.itertuples()]
        same = with_the_best(rows) & ~rows.best
        texts = [_text(comparison.metric, row) for _, row in rows.assign(same=same).iterrows()]
        columns[", ".join(filter(None, (cell.graph, cell.partition)))] = pd.Series(texts, names)
        if len(cells) == 1:
            gaps = [tables.with_interval(comparison.metric, row) for _, row in rows.iterrows()]
            columns["difference to the best"] = pd.Series(gaps, names)
    frame = pd.DataFrame(columns).reindex([label(*method) for method in _methods(cells)]).fillna("-")
    return frame.rename_axis("method").reset_index()


def _text(metric: str, row: Any) -> str:
    """Mean ± spread with its marks."""
    marks = [mark for mark, applies in (("^", row.edge), ("=", row.same), ("*", row.best)) if applies]
    return " ".join([tables.with_spread(metric, row), *marks])


def _methods(cells: Cells) -> list[tuple[str, str]]:
    """The rules and schedules of these cells, in the order of the file."""
    order = [rule.partition(":")[0] for rule in cells[0][0].settings["rules"]]
    lines = pd.concat([comparison.choice for _, comparison in cells])
    lines = lines.sort_values("rule", key=lambda rules: rules.map(order.index), kind="stable")
    return list(dict.fromkeys((str(row.rule), str(row.schedule)) for row in lines.itertuples()))


def _latex_columns(cells: Cells, methods: list[tuple[str, str]]) -> list[latex.Column]:
    """A column for each cell: its graph below its partition. The caption has the metric; the title has a power of ten."""
    columns = []
    for cell, comparison in cells:
        metric, rows = comparison.metric, comparison.summary().assign(edge=comparison.choice.edge)
        rows = rows.set_index(["rule", "schedule"]).reindex(pd.MultiIndex.from_tuples(methods))
        unit, edges = latex.unit(metric, rows), [bool(edge) for edge in rows.edge.fillna("")]
        title = latex.text(cell.graph.replace("_", " ")) + (f" ({unit})" if unit and not in_percent(metric) else "")
        group = latex.text((cell.partition or "").replace("_", " "))
        columns.append(latex.Column(title, latex.results(metric, rows, edges), group=group))
    return columns


def _sent_column(cells: Cells, methods: list[tuple[str, str]]) -> list[latex.Column]:
    """What a node sends, where it depends on the method alone."""
    sent = pd.DataFrame({cell.title: comparison.sent() for cell, comparison in cells}).reindex(methods)
    same = sent.max(axis=1) < 1.001 * sent.min(axis=1)
    return captions.sent_column(sent.max(axis=1)) if same.all() else []


def _of_cell(cell: Cell, rows: pd.DataFrame) -> pd.DataFrame:
    names = {"problem": cell.problem, "graph": cell.graph, "partition": cell.partition or ""}
    return rows.assign(**names)[[*names, *rows.columns]]
