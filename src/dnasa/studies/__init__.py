"""Deprecated: use `dnasa.reproduce` for figures and experiments, `dnasa.comparing` for comparisons. Removed in 0.4."""

import warnings

from dnasa.reproduce import FIGURES, figure

__all__ = ["FIGURES", "figure"]

warnings.warn(
    "dnasa.studies is now dnasa.reproduce (figures) and dnasa.comparing (comparisons); 0.4 removes the old name.",
    DeprecationWarning,
    stacklevel=2,
)
