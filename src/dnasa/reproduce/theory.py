"""The fixed-stepsize theorem, measured, and what AdaNASA does where the theorem speaks of D-NASA."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from dnasa import topology
from dnasa.core import Array
from dnasa.plots import SYMBOLS, colours, finish
from dnasa.problems import prox
from dnasa.problems.custom import Custom
from dnasa.problems.robust_regression import RobustRegression
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, evaluation_steps
from dnasa.reproduce.report import Report
from dnasa.topology import Topology

STEPS = (1_000, 2_000, 4_000, 8_000, 16_000)
NODES = (1, 2, 4, 8, 16, 32)
SEEDS = 4
EVALUATIONS = 200  # of a run: the averages of the theorem are taken over these steps
METHODS = {  # by rule and schedule
    ("dnasa", "fixed"): "D-NASA (fixed)",
    ("adanasa", "linear"): "AdaNASA (linear)",
    ("adanasa", "averaged"): "AdaNASA (averaged)",
}
GRAPHS = {
    "complete": topology.complete,
    "exponential": topology.exponential,
    "ring": topology.ring,
    "path": topology.path,
}
NOISE: Mapping[str, float] = {"gaussian": np.inf, "t(3)": 3, "t(2)": 2, "t(1.5)": 1.5}  # degrees of freedom
CONDITIONS = (1, 10, 100, 1000)
PENALTIES = {"ball": prox.ball(2.0), "l1": prox.l1(0.3)}  # for D-NASA, which alone takes them
VARIED = {
    "steps": "T",
    "nodes": "nodes",
    "noise": "T",
    "condition": "condition",
    "prox": "T",
}  # what the exponents are of
FIXED = {"steps": "graph", "nodes": "graph", "noise": "noise", "prox": "penalty"}
METRICS = {"average": "grad_norm", "tracking": "tracking", "consensus": "consensus"}


def parts(quick: bool) -> list[Part]:
    """T on four graphs, n on two, noise with ever heavier tails, curvatures that differ ever more, and f + h."""
    every, nodes, seeds = ([T // 4 for T in STEPS[:3]], (1, 4, 16), 3) if quick else (STEPS, NODES, SEEDS)

    def runs(steps: int, graph: Topology, problem: Any, labels: dict[str, object]) -> RunSpec:
        return RunSpec(
            steps,
            [f"{rule}:{schedule}" for rule, schedule in METHODS if rule == "dnasa" or "penalty" not in labels],
            seeds=range(seeds),
            labels=labels | {"T": steps},
            graph=graph,
            evaluate=evaluation_steps(steps, EVALUATIONS),
            problem=problem,
        )

    def regression(steps: int, name: str, n: int) -> RunSpec:
        return runs(steps, GRAPHS[name](n), partial(RobustRegression, n), {"graph": name, "nodes": n})

    def synthetic(steps: int, **labels: Any) -> RunSpec:
        return runs(steps, topology.ring(16), partial(valleys, 16, **labels), labels)

    return [
        Part("steps", [regression(steps, name, 16) for name in GRAPHS for steps in every]),
        Part("nodes", [regression(every[-1], name, n) for name in ("complete", "ring") for n in nodes]),
        Part("noise", [synthetic(steps, noise=noise) for noise in NOISE for steps in every]),
        Part("condition", [synthetic(every[-1], condition=condition) for condition in CONDITIONS]),
        Part("prox", [synthetic(steps, penalty=penalty) for penalty in PENALTIES for steps in every]),
    ]


def valleys(nodes: int, noise: str = "gaussian", condition: float = 1, penalty: str | None = None) -> Custom:
    """min (1/n) sum_i sum_j c_j log(1 + r_j^2) with r = Qx - b_i: smooth, nonconvex, with curvatures 2c from 2 to
    2 condition; to each coordinate of a gradient noise is added, Student's t or Gaussian."""
    dim, random, freedom = 10, np.random.default_rng(0), NOISE[noise]
    rotation, _ = np.linalg.qr(random.standard_normal((dim, dim)))
    scales = np.geomspace(1, condition, dim)
    centres = 2 + random.standard_normal((nodes, dim))

    def full(x: Array, node: Any) -> Array:
        residual = x @ rotation - centres[node]
        return (2 * scales * residual / (1 + residual**2)) @ rotation.T

    def gradient(x: Array, nodes: range, rngs: Any) -> Array:
        drawn = rngs.standard_normal(dim) if np.isinf(freedom) else rngs.standard_t(freedom, dim)
        return full(x, np.asarray(nodes)) + drawn

    return Custom(
        gradient, np.zeros(dim), full_gradient=full, nodes=nodes, batched=True, prox=PENALTIES.get(penalty or "")
    )


