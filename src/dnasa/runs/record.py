"""What to measure and keep of a run on its way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dnasa.runs.history import Evaluation, Metric

__all__ = ["Record"]


@dataclass(frozen=True)
class Record:
    """What `solve` measures, when it stops early, and how often it writes checkpoints.

    Attributes:
        metrics: Metrics of your own by name: functions of the mean answer `(d,)` that return a number.
        callback: Called with an `Evaluation` at every evaluation, in the first process. The run stops when it returns true.
        patience: Stop early: a run stops when its loss on the validation rows has not improved for this many evaluations. What
            is evaluated is then the average of the evaluated answers, and the result is the best of them.
        checkpoint_every: The number of steps between checkpoints.

    Example:
        ```python
        small = lambda evaluation: evaluation.rows[0]["grad_norm"] < 1e-3
        dnasa.solve(problem, graph, steps=1000, record=dnasa.Record(callback=small))
        ```
    """

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    callback: Callable[[Evaluation], Any] | None = None
    patience: int | None = None
    checkpoint_every: int | None = None
