"""How figures look: on a screen, or printed in a paper.

Every figure takes its size and looks from the style that `context` has set; `.mplstyle` files have the settings of matplotlib.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from dnasa.core import InputError
from dnasa.extras import can_draw

POINTS = 72.27  # of TeX in an inch
COLUMN = 229.5 / POINTS  # inches, a column of LaTeX's article; those of IEEE, ACM and ICML are wider
NARROWEST, WIDEST = 2.0, 20.0
TALLEST, PROPORTION = 3.0, 0.585  # a row of panels: in inches, and as a part of the figure's width
SMALL_PANEL = 1.05  # inches, the width of one in print that needs no numbers of the vertical axis
TALL, LOWEST = 5.2, 1.0  # inches: a whole figure with its titles and legend, unless a row were lower
PAGE, FLATTEST = 4.6, 1.2  # inches: all rows leave room for legend and caption, unless a row were flatter
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (6, 1, 1, 1, 1, 1)))
MARKERS: tuple[Any, ...] = (*"osD^vP*d><", (3, 1, 0), (4, 1, 0), (6, 1, 0), (4, 1, 45), (3, 1, 180), *"1234|")
OWN_MARKERS: tuple[Any, ...] = (*"Xph+x", (5, 2, 0))  # of rules that are not built in
# of rules that are not built in: far from each other and from the default rules, also in grey where dashes are the same
OWN_COLORS = "#ff7777 #000000 #998800 #0000ff #bb5500 #cc99dd #ff0000 #77bb00 #99bb99 #553300 #7700bb #ff00ff".split()
NETWORKS = "ring complete exact exponential torus hypercube star random".split()  # whose looks are the first of these
NETWORK_COLORS = "#000000 #0072b2 #d55e00 #009e73 #cc79a7 #56b4e9 #e69f00 #882255".split()
NETWORK_DASHES: tuple[Any, ...] = (*DASHES[:4], (0, (12, 2)), DASHES[5], (0, (4, 4)), (0, (1, 3)))


@dataclass(frozen=True)
class Style:
    """A look of figures.

    Attributes:
        sheets: The `.mplstyle` files of its settings, later ones replacing earlier ones.
        font: The size of titles and legends, in points.
        width: The width of a whole figure in inches; None: as its panels ask for.
        marked: How many points of a line have a marker.
        marker: Their size, in points.
    """

    sheets: tuple[str, ...] = ("screen",)
    font: float = 9.5
    width: float | None = None
    marked: int = 8
    marker: float = 4

    @property
    def printed(self) -> bool:
        return self.width is not None

    def applied(self) -> AbstractContextManager[None]:
        """A context in which its settings are those of matplotlib."""
        import matplotlib.style

        return matplotlib.style.context([str(Path(__file__).with_name(f"{sheet}.mplstyle")) for sheet in self.sheets])

    def columns(self, wanted: int, least: float = 1.55) -> int:
        """The columns of so many panels, with few empty places: in print, a panel has at least this width in inches."""
        rows = 1 if self.width is None else ceil(wanted / max(1, int(self.width / least)))
        return ceil(wanted / rows)

    def size(self, columns: int, rows: int, width: float, height: float) -> tuple[float, float]:
        """The size of a figure whose panels have this width and height on a screen; in print, rows may be flatter."""
        if self.width is None:
            return width * columns, height * rows
        scaled = height * self.width / (width * columns)
        return self.width, rows * min(scaled, PROPORTION * self.width, TALLEST, max(PAGE / rows, FLATTEST))


_current: ContextVar[Style] = ContextVar("style", default=Style())  # noqa: B039 (it is frozen)


def current() -> Style:
    """The style in which figures are drawn now."""
    return _current.get()


@contextmanager
def context(name: str) -> Iterator[Style]:
    """Draw and save figures in a style.

    Args:
        name: "screen"; "paper", which is one column of 229.5 pt (3.18 inches) with text of 8 pt; or a width in inches or
            points of TeX, as in "paper:6.75" or "paper:469pt".

    Examples:
        ```python
        with dnasa.comparing.style.context("paper"):
            save_figure(comparison.draw_curves(), "curves.pdf")
        ```
    """
    chosen = parse(name)
    token = _current.set(chosen)
    try:
        with chosen.applied() if can_draw() else nullcontext():
            yield chosen
    finally:
        _current.reset(token)


def parse(name: str) -> Style:
    if name == "screen":
        return Style()
    width = re.fullmatch(r"paper:(\d*\.?\d+)(pt)?", name)
    inches = COLUMN if name == "paper" else 0.0
    if width:
        inches = float(width[1]) / POINTS if width[2] else float(width[1])
    if not NARROWEST <= inches <= WIDEST:
        raise InputError(
            f"Unknown style '{name:.40}'. Choose from: screen, paper, or paper with a width of {NARROWEST:g} to {WIDEST:g} "
            "inches: paper:6.75, paper:469pt."
        )
    return Style(("screen", "paper"), 8, inches, marked=4, marker=3)
