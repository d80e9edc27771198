"""From names and files to a problem: sources, models by name, the user's own models."""
