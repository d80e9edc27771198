"""What `solve` uses of a problem."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from dnasa.arrays import contiguous, dtype_name, like
from dnasa.core import Array, InputError, Layout, Prox
from dnasa.problems.privacy import Noise, Privacy


class Problem(Protocol):
    """What `solve` uses of a problem; a subclass must define `start` and `gradient`, and may define the rest."""

    nodes: int | None = None  # number of nodes it has data for; None: any number
    batch: int = 1  # samples per node and step
    loss_scale: float = 1.0  # factor of the gradients; the reported loss is not scaled
    prox: Prox | None = None  # the proximal operator of h, where f + h is minimized
    baseline: float | None = None  # the test accuracy of always predicting the most frequent class
    privacy: Privacy | None = None  # the budget of a run whose gradients have noise
    private_noise: Noise | None = None  # of the run with a budget that has begun
    site_names: Sequence[str] = ()  # of the nodes, where they have some
    by_seed: bool = False  # whether nodes have different rows for each seed: what depends on them is also given `seeds`

    @cached_property
    def fingerprint(self) -> str:
        """Identifies what all processes share of the problem: a resumed run must have the same."""
        return type(self).__name__

    @property
    def own_tests(self) -> bool:
        """Whether each node tests on rows of its own."""
        return False

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parts of x, in order."""
        return (("x", tuple(self.start(0).shape)),)

    @abstractmethod
    def start(self, seed: int) -> Array:
        """The common starting point `(d,)`; the run has its library, dtype and device.

        Args:
            seed: The seed of the run.
        """

    @abstractmethod
    def gradient(self, x: Array, nodes: range, seeds: Sequence[int], t: int) -> Array:
        """Stochastic gradients of the nodes, of the shape of `x`. Samples depend on (seed, node, t) alone.

        Args:
            x: The points, `(variants, seeds, k, d)`. The next step may overwrite them: copy what is needed longer.
            nodes: Row k of `x` belongs to `nodes[k]`.
            seeds: The seeds of the runs.
            t: The step, from 0.
        """

    def evaluate(self, mean: Array, nodes: range, weights: Sequence[float] | None = None) -> dict[str, Array]:
        """Metrics at the mean iterates, averaged over `nodes`.

        Numbers of shape `(variants, seeds)` by name and, as "gradient", the full gradient `(variants, seeds, d)`.

        Args:
            mean: The mean iterates, `(variants, seeds, d)`.
            nodes: The nodes to average over.
            weights: One for each of `nodes`: averages of f are then `sum(w_i f_i) / len(nodes)`; test metrics are not weighted.
                Where `by_seed`, there may be a row of weights for each seed.
        """
        return {}

    def statistics(self, mean: Array, nodes: range) -> Array | None:
        """What an evaluation must know of the data of all nodes, averaged over `nodes`, `(variants, seeds, m)`.

        Where it is not None, its average over all nodes is given to `evaluate` as a further argument, `statistics`.

        Args:
            mean: The mean iterates, `(variants, seeds, d)`.
            nodes: The nodes to average over.
        """
        return None

    def derived(self, row: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a row of the history, for metrics that are not averages, such as an RMSE.

        Args:
            row: Averages over all nodes, by name.
        """
        return row

    def node_fingerprint(self, node: int) -> str:
        """Identifies the data of a node: a resumed run must have the same.

        Args:
            node: A node that this process holds.
        """
        return ""

    def rows(self, node: int) -> int | list[int] | None:
        """Number of samples of a node; None if the data is unlimited. A list where `by_seed`.

        Args:
            node: A node that this process holds.
        """
        return None

    def continue_without(self, lost: Sequence[int]) -> None:
        """Called when nodes were lost or came back.

        Args:
            lost: The nodes that are lost now.
        """
        return None


def function_name(function: Any) -> str:
    """The qualified name of a function, or of the class of another callable; that of a partial is its function's."""
    function = getattr(function, "func", function)
    return getattr(function, "__qualname__", type(function).__qualname__)


def check_problem(problem: Any) -> None:
    """Refuse what is no object of a subclass of `Problem`."""
    if Problem not in type(problem).__mro__:
        raise InputError(
            f"The problem must be an object of a subclass of dnasa.problems.Problem, and {problem!r:.60} is not: make one, or "
            "use dnasa.problems.Custom for a gradient function."
        )


def as_array_like(value: Any, point: Array, name: str) -> Array:
    """What the user's function returned as an array like `point`, or an error that calls it `name`."""
    same = type(value) is type(point) and value.shape == point.shape and value.dtype == point.dtype
    if same and not getattr(value, "requires_grad", False):
        return value
    try:
        array = contiguous(value)
        real = dtype_name(array).startswith(("float", "bfloat", "int", "uint", "bool"))
    except (TypeError, ValueError, RuntimeError):
        real = False
    if not real or tuple(array.shape) != tuple(point.shape):
        what = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
        raise InputError(f"The {name} is {what}: return an array of real numbers of shape {tuple(point.shape)}.")
    return like(array, point)
