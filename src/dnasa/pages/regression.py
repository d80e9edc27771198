"""A regression as a page: its table, its notes, and how each input differs between sites."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnasa.inference import INTERCEPT, Fit, decimals
from dnasa.pages.contents import round_numbers, text
from dnasa.pages.page import render_template

LEFT, WIDTH, LINE = 170, 260, 22  # of a forest plot: where its axis begins, how long it is, and the height of a line
RATIOS = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]


def render(fit: Fit) -> str:
    """The page of a regression."""
    shown = fit.texts()
    return render_template(
        "regression.html",
        title=text(fit.title),
        columns=list(shown),
        rows=[list(map(text, row)) for row in shown.to_numpy()],
        notes=list(map(text, fit.notes)),
        forests=list(_forests(fit)),
    )


def _forests(fit: Fit) -> Iterator[dict[str, Any]]:
    """For each input the estimates of the sites, their mean by random effects, and that of all rows, with 95 % intervals."""
    for _, row in fit.table[fit.table.input != INTERCEPT].iterrows() if len(fit.sites) else ():
        own = fit.sites[(fit.sites.input == row.input) & fit.sites.coefficient.notna()]
        lines = [*zip(own.site, own.coefficient, own.standard_error, strict=True)]
        lines += [("random effects", row.random_effects, row.random_effects_standard_error)]
        lines += [("all rows", row.coefficient, row.standard_error)]
        yield {"title": text(row.input), **_forest([line for line in lines if np.isfinite(line[1])], fit.ratio)}


def _forest(lines: list[tuple[str, float, float]], ratio: str) -> dict[str, Any]:
    """Where each estimate and its interval are drawn, which ends at the frame; the text has the numbers."""
    values, halves = np.array([line[1] for line in lines]), 1.96 * np.array([line[2] for line in lines])
    room = np.median(halves)
    low, high = min(values.min() - room, 0), max(values.max() + room, 0)

    def place(x: Any) -> Any:
        return LEFT + WIDTH * (np.clip(x, low, high) - low) / (high - low)

    scaled = np.exp if ratio else np.asarray
    ticks = [r for r in RATIOS if low <= np.log(r) <= high] if ratio else []
    ticks = ticks if len(ticks) > 1 else round_numbers(float(scaled(low)), float(scaled(high)))
    numbers = ([decimals(float(scaled(x))) for x in ends] for ends in np.transpose([values, values - halves, values + halves]))
    texts = [f"{value} ({begin} to {end})" for value, begin, end in numbers]
    ends = zip(place(values - halves), place(values), place(values + halves), strict=True)
    return {
        "lines": [(text(line[0]), *at, shown) for line, at, shown in zip(lines, ends, texts, strict=True)],
        "ticks": [(f"{tick:g}", place(np.log(tick) if ratio else tick)) for tick in ticks],
        "none": place(0),
        "axis": ratio or "coefficient",
        "height": LINE * len(lines),
        "line": LINE,
        "right": LEFT + WIDTH,
        "left": LEFT,
    }
