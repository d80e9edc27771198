"""Differential privacy (DP-SGD, Abadi et al., 2016): the budget, and the noise that keeps it.

A row's gradient g counts as m g / (1.0001 |g| + 1e-6) with m from 0 to 1, `losses.mistakes`, so there is no clipping norm to
tune; 1.0001 covers rounding. With m = 1 (AUTO-S, Bu et al., 2023), rare events would weigh as little as rows that fit.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, hypot, sqrt
from typing import Any, NamedTuple

import numpy as np

from dnasa.checks import positive
from dnasa.core import InputError
from dnasa.extras import needed_by

DELTA = 1e-5
FLOOR = 1e-6  # shorter gradients have inexact lengths
GRID = 5e-4  # to which the accountant rounds privacy losses up


class Privacy(NamedTuple):
    """A budget: with a training row and without it, probabilities differ by a factor exp(epsilon) at most, and by delta.

    Attributes:
        epsilon: How much a run may tell of any row.
        delta: The probability that it tells more, below 1 / rows of the smallest node.
    """

    epsilon: float
    delta: float = DELTA

    def check(self) -> None:
        """Refuse what is no budget."""
        positive("epsilon", self.epsilon)
        positive("delta", self.delta)
        if self.delta >= 1:
            raise InputError(f"delta must be below 1, not {self.delta:g}.")


class Budget(NamedTuple):
    """A budget, the steps that it is for, and the noise of each node: its standard deviation in lengths of a row's gradient."""

    privacy: Privacy
    steps: int
    sigma: list[float]
    shared: bool  # whether it protects sums over all nodes, of which each adds its share
    names: Sequence[str] = ()  # of the nodes, where they have some

    def length(self, d: int) -> float:
        """The expected length of the noise in the mean over nodes of sums of d numbers."""
        return hypot(*self.sigma) / len(self.sigma) * sqrt(d)

    def settings(self) -> dict[str, Any]:
        return {**self.privacy._asdict(), "steps": self.steps, "sigma": self.sigma, "shared": self.shared}

    def __str__(self) -> str:
        names = [f"{name} " for name in self.names] or [""] * len(self.sigma)
        sigma = ", ".join(f"{name}{each:.4g}" for name, each in zip(names, self.sigma, strict=True))
        kind = "each one's share of the noise" if self.shared else "noise"
        budget = f"epsilon {self.privacy.epsilon:g}, delta {self.privacy.delta:g} for each training row, {self.steps:,} steps"
        return f"Differential privacy: {budget}; {kind} (sigma): {sigma}."


@cache
def noise_multiplier(rate: float, steps: int, privacy: Privacy) -> float:
    """The least noise that keeps the budget for so many steps, each with every row drawn at this rate, rounded up."""
    with needed_by("Differential privacy"):
        import dp_accounting
        from dp_accounting.pld import PLDAccountant

    def run(sigma: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    guess = max(0.5, 3 * rate * sqrt(steps) / privacy.epsilon)
    bracket = dp_accounting.LowerEndpointAndGuess(0, guess)
    accountant = partial(PLDAccountant, value_discretization_interval=GRID)
    sigma = dp_accounting.calibrate_dp_mechanism(accountant, run, *privacy, bracket, tol=guess / 1000)
    return ceil(1000 * sigma) / 1000


class Noise(NamedTuple):
    """The noise of a run. What a node draws at t is a function of (secret, seed, node, t, data, x).

    x and the data belong to it since of two gradients with the same noise, the difference would have none.

    Attributes:
        budget: The budget.
        secret: What nobody else knows; empty where seeds alone decide.
        spend: `spend(mark, t)` is told of every gradient before it is computed, and refuses one too many.
    """

    budget: Budget
    secret: bytes = b""
    spend: Callable[[bytes, int], None] = lambda mark, t: None

    def key(self, seed: int, node: int, t: int, data: str, x: bytes) -> bytes:
        """What the numbers of one gradient are drawn from."""
        hashed = hashlib.blake2b(repr((seed, node, t, data)).encode() + x, digest_size=48, key=self.secret).digest()
        self.spend(hashed[32:], t)
        return hashed[:32]


def uniform(key: bytes, purpose: bytes, count: int) -> np.ndarray:
    """Random numbers between 0 and 1, never either."""
    words = np.frombuffer(hashlib.shake_256(key + purpose).digest(8 * count), "<u8")
    return ((words >> 11) + 0.5) * 2.0**-53
