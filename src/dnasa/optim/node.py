"""A node: its parameters and buffers, its rule, and its state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dnasa.checks import positive, whole
from dnasa.communication import Network
from dnasa.core import InputError, Layout, Rule, RunError, Schedule, leaves, rebuilt, with_x
from dnasa.engine.rule_checks import check_rule
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper, first_snapshot
from dnasa.networks.processes import agree
from dnasa.optim.buffers import MixedBuffers
from dnasa.optim.flat import Flat, local
from dnasa.optim.shards import Shards, on_whole_vectors, reshard
from dnasa.rules import registry
from dnasa.rules.forms import with_current_form
from dnasa.rules.registry import Eta
from dnasa.rules.weight_decay import check_weight_decay, with_weight_decay
from dnasa.runs.metrics import squared_distances
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline
from dnasa.topology.matrices import check_weights

CLOSURE = "call step(closure) with a function that clears the gradients, computes the loss and calls backward"


class Recipe(NamedTuple):
    """A rule with its schedules; none are known of the user's own rule."""

    name: str
    rule: Rule
    schedules: tuple[Schedule, ...] = ()
    steps: int | None = None  # after which its steps are 0


def make_rule(
    rule: str | Rule, eta: Eta | None, schedule: str | None, steps: int | None, nodes: int, layout: Layout, every: int = 1
) -> Recipe:
    if steps is not None:
        whole("steps", steps)
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        return Recipe("a rule of the user's", with_current_form(rule))
    method = registry.find(rule)
    if eta is not None and not method.needs_eta:
        raise InputError(f"Rule '{rule}' takes no stepsize: leave eta out.")
    if schedule is None and steps is None and not method.needs_eta and not registry.split_schedule(rule)[1]:
        schedule = next((name for name, spec in method.schedules.items() if not spec.needs_steps), None)
    variant = registry.variants(rule, [] if eta is None else [eta], schedule)[0]
    registry.check_used(schedule, [variant])
    schedules = registry.schedules_of(variant, nodes, steps)
    spec = variant.spec
    known = steps if spec and spec.needs_steps is not False else None
    ends = steps if spec and spec.ends else None
    parts = [*variant.label().values(), None if known is None else f"in {known} steps"]
    name = " ".join(str(part) for part in parts if part is not None)
    return Recipe(name, registry.make(method, schedules, layout, every=every), schedules, ends)


