"""Where D-NASA trails tuned methods and where it does not: four problems of the kind that people bring their gradients for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import Comparison, compare, tables
from dnasa.comparing.drawing import draw_curves, line_styles
from dnasa.comparing.plots import label
from dnasa.core import Array
from dnasa.problems.custom import Custom
from dnasa.reproduce.experiment import Experiment, Found
from dnasa.reproduce.report import Report

NODES, DIM = 10, 20
TUNED = ("dsgd", "dsgd:constant", "dsgt", "dsgt:constant", "dasagt", "gt_nsgdm:cosine")
UNTUNED = ("adanasa", "dnasa")
ETAS = tuple(float(f"{10**power:.3g}") for power in np.arange(-4, 1.01, 0.5))


class Case(NamedTuple):
    title: str
    metric: str  # what is measured at the mean iterate; 0 at a solution
    make: Callable[[], Custom]


def quadratic(curvature: Array, noise: Callable[[Any], Array]) -> Custom:
    """f_i(x) = (x - c_i)'H(x - c_i)/2 with a diagonal H."""
    centers = 1 + np.random.default_rng(0).normal(size=(NODES, DIM))
    solution = centers.mean(0)

    def gradient(x: Array, nodes: Array, rngs: Any) -> Array:
        return curvature * (x - centers[nodes]) + noise(rngs)

    def evaluate(x: Array) -> dict[str, float]:
        return {"gap": curvature @ (x - solution) ** 2 / 2}

    return Custom(gradient, np.zeros(DIM), batched=True, evaluate=evaluate)


def ill_conditioned() -> Custom:
    """Eigenvalues from 1e-4 to 1, noise 0.001."""
    return quadratic(np.logspace(-4, 0, DIM), lambda rngs: 0.001 * rngs.standard_normal(DIM))


def heavy_tails() -> Custom:
    """Noise of Student's t distribution with 1.5 degrees of freedom: no variance."""
    return quadratic(np.ones(DIM), lambda rngs: rngs.standard_t(1.5, size=DIM))


def absolute_values() -> Custom:
    """f_i(x) = |x|_1, which has a kink at its solution; noise 0.1."""

    def gradient(x: Array, nodes: Array, rngs: Any) -> Array:
        return np.sign(x) + 0.1 * rngs.standard_normal(DIM)

    return Custom(gradient, np.ones(DIM), batched=True, evaluate=lambda x: {"gap": np.abs(x).sum()})


def phase_retrieval() -> Custom:
    """f_i(x) = mean_j ((a_j'x)^2 - b_j)^2 / 4 with b_j = (a_j'signal)^2: no noise, so every sample has the same solution."""
    dim, rows = 10, 60
    generator = np.random.default_rng(0)
    signal = generator.normal(size=dim) / np.sqrt(dim)
    inputs = generator.normal(size=(NODES, rows, dim))
    intensities = (inputs @ signal) ** 2

    def gradient(x: Array, nodes: Array, rngs: Any) -> Array:
        row = rngs.integers(rows, size=5)
        a, b = inputs[nodes[:, None], row], intensities[nodes[:, None], row]
        amplitude = (a @ x[..., None])[..., 0]
        return np.einsum("...j,...jd->...d", (amplitude**2 - b) * amplitude, a) / 5

    def evaluate(x: Array) -> dict[str, float]:
        return {"distance": float(min(np.linalg.norm(x - signal), np.linalg.norm(x + signal)))}

    return Custom(gradient, signal + 0.5 * generator.normal(size=dim) / np.sqrt(dim), batched=True, evaluate=evaluate)


CASES = {
    "condition": Case("quadratic, condition number 1e4", "gap", ill_conditioned),
    "kink": Case("sum of absolute values", "gap", absolute_values),
    "phase": Case("phase retrieval without noise", "distance", phase_retrieval),
    "tails": Case("Student-t noise, 1.5 degrees of freedom", "gap", heavy_tails),
}


def report(found: Found) -> Report:
    """Ring of 10: D-NASA and AdaNASA with nothing tuned, the others with their best stepsize, chosen on other seeds.

    There are no parts: the runs of each problem are those of `compare`, which extends the grid as it goes.
    """
    steps, seeds, etas = (200, 2, ETAS[::4]) if found.quick else (3000, 5, ETAS)
    options: Any = {"steps": steps, "seed": range(seeds), "extend": not found.quick, "evaluate": max(1, steps // 50)}
    graph, rules = topology.ring(NODES), (*TUNED, *UNTUNED)
    done = {
        name: compare(case.make(), graph, rules, etas, metric=case.metric, **options) for name, case in CASES.items()
    }
    caption = f"f(x) - f* or the distance after {steps:,} steps, ring of {NODES}, {seeds} seeds"
    out = Report("guidance", caption, found.quick)
    out.tables["guidance"] = table(done)
    out.data |= {f"guidance-{name}": comparison.curves() for name, comparison in done.items()}
    out.findings = [finding(CASES[name], comparison) for name, comparison in done.items()]
    draw(out, done)
    return out


def table(done: dict[str, Comparison]) -> pd.DataFrame:
    """A row for each method: mean ± standard deviation over the seeds, and the stepsize."""
    columns: dict[str, list[str]] = {}
    for name, comparison in done.items():
        rows = comparison.summary()
        columns["method"] = [label(row.rule, row.schedule) for row in rows.itertuples()]
        columns[name] = [
            tables.with_spread(CASES[name].metric, row) + ("" if pd.isna(row.eta) else f" ({row.eta:.3g})")
            for _, row in rows.iterrows()
        ]
    return pd.DataFrame(columns)


def draw(out: Report, done: dict[str, Comparison]) -> None:
    caption = "Nothing tuned in D-NASA and AdaNASA, the best stepsize for the others"
    with out.draw("guidance", len(done), caption, width=5.4, height=3.6) as axes:
        for axis, (name, comparison) in zip(axes, done.items(), strict=True):
            curves = comparison.curves().assign(eta=np.nan)  # they differ from panel to panel
            draw_curves(axis, curves, "step", CASES[name].metric, line_styles(curves))
            axis.set_yscale("log")
            axis.set_ylabel("distance to the solution" if CASES[name].metric == "distance" else r"$f(x) - f^\star$")
            axis.set_title(CASES[name].title)
            seen = curves[["mean", "low"]].stack()
            highest = 3 * curves["mean"].iloc[0]  # a large stepsize may overshoot far at first
            axis.set_ylim(seen[seen > 0].min() / 2, highest)


def finding(case: Case, comparison: Comparison) -> str:
    rows = comparison.summary()
    dnasa, adanasa = (rows[rows.rule == rule]["mean"].item() for rule in ("dnasa", "adanasa"))
    tuned = rows[~rows.rule.isin(UNTUNED)].dropna(subset="mean")
    if tuned.empty:
        return f"{case.title}: every tuned method diverged; D-NASA reaches {dnasa:.3g}."
    best = tuned.loc[tuned["mean"].idxmin()]
    return (
        f"{case.title}: D-NASA {dnasa:.3g}, AdaNASA {adanasa:.3g}, best tuned {best['mean']:.3g} "
        f"({label(best.rule, best.schedule, float(best.eta))}); D-NASA is {dnasa / best['mean']:.3g} times that."
    )


EXPERIMENT = Experiment("guidance", lambda quick: [], report, on_gpu=False)
