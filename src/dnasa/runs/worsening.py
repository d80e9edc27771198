"""A warning for training that makes a model worse."""

from typing import Any

from dnasa.checks import counted, warn
from dnasa.problems.metrics import larger_is_better
from dnasa.rules.registry import DEFAULT_RULE

TOLERANCE = 0.02  # of accuracy or R^2 lost since the start; for a loss, relative to that at the start
METRICS = ("test_accuracy", "test_r2", "test_loss", "train_loss")  # the first that is measured decides
Rows = list[dict[str, Any]]  # a row of the history for each run


class Worsening:
    """Warns, once, of a model that is worse than it was at the start.

    If the user gave the starting point, at every evaluation. Otherwise at the end, if the accuracy was above `baseline`, that
    of a model that has learned nothing, or by the training loss, if nothing else is measured.
    """

    def __init__(self, start_given: bool, baseline: float | None, steps: int):
        self.start_given, self.baseline, self.steps = start_given, baseline, steps
        self.warned = False

    def check(self, starts: Rows, rows: Rows) -> None:
        metric = next((name for name in METRICS if name in rows[0]), None)
        if self.warned or metric is None or starts[0]["step"] > 0 or not self._is_checked(metric, starts, rows[0]["step"]):
            return
        worse = [pair for pair in zip(starts, rows, strict=True) if is_worse(metric, pair[0][metric], pair[1][metric])]
        if not worse:
            return
        self.warned = True
        start, row = worse[0]
        eta = "" if row["eta"] is None else f", eta = {row['eta']:.3g}"
        more = f", and {counted(len(worse) - 1, 'more run')}" if worse[1:] else ""
        what = f"Rule {row['rule']} ({row['schedule']}){eta}, seed {row['seed']}{more}: the {metric.replace('_', ' ')} is"
        is_loss = metric == "train_loss"
        remedies = {
            "a smaller stepsize": row["eta"] is not None,
            "the rule dnasa, which needs none": is_loss and row["rule"] != DEFAULT_RULE,
            "early stopping, which keeps the best model": not is_loss,
        }
        known = " or ".join(words for words, applies in remedies.items() if applies)
        remedy = f"Try {known}." if known else "Are the gradients those of the loss?"
        warn(f"{what} {row[metric]:.4g} at step {row['step']}, {start[metric]:.4g} at the start. {remedy}")

    def _is_checked(self, metric: str, starts: Rows, t: int) -> bool:
        if metric == "train_loss":
            return t >= self.steps
        if self.start_given:
            return True
        if t < self.steps or metric != "test_accuracy" or self.baseline is None:
            return False
        return min(start[metric] for start in starts) > self.baseline + TOLERANCE


def is_worse(metric: str, old: float, new: float) -> bool:
    return old - new > TOLERANCE if larger_is_better(metric) else new - old > TOLERANCE * abs(old)
