"""Exponents of the average gradient norm in T and n, measured: Theorem 4.2 of the paper says -1/4 for D-NASA.

python experiments/theory.py     # five minutes on one core; a table of exponents with intervals over the seeds
"""

import numpy as np
import pandas as pd
from scipy.special import stdtrit

import dnasa
from dnasa import topology
from dnasa.problems import RobustRegression

STEPS = (1_000, 2_000, 4_000, 8_000, 16_000)
NODES = (1, 2, 4, 8, 16, 32)
SEEDS = 4
METHODS = ["dnasa:fixed", "adanasa:linear", "adanasa:averaged"]
GRAPHS = {
    "complete": topology.complete,
    "exponential": topology.exponential,
    "ring": topology.ring,
    "path": topology.path,
}


def averages(graph: topology.Topology, steps: int) -> pd.DataFrame:
    """The gradient norm averaged over the steps, for each method and seed."""
    evaluate = sorted({int(t) for t in np.linspace(0, steps, 201)})
    problem = RobustRegression(graph.nodes)
    history = dnasa.solve(problem, graph, METHODS, steps=steps, seed=range(SEEDS), evaluate=evaluate, progress=False).history
    rows = history[history.step < steps].groupby(["rule", "schedule", "seed"]).grad_norm.mean()
    return rows.reset_index().assign(T=steps, n=graph.nodes)


def exponents(rows: pd.DataFrame, varied: str) -> pd.DataFrame:
    """The slope of log(average) in log(varied), its mean over the seeds, and half the length of its 95 % interval."""
    slopes = rows.groupby(["rule", "schedule", "seed"]).apply(
        lambda seed: np.polyfit(np.log(seed[varied]), np.log(seed.grad_norm), 1)[0], include_groups=False
    )
    table = slopes.groupby(["rule", "schedule"]).agg(["mean", "std"])
    half = stdtrit(SEEDS - 1, 0.975) * table["std"] / np.sqrt(SEEDS)
    return pd.DataFrame({"exponent of": varied, "mean": table["mean"], "+-": half}).reset_index()


def main() -> None:
    longer = STEPS[len(STEPS) // 2 :]
    tables = [
        exponents(pd.concat([averages(make(16), steps) for steps in longer]), "T").assign(graph=name)
        for name, make in GRAPHS.items()
    ]
    tables += [
        exponents(pd.concat([averages(GRAPHS[name](n), STEPS[-1]) for n in NODES]), "n").assign(graph=name)
        for name in ("complete", "ring")
    ]
    print(pd.concat(tables).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
