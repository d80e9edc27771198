"""Seconds to an accuracy with and without waiting: one of 8 nodes is 5 times slower, links of 10 to 200 ms lose 2 % of all
messages.

    python -m benchmarks.late                                    # MNIST and a9a, about half an hour on two cores
    python -m benchmarks.late --data mnist --partitions iid --rules adanasa

The target is what the synchronous run ends with, minus one point. Prints a row for each run.
"""

import argparse
from typing import Any

import numpy as np

import dnasa
from dnasa.data import load, partition
from dnasa.tasks.tasks import on_shards

LINKS = {"compute": [0.02] * 7 + [0.1], "bandwidth": 1000, "latency": [10, 200], "loss": 0.02}
MODELS = {"mnist": "mlp:32", "a9a": "mlp:64"}
RUNS: dict[str, tuple[str, float, dict[str, Any]]] = {  # graph, factor of the steps, further options
    "waits, ring": ("ring", 1, {}),
    "waits, exact": ("exact", 1, {}),
    "late=4": ("exponential", 1.25, {"late": 4}),
    "late=16": ("exponential", 2.5, {"late": 16}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist,a9a")
    parser.add_argument("--partitions", default="iid,dirichlet(0.1)")
    parser.add_argument("--rules", default="dnasa,adanasa")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for data in given.data.split(","):
        rows = load(data)
        for how in given.partitions.split(","):
            shards = partition(how, rows.labels, 8)
            problem = on_shards(rows, shards, model=MODELS[data], train_metrics=False)
            for rule in given.rules.split(","):
                compare(problem, rule, given.steps, given.seed, f"{data}, {how}, {rule}")


def compare(problem: Any, rule: str, steps: int, seed: int, title: str) -> None:
    target = None
    for name, (graph, factor, options) in RUNS.items():
        length = round(factor * steps)
        run = dnasa.solve(
            problem, graph, rule, steps=length, seed=seed, clock=LINKS, evaluate=length // 50, progress=False, **options
        )
        seconds, accuracy = run.history.clock_seconds.to_numpy(), run.history.test_accuracy.to_numpy()
        target = accuracy[-1] - 0.01 if target is None else target
        sent = run.history.messages.iloc[-1] / 8 / length
        row = described(seconds, accuracy, target)
        print(f"{title} | {name} | {length} steps, {row} | {sent:.1f} messages per step", flush=True)


def described(seconds: np.ndarray, accuracy: np.ndarray, target: float) -> str:
    """How long a run takes, and when it has reached the target."""
    reached = seconds[np.argmax(accuracy >= target)] if (accuracy >= target).any() else np.inf
    ends = f"{seconds[-1]:.0f} s | ends with {100 * accuracy[-1]:.2f} %"
    return f"{ends} | {100 * target:.2f} % after {reached:.0f} s"


if __name__ == "__main__":
    main()
