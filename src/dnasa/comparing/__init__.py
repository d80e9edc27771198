"""Comparisons: tuning, study files, and their tables and figures."""

from dnasa.comparing.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