def report(found: Found) -> Report:
    """The averages of the theorem over t = 0 .. T-1, taken at evenly spaced steps, the gradient norm of the answer, and the
    exponents with which they change; intervals of 95% over the seeds."""
    runs = {name: measured(rows) for name, rows in found.rows.items()}
    exponents = pd.concat([slopes(name, rows) for name, rows in runs.items()], ignore_index=True)
    averages = graphs(runs["steps"])
    out = Report("theory", f"Theorem 4.2 measured, for D-NASA and AdaNASA, {found.seeds}", found.quick)
    shown = exponents.drop(columns=["+- last", "+- tracking"])
    out.tables |= {"theory-slopes": shown, "theory-graphs": averages}
    out.data |= {"theory-exponents": exponents} | {f"theory-{name}": rows for name, rows in runs.items()}
    out.findings = findings(exponents, averages)
    draw(out, runs, exponents)
    return out


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each run: the averages over its steps, and the gradient norm at the end."""
    method = [METHODS[pair] for pair in zip(rows.rule, rows.schedule, strict=True)]
    rows = rows.assign(method=method, last=rows.grad_norm).rename(columns={old: new for new, old in METRICS.items()})
    keys = [name for name in ("method", "graph", "nodes", "noise", "condition", "penalty", "T", "seed") if name in rows]
    every = rows.groupby(keys, sort=False)
    ends = rows.step == every.step.transform("max")
    averages = rows[~ends].groupby(keys, sort=False)[list(METRICS)].mean()
    return averages.join(rows[ends].set_index(keys)["last"]).reset_index()


def slope(x: pd.Series, y: pd.Series) -> float:
    used = (x > 0) & (y > 0)
    return float(np.polyfit(np.log(x[used]), np.log(y[used]), 1)[0]) if used.sum() > 1 else float("nan")


def interval(values: pd.Series) -> tuple[float, float]:
    """The mean, and half of the length of its interval."""
    half = stdtrit(max(1, len(values) - 1), 0.975) * values.std() / np.sqrt(len(values))
    return float(values.mean()), float(half)


def slopes(name: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Exponents fitted for each seed; those of T over its longer half."""
    varied, fixed = VARIED[name], FIXED.get(name)
    used = runs[runs["T"] >= np.sqrt(runs["T"].min() * runs["T"].max())] if varied == "T" else runs
    rows = []
    for keys, same in used.groupby([*([fixed] if fixed else []), "method"], sort=False):
        row = {"exponent of": varied, "on": keys[0] if fixed else "", "method": keys[-1]}
        row["theorem"] = theorem(name, str(keys[0]), keys[-1])
        for metric in ("average", "last", "tracking"):
            each = pd.Series([slope(seed[varied], seed[metric]) for _, seed in same.groupby("seed")])
            row[metric], row[f"+- {metric}"] = interval(each)
        rows.append(row)
    return pd.DataFrame(rows)


def theorem(name: str, on: str, method: str) -> str:
    """What Theorem 4.2 says: of D-NASA, with noise of bounded variance, without h."""
    covered = method == METHODS["dnasa", "fixed"] and name != "prox" and on not in ("t(2)", "t(1.5)")
    return ("<= 1" if name == "condition" else "-1/4") if covered else "none"


def graphs(runs: pd.DataFrame) -> pd.DataFrame:
    """The average gradient norms of the shortest and of the longest runs on each graph."""
    rows = []
    for (name, method), same in runs.groupby(["graph", "method"], sort=False):
        row = {"graph": name, "rho": GRAPHS[name](16).rho, "method": method}
        for steps in (runs["T"].min(), runs["T"].max()):
            row[f"T = {steps:,}"], row[f"+- T = {steps:,}"] = interval(same[same["T"] == steps].average)
        rows.append(row | {"consensus": same[same["T"] == steps].consensus.mean()})
    return pd.DataFrame(rows)


