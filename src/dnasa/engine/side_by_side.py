"""Which stepper takes a rule's steps, and several rules side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from dnasa.arrays import concatenate
from dnasa.core import Array, Gradients, InputError, Network, Rule, Snapshot
from dnasa.engine.fused import Fused, supports
from dnasa.engine.overlapped import Overlapped
from dnasa.engine.steppers import Sequential, Stepper, completed
from dnasa.runs.timing import Timeline


def make_stepper(
    rules: Sequence[Rule],
    sizes: Sequence[int],
    network: Network,
    snapshots: Sequence[Snapshot],
    timeline: Timeline,
    overlap: bool = False,
    t: int = 0,
) -> Stepper:
    """For one rule, or for several side by side, each of which owns so many entries of the first axis."""
    if overlap:
        if len(rules) > 1 or not rules[0].hides:
            raise InputError(
                "These exchanges cannot be hidden behind the gradient: that takes one rule at a time, whose next iterate "
                "does not need the gradient (early messages). Leave overlap out."
            )
        return Overlapped(rules[0], network, snapshots[0], timeline, t)
    each = [_one(rule, network, snapshot, timeline) for rule, snapshot in zip(rules, snapshots, strict=True)]
    return each[0] if len(each) == 1 else SideBySide(each, sizes)


def _one(rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline) -> Stepper:
    kind: Any = Fused if supports(rule, network, snapshot.state) else Sequential
    return kind(rule, network, snapshot, timeline)


class SideBySide:
    """Several rules, each stepping its own entries of the first axis."""

    def __init__(self, steppers: Sequence[Stepper], sizes: Sequence[int]):
        self.steppers = steppers
        ends = np.cumsum(sizes).tolist()
        self.slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.x = concatenate([stepper.x for stepper in steppers])

    @property
    def snapshots(self) -> list[Snapshot]:
        return [snapshot for stepper in self.steppers for snapshot in stepper.snapshots]

    def points(self, t: int) -> tuple[Array, ...]:
        """The first points of all rules as one array, then the second points of the rules that have them, ..."""
        self.wanted = [stepper.points(t) for stepper in self.steppers]
        most = max(map(len, self.wanted))
        if most == 1:
            return (
                self.x if all(p[0] is s.x for p, s in zip(self.wanted, self.steppers, strict=True)) else self._nth(0),
            )
        return tuple(self._nth(i) for i in range(most))

    def _nth(self, i: int) -> Array:
        return concatenate([points[i] for points in self.wanted if len(points) > i])

    def step(self, gradients: Gradients, t: int) -> None:
        """All rules step or, when a process is lost, none."""
        before = [stepper.snapshots for stepper in self.steppers]
        starts = [0] * len(gradients)
        try:
            for stepper, part, points in zip(self.steppers, self.slices, self.wanted, strict=True):
                size, own = part.stop - part.start, []
                for i in range(len(points)):
                    own.append(gradients[i][starts[i] : starts[i] + size])
                    starts[i] += size
                stepper.step(tuple(own), t)
        except BaseException:
            for stepper, (snapshot,) in zip(self.steppers, before, strict=True):
                if isinstance(stepper, Sequential):
                    stepper.state, stepper.memory, _ = snapshot
            raise
        self.x = concatenate([stepper.x for stepper in self.steppers])

    def submit(self, work: Callable[..., Any], *args: Any) -> Future:
        return completed(work(*args))

    def finish(self) -> None: ...

    def close(self) -> None: ...
