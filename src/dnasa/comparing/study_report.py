"""What a study ends in: one figure with a panel for each cell, one table, and the numbers of both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.checks import counted
from dnasa.comparing import drawing, latex, tables
from dnasa.comparing.budgets import PLACE
from dnasa.comparing.comparison import AXES, Comparison
from dnasa.comparing.plots import label, network_styles, panel_list, panel_rows, short_labels
from dnasa.comparing.run_table import CONDITIONS
from dnasa.comparing.statistics import VARIANT, with_the_best
from dnasa.comparing.study_file import Cell, Study, source_name
from dnasa.comparing.style import SMALL_PANEL, current
from dnasa.problems.metrics import in_percent, larger_is_better
from dnasa.rules.registry import split_schedule
from dnasa.topology.rounds import count_rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = {
    "*": "the best of its column",
    "=": "no clear difference from the best: the 95 % interval of the paired difference contains 0",
    "^": "the stepsize is at an edge of its grid, so a better one may lie beyond",
}
Cells = list[tuple[Cell, Comparison]]


@dataclass(frozen=True)
class StudyReport:
    """`numbers` are those of the table, `drawn` those of the figure; in both, the first columns name the cell."""

    study: Study
    cells: Cells
    left_out: list[str]

    def _parts(self) -> Iterator[tuple[tuple[str, str], Cells]]:
        """The cells of each problem and budget."""
        for part in dict.fromkeys((cell.problem, cell.budget) for cell, _ in self.cells):
            yield part, [(cell, comparison) for cell, comparison in self.cells if (cell.problem, cell.budget) == part]

    def numbers(self) -> pd.DataFrame:
        """For each cell and rule: the chosen stepsize, its results, its difference from the best of the cell, and its rank."""
        parts = []
        for cell, comparison in self.cells:
            rows = comparison.summary().merge(comparison.choice[[*VARIANT, "edge"]], on=list(VARIANT), how="left")
            mean = rows["mean"].map("{:.12g}".format).astype(float)  # seeds in another order are added up to another last digit
            rows["rank"] = mean.rank(ascending=not larger_is_better(comparison.metric), na_option="bottom")
            parts.append(_of_cell(cell, rows.assign(metric=comparison.metric, chosen_by=comparison.selection.metric)))
        return pd.concat(parts, ignore_index=True)

    def drawn(self, figure: str) -> pd.DataFrame:
        return pd.concat([_of_cell(cell, _drawn(comparison, figure)) for cell, comparison in self.cells], ignore_index=True)

    def tables(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The table as text, one part for each problem and budget: rows are rules, columns graphs and partitions."""
        return {part: _table(cells, self._place) for part, cells in self._parts()}

    def titles(self) -> dict[tuple[str, str], str]:
        """The title of each part of the table: what was run and measured."""
        titles = {}
        for part, ((cell, comparison), *_) in self._parts():
            seeds = counted(cell.settings["seeds"], "seed")
            titles[part] = f"{latex.metric_title(comparison.metric)} on {self._what(cell)}, {seeds}"
        return titles

    def _what(self, cell: Cell) -> str:
        quick = ", quick run" if self.study.quick else ""
        nodes, steps = counted(cell.settings["nodes"], "node"), cell.settings["steps"]
        length, links = f"{steps:,} steps", _links([pair for pair in self.cells if pair[0].budget == cell.budget])
        if cell.budget:
            unit = f"predicted seconds ({links[0].lower()}{links[1:]})" if links else "bytes"
            length = f"at most the {unit} of {length} that send one array on a ring"
        return f"{self._source(cell)}: {nodes}, {length}{quick}"

    def _source(self, cell: Cell) -> str:
        return cell.source if cell.partition in (None, "iid") or self._varies else f"{cell.source} ({cell.partition})"

    def _place(self, cell: Cell) -> str:
        """What distinguishes it from the other cells of its problem: the partition only if there are several."""
        return cell.place if self._varies else cell.network_name

    @property
    def _varies(self) -> bool:
        return len({cell.partition for cell, _ in self.cells} - {None}) > 1

    def latex(self) -> str:
        """A booktabs table for each problem, in bold what does not differ clearly from the best; then one of its stepsizes."""
        parts = [cells for _, cells in self._parts()]
        tuned = [cells for cells in parts if any(comparison.choice.eta.notna().any() for _, comparison in cells)]
        ranks = [self._latex_of_ranks()] if self.study.budgets else []
        return "\n".join([*map(self._latex, parts), *map(self._latex_of_stepsizes, tuned), *ranks])

    def _latex(self, cells: Cells) -> str:
        methods = _methods(cells)
        columns: dict[Any, list[str]] = {latex.METHOD: latex.methods(methods)}
        for cell, comparison in cells:
            columns[self._column(cell)] = _latex_column(comparison, methods)
        choice = pd.concat([comparison.choice for _, comparison in cells])
        cell, comparison = cells[0]
        missing = ["the network does not suit the method"] * any(len(each.choice) < len(methods) for _, each in cells)
        what = ", ".join(filter(None, (self._what(cell), cell.setup)))
        caption = latex.caption(comparison.metric, what, cell.settings["seeds"], columns, choice, missing)
        name, divided = self._table_name(cell), dict.fromkeys(cell.partition for cell, _ in cells if cell.partition)
        partitions = latex.prose(f"Partitions: {'; '.join(divided)}. ") * self._varies
        networks = latex.text(f"Networks: {_networks(cells)}.".replace("_", " "))
        where = f" Stepsizes: {latex.reference([f'{name}-stepsizes'])}." * bool(choice.eta.notna().any())
        return latex.table(columns, f"{caption} {latex.text(_chosen_by(cells))} {partitions}{networks}{where}", name)

    def _latex_of_stepsizes(self, cells: Cells) -> str:
        name = self._table_name(cells[0][0])
        known = pd.concat([comparison.choice for _, comparison in cells])
        methods = _methods(cells, known[known.eta.notna()])
        columns: dict[Any, list[str]] = {latex.METHOD: latex.methods(methods)}
        for cell, comparison in cells:
            choice = comparison.choice.set_index(["rule", "schedule"]).reindex(pd.MultiIndex.from_tuples(methods))
            columns[self._column(cell)] = latex.stepsizes(choice.fillna({"edge": ""}))
        return latex.table(columns, f"Stepsizes {latex.ETA} behind {latex.reference([name])}.", f"{name}-stepsizes")

    def _latex_of_ranks(self) -> str:
        board, methods = self.board(), _methods(self.cells)
        short = dict(zip((label(*method) for method in methods), latex.methods(methods), strict=True))
        columns = {latex.METHOD: [short[name] for name in board.pop("method")]}
        columns |= {name.capitalize(): [f"{x:.0f}" if "best of" in name else f"{x:.2f}" for x in board[name]] for name in board}
        caption = f"Average ranks, 1 for the best, by budget and over all {len(self.cells)} cells."
        return latex.table(columns, caption, f"{self.study.name}-ranks")

    def _table_name(self, cell: Cell) -> str:
        return "-".join(filter(None, (self.study.name, source_name(cell.problem), cell.budget)))

    def _column(self, cell: Cell) -> Any:
        return latex.column(cell.network_name, cell.partition if self._varies else "")

    def caption(self, figure: str) -> str:
        """What the figure shows; the settings are those of the tables, which it names."""
        against = "the stepsize" if figure == "stepsizes" else drawing.AXES[self._axis(figure)]
        drawn = dict.fromkeys(sign for _, each in self.cells for sign in drawing.signs(_drawn(each, figure), each.metric))
        *first, last = dict.fromkeys(self._source(cell) for cell, _ in self.cells)
        sources = " and ".join(filter(None, (", ".join(first), last))) + ", quick run" * self.study.quick
        links = _links(self.cells) if against == drawing.AXES[AXES["clock"]] else ""
        words = ["; ".join(drawn), f"Networks: {_networks(self.cells, sent=False)}", links]
        metrics = list(dict.fromkeys(comparison.metric for _, comparison in self.cells))
        tuned = [cell for cell, comparison in self.cells if comparison.choice.eta.notna().any()]
        named = [*dict.fromkeys(self._table_name(cell) for cell, _ in self.cells)]
        named += dict.fromkeys(f"{self._table_name(cell)}-stepsizes" for cell in tuned)
        name, seeds = f"{self.study.name}-{figure}", self.cells[0][0].settings["seeds"]
        return latex.figure_caption(metrics, sources, seeds, against, words, named, name)

    def notes(self) -> list[str]:
        """How stepsizes were chosen, the networks, what the marks of the table mean, and average ranks over several cells."""
        lines = [_chosen_by(self.cells), f"Networks: {_networks(self.cells)}."]
        lines += [f"{links}." for links in [_links(self.cells)] if links]
        texts = " ".join(text for table in self.tables().values() for text in table.iloc[:, 1:].to_numpy().ravel())
        marks = [f"{mark} {meaning}" for mark, meaning in KEY.items() if f" {mark}" in texts]
        if marks:
            lines.append(f"Marks: {'; '.join(marks)}.")
        if " [" in texts:
            lines.append(tables.PAIRED)
        if self.cells[0][0].budget or self.numbers()["mean"].isna().all():
            return lines
        ranks = _ranks(self.numbers()).mean().sort_values()
        if len(self.cells) > 1 and len(ranks) > 1:
            average = ", ".join(f"{method} {rank:.2f}" for method, rank in ranks.items())
            last = "; rules that a network does not suit share the last ranks" if self.left_out else ""
            lines.append(f"Average ranks over {len(self.cells)} cells: {average}{last}.")
        return lines

    def board(self) -> pd.DataFrame:
        """Each rule's average rank for every budget, its distance from the best, and where it is best; sorted."""
        rows = self.numbers()
        ranks = _ranks(rows)
        by_budget = ranks.groupby("budget", sort=False).mean().T
        methods = rows.groupby(_names(rows))
        table = by_budget.assign(
            **{"all": ranks.mean(), f"best of {len(self.cells)}": ranks.eq(ranks.min(axis=1), axis=0).sum()}
        )
        if rows.metric.map(in_percent).all():
            table["points from the best"] = 100 * methods.difference.mean()
        return table.sort_values("all").rename_axis(columns=None).reset_index()

    def draw(self, figure: str) -> "Figure":
        drawn = self._draw_networks(figure) if figure.startswith("networks") else self._draw_cells(figure)
        if self.study.quick:
            drawn.suptitle("Quick run: a tenth of the steps, at most two seeds")
        return drawn

    def _groups(self) -> list[Cells]:
        """The cells of each problem and partition, whose panels begin a row."""
        return [[*group] for _, group in groupby(self.cells, lambda pair: (pair[0].problem, pair[0].partition))]

    def _row(self, cell: Cell) -> str:
        return ", ".join(filter(None, (self._source(cell), cell.partition if self._varies else None))).replace("_", " ")

    def _axis(self, figure: str) -> str:
        """The column that curves are drawn against."""
        return AXES[figure.partition("-")[2] or self.study.x[0]]

    def _draw_networks(self, name: str) -> "Figure":
        """A panel for each rule, with a curve for each network; problems and partitions have rows of their own."""
        groups, methods = self._groups(), _methods(self.cells)
        styles = network_styles(cell.network_title for cell, _ in self.cells)
        places = [(cells, method) for cells in groups for method in methods]
        figure, axes = panel_rows([len(methods)] * len(groups), current().columns(len(methods), SMALL_PANEL), 4.6, 5.6)
        for axis, (cells, (rule, schedule)) in zip(axes, places, strict=True):
            parts = [each.curves().assign(network=cell.network_title) for cell, each in cells]
            rows = pd.concat(parts)
            rows = rows[(rows.rule == rule) & (rows.schedule == schedule)]
            rows = rows.assign(rule=rows.network, schedule=None, eta=np.nan)
            drawing.draw_curves(axis, rows, self._axis(name), cells[0][1].metric, styles)
        first = [cells[0][0] for cells, _ in places]
        names = [self._row(cell) for cell in first] if len(groups) > 1 else ()
        titles = short_labels(methods) * len(groups)
        drawing.finish_panels(figure, axes, titles, [cell.problem for cell in first], names)
        return figure

    def _draw_cells(self, kind: str) -> "Figure":
        """A panel for each cell; those of a problem and partition are in rows or columns of their own, if there are several."""
        groups, pairs, names = self._groups(), self.cells, []
        if max(map(len, groups)) == 1:
            figure, axes = panel_list(len(pairs), ceil(sqrt(len(pairs))))
            titles = [", ".join((cell.source, self._place(cell))).replace("_", "\N{NO-BREAK SPACE}") for cell, _ in pairs]
        else:
            sizes = [*map(len, groups)]
            columns = current().columns(max(sizes))
            if len({*sizes}) == 1 and sizes[0] % columns and len(groups) == columns:  # no empty places
                pairs, sizes = [group[i] for i in range(sizes[0]) for group in groups], [len(pairs)]
                titles = [f"{self._row(cell)}\n{cell.network_title}" for cell, _ in pairs]
            else:
                titles, names = [cell.network_title for cell, _ in pairs], [self._row(cell) for cell, _ in pairs]
            figure, axes = panel_rows(sizes, columns, height=4.2 if columns > 2 else 3.4)
        styles = drawing.line_styles(_methods(self.cells))
        for axis, (_, comparison) in zip(axes, pairs, strict=True):
            rows = _drawn(comparison, kind)
            if kind != "stepsizes":  # the legend is that of all cells
                drawing.draw_curves(axis, rows.assign(eta=np.nan), self._axis(kind), comparison.metric, styles)
            else:
                drawing.draw_stepsizes(axis, rows, comparison.metric, styles)
        order = [str(look["label"]) for look in styles.values()]
        drawing.finish_panels(figure, axes, titles, [cell.problem for cell, _ in pairs], names, order)
        return figure


