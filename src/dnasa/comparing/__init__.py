"""Comparisons and studies: tuning, statistics, figures and tables."""

from dnasa.comparing.comparison import Comparison
from dnasa.comparing.grid import compare
from dnasa.comparing.plots import draw_history, save_figure

__all__ = ["Comparison", "compare", "draw_history", "save_figure"]
