"""What is minimised. A problem knows its nodes' losses and gradients, and nothing of rules, graphs or processes."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from dnasa.core import Array


class Problem(Protocol):
    """What `solve` asks of a problem.

    `start(seed)` is the common starting point `(d,)`; its library, dtype and device are those of the whole run.
    `gradient(x, nodes, seeds, t)` gives the stochastic gradients at `x` of shape `(variants, seeds, k, d)`, row k
    belonging to `nodes[k]`; what is sampled depends on (seed, node, t) alone. `x` may change with the next step: copy it to
    keep it.
    `evaluate(mean, nodes)` gives, at the mean iterates `(variants, seeds, d)`, averages over `nodes`: numbers of shape
    `(variants, seeds)` by name and, as "gradient", the full gradient `(variants, seeds, d)`.
    """

    @property
    def nodes(self) -> int | None:
        """How many nodes it has data for; None if any number."""

    @property
    def batch(self) -> int:
        """Samples per node and step."""

    @property
    def epoch(self) -> float | None:
        """Samples per node in one pass over the data; None if the data never ends."""

    def start(self, seed: int) -> Array: ...

    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array: ...

    def evaluate(self, mean: Array, nodes: range) -> dict[str, Array]: ...


WHERE = {
    "LeastSquares": "least_squares",
    "RobustRegression": "robust_regression",
    "Custom": "custom",
    "Classification": "classification",
}


def __getattr__(name: str) -> Any:
    if name in WHERE:
        return getattr(import_module(f"dnasa.problems.{WHERE[name]}"), name)
    raise AttributeError(f"module 'dnasa.problems' has no attribute '{name}'")