def _drawn(comparison: Comparison, figure: str) -> pd.DataFrame:
    return comparison.stepsizes() if figure == "stepsizes" else comparison.curves()


def _names(rows: pd.DataFrame) -> list[str]:
    return [label(*method) for method in zip(rows.rule, rows.schedule, strict=True)]


def _ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """The rank of each method in each cell; those that a network does not suit share the last ones."""
    places = [name for name in PLACE if name in rows]
    ranks = rows.assign(method=_names(rows)).pivot(index=places, columns="method", values="rank")
    return ranks.rank(axis=1, na_option="bottom")


def _chosen_by(cells: Cells) -> str:
    chosen = dict.fromkeys(str(comparison.selection) for cell, comparison in cells if comparison.tuned or cell.budget)
    return f"Stepsizes were chosen by {' or '.join(chosen)}." if chosen else "Nothing was tuned."


def _networks(cells: Cells, sent: bool = True) -> str:
    """The weights, rounds and compression of each network; for one problem, also what a node has `sent`."""
    facts: dict[str, str] = {}
    one_problem = len({cell.problem for cell, _ in cells}) == 1
    explained: set[str] = set()  # what graphs in turn are is said once
    own_links = _have_own_links(cells)
    for cell, comparison in cells:
        settings, amounts = cell.settings, comparison.sent()
        graph = topology.make(cell.graph, settings["nodes"], settings["weights"])
        rounds = count_rounds(graph, settings["rounds"])
        parts = [
            cell.graph if cell.graph != cell.network_name else "",
            f"{graph.weighting} weights" if graph.weighting else "",
            graph.sequence if graph.name not in explained else "",
            counted(rounds, "round"),
            f"every {settings['every']} steps" if settings["every"] > 1 else "",
            settings["compress"] or "",
            CONDITIONS["drop"].format(settings["drop"]) if settings["drop"] else "",
            f"{amounts.min():.3g} to {amounts.max():.3g} MB per node" if sent and one_problem and len(amounts) else "",
            _link(settings["clock"]) if own_links else "",
        ]
        explained.add(graph.name)
        facts.setdefault(cell.network_name, ", ".join(filter(None, parts)))
    return "; ".join(f"{name} ({words})" for name, words in facts.items())


