"""How figures look: on a screen, or printed in a paper.

Every figure takes its size, fonts, colors and file settings from the style that `context` has set.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dnasa.core import InputError
from dnasa.extras import can_draw

__all__ = ["Style", "context", "current"]

POINTS = 72.27  # of TeX in an inch
COLUMN = 234 / POINTS  # inches, the width of a column in most journals
NARROWEST, WIDEST = 2.0, 20.0
TALLEST, PROPORTION = 3.0, 0.585  # a row of panels: in inches, and as a part of the figure's width
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (6, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*<>hpd"
# Okabe and Ito's colors for the color-blind without yellow, too light on white. The first four also differ in grey.
OKABE_ITO = ("#000000", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")

SCREEN: dict[str, Any] = {
    "figure.dpi": 120,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "pdf.fonttype": 42,  # fonts are embedded: they look the same everywhere
    "ps.fonttype": 42,
    "svg.fonttype": "path",
}
PAPER: dict[str, Any] = SCREEN | {
    "figure.dpi": 300,
    "figure.titlesize": 8,
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.titlepad": 3,
    "axes.labelpad": 2,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.2,
    **{f"{axis}tick.{kind}.width": 0.6 for axis in "xy" for kind in ("major", "minor")},
    **{f"{axis}tick.major.size": 2.5 for axis in "xy"},
    **{f"{axis}tick.minor.size": 1.5 for axis in "xy"},
    **{f"{axis}tick.major.pad": 2 for axis in "xy"},
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
    "figure.constrained_layout.wspace": 0.05,  # numbers at the ends of neighboring axes need it
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.2,
    "svg.fonttype": "none",  # letters remain text
}


@dataclass(frozen=True)
class Style:
    """A look of figures.

    Attributes:
        settings: Those of matplotlib.
        width: The width of a whole figure in inches; None: as its panels ask for.
        palette: The colors of lines by their place; empty: each rule has its own.
        marked: How many points of a line have a marker.
        marker: Their size, in points.
    """

    settings: Mapping[str, Any] = field(default_factory=lambda: SCREEN)
    width: float | None = None
    palette: tuple[str, ...] = ()
    marked: int = 8
    marker: float = 4

    @property
    def printed(self) -> bool:
        return self.width is not None

    def applied(self) -> AbstractContextManager[None]:
        """A context in which its settings are those of matplotlib."""
        import matplotlib
        from cycler import cycler

        settings: Any = dict(self.settings)
        if self.palette:
            settings["axes.prop_cycle"] = cycler(color=self.palette)
        return matplotlib.rc_context(settings)

    def columns(self, wanted: int) -> int:
        """How many panels fit next to each other: in print, each is at least 1.6 inches wide."""
        return wanted if self.width is None else min(wanted, max(1, int(self.width / 1.6)))

    def size(self, columns: int, rows: int, width: float, height: float) -> tuple[float, float]:
        """The size of a figure whose panels have this width and height on a screen; in print, rows may be flatter."""
        if self.width is None:
            return width * columns, height * rows
        scaled = height * self.width / (width * columns)
        return self.width, rows * min(scaled, PROPORTION * self.width, TALLEST)


_current: ContextVar[Style] = ContextVar("style", default=Style())  # noqa: B039 (it is frozen)


def current() -> Style:
    """The style in which figures are drawn now."""
    return _current.get()


@contextmanager
def context(name: str) -> Iterator[Style]:
    """Draw and save figures in a style.

    Args:
        name: "screen"; "paper", which is one column of 234 pt (3.24 inches) with text of 8 pt; or a width in inches or
            points of TeX, as in "paper:6.75" or "paper:487pt".

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
    """The style of this name."""
    kind, colon, width = name.partition(":")
    if name == "screen":
        return Style()
    if kind != "paper":
        raise InputError(
            f"Unknown style '{name:.40}'. Choose from: screen, paper, or paper with a width: paper:6.75 (inches), paper:487pt."
        )
    try:
        inches = float(width.removesuffix("pt")) / (POINTS if width.endswith("pt") else 1) if colon else COLUMN
    except ValueError:
        inches = 0.0
    if not NARROWEST <= inches <= WIDEST:
        raise InputError(
            f"A paper is {NARROWEST:g} to {WIDEST:g} inches wide, as in paper:6.75 or paper:487pt; not '{width:.40}'."
        )
    return Style(PAPER, inches, OKABE_ITO, marked=4, marker=3)
