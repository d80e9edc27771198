"""The paper's figures."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from dnasa.checks import choose
from dnasa.extras import needed_by

if TYPE_CHECKING:
    from dnasa.reproduce.report import Report

__all__ = ["FIGURES", "figure"]

FIGURES = {
    "fig1": "speedup with the number of nodes (least squares, ring)",
    "fig2": "the spike model against tuned methods",
    "fig3": "test accuracy against stepsize on real data",
    "fig4": "the same for a9a on four graphs",
    "fig5": "MNIST: curves at the best stepsizes",
    "fig6": "a9a: curves at the best stepsizes",
}
"""What `dnasa reproduce` makes, by name."""
ON_CPU = ("fig1", "fig2")  # too small for a GPU


def figure(name: str) -> Callable[..., "Report"]:
    """Return the function that makes a figure: it takes `quick`, `progress` and, on data, `device`.

    Args:
        name: One of `FIGURES`.
    """
    choose("figure", name, FIGURES)
    with needed_by(f"The figure {name}"):
        module = import_module(f"dnasa.reproduce.{'synthetic' if name in ON_CPU else 'datasets'}")
    return getattr(module, name)
