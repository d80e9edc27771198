"""What a study ends in: one figure with a panel for each cell, one table, and the numbers of both."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.comparing import drawing, latex, tables
from dnasa.comparing.comparison import AXES, Comparison
from dnasa.comparing.plots import label, panel_list
from dnasa.comparing.statistics import VARIANT, with_the_best
from dnasa.comparing.study_file import Cell, Study, source_name
from dnasa.problems.metrics import larger_is_better

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
        """For each cell and rule: the chosen stepsize, its results, its difference to the best of the cell, and its rank."""
        parts = []
        for cell, comparison in self.cells:
            rows = comparison.summary().merge(comparison.choice[[*VARIANT, "edge"]], on=list(VARIANT), how="left")
            rows["rank"] = rows["mean"].rank(ascending=not larger_is_better(comparison.metric), na_option="bottom")
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
        for problem, ((cell, comparison), *_) in self._problems():
            seeds = cell.settings["seeds"]
            metric = latex.metric_title(comparison.metric)
            out[problem] = f"{metric} on {self._what(cell)}, {seeds} seed{'s' if seeds > 1 else ''}"
        return out

    def _what(self, cell: Cell) -> str:
        """What was run in all cells of a problem."""
        quick = ", quick run" if self.study.quick else ""
        nodes, steps = cell.settings["nodes"], cell.settings["steps"]
        return f"{source_name(cell.problem)}: {nodes} nodes, {steps:,} steps{quick}"

    def latex(self) -> str:
        """A booktabs table for each problem.

        Bold are the best of a column and what does not differ clearly from it.
        """
        return "\n".join(self._latex(cells) for _, cells in self._problems())

    def _latex(self, cells: Cells) -> str:
        (cell, comparison), methods = cells[0], _methods(cells)
        columns = [latex.methods(methods), *(_latex_column(*each, methods) for each in cells)]
        choice = pd.concat([each.choice for _, each in cells])
        caption = latex.caption(comparison.metric, self._what(cell), cell.settings["seeds"], columns, choice)
        name = f"{self.study.name}-{source_name(cell.problem)}"
        return latex.table(columns, caption, name, [_chosen_by(cells)])

    def notes(self) -> list[str]:
        """How stepsizes were chosen, what the marks of the table mean, and average ranks over several cells."""
        shown = " ".join(text for table in self.tables().values() for text in table.iloc[:, 1:].to_numpy().ravel())
        used = [f"{mark} {meaning}" for mark, meaning in KEY.items() if f" {mark}" in shown]
        ranks = self.numbers().groupby(["rule", "schedule"])["rank"].agg(["mean", "count"])
        ranks = ranks[ranks["count"] == len(self.cells)]["mean"].sort_values()
        lines = [_chosen_by(self.cells), *([f"Marks: {'; '.join(used)}."] if used else [])]
        if len(self.cells) > 1 and len(ranks) > 1:
            average = ", ".join(f"{label(*method)} {rank:.2f}" for method, rank in ranks.items())
            lines.append(f"Average ranks over {len(self.cells)} cells: {average}.")
        return lines

    # ------------------------------------------------------------ figure

    def draw(self) -> "Figure":
        """A panel for each cell; with several graphs, they are the columns. A single cell is drawn as by `compare`."""
        if len(self.cells) == 1 and self.study.figure == "curves":
            return self._noted(self.cells[0][1].draw_curves())
        count, graphs = len(self.cells), len({cell.graph for cell, _ in self.cells})
        figure, axes = panel_list(count, graphs if 1 < graphs < count and count % graphs == 0 else ceil(sqrt(count)))
        line_styles = drawing.line_styles(pd.DataFrame(_methods(self.cells), columns=drawing.LINE))
        for axis, (_, comparison) in zip(axes, self.cells, strict=True):
            table = self._panel(comparison)
            if self.study.figure == "curves":
                rows = table.assign(eta=np.nan)
                drawing.draw_curves(axis, rows, AXES[self.study.x], comparison.metric, line_styles)
            else:
                drawing.draw_stepsizes(axis, table, comparison.metric, fixed=line_styles)
        titles = [cell.title.replace("_", "\N{NO-BREAK SPACE}") for cell, _ in self.cells]
        several = any(cell.settings["seeds"] > 1 for cell, _ in self.cells)
        drawing.finish_panels(figure, axes, titles, drawing.BANDS if several and self.study.figure == "curves" else "")
        return self._noted(figure)

    def _noted(self, figure: "Figure") -> "Figure":
        if self.study.quick:
            figure.suptitle("Quick run: a tenth of the steps, at most two seeds")
        return figure


def _chosen_by(cells: Cells) -> str:
    chosen = dict.fromkeys(str(comparison.selection) for _, comparison in cells if comparison.tuned)
    return f"Stepsizes were chosen by {' or '.join(chosen)}." if chosen else "Nothing was tuned."


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


def _latex_column(cell: Cell, comparison: Comparison, methods: list[tuple[str, str]]) -> latex.Column:
    """The results of a cell. The caption has the metric."""
    rows = comparison.summary().assign(edge=comparison.choice.edge)
    rows = rows.set_index(["rule", "schedule"]).reindex(pd.MultiIndex.from_tuples(methods))
    edges = [bool(edge) for edge in rows.edge.fillna("")]
    title = ", ".join(filter(None, (cell.graph, cell.partition))).replace("_", " ")
    return latex.results(latex.text(title), comparison.metric, rows, edges)


def _of_cell(cell: Cell, rows: pd.DataFrame) -> pd.DataFrame:
    names = {"problem": cell.problem, "graph": cell.graph, "partition": cell.partition or ""}
    return rows.assign(**names)[[*names, *rows.columns]]