def draw(out: Report, runs: dict[str, pd.DataFrame], exponents: pd.DataFrame) -> None:
    ring, nodes = (runs[name][runs[name].graph == "ring"] for name in ("steps", "nodes"))
    longest = runs["steps"][runs["steps"]["T"] == runs["steps"]["T"].max()]
    by_rho = longest.assign(gap=[1 - GRAPHS[name](16).rho for name in longest.graph])
    norm, T = SYMBOLS["grad_norm"], ring["T"].max()
    average = f"average {norm}"
    with out.draw("theory-rates", 6, "The theorem's averages, measured; nothing is retuned", columns=3) as axes:
        draw_means(axes[0], ring, "T", "average", -0.25)
        finish(axes[0], "steps $T$ (ring of 16)", average, log=True)
        draw_means(axes[1], ring, "T", "last")
        finish(axes[1], "steps $T$ (ring of 16)", f"{norm} of the answer", log=True)
        draw_means(axes[2], nodes, "nodes", "average", -0.25)
        finish(axes[2], f"nodes $n$ (ring, T = {T:,})", average, log=True)
        draw_means(axes[3], by_rho, "gap", "average")
        finish(axes[3], rf"$1 - \rho$ (path to complete, n = 16, T = {T:,})", average, log=True)
        draw_noise(axes[4], exponents[exponents.on.isin(NOISE)])
        draw_means(axes[5], runs["condition"], "condition", "average", 1)
        finish(axes[5], f"largest curvature / smallest (T = {T:,})", average, log=True)


def style_of(method: str) -> dict[str, Any]:
    ((rule, schedule),) = [pair for pair, name in METHODS.items() if name == method]
    dashed = {"ls": "--", "mfc": "white"} if schedule == "averaged" else {"ls": "-"}
    return {"color": colours(["dnasa", "adanasa"])[rule], "marker": "o", "ms": 4, "capsize": 2} | dashed


def draw_means(axis: Any, runs: pd.DataFrame, x: str, metric: str, power: float | None = None) -> None:
    """The means with their intervals, and a line with the exponent of the theorem from D-NASA's first value."""
    for method, same in runs.groupby("method", sort=False):
        points = [(value, *interval(seeds[metric])) for value, seeds in same.groupby(x)]
        axis.errorbar(*np.array(points).T[:2], yerr=np.array(points).T[2], label=method, **style_of(str(method)))
        if power is not None and method == METHODS["dnasa", "fixed"]:
            at, anchor, _ = np.array(points).T
            axis.plot(at, anchor[0] * (at / at[0]) ** power, "k:", lw=1, label="exponent of the theorem")
    axis.set_xscale("log")


def draw_noise(axis: Any, table: pd.DataFrame) -> None:
    for shift, (method, rows) in zip((-0.1, 0, 0.1), table.groupby("method", sort=False), strict=True):
        style = style_of(str(method)) | {"ls": ""}
        axis.errorbar(np.arange(len(rows)) + shift, rows.average, yerr=rows["+- average"], **style)
    axis.axhline(-0.25, color="k", ls=":", lw=1)
    finish(axis, "noise of the gradients (ring of 16)", "exponent of $T$")
    axis.set_xticks(range(len(NOISE)), list(NOISE))


def findings(table: pd.DataFrame, by_graph: pd.DataFrame) -> list[str]:
    lines = []
    for (of, method), rows in table.groupby(["exponent of", "method"], sort=False):
        each = ", ".join(f"{r.on or 'ring'} {r.average:.2f} ± {r['+- average']:.2f}" for _, r in rows.iterrows())
        lines.append(f"{method}: the average gradient norm has the exponent of {of}: {each}.")
    (longest,) = [name for name in by_graph if name.startswith("T = ")][1:]
    for method, rows in by_graph.groupby("method", sort=False):
        values = rows.set_index("graph")[longest]
        ratio = values["path"] / values["complete"]
        lines.append(
            f"{method}: on a path the average gradient norm is {ratio:.2f} times that on the complete graph ({longest})."
        )
    return lines


EXPERIMENT = Experiment("theory", parts, report, on_gpu=False)
