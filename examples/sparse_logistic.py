"""Logistic regression with an L1 penalty: hospitals find the few measurements that matter, without sharing patients.

    python examples/sparse_logistic.py [figure.png]

Ten nodes have 200 rows each, with 60 features of which five matter. Together they minimise the mean logistic loss plus
0.02 |x|_1. The penalty has a kink, so it is left to `prox`: coefficients become exactly 0. The solution of scikit-learn on all
rows together is the reference.
"""

import sys
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import dnasa
from dnasa.comparing.plots import label, panels, save_figure, styles

NODES, ROWS, DIM, BATCH, WEIGHT, STEPS = 10, 200, 60, 10, 0.02, 3000
generator = np.random.default_rng(0)
truth = np.zeros(DIM)
truth[:5] = 2.0, -1.5, 1.0, -1.0, 0.7
inputs = generator.normal(size=(NODES, ROWS, DIM)) + 0.3 * generator.normal(size=(NODES, 1, DIM))
signs = np.where(generator.random((NODES, ROWS)) < expit(inputs @ truth), 1.0, -1.0)


def gradient(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    row = rngs.integers(ROWS, size=BATCH)
    a, b = inputs[nodes[:, None], row], signs[nodes[:, None], row]
    slope = -b * expit(-b * np.einsum("...jd,...d->...j", a, x))
    return np.einsum("...j,...jd->...d", slope, a) / BATCH


def full_gradient(x: np.ndarray, node: int) -> np.ndarray:
    b = signs[node]
    return -(b * expit(-b * (inputs[node] @ x))) @ inputs[node] / ROWS


def loss(x: np.ndarray, node: int) -> float:
    return np.logaddexp(0, -signs[node] * (inputs[node] @ x)).mean() + WEIGHT * np.abs(x).sum()


def reference() -> np.ndarray:
    """scikit-learn minimises C times the sum of the losses plus |x|_1."""
    model = LogisticRegression(
        l1_ratio=1, C=1 / (WEIGHT * NODES * ROWS), solver="liblinear", fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    return model.fit(inputs.reshape(-1, DIM), signs.ravel()).coef_[0]


def draw(result: dnasa.Result, exact: np.ndarray, path: str) -> None:
    figure, axes = panels(2, width=5.2, height=3.8)
    left, right = axes[0]
    lines = list(result.history.groupby(["rule", "schedule"], sort=False))
    best = np.mean([loss(exact, node) for node in range(NODES)])
    for style, ((rule, schedule), rows) in zip(styles([rule for (rule, _), _ in lines]), lines, strict=True):
        left.semilogy(rows.step, rows.train_loss - best, label=label(rule, schedule), markevery=8, ms=4, **style)
    left.set(xlabel="step", ylabel="loss above that of scikit-learn", title=f"{NODES} nodes on a ring, batches of {BATCH}")
    left.legend(fontsize=8)
    shown = slice(12)
    numbers = np.arange(DIM)[shown]
    right.bar(numbers - 0.2, exact[shown], width=0.4, color="0.6", label="scikit-learn, all rows together")
    right.bar(numbers + 0.2, result.x[-1].mean(0)[shown], width=0.4, color="#d62728", label="D-NASA")
    right.plot(numbers, truth[shown], "k_", ms=14, label="true coefficient")
    right.set(xlabel="feature (the first 12 of 60)", ylabel="coefficient", title="Coefficients")
    right.legend(fontsize=8)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    problem = dnasa.problems.Custom(
        gradient, np.zeros(DIM), loss, full_gradient, NODES, batched=True, prox=dnasa.problems.prox.l1(WEIGHT)
    )
    rules, exact = ["dsgt", "dasagt", "dnasa"], reference()
    result = dnasa.solve(problem, dnasa.topology.ring(NODES), rules, eta=0.3, steps=STEPS)
    for row, x in zip(result.final().itertuples(), result.x, strict=True):
        mean = x.mean(0)
        print(
            f"{label(row.rule, row.schedule):8s} distance to scikit-learn's solution {np.linalg.norm(mean - exact):.3f}  "
            f"nonzero {(np.abs(mean) > 1e-3).sum()} (scikit-learn {(exact != 0).sum()})  "
            f"gradient mapping {row.grad_norm:.4f}"
        )
    draw(result, exact, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sparse_logistic.png")
