"""Methods over all cells of a study: average ranks with a critical difference (Demšar 2006), and performance profiles
(Dolan and Moré 2002)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isnan, sqrt

import numpy as np
import pandas as pd

from dnasa.comparing import latex
from dnasa.problems.metrics import larger_is_better

LEVEL = 0.05
DIGITS = 10  # of a result
FEWEST_METHODS, FEWEST_CELLS = 3, 5  # with fewer, the tests find next to nothing


def costs(metric: str, means: pd.Series) -> pd.Series:
    """Results of which smaller ones are better: of accuracies and R^2 what is missing to 1; without a mean, infinite.

    Rounded, so that results which differ by the order of a sum alone are equal.
    """
    exact = (1 - means if larger_is_better(metric) else means).fillna(inf)
    return exact.map(lambda value: float(f"{value:.{DIGITS}g}"))


def critical_difference(methods: int, cells: int, level: float = LEVEL) -> float:
    """The difference of two average ranks that is clear by the Nemenyi test."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - level, methods, np.inf)) / sqrt(2)
    return quantile * sqrt(methods * (methods + 1) / (6 * cells))


@dataclass(frozen=True)
class Ranking:
    """`table` has the costs: a row for each cell, a column for each method that was run in all of them.

    Attributes:
        table: The costs.
        left_out: Methods that were not run in every cell.
    """

    table: pd.DataFrame
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, cells: Mapping[str, pd.Series]) -> "Ranking":
        """From the costs of each cell by method."""
        every = pd.DataFrame(cells).T
        complete = every.columns[every.notna().all()]
        return cls(every[complete], tuple(str(name) for name in every.columns if name not in complete))

    @property
    def reason_to_leave_out(self) -> str:
        """Why there are no ranks; empty if there are."""
        cells, methods = self.table.shape
        if methods >= FEWEST_METHODS and cells >= FEWEST_CELLS:
            return ""
        return (
            f"Ranks and profiles are left out: they need {FEWEST_METHODS} methods in {FEWEST_CELLS} cells, and here "
            f"{methods} {'is' if methods == 1 else 'are'} in all of {cells}."
        )

    @cached_property
    def by_cell(self) -> pd.DataFrame:
        """The rank of each method in each cell, 1 for the best; equal results share their average rank."""
        return self.table.rank(axis=1)

    @cached_property
    def friedman(self) -> tuple[float, float]:
        """The statistic of the Friedman test and its p-value; 1 where all results are equal."""
        from scipy.stats import friedmanchisquare

        with np.errstate(all="ignore"):
            found = friedmanchisquare(*self.by_cell.to_numpy().T)
        return (0.0, 1.0) if isnan(found.pvalue) else (float(found.statistic), float(found.pvalue))

    @cached_property
    def nemenyi(self) -> float:
        """The critical difference."""
        cells, methods = self.table.shape
        return critical_difference(methods, cells)

    @property
    def critical(self) -> float:
        """Average ranks that differ by at least this differ clearly; infinite where the Friedman test finds no difference."""
        return self.nemenyi if self.friedman[1] < LEVEL else inf

    def ranks(self) -> pd.DataFrame:
        """The methods by their average rank, with how often each was the best, and the tests."""
        average, first = self.by_cell.mean(), (self.by_cell.rank(axis=1, method="min") == 1).sum()
        statistic, p = self.friedman
        frame = pd.DataFrame({"method": average.index, "rank": average.to_numpy(), "best_in": first.to_numpy()})
        frame = frame.assign(with_the_best=frame["rank"] - frame["rank"].min() < self.critical, cells=len(self.table))
        frame = frame.assign(friedman=statistic, p=p, critical_difference=self.nemenyi)
        return frame.sort_values("rank", kind="stable", ignore_index=True)

    def groups(self) -> list[tuple[float, float]]:
        """The first and the last rank of each longest group of methods that do not differ clearly."""
        ranks = self.ranks()["rank"].tolist()
        spans = [(low, max(high for high in ranks if high - low < self.critical)) for low in ranks]
        return [span for i, span in enumerate(spans) if span[1] > span[0] and span[1] not in [s[1] for s in spans[:i]]]

    def profiles(self) -> pd.DataFrame:
        """For each method and factor, the share of cells where its result is within this factor of the best.

        Empty where results are negative, which have no factor.
        """
        if (self.table < 0).any(axis=None):
            return pd.DataFrame({"method": [], "factor": [], "share": []})
        best = self.table.min(axis=1)
        with np.errstate(all="ignore"):
            factors = self.table.div(best, axis=0)
        factors = factors.mask(self.table.eq(best, axis=0) & np.isfinite(self.table), 1.0).fillna(inf)
        places = sorted({1.0, *(float(value) for value in factors.to_numpy().ravel() if np.isfinite(value))})
        parts = [
            pd.DataFrame({"method": name, "factor": places, "share": [(factors[name] <= tau).mean() for tau in places]})
            for name in factors
        ]
        return pd.concat(parts, ignore_index=True)

    # ------------------------------------------------------------ words

    def notes(self) -> list[str]:
        """The result in a line, and what is missing."""
        missing = f"Ranks leave out {', '.join(self.left_out)}: not run in every cell."
        lines = [missing] if self.left_out else []
        if self.reason_to_leave_out:
            return [*lines, self.reason_to_leave_out]
        ranks = self.ranks()
        shown = ", ".join(f"{row.method} {row.rank:.2f}" for row in ranks.itertuples())
        return [f"Average ranks over {len(self.table)} cells: {shown}; {self._tests()}.", *lines]

    def _tests(self) -> str:
        first = self.ranks().iloc[0]
        p = p_text(first.p)
        if first.p >= LEVEL:
            return f"no clear difference (Friedman test, {p})"
        return f"clear from {first.critical_difference:.2f} on (Friedman test, {p}; Nemenyi test at 5 %)"

    def latex(self, name: str) -> str:
        """The ranks as a table."""
        ranks = self.ranks()
        first, texts = ranks.iloc[0], [f"{rank:.2f}" for rank in ranks["rank"]]
        clear = bool(first.p < LEVEL)

        def bold(place: int, number: str) -> str:
            return rf"\best{{{number}}}" if clear and ranks.with_the_best[place] else number

        columns = [
            latex.Column("Method", [latex.text(str(method)) for method in ranks.method], "l"),
            latex.Column(r"Average rank $\downarrow$", latex.aligned(texts, bold)),
            latex.Column(r"Best in $\uparrow$", latex.aligned([str(count) for count in ranks.best_in])),
        ]
        result = r"Bold: no clear difference to the best (Nemenyi test at 5\%)." if clear else "No clear difference."
        caption = (
            f"Average ranks over {len(self.table)} combinations of problem, graph and split (1 is best). {result} Best in: the "
            "number of them where it is best."
        )
        test = f"Friedman test: chi^2_{len(ranks) - 1} = {first.friedman:.1f}, {p_text(first.p)}"
        comment = f"{test}; critical difference of the Nemenyi test at 5 %: {first.critical_difference:.2f}."
        return latex.table(columns, caption, f"{name}-ranks", [comment, "Where methods tie, each counts as the best."])


def p_text(p: float) -> str:
    return "p < 0.001" if p < 1e-3 else f"p = {p:.2g}"
