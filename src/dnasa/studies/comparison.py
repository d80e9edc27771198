"""Deprecated: use `dnasa.comparing.comparison`. Removed in 0.4."""

from dnasa.comparing.comparison import *  # noqa: F403
