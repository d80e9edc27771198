"""What a comparison found: the chosen stepsizes, tables and figures of their results, and notes on what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import pandas as pd

from dnasa.checks import counted
from dnasa.comparing import drawing, latex, tables, tuning
from dnasa.comparing.plots import label
from dnasa.comparing.statistics import VARIANT, curves, differences, final, labeled, over_seeds
from dnasa.comparing.tuning import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison"]

# columns that curves have
AXES = {"steps": "step", "epochs": "epochs", "samples": "samples", "bytes": "mb_per_node", "clock": "clock_seconds"}
EMPTY = latex.MEGABYTES, latex.INTERVAL  # columns without numbers where a run diverged


@dataclass(frozen=True)
class Comparison:
    """The histories of all runs, what was chosen, and on what.

    `table` is for people, `latex` for a paper; `summary`, `curves` and `stepsizes` are frames with the numbers of the table
    and of the two figures.

    Attributes:
        history: A row for each evaluation and run.
        metric: The metric that is compared.
        selection: The metric and the seeds that stepsizes are chosen on, and the seeds that are reported.
        choice: The chosen stepsize of each rule and schedule.
        x: What curves are drawn against; empty: steps, and bytes too where methods send different amounts.
        settings: The settings of the grid's run.
        rank: The rank of this process.
    """

    history: pd.DataFrame
    metric: str
    selection: Selection
    choice: pd.DataFrame
    x: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0

    def __repr__(self) -> str:
        return f"Comparison of {', '.join(dict.fromkeys(self.choice.rule))} by {self.metric}"

    @property
    def all_diverged(self) -> bool:
        return bool(final(self.history).diverged.all())

    @property
    def tuned(self) -> bool:
        """Whether a stepsize was chosen among several."""
        return bool(self.history.groupby(["rule", "schedule"]).eta.nunique().max() > 1)

    def _chosen(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of the chosen variants and the reported seeds, in the order of the choice."""
        reported = rows[rows.seed.isin(self.selection.reported)]
        keys = self.choice[list(VARIANT)].assign(order=range(len(self.choice)))
        ordered = reported.merge(keys, on=list(VARIANT)).sort_values("order", kind="stable")
        return ordered.drop(columns="order").reset_index(drop=True)

    def reported(self) -> pd.DataFrame:
        """The result of each chosen variant and seed."""
        return self._chosen(final(self.history))

    def summary(self, metric: str | None = None) -> pd.DataFrame:
        """The mean and spread of each chosen variant over the seeds, and its paired difference from the best.

        Args:
            metric: Another metric than the one compared.
        """
        return differences(self.reported(), metric or self.metric)

    def curves(self) -> pd.DataFrame:
        """The mean of each chosen variant over the seeds, and their range, at every evaluation.

        Besides `step`, it has a column for everything that curves are drawn against; for bytes `mb_per_node`, the MB that a
        node has sent.
        """
        return curves(self._chosen(with_sent(self.history)), self.metric, self._columns())

    @property
    def axes(self) -> tuple[str, ...]:
        """What curves are drawn against."""
        if self.x:
            return self.x
        return ("steps", "bytes") if amounts_differ(self.sent()) else ("steps",)

    def _columns(self) -> list[str]:
        return [AXES[name] for name in self.axes]

    def stepsizes(self) -> pd.DataFrame:
        """The results of all stepsizes on the reported seeds."""
        runs = final(self.history)
        table = over_seeds(runs[runs.seed.isin(self.selection.reported)], self.metric)
        choice = self.choice[list(VARIANT)].assign(order=range(len(self.choice)))
        merged = table.merge(choice, on=["rule", "schedule"], suffixes=("", "_chosen"))
        chosen = merged.eta.eq(merged.eta_chosen) | merged.eta.isna()
        ordered = merged.assign(chosen=chosen).sort_values(["order", "eta"], ignore_index=True)
        return ordered.drop(columns=["order", "eta_chosen"])

    def sent(self) -> pd.Series:
        """The MB that a node sent in the longest run of each chosen variant: the mean over the nodes."""
        rows = self._chosen(with_sent(self.history))
        if "mb_per_node" not in rows:
            return pd.Series(dtype=float)
        most = rows.groupby(["rule", "schedule"]).mb_per_node.max()
        return most.reindex(pd.MultiIndex.from_frame(self.choice[["rule", "schedule"]]))

    def draw_curves(self) -> "Figure":
        """The figure of `curves`: a pair of axes for each of `axes`, side by side."""
        return drawing.figure_of_curves(self.curves(), self._columns(), self.metric)

    def draw_stepsizes(self) -> "Figure":
        """The figure of `stepsizes`."""
        return drawing.figure_of_stepsizes(self.stepsizes(), self.metric)

    def table(self) -> pd.DataFrame:
        """One row for each rule and schedule, as text."""
        runs = over_seeds(final(self.history), self.metric)
        summaries = {metric: self.summary(metric) for metric in self._metrics()}
        rows = []
        for i, row in self.choice.iterrows():
            grid = runs[(runs.rule == row.rule) & (runs.schedule == row.schedule)]
            chosen = "not tuned"
            if len(grid) > 1:
                at_edge = f" ({row.edge} tried)" if row.edge else ""
                chosen = (
                    tables.number(self.selection.metric, row.value, 4) + at_edge if abs(row.value) < inf else tables.DIVERGED
                )
            cells = {
                "method": label(row.rule, row.schedule),
                "stepsize": row.schedule if pd.isna(row.eta) else f"{row.eta:.3g}",
                f"chosen by {tables.metric_name(self.selection.metric)}": chosen,
            }
            for metric, summary in summaries.items():
                form = tables.form(metric, summary)
                cells[tables.metric_name(metric)] = tables.with_spread(metric, summary.iloc[i], form)
                if metric == self.metric:
                    cells["difference from the best"] = tables.with_interval(metric, summary.iloc[i], form)
            rows.append(cells | {"diverged at": tuning.diverged_text(grid)})
        table = pd.DataFrame(rows)
        return table if runs.diverged.any() else table.drop(columns="diverged at")

    def _metrics(self) -> list[str]:
        """The compared metric, and others that readers expect."""
        names = dict.fromkeys((self.metric, "test_accuracy", "test_r2", "test_loss"))
        return [name for name in names if name in self.history]

    def latex(self, title: str = "", name: str = "comparison") -> str:
        """The table for a paper; the best and what does not differ clearly from it are bold.

        How the stepsizes were chosen is a comment above the table.

        Args:
            title: What was run, for the caption.
            name: The table is referred to as tab:name.
        """
        columns = {latex.METHOD: latex.methods([(row.rule, row.schedule) for row in self.choice.itertuples()])}
        if self.choice.eta.notna().any():
            columns[latex.ETA] = latex.stepsizes(self.choice)
        for metric in self._metrics():
            summary = self.summary(metric)
            columns[latex.heading(metric)] = latex.results(metric, summary)
            if metric == self.metric and amounts_differ(self.sent()):
                sent = zip(latex.sent(self.sent()), summary["mean"].isna(), strict=True)
                columns[latex.MEGABYTES] = [latex.NOTHING if diverged else amount for amount, diverged in sent]
            if metric == self.metric and summary.difference_low.notna().any():
                columns[latex.INTERVAL] = latex.intervals(metric, summary)
        missing = ["a run diverged"] if any(latex.NOTHING in columns.get(name, ()) for name in EMPTY) else []
        title = self._titled(title)
        caption = latex.caption(self.metric, title, len(self.selection.reported), columns, self.choice, missing)
        return latex.table(columns, f"{caption} {latex.text(self._chosen_by())}.", name, self.notes())

    def caption(self, figure: str, title: str = "", name: str = "comparison") -> str:
        """The caption of a figure.

        Args:
            figure: "curves" or "stepsizes".
            title: What was run.
            name: The figure is referred to as fig:name-curves or fig:name-stepsizes.
        """
        table, against = self.stepsizes(), "the stepsize"
        if figure == "curves":
            table, against = self.curves(), " and ".join(drawing.AXES[column] for column in self._columns())
        words, seeds = ["; ".join(drawing.signs(table, self.metric))], len(self.selection.reported)
        return latex.figure_caption([self.metric], self._titled(title), seeds, against, words, [name], f"{name}-{figure}")

    def _titled(self, title: str) -> str:
        """A title that says how many nodes and steps there were on which graph, if that is known."""
        if ": " in title or not {"nodes", "topology", "steps"} <= {*self.settings}:
            return title
        nodes = counted(self.settings["nodes"], "node")
        return "{}: {}, {topology} graph, {steps:,} steps".format(title, nodes, **self.settings)

    def _chosen_by(self) -> str:
        return f"Stepsizes were chosen by {self.selection}" if self.tuned else "Nothing was tuned"

    def notes(self) -> list[str]:
        """What the table says, and whether a best stepsize may lie beyond its grid."""
        count = len(self.selection.reported)
        tests = "on the test rows" if "epochs" in self.history else "on test samples"
        where = tests if self.metric.startswith("test_") else "from these runs"
        spread = f"as mean ± standard deviation over {count} seeds" if count > 1 else "of one seed, so without a spread"
        lines = [f"{self._chosen_by()}; results are {where}, {spread}."]
        if count > 1:
            lines.append(tables.PAIRED)
        lines += tables.notes(self.settings)
        beyond = self.choice[self.choice.edge != ""].itertuples()
        if edges := ", ".join(f"{label(row.rule, row.schedule)} {row.eta:.3g} ({row.edge})" for row in beyond):
            lines.append(
                f"Best at an edge of the grid, where a better stepsize may lie beyond: {edges}. --extend continues the grid, "
                "--etas gives another."
            )
        return lines


def with_sent(history: pd.DataFrame) -> pd.DataFrame:
    """Add a column with the MB that a node has sent: the mean over the nodes."""
    if not {"bytes", "nodes"} <= {*history}:
        return labeled(history)
    return labeled(history).assign(mb_per_node=history.bytes / history.nodes / 1e6)


def amounts_differ(amounts: pd.Series) -> bool:
    return bool(amounts.max() > 1.01 * amounts.min())
