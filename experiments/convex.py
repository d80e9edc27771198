"""Steps to a relative error on ten smooth problems with full gradients: the default of `solve`, and tuned rules.

python experiments/convex.py     # a table for each graph, to 1e-3 or to the error given
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, softplus

import dnasa
from dnasa import topology
from dnasa.problems import Custom

NODES, ROWS, WIDTH, CLASSES = 8, 60, 10, 4
STEPS = 3000
ETAS = 10 ** np.arange(-4, 1.6, 0.25)
GRAPHS = {"exact": topology.exact(NODES), "ring": topology.ring(NODES)}
Loss = Callable[[Tensor, Any], Tensor]


def exp(s: Tensor) -> Tensor:
    """Linear above 30, so that it is finite where a stepsize is too large."""
    return s.clamp(max=30).exp() * (1 + (s - 30).clamp(min=0))


def losses() -> dict[str, Loss]:
    """The loss of each of `nodes` at its row of x; their means of the inputs differ, so their minima do."""
    random = np.random.default_rng(0)
    correlated = np.linalg.cholesky(np.full((WIDTH, WIDTH), 0.5) + np.eye(WIDTH) / 2).T
    inputs = (random.normal(size=(NODES, ROWS, WIDTH)) + 0.7 * random.normal(size=(NODES, 1, WIDTH))) @ correlated
    true = random.normal(size=WIDTH)
    noise = 0.5 * random.normal(size=(NODES, ROWS))
    linear = inputs @ true
    columns, units = np.logspace(0, 1.5, WIDTH), np.logspace(-1.5, 1.5, NODES)[random.permutation(NODES), None, None]
    A, scaled, unlike = (torch.from_numpy(inputs * factor) for factor in (1.0, columns, units))
    b, far = torch.from_numpy(linear + noise), torch.from_numpy(20 * noise * (random.random(noise.shape) < 0.1))
    sign = torch.from_numpy(np.sign(linear + random.logistic(size=noise.shape)))
    classes = torch.from_numpy(
        (inputs @ random.normal(size=(WIDTH, CLASSES)) + random.gumbel(size=(NODES, ROWS, CLASSES))).argmax(-1)
    )
    counts = torch.from_numpy(random.poisson(np.exp(np.clip(0.3 * linear, -3, 3))))
    amounts = torch.from_numpy(random.gamma(2, np.exp(0.3 * linear) / 2))
    order = np.argsort(-random.exponential(np.exp(-0.5 * linear)))  # by falling times
    by_time = torch.from_numpy(np.take_along_axis(inputs, order[..., None], 1))
    events = torch.from_numpy(random.random(order.shape) < 0.7)

    def on(rows: Tensor, loss: Callable[[Tensor, Any], Tensor], ridge: float = 1e-3) -> Loss:
        """The mean of the losses of linear predictors."""
        return lambda x, nodes: loss((rows[nodes] @ x[..., None])[..., 0], nodes).mean(-1) + ridge / 2 * (x**2).sum(-1)

    def softmax(x: Tensor, nodes: Any) -> Tensor:
        scores = A[nodes] @ x.reshape(*x.shape[:-1], WIDTH, CLASSES)
        targets = classes[nodes].expand(scores.shape[:-1])
        each = cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="none")
        return each.reshape(targets.shape).mean(-1) + 5e-4 * (x**2).sum(-1)

    return {
        "ridge": on(A, lambda s, i: (s - b[i]) ** 2 / 2, 0.1),
        "least squares, condition 2e3": on(scaled, lambda s, i: (s - b[i]) ** 2 / 2),
        "least squares, other units at each node": on(
            unlike, lambda s, i: (s - torch.from_numpy(units)[i, 0] * b[i]) ** 2 / 2, 0
        ),
        "Huber": on(A, lambda s, i: huber_loss(s, (b + far)[i].expand(s.shape), reduction="none"), 0),
        "logistic": on(A, lambda s, i: softplus(-sign[i] * s)),
        "squared hinge": on(A, lambda s, i: (1 - sign[i] * s).clamp(min=0) ** 2 / 2),
        "softmax": softmax,
        "Poisson": on(A, lambda s, i: exp(s) - counts[i] * s, 0),
        "gamma": on(A, lambda s, i: s + amounts[i] * exp(-s)),
        "Cox": on(by_time, lambda s, i: (s.logcumsumexp(-1) - s) * events[i]),
    }


def problem(name: str, loss: Loss) -> Custom:
    """From 0, with the relative error f(x) - f* over f(0) - f*, where f* is SciPy's."""
    everyone, start = np.arange(NODES), np.zeros(WIDTH * (CLASSES if name == "softmax" else 1))

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(np.tile(x, (NODES, 1))).requires_grad_()
        f = loss(point, everyone).mean()
        (g,) = torch.autograd.grad(f, point)
        return float(f.detach()), g.sum(0).numpy()

    best = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 10_000, "ftol": 1e-14, "gtol": 1e-9}).fun
    first = value(start)[0] - best
    error = lambda x: {"error": (value(x.numpy())[0] - best) / first}  # noqa: E731
    return Custom.from_loss(lambda x, nodes, rngs: loss(x, nodes), start, batched=True, nodes=NODES, evaluate=error)


def steps_to(problem: Custom, graph: topology.Topology, error: float, rule: str | None, eta: Any = None) -> float:
    """The steps of the best stepsize; infinite if no run gets there."""
    there = lambda rows: any(abs(row["error"]) <= error for row in rows)  # noqa: E731
    record = dnasa.Record(callback=lambda evaluation: there(evaluation.rows))
    history = dnasa.solve(problem, graph, rule, eta=eta, steps=STEPS, evaluate=1, progress=False, record=record).history
    return history.step.max() if there(history.to_dict("records")) else np.inf


def main(error: float = 1e-3) -> None:
    for name, graph in GRAPHS.items():
        rows = {}
        for title, loss in losses().items():
            made = problem(title, loss)
            tuned = {rule: steps_to(made, graph, error, f"{rule}:constant", ETAS) for rule in ("dsgt", "dasagt")}
            rows[title] = {
                "default": steps_to(made, graph, error, None),
                **tuned,
                "dnasa": steps_to(made, graph, error, "dnasa"),
            }
        print(f"{name}\n{pd.DataFrame(rows).T.to_string(float_format='{:.0f}'.format)}\n", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
