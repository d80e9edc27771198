"""The fixed-stepsize theorem, measured: rates in T and n, and how they depend on the graph."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.plots import drawable, finish
from dnasa.problems.robust_regression import RobustRegression
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, evaluation_steps
from dnasa.reproduce.report import Report
from dnasa.topology import Topology

STEPS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
NODES = (1, 2, 4, 8, 16, 32)
SEEDS = 8
EVALUATIONS = 250  # of a run: the averages of the theorem are taken over these steps
METRICS = {"grad_norm": "|grad f|", "tracking": "|zbar - grad f|", "consensus": "consensus"}
GRAPHS = {"complete": topology.complete, "exponential": topology.exponential, "ring": topology.ring}


def parts(quick: bool) -> list[Part]:
    """D-NASA with the fixed schedule on robust regression: T x n x graphs, then graphs from rho = 0 to 0.99."""
    every, nodes, seeds = (STEPS[:4], (1, 4, 16), 3) if quick else (STEPS, NODES, SEEDS)

    def runs(graph: Topology, steps: int, labels: dict[str, object]) -> RunSpec:
        made: Any = {"schedules": ["fixed"], "problem": partial(RobustRegression, graph.nodes)}
        evaluate = evaluation_steps(steps - 1, EVALUATIONS - 1)
        return RunSpec(steps, seeds=range(seeds), labels=labels | {"T": steps}, graph=graph, evaluate=evaluate, **made)

    rates = [
        runs(make(n), steps, {"graph": name, "nodes": n})
        for name, make in GRAPHS.items()
        for n in nodes
        if n > 2 or name == "complete"
        for steps in every
    ]
    graphs = [runs(graph, every[-2], {"rho": graph.rho}) for graph in graphs_by_rho(16)]
    return [Part("rates", rates), Part("graphs", graphs)]


def report(found: Found) -> Report:
    """The three averages of the theorem over t = 0 .. T-1, taken at evenly spaced steps, and over the seeds."""
    rates, graphs = (
        found.rows[part].groupby(keys, sort=False)[list(METRICS)].mean().reset_index().rename(columns={"T": "steps"})
        for part, keys in (("rates", ["graph", "nodes", "T"]), ("graphs", ["rho", "T"]))
    )
    out = Report("theory", f"Theorem 4.2 (fixed schedule) on robust regression, {found.seeds}", found.quick)
    out.tables |= {"theory-slopes": slopes(rates), "theory-graphs": graphs}
    out.data["theory-rates"] = rates
    out.findings = findings(out.tables["theory-slopes"], graphs)
    draw(out, rates, graphs)
    return out


def graphs_by_rho(n: int) -> list[Topology]:
    """Complete graphs with more and more weight on a node itself: W = (1 - rho) 11'/n + rho I, rho from 0 to 0.99."""
    return [
        topology.from_matrix((1 - rho) * np.full((n, n), 1 / n) + rho * np.eye(n), name=f"rho = {rho}")
        for rho in (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    ]


def slope(x: pd.Series, y: pd.Series) -> float:
    used = (x > 0) & (y > 0)
    return float(np.polyfit(np.log(x[used]), np.log(y[used]), 1)[0]) if used.sum() > 1 else float("nan")


def slopes(rates: pd.DataFrame) -> pd.DataFrame:
    """Fitted exponents: in T over its longer half (for each n, then averaged), and in n at the longest T."""
    rows = []
    longest = rates.steps.max()
    for graph, runs in rates.groupby("graph", sort=False):
        late, last = runs[runs.steps >= np.sqrt(runs.steps.min() * longest)], runs[runs.steps == longest]
        for metric, name in METRICS.items():
            known = late[late[metric] > 1e-25]
            in_T = [slope(same.steps, same[metric]) for _, same in known.groupby("nodes")]
            row = {"graph": graph, "average of": name, "slope T": np.nanmean(in_T) if in_T else np.nan}
            if metric == "consensus":
                rows += [row | {"theory T": "<= -1/2"}] * bool(in_T)
                continue
            row |= {"theory T": "-1/4", "slope n": slope(last.nodes, last[metric]), "theory n": "-1/4"}
            rows.append(row | {"slope nT": slope(late.nodes * late.steps, late[metric])})
    return pd.DataFrame(rows)


def draw(out: Report, rates: pd.DataFrame, graphs: pd.DataFrame) -> None:
    shown = pd.concat([rates[(rates.graph == "complete") & (rates.nodes <= 2)], rates[rates.graph == "ring"]])
    steps = np.array(sorted(shown.steps.unique()))
    with out.draw("theory", 4, "D-NASA, fixed schedule, nonconvex robust regression, nothing retuned") as axes:
        for axis, (metric, label) in zip(axes, METRICS.items(), strict=False):
            for i, (n, same) in enumerate(shown.groupby("nodes")):
                if (same[metric] > 1e-25).all():
                    axis.plot(same.steps, same[metric], "o-", ms=3, color=f"C{i}", label=f"n = {n}")
            power = -0.5 if metric == "consensus" else -0.25
            anchor = shown[shown.steps == steps[0]][metric].max()
            axis.plot(steps, anchor * (steps / steps[0]) ** power, "k--", lw=1, label=f"slope {power:g}")
            axis.set_xscale("log")
            finish(axis, "steps $T$", f"average {label}", log=True)
        for i, (metric, label) in enumerate(METRICS.items()):
            values = drawable(graphs[metric]).clip(lower=1e-9)
            axes[3].plot(graphs.rho, values, "s:", ms=3, color=f"C{7 + i}", label=label)
        finish(axes[3], r"$\rho$ of the graph", f"averages, n = 16, T = {graphs.steps.iloc[0]:,}", log=True)


def findings(table: pd.DataFrame, graphs: pd.DataFrame) -> list[str]:
    lines = []
    for graph, rows in table.groupby("graph", sort=False):
        gradient, tracking = rows.iloc[0], rows.iloc[1]
        lines.append(
            f"{graph}: gradient norm falls like T^{gradient['slope T']:.2f} n^{gradient['slope n']:.2f}, "
            f"tracking like T^{tracking['slope T']:.2f} n^{tracking['slope n']:.2f} (predicted -0.25 each)."
        )
    first, last = graphs.iloc[0], graphs.iloc[-1]
    lines.append(
        f"From rho = {first.rho:.2f} to {last.rho:.2f} the average gradient norm changes from {first.grad_norm:.4g} to "
        f"{last.grad_norm:.4g} with nothing retuned."
    )
    return lines


EXPERIMENT = Experiment("theory", parts, report, on_gpu=False)