def _links(cells: Cells) -> str:
    """The links of predicted seconds; empty where none are predicted, or where each network has its own."""
    found = _all_links(cells)
    return f"Links: {'; '.join(found)}" if found and not _have_own_links(cells) else ""


def _have_own_links(cells: Cells) -> bool:
    """Whether networks differ in their links; those of budgets are the same for all networks."""
    return len(_all_links(cells)) > 1 and not any(cell.budget for cell, _ in cells)


def _all_links(cells: Cells) -> list[str]:
    return list(dict.fromkeys(filter(None, (_link(cell.settings["clock"]) for cell, _ in cells))))


def _link(clock: dict[str, Any] | None) -> str:
    ends = {key: dict.fromkeys((f"{np.min(value):g}", f"{np.max(value):g}")) for key, value in (clock or {}).items()}
    if not ends:
        return ""
    bandwidth, latency, compute = (" to ".join(ends[key]) for key in ("bandwidth", "latency", "compute"))
    return f"{bandwidth} Mbit/s, latency {latency} ms, {compute} s per gradient"


def _table(cells: Cells, place: Callable[[Cell], str]) -> pd.DataFrame:
    columns = {}
    for cell, comparison in cells:
        rows = comparison.summary().assign(edge=comparison.choice.edge)
        rows["leads"] = tables.leaders(comparison.metric, rows)
        rows["tie"] = with_the_best(rows) & ~rows.leads
        names = _names(rows)
        form = tables.form(comparison.metric, rows)
        columns[place(cell)] = pd.Series([_marked(comparison.metric, row, form) for _, row in rows.iterrows()], names)
        if len(cells) == 1:
            gaps = [tables.with_interval(comparison.metric, row, form) for _, row in rows.iterrows()]
            columns["difference from the best"] = pd.Series(gaps, names)
    frame = pd.DataFrame(columns).reindex([label(*method) for method in _methods(cells)]).fillna("-")
    return frame.rename_axis("method").reset_index()


