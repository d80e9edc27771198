"""Comparisons: tuning, study files, and their tables and figures."""
