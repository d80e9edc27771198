"""Draw loss against bytes on 92 million parameters, from the numbers in large_models.csv.

python experiments/large_models.py docs/figures/large-models.png
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from dnasa import rules
from dnasa.comparing import style

PLACES = {"AdaNASA": ("center", (0, 16)), "AdaNASA with few bytes": ("left", (10, -14))}  # of names not left of the point


def draw(table: pd.DataFrame, path: str) -> None:
    """A point for each run; those of a method have its name."""
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    for name, runs in table.groupby("name", sort=False):
        color = rules.RULES["adanasa"].color if name.startswith("AdaNASA") else "#444444"
        x, y = runs.bytes.mean(), runs.test_loss.mean()
        axes.plot(runs.bytes, runs.test_loss, "o" if len(runs) > 1 else "s", color=color, ms=7)
        side, shift = PLACES.get(name, ("right", (-10, 0)))
        axes.annotate(f"{name}, {y:.2f}", (x, y), shift, textcoords="offset points", ha=side, va="center", color=color)
    axes.set(xscale="log", xlim=(0.05, 50), ylim=(2.0, 3.2), xlabel="bytes per parameter, node and step", ylabel="test loss")
    axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    with style.context("screen"):
        draw(pd.read_csv(Path(__file__).with_suffix(".csv")), sys.argv[1])