def _marked(metric: str, row: Any, form: str) -> str:
    marks = [mark for mark, applies in (("^", row.edge), ("=", row.tie), ("*", row.leads)) if applies]
    return " ".join([tables.with_spread(metric, row, form), *marks])


def _methods(cells: Cells, lines: pd.DataFrame | None = None) -> list[tuple[str, str]]:
    """The rules and schedules of these cells, or of these lines of them, in the order of the file."""
    order = [split_schedule(rule)[0] for rule in cells[0][0].settings["rules"]]
    lines = pd.concat([comparison.choice for _, comparison in cells]) if lines is None else lines
    lines = lines.sort_values("rule", key=lambda rules: rules.map(order.index), kind="stable")
    return list(dict.fromkeys((str(row.rule), str(row.schedule)) for row in lines.itertuples()))


def _latex_column(comparison: Comparison, methods: list[tuple[str, str]]) -> list[str]:
    rows = comparison.summary().assign(edge=comparison.choice.edge)
    rows = rows.set_index(["rule", "schedule"]).reindex(pd.MultiIndex.from_tuples(methods))
    at_edge = [bool(edge) for edge in rows.edge.fillna("")]
    return latex.results(comparison.metric, rows, at_edge)


def _of_cell(cell: Cell, rows: pd.DataFrame) -> pd.DataFrame:
    names = {"problem": cell.data or cell.problem, "graph": cell.network_name, "partition": cell.partition or ""}
    names |= {"budget": cell.budget} if cell.budget else {}
    return rows.assign(**names)[[*names, *rows.columns]]
