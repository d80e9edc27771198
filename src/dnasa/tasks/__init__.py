"""From names and files to a problem: sources, models by name, the user's own models."""

BATCH = 32  # rows that a node draws in each step
