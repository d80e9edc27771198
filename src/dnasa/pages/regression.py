"""A regression as a page: its table, its notes, and how each input differs between sites."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnasa.inference import INTERCEPT, Fit, decimals
from dnasa.pages.contents import round_numbers, table, text
from dnasa.pages.page import render_template, with_notes
from dnasa.runs.environment import versions

LEFT, WIDTH, LINE = 170, 260, 22  # of a forest plot: where its axis begins, how long it is, and the height of a line
SQUARE = 7  # half of the side of the largest square
METHODS = {  # by what the exponential of a coefficient is called
    "odds ratio": "Maximum likelihood (logistic regression), Wald intervals and tests.",
    "": "Least squares, intervals and tests by Student's t.",
    "rate ratio": "Maximum likelihood (Poisson regression, log link), Wald intervals and tests.",
    "hazard ratio": "Partial likelihood with a stratum for each site and Efron's ties, Wald intervals and tests.",
}
OVER_SITES = " Random effects by DerSimonian and Laird; without one site: the range of the fits that leave one out."
RATIOS = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]


def render(fit: Fit) -> str:
    """The page of a regression."""
    return render_template("regression.html", **_shown(fit), forests=list(_forests(fit)))


def as_latex(fit: Fit, name: str) -> str:
    """The table for a paper, with the notes of the page but the warnings."""
    title, columns, rows, notes = _shown(fit).values()
    kept = [note for note in notes if not note.startswith("Warning: ")]
    return with_notes(dict(zip(columns, zip(*rows, strict=True), strict=True)), title, kept, name)


def _shown(fit: Fit) -> dict[str, Any]:
    methods = f"{METHODS[fit.ratio]} Complete cases: rows with missing values are left out.{OVER_SITES * bool(len(fit.sites))}"
    software = f"dnasa {versions().get('dnasa', '')}: Newton's method on sums over the sites."
    return table(
        fit.title, fit.texts().assign(input=fit.table.input.str.replace("=", ": ", n=1)), [f"{methods} {software}", *fit.notes]
    )


def _forests(fit: Fit) -> Iterator[dict[str, Any]]:
    """For each input the estimates of the sites, their mean by random effects, and that of all rows, with 95 % intervals."""
    for _, row in fit.table[fit.table.input != INTERCEPT].iterrows() if len(fit.sites) else ():
        own = fit.sites[(fit.sites.input == row.input) & fit.sites.coefficient.notna()]
        estimates = [*own.coefficient, row.random_effects, row.coefficient]
        halves = 1.96 * np.array([*own.standard_error, row.random_effects_standard_error, 0])
        ends = np.column_stack([estimates - halves, estimates, estimates + halves])
        ends[-1, [0, 2]] = row.coefficient_low, row.coefficient_high
        shown = np.isfinite(ends).all(axis=1)
        sites = [f"{site} ({rows:,})" for site, rows in zip(own.site, own.rows, strict=True)]
        names = np.array([*sites, "random effects", "all rows"])[shown]
        yield {
            "title": text(row.input.replace("=", ": ", 1)),
            "sites": len(own),
            **_forest(names, ends[shown], len(own), fit.ratio),
        }


def _forest(names: np.ndarray, ends: np.ndarray, sites: int, ratio: str) -> dict[str, Any]:
    """Where each estimate and its interval are drawn, with an arrow where it is cut; the text has the numbers."""
    room, scaled = np.median(ends[:, 2] - ends[:, 0]) / 2, np.exp if ratio else np.asarray
    low, high = min(ends[:, 1].min() - room, 0), max(ends[:, 1].max() + room, 0)

    def place(x: Any) -> Any:
        return LEFT + WIDTH * (np.clip(x, low, high) - low) / (high - low)

    ticks = [r for r in RATIOS if low <= np.log(r) <= high] if ratio else []
    ticks = ticks if len(ticks) > 1 else round_numbers(float(scaled(low)), float(scaled(high)))
    ticks = ticks[:: 1 + (len(ticks) > 5)]  # longer labels would overlap
    numbers = ([decimals(float(x)) for x in scaled(line)] for line in ends)
    texts = [f"{value} ({begin} to {end})" for begin, value, end in numbers]
    widths, cut = ends[:, 2] - ends[:, 0], np.column_stack([ends[:, 0] < low, ends[:, 2] > high])
    sizes = SQUARE * widths[:sites].min(initial=np.inf) / widths  # of squares whose areas are the weights
    return {
        "lines": [
            *zip(map(text, names), place(ends).tolist(), texts, sizes.clip(2, SQUARE).round(1), cut.tolist(), strict=True)
        ],
        "ticks": [(f"{tick:g}", place(np.log(tick) if ratio else tick)) for tick in ticks],
        "none": place(0),
        "axis": ratio or "coefficient",
        "line": LINE,
        "left": LEFT,
        "right": LEFT + WIDTH,
    }
