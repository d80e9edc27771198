"""Detectors recover a signal together from intensities: the phases are lost, so the problem is nonconvex.

    python examples/phase_retrieval.py [figure.png]

Twelve detectors each measure b = (a'signal)^2 for 40 random a, of which a step uses five. Without noise every sample has the
same solution, so a tuned constant stepsize is much faster than D-NASA's diminishing one; AdaNASA needs no tuning here either.
The signal is known up to its sign.
"""

import sys
from typing import Any

import numpy as np

import dnasa
from dnasa.comparing.plots import label, panels, save_figure, styles

NODES, ROWS, DIM, STEPS = 12, 40, 32, 2500
generator = np.random.default_rng(0)
place = np.linspace(-3, 3, DIM)
signal = np.exp(-((place + 1) ** 2) * 3) - 0.7 * np.exp(-((place - 1) ** 2) * 6)
inputs = generator.normal(size=(NODES, ROWS, DIM))
intensities = (inputs @ signal) ** 2


def gradient(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    """Of the mean of ((a'x)^2 - b)^2 / 4 over five measurements, for all nodes and runs at once."""
    row = rngs.integers(ROWS, size=5)
    a, b = inputs[nodes[:, None], row], intensities[nodes[:, None], row]
    amplitude = np.einsum("...jd,...d->...j", a, x)
    return np.einsum("...j,...jd->...d", (amplitude**2 - b) * amplitude, a) / 5


def distance(x: np.ndarray) -> dict[str, float]:
    return {"distance": float(min(np.linalg.norm(x - signal), np.linalg.norm(x + signal)) / np.linalg.norm(signal))}


def draw(result: dnasa.Result, path: str) -> None:
    figure, axes = panels(2, width=5.2, height=3.8)
    left, right = axes[0]
    lines = list(result.history.groupby(["rule", "schedule"], sort=False))
    for style, ((rule, schedule), rows) in zip(styles([rule for (rule, _), _ in lines]), lines, strict=True):
        left.semilogy(rows.step, rows.distance, label=label(rule, schedule), markevery=8, ms=4, **style)
    left.set(xlabel="step", ylabel="relative distance to the signal", title=f"{NODES} detectors on a ring")
    left.legend(fontsize=8)
    right.plot(place, signal, color="0.6", lw=5, label="the signal")
    for style, ((rule, schedule), _), x in zip(styles([r for (r, _), _ in lines]), lines, result.x, strict=True):
        mean = x.mean(0)
        right.plot(place, np.sign(mean @ signal) * mean, label=label(rule, schedule), ms=3, **style)
    right.set(xlabel="position", ylabel="amplitude", title=f"Recovered after {STEPS:,} steps")
    right.legend(fontsize=8)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    start = np.random.default_rng(1).normal(size=DIM) / np.sqrt(DIM)
    problem = dnasa.problems.Custom(gradient, start, batched=True, evaluate=distance)
    rules = ["dsgt:constant", "adanasa", "dnasa"]
    result = dnasa.solve(problem, dnasa.topology.ring(NODES), rules, eta=0.01, steps=STEPS)
    for row in result.final().itertuples():
        print(f"{label(row.rule, row.schedule):16s} relative distance {row.distance:.1e}")
    draw(result, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "phase_retrieval.png")
