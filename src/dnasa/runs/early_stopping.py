"""Early stopping: of the averages of the evaluated answers, the last is kept whose validation loss is about the smallest."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnasa.core import Array

LOSS = "validation_loss"
TOLERANCE = 0.01  # of the smallest loss: few rows of a class cannot tell such models apart, and early ones have hardly learned
WEIGHT = 2  # the k-th answer has weight (1 + WEIGHT) / (k + WEIGHT) in the average: old ones fade


class EarlyStopping:
    """The average of each run's answers, the best one so far, and how many evaluations ago that was.

    An answer is the best so far if its loss is at most 1 % above the smallest. Each run stops by itself: once it has none for
    `patience` evaluations, its best answer stays. Without a patience, the last average is the best.
    """

    def __init__(self, patience: int | None, runs: int):
        self.patience = patience
        self.runs = runs
        self.average: Array | None = None  # (variants, seeds, k, d), as the best
        self.best: Array | None = None
        self.count = 0
        self.losses = np.full(runs, np.inf)
        self.waited = np.zeros(runs, int)

    @property
    def stops(self) -> bool:
        return self.patience is not None and bool((self.waited >= self.patience).all())

    def averaged(self, answers: Array, t: int) -> Array:
        """The average with these answers; the starting point does not belong to it."""
        if t == 0:
            return answers
        self.count += 1
        weight = (1 + WEIGHT) / (self.count + WEIGHT)
        self.average = answers if self.average is None else self.average + weight * (answers - self.average)
        return self.average

    def improved(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        """For each run 1 if this evaluation is its best, else 0."""
        if self.patience is None:
            return [1] * len(rows)
        losses = np.array([row[LOSS] for row in rows], float)
        is_best = losses <= self.losses + TOLERANCE * np.abs(self.losses)
        return [int(flag) for flag in is_best & (self.waited < self.patience)]

    def update(self, rows: Sequence[dict[str, Any]], answers: Array | None = None) -> None:
        """Count an evaluation whose rows say which runs improved; keep their answers."""
        flags = np.array([row["improved"] == 1 for row in rows])
        self.losses = np.where(flags, np.minimum(self.losses, [row.get(LOSS, np.inf) for row in rows]), self.losses)
        self.waited = np.where(flags, 0, self.waited + 1)
        if answers is None:
            return
        if self.best is None:
            self.best = 1 * answers  # a copy
        for run in np.flatnonzero(flags):
            place = np.unravel_index(run, tuple(answers.shape[:2]))
            self.best[place] = answers[place]

    def arrays(self) -> dict[str, Array]:
        """What a checkpoint stores."""
        return {name: a for name, a in (("average", self.average), ("best", self.best)) if a is not None}

    def restore(self, rows: list[dict[str, Any]], average: Array | None, best: Array | None) -> None:
        """Continue after these rows, those since nodes were last lost."""
        for first in range(0, len(rows), self.runs):
            self.update(rows[first : first + self.runs])
            self.count += int(rows[first]["step"] > 0)
        self.average, self.best = average, best