class Node:
    """The node of this process.

    The model's parameters are where the rule takes its next gradient. The stepper is made at the first step, so that model and
    optimizer may be loaded in any order before it.
    """

    def __init__(self, parameters: Flat, buffers: MixedBuffers, network: Network, recipe: Recipe, overlap: bool | None):
        self.parameters = parameters
        self.buffers = buffers
        self.network = network
        self.recipe = recipe
        self.rule = recipe.rule
        self._set_step(0)
        if self.rule.stepsize is not None:
            self.rule = with_weight_decay(self.rule, lambda t: self.parameters.decay)
        self.shards = Shards(parameters.trained, network)
        if self.shards.count > 1:
            agree(network, {"rule": recipe.name})  # from here on, processes of a site wait for each other in its functions
            self.rule = on_whole_vectors(self.rule, self.shards)
        if network.topology is not None:
            check_weights(self.rule, network.topology, network.settings.rounds, every=network.settings.every)
        self.overlap = network.nodes > 1 and self.rule.can_overlap if overlap is None else overlap
        self.versions = 0  # of the parameters, after the last step
        self.own_values: Tensor | None = None  # of the parameters, while they hold the mean of all nodes
        self.root = buffers.model  # the module of all parameters, if it is known
        self.stepper: Stepper | None = None
        self.follow_decay()
        initial = self._initial()
        check_rule(self.rule, initial.state)
        self.strides = self.shards.find_strides(leaves(initial.state))
        self.loaded = _without_memory(initial)  # what `t` steps gave, until the stepper has it

    def _set_step(self, t: int) -> None:
        """The groups show the stepsize of the last step: the rule's first schedule, where it has any."""
        self.t = t
        eta = next(iter(self.recipe.schedules), lambda t: float("nan"))
        self.parameters.show_stepsize(float(eta(max(t - 1, 0))))

    @property
    def untrained(self) -> list[Tensor]:
        """Frozen parameters and buffers, which are equal at the start."""
        return [*map(local, self.parameters.frozen), *self.buffers.all_tensors]

    # ------------------------------------------------------------ start and end

    def follow_parameters(self) -> None:
        """Follow a model that was moved before the first step, as `accelerator.prepare` does."""
        buffers_stay = self.buffers.chosen is not None and self.buffers.tensors
        if self.stepper is None and self.t == 0 and self.parameters.moved() and not buffers_stay:
            self.parameters.place_gradients()

    def follow_decay(self) -> None:
        """Follow the weight decay of the groups. Steps that are under way end with the former one."""
        if self.parameters.decays == self.parameters.read:
            return
        for decay in filter(None, self.parameters.decays):
            positive("weight_decay", decay)
            check_weight_decay(self.rule, "This rule")
        if self.stepper is not None:
            self.stepper.finish()
        self.parameters.read_decay()

    def begin(self, has_closure: bool) -> None:
        """Make the stepper, before the first step."""
        snapshot = _cloned(self._unstarted())
        self._check_first_point(self.rule.gradient_points(snapshot.state, self.t)[0], has_closure)
        self.stepper = make_stepper([self.rule], [1], self.network, [snapshot], Timeline(), self.overlap, self.t)
        self.loaded = _without_memory(snapshot)
        self.versions = self.parameters.versions()
        if self.rule.points is not None:
            self.parameters.show(self.stepper.points(self.t)[0])

    def _check_first_point(self, point: Tensor, has_closure: bool) -> None:
        """Check that the gradient computed before the first step is at the rule's first point."""
        elsewhere = self.rule.points is not None and not torch.allclose(point, self.parameters.row(), equal_nan=True)
        if elsewhere and (self.t > 0 or not has_closure):
            raise InputError(f"This rule takes its first gradient at another point: {CLOSURE}, or load what was saved.")

    def halt(self) -> None:
        """Wait for exchanges in flight, and discard their results."""
        if self.stepper is not None:
            with suppress(RunError):
                self.stepper.finish()
            self.buffers.discard()
            self.stepper.close()
        self.stepper = None

    def stopped(self) -> Snapshot:
        """The state after the last complete step; nothing is in flight any more."""
        snapshot = _cloned(self._unstarted() if self.stepper is None else self.stepper.last_complete()[0])
        self.halt()
        return snapshot

    def restore(self, snapshot: Snapshot, t: int, move: bool = True) -> None:
        """Continue with the state after `t` steps; `move` the parameters to it, unless they are loaded on their own."""
        self.loaded = snapshot
        self._set_step(t)
        if not move:
            return
        point = self.rule.gradient_points(snapshot.state, t)[0]
        if self.own_values is None:
            self.parameters.show(point)
        else:
            self.own_values.copy_(point)

    # ------------------------------------------------------------ the state

    def snapshot(self) -> Snapshot:
        """The state with nothing in flight."""
        snapshot = _cloned(self._unstarted()) if self.stepper is None else self.stepper.snapshots[0]
        self.buffers.receive()
        return snapshot

    def _unstarted(self) -> Snapshot:
        """The state before the first step: x follows the parameters, where these are x."""
        self.follow_parameters()
        if self.t == 0:
            return self._initial()
        if self.rule.points is not None:
            return self.loaded
        return self.loaded._replace(state=with_x(self.loaded.state, self._own_row()))

    def _initial(self) -> Snapshot:
        return first_snapshot(self.rule, self._own_row())

    def _own_row(self) -> Tensor:
        return self.parameters.row() if self.own_values is None else self.own_values

    def values(self) -> list[Tensor]:
        """The answer of this node, and its buffers."""
        return [self.rule.result(self.snapshot().state), *self.buffers.tensors]

    def means(self) -> list[Tensor]:
        """The means over all nodes: of the answers, then of the buffers."""
        means = [self.network.mean(value.reshape(1, -1).clone()).view_as(value) for value in self.values()]
        return [means[0], *map(self.network.processes.mean_of_shards, means[1:])]

    def distance(self) -> float:
        """(1/n) sum |x_i - xbar|^2 of the answers."""
        answer = self.rule.result(self.snapshot().state)
        squares = squared_distances(answer, self.network.mean(answer.clone()))
        return float(self.network.mean(self.network.processes.sum_shards(squares)))

    @contextmanager
    def showing(self, means: list[Tensor]) -> Iterator[None]:
        """Show these means in the parameters and buffers inside the block."""
        buffers = self.buffers.tensors
        self.own_values, own_buffers = self.parameters.row(), [b.clone() for b in buffers]
        self._show(means[0], buffers, means[1:])
        try:
            yield
        finally:
            self._show(self.own_values, buffers, own_buffers)
            self.own_values = None

    def _show(self, row: Tensor, buffers: list[Tensor], values: list[Tensor]) -> None:
        reshard(self.root)
        self.parameters.show(row)
        for b, value in zip(buffers, values, strict=True):
            b.copy_(value)

    # ------------------------------------------------------------ a step

    def check_unchanged(self) -> None:
        """Refuse parameters changed by hand: the next iterate may have been sent, so the change would be lost."""
        if self.parameters.versions() != self.versions:
            raise InputError("The parameters were changed by hand: all nodes call opt.load_state_dict(opt.state_dict()) then.")

    def gradients(self, closure: Callable[[], Any] | None) -> tuple[Tensor, ...]:
        """The gradients at every point of the rule; that of the first is collected already."""
        assert self.stepper is not None
        gradients = [self.parameters.gradient]
        for point in self.stepper.points(self.t)[1:]:
            if closure is None:
                raise InputError(f"This rule takes gradients at several points: {CLOSURE}.")
            gradients[-1], first = gradients[-1].clone(), self.parameters.row()
            self.parameters.show(point)
            try:
                with torch.enable_grad():
                    closure()
                self.parameters.collect_gradients()
                gradients.append(self.parameters.gradient)
            finally:
                self.parameters.show(first)
        return tuple(gradients)

    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """Step the rule, send the buffers, and move the parameters to the point of the next gradient."""
        assert self.stepper is not None
        self.stepper.step(gradients, self.t)
        self.buffers.send(self.network, self.stepper.submit, self.parameters.gradient.dtype, self.t + 1)
        self._set_step(self.t + 1)
        self.parameters.show(self.stepper.points(self.t)[0])
        increment_version(self.parameters.trained)  # so that a backward pass through an older graph is noticed
        self.versions = self.parameters.versions()


def _cloned(snapshot: Snapshot) -> Snapshot:
    arrays = {name: a.clone() for name, a in leaves(snapshot.state).items()}
    return snapshot._replace(state=rebuilt(snapshot.state, arrays))


def _without_memory(snapshot: Snapshot) -> Snapshot:
    """The state with arrays that have shapes but no memory."""
    arrays = {name: a.to("meta") for name, a in leaves(snapshot.state).items()}
    return Snapshot(rebuilt(snapshot.state, arrays), {}, Sent())
