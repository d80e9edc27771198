"""Which stepper takes a rule's steps, and several rules side by side."""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from dnasa.arrays import concatenate, dtype_name, on_gpu
from dnasa.communication import Network
from dnasa.core import Array, Gradients, InputError, Rule, State
from dnasa.engine.fused import Fused, one_product, supports, with_fused_messages
from dnasa.engine.steppers import Overlapped, Sequential, Stepper
from dnasa.runs.snapshots import Snapshot
from dnasa.runs.timing import Timeline

MIN_COMPILED = 1 << 20  # numbers in x from which compiling the step on a GPU pays off
MOST_IN_TRITON = 16  # nodes whose messages fit in the registers of a program on a GPU


def make_stepper(
    rules: Sequence[Rule],
    sizes: Sequence[int],
    network: Network,
    snapshots: Sequence[Snapshot],
    timeline: Timeline,
    overlap: bool = False,
    t: int = 0,
) -> Stepper:
    """Make the stepper for one rule, or for several side by side, each with its own part of the first axis."""
    if overlap:
        if len(rules) > 1 or not rules[0].can_overlap:
            raise InputError(
                "These exchanges cannot be hidden behind the gradient: that takes one rule at a time, whose next iterate "
                "does not need the gradient (early messages). Leave overlap out."
            )
        return Overlapped(with_fast_messages(rules[0], snapshots[0].state), network, snapshots[0], timeline, t)
    each = [_one(rule, network, snapshot, timeline) for rule, snapshot in zip(rules, snapshots, strict=True)]
    return each[0] if len(each) == 1 else SideBySide(each, sizes)


def _one(rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline) -> Stepper:
    """The fastest stepper for this rule: at most one fast version for each device, and the plain rule otherwise."""
    if supports(rule, network, snapshot.state):
        return Fused(rule, network, snapshot)
    if torch_compiles(rule, snapshot.state) and one_product(network) and _runs_in_triton(network, snapshot.state.x):
        from dnasa.engine.fused_gpu import FusedOnGpu

        return FusedOnGpu(rule, network, snapshot)
    return Sequential(with_fast_messages(rule, snapshot.state), network, snapshot, timeline)


def _runs_in_triton(network: Network, x: Array) -> bool:
    """Whether W is a matrix of few nodes, and Triton is installed, as it is with PyTorch for GPUs."""
    dense = all(isinstance(weights, np.ndarray) for weights in network.step_weights)
    return dense and network.nodes <= MOST_IN_TRITON and dtype_name(x) == "float32" and find_spec("triton") is not None


def torch_compiles(rule: Rule, state: State) -> bool:
    """Whether torch.compile fuses the rule: on a GPU, for large arrays, if its form says that it may."""
    return rule.form is not None and on_gpu(state.x) and state.x.numel() >= MIN_COMPILED


def with_fast_messages(rule: Rule, state: State) -> Rule:
    """The rule with a faster `send`, for exchanges that are not a product here."""
    if torch_compiles(rule, state):
        from dnasa.engine.torch_compile import with_compiled_messages

        return with_compiled_messages(rule, state)
    return with_fused_messages(rule, state)


class SideBySide(Stepper):
    """Several rules, each stepping its own entries of the first axis."""

    def __init__(self, steppers: Sequence[Stepper], sizes: Sequence[int]):
        self.steppers, self.sizes = steppers, sizes
        self.joined_x = concatenate([stepper.x for stepper in steppers])
        self.wanted: list[tuple[Array, ...]] = []  # the points of each rule in this step

    @property
    def x(self) -> Array:
        return self.joined_x

    @property
    def snapshots(self) -> list[Snapshot]:
        return [snapshot for stepper in self.steppers for snapshot in stepper.snapshots]

    def points(self, t: int) -> tuple[Array, ...]:
        """The first points of all rules as one array, then the second points of the rules that have them, ..."""
        self.wanted = [stepper.points(t) for stepper in self.steppers]
        at_x = all(points[0] is stepper.x for points, stepper in zip(self.wanted, self.steppers, strict=True))
        first = self.x if at_x else self._nth(0)
        return first, *(self._nth(i) for i in range(1, max(map(len, self.wanted))))

    def _nth(self, i: int) -> Array:
        return concatenate([points[i] for points in self.wanted if len(points) > i])

    def step(self, gradients: Gradients, t: int) -> None:
        """Step all rules or, if a process is lost, none."""
        before = [(stepper, stepper.snapshots[0]) for stepper in self.steppers if isinstance(stepper, Sequential)]
        starts = [0] * len(gradients)
        try:
            for stepper, size, points in zip(self.steppers, self.sizes, self.wanted, strict=True):
                part = tuple(gradients[i][starts[i] : starts[i] + size] for i in range(len(points)))
                starts = [start + size if i < len(points) else start for i, start in enumerate(starts)]
                stepper.step(part, t)
        except BaseException:
            for stepper, snapshot in before:
                stepper.state, stepper.memory, _ = snapshot
            raise
        self.joined_x = concatenate([stepper.x for stepper in self.steppers])
