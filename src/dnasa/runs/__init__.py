"""A run on disk: its folder, history, checkpoints and exact resume."""
