"""The optimizer: an ordinary loop of torch on the outside, steps of a rule with the neighbours inside."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from dnasa.core import (
    InputError,
    Network,
    Rule,
    RunError,
    Schedule,
    Sent,
    Snapshot,
    choose,
    leaves,
    positive,
    rebuilt,
)
from dnasa.engine.overlapped import with_x
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import check_state
from dnasa.networks.processes import agree
from dnasa.optim.buffers import MixedBuffers, statistics
from dnasa.optim.finite import describe, finite
from dnasa.optim.first_pass import FirstPass
from dnasa.optim.flat import Flat
from dnasa.optim.parameters import check_same_modules, described, start_at_the_same_point, views
from dnasa.optim.recipe import make_rule
from dnasa.optim.recovery import Recovery
from dnasa.optim.saving import loaded_state, saved_state
from dnasa.optim.torch_compile import MIN_PARAMETERS, InPlace, fuses_alone, with_compiled_messages
from dnasa.runs.metrics import squared_distances
from dnasa.runs.timing import Timeline
from dnasa.topology import check_weights

NO_LEARNING_RATE = (
    "Decentralized has no learning rate to set, its schedule is built in: leave 'lr' and learning-rate schedulers out "
    "(rules that need a stepsize take eta and schedule)."
)

BEYOND = (
    "step() is called more often than steps={} says: the stepsize is 0 now, so nothing more is learned and the nodes only "
    "exchange their models. Give the number of calls as steps=."
)


class Group(dict[str, Any]):
    """A parameter group whose "lr" can only be read."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            raise InputError(NO_LEARNING_RATE)
        super().__setitem__(key, value)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is set key by key otherwise


class Decentralized(torch.optim.Optimizer):
    """Trains with the neighbours, without a stepsize.

    Parameter groups may differ in `weight_decay` and in nothing else, because the step is normalised over all of them together.
    Their "lr" is the stepsize of the last step, for logs.

    In a network that survives losses, a call continues without lost processes and with those that joined: `nodes` are those
    that are there, `lost_steps` counts the steps that this process left out because the others had done them already.

    The model's parameters are where the rule takes its next gradient; inside `averaged()` they are the answer, averaged over
    all nodes. Rules that want gradients at several points need `step(closure)`.
    Everything here is done by all nodes together: each must call `step`, `averaged` and `consensus` equally often, or, with
    different numbers of batches, train inside `Join`.

    Args:
        params: As for any optimizer, or the model itself: its buffers and frozen parameters are then made equal at the start,
            its modules are compared between the processes, and its batch norm statistics are mixed with the neighbours' at
            every step.
        network: What `dnasa.connect` returns.
        rule: The name of a rule, or a `Rule`.
        eta: The stepsize, for rules that need one: a number or a function of t.
        schedule: The schedule of the stepsize; each rule has a default.
        steps: The number of steps, for schedules that depend on it, such as "fixed".
        weight_decay: The factor of an L2 term in the loss.
        buffers: What to mix with the neighbours' instead of batch norm statistics, such as `model.buffers()`; `()` mixes none.
        overlap: Exchange while the next gradient is computed; by default wherever the rule can and there are neighbours. The
            iterates are the same either way.
        nonfinite: What a gradient that is not finite does, before it is mixed in. "raise" stops all processes with an error
            that names rank, step and parameter (give `model.named_parameters()` for their names); with "skip" all skip that
            step together.
        lr: Must be left out, since there is no learning rate to set.

    Examples:
        ```python
        network = dnasa.connect("ring")
        optimizer = Decentralized(model, network)
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        ```
    """

    _step_supports_amp_scaling = (
        True  # a GradScaler then lets `step` decide whether to skip: all nodes must skip together
    )

    def __init__(
        self,
        params: Any,
        network: Network,
        rule: str | Rule = "adanasa",
        *,
        eta: float | Schedule | None = None,
        schedule: str | None = None,
        steps: int | None = None,
        weight_decay: float = 0.0,
        buffers: Iterable[Tensor] | None = None,
        overlap: bool | None = None,
        nonfinite: str = "raise",
        lr: None = None,
    ):
        if lr is not None:
            raise InputError(NO_LEARNING_RATE)
        if not isinstance(network, Network):
            raise InputError(f"The network must come from dnasa.connect(...), not {type(network).__name__}.")
        if len(network.local_nodes) != 1:
            raise InputError(
                f"This process holds {len(network.local_nodes)} nodes, an optimizer is one: start as many processes as the "
                "graph has nodes, or use dnasa.connect('ring')."
            )
        choose("reaction to a gradient that is not finite", nonfinite, dict.fromkeys(("raise", "skip")))
        model = params if isinstance(params, nn.Module) else None
        super().__init__(params if model is None else model.named_parameters(), {"weight_decay": weight_decay})
        self.model, self.nonfinite, self.joined = model, nonfinite, False
        self.network = network.duplicate() if network.duplicate else network
        self.parameters = Flat(self.param_groups)
        self.follows, self.unmixed = buffers is None and model is not None, buffers is None and model is None
        given = list(buffers or ())
        find = partial(statistics, model) if model is not None and self.follows else lambda: given
        self.buffers = MixedBuffers(find, self.network)
        layout = tuple((str(i), tuple(p.shape)) for i, p in enumerate(self.parameters.trained))
        self.made = make_rule(rule, eta, schedule, steps, network.nodes, layout)
        self.rule, self.t = self.made.rule, 0
        if network.topology is not None:
            check_weights(self.rule, network.topology, network.rounds)
        self.overlap = network.nodes > 1 and self.rule.hides if overlap is None else overlap
        self.fuse = self._fuses()
        self.own_values: Tensor | None = None  # of the parameters, while they hold the mean of all nodes
        self.stepper: Any = None
        self.snapshot = _without_memory(self._initial())  # what `t` steps gave, where they were loaded
        self.first_pass: FirstPass | None = None
        self.recovery = Recovery(self, self._settings() | {"the modules of the model": described(model)})
        if network.membership.join is not None:
            self.recovery.join()
            return
        self.recovery.begin(self._start)
        self.network.membership.admit()

    @torch.no_grad()
    def _start(self) -> None:
        """All nodes check that they have the same settings, and start with the weights of the first."""
        if self.network.nodes == 1:
            return
        self._check_agreement()
        if self.model is not None:
            check_same_modules(self.network, self.model)
        row = self.flat
        start_at_the_same_point(self.network, [row, *self.untrained_tensors])
        self.parameters.show(row)
        self.first_pass = FirstPass(self.parameters.trained, self.untrained_tensors, self.network)

    def _check_agreement(self) -> None:
        for name, value in self._settings().items():
            agree(self.network, {name: value})

    def _settings(self) -> dict[str, Any]:
        """What must be the same at all nodes."""
        kinds = {
            "parameters": self.parameters.trained,
            "frozen parameters": self.parameters.frozen,
            "buffers": self.buffers.tensors,
        }
        return {
            "the rule": self.made.name,
            "overlap": self.overlap,
            "nonfinite": self.nonfinite,
            "the weight decay": [group["weight_decay"] for group in self.param_groups],
        } | {f"the shape of the {name}": [[*p.shape, str(p.dtype)] for p in tensors] for name, tensors in kinds.items()}

    def _initial(self) -> Snapshot:
        x = self._own_parameters()
        return Snapshot(check_state(self.rule.init(x), x), {}, Sent())

    def _own_parameters(self) -> Tensor:
        return self.flat if self.own_values is None else self.own_values

    @property
    def flat(self) -> Tensor:
        """A copy of all trained parameters as one row."""
        return self.parameters.row()

    @property
    def untrained_tensors(self) -> list[Tensor]:
        """Frozen parameters and buffers, which are equal at the start."""
        others = self.buffers.tensors if self.model is None else self.model.buffers()
        return [*self.parameters.frozen, *others]

    @property
    def t(self) -> int:
        """The number of steps taken."""
        return self._t

    @t.setter
    def t(self, t: int) -> None:
        """The "lr" of the groups is the stepsize of the last step: the rule's first schedule, where it has any."""
        self._t = t
        eta = next(iter(self.made.schedules), lambda t: float("nan"))
        for group in self.param_groups:
            dict.__setitem__(group, "lr", float(eta(max(t - 1, 0))))

    # ------------------------------------------------------------ the interface of an optimizer

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the rule with the present gradients, and its exchanges with the neighbours; returns the closure's loss.

        Args:
            closure: Clears the gradients, computes the loss, calls backward and returns the loss, as for `torch.optim.LBFGS`.
        """
        if self.own_values is not None:
            raise InputError("Inside averaged() the model holds the mean of all nodes: take steps outside of it.")
        losses: list[Any] = []  # of the closure, once the gradients are collected

        def attempt() -> None:
            if self.stepper is None:
                self._begin(closure is not None)
            if not losses:
                losses.append(self._collected(closure))
            gradients = self._all_gradients(closure)
            if not self._all_skip(gradients):
                self._take_step(gradients)

        try:
            self.recovery.together(lambda: f"step {self.t + 1}", attempt, self.recovery.miss_step)
        except BaseException:
            for name in ("found_inf", "grad_scale"):  # a GradScaler leaves them set after an error
                self.__dict__.pop(name, None)
            raise
        return losses[0] if losses else _loss(closure)

    def _collected(self, closure: Callable[[], Any] | None) -> Any:
        """The loss of the closure; all gradients are in the flat vector then."""
        if self.t == self.made.steps:
            warnings.warn(BEYOND.format(self.t), stacklevel=5)
        loss = _loss(closure)
        self._check_first_pass()
        self._check_unchanged()
        self.parameters.collect_gradients()
        self._unscale()
        return loss

    def _check_first_pass(self) -> None:
        """After the first backward pass, which a closure may have done."""
        first, self.first_pass = self.first_pass, None
        if first is not None:
            first.check_wrapping()
        if first is not None and self.t == 0 and self.model is None:
            with self.recovery.exchange():
                first.compare(self.network, tell=self.unmixed)

    def _take_step(self, gradients: tuple[Tensor, ...]) -> None:
        with self.recovery.exchange():
            self.stepper.step(gradients, self.t)
            self.buffers.send(self.stepper.submit, self.parameters.gradient.dtype, self.t + 1)
        self.t += 1
        self._show_point()

    @torch.no_grad()
    def shadow_step(self) -> bool:
        """For `Join`: take part in a step of the others with gradient zero; whether there was anyone to take it."""

        def attempt() -> bool:
            if self.stepper is None:
                self._begin(True)
            self._check_first_pass()
            active, skip = self._vote(False, False)
            if active and not skip:
                self.zero_grad()
                self._take_step(self._all_gradients(self.zero_grad))
            return active

        return self.recovery.together(lambda: f"step {self.t + 1}", attempt, lambda: True)

    def _all_gradients(self, closure: Callable[[], Any] | None) -> tuple[Tensor, ...]:
        """At every point of the rule; the parameters are at the first of them already."""
        gradients = [self.parameters.decayed_gradient()]
        for point in self.stepper.points(self.t)[1:]:
            if closure is None:
                raise InputError(
                    "This rule takes gradients at several points: call step(closure) with a function that clears the "
                    "gradients, computes the loss and calls backward, as for torch.optim.LBFGS."
                )
            gradients[-1], first = gradients[-1].clone(), self.flat
            self.parameters.show(point)
            try:
                with torch.enable_grad():
                    closure()
                self.parameters.collect_gradients()
                gradients.append(self.parameters.decayed_gradient())
            finally:
                self.parameters.show(first)
        return tuple(gradients)

    def _show_point(self) -> None:
        """The parameters become the point of the next gradient."""
        self.parameters.show(self.stepper.points(self.t)[0])
        increment_version(self.parameters.trained)  # so that a backward pass through an older graph is noticed
        self.versions = self.parameters.versions()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The gradients stay in one flat vector, so they become zero rather than None.

        Args:
            set_to_none: Not used; here because optimizers have it.
        """
        self._follow_parameters()
        self.parameters.clear_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by the constructor only: later groups are refused, because all parameters are one vector.

        Args:
            param_group: A dictionary with "params" and, if it differs, "weight_decay".
        """
        if hasattr(self, "parameters"):
            raise InputError("All parameters are one vector here: give all groups when the optimizer is made.")
        for key in param_group:
            if key == "lr":
                raise InputError(NO_LEARNING_RATE)
            if key not in ("params", "weight_decay"):
                raise InputError(f"Parameter groups may differ in weight_decay only, not in '{key}': leave it out.")
        super().add_param_group(param_group)
        decay = self.param_groups[-1]["weight_decay"]
        if decay:
            positive("weight_decay", decay)
        self.param_groups[-1] = Group(self.param_groups[-1])

    # ------------------------------------------------------------ checkpoints

    @torch.inference_mode(False)  # in which frameworks evaluate and save; its tensors could not be changed later
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """This node's own state; every node saves and loads its own, together with the model's."""
        own = saved_state(self)
        out = super().state_dict() | {"decentralized": own}
        self.state.clear()  # or the arrays of this step would stay in memory
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where the state was taken, once the model has its parameters of that moment again.

        Args:
            state_dict: What `state_dict` returned at this node.
        """
        snapshot, step = loaded_state(self, state_dict)
        self._halt()
        self.snapshot, self.t = snapshot, step
        if state_dict["decentralized"].get("averaged"):  # then the model's file has the mean
            self._move_to(snapshot, step)
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group["weight_decay"] = loaded["weight_decay"]

    # ------------------------------------------------------------ the mean over all nodes

    @contextmanager
    @torch.inference_mode(False)
    @torch.no_grad()
    def averaged(self) -> Iterator[None]:
        """Inside, the model holds the mean of all nodes' answers (of the buffers, too): for evaluation and saving."""
        recovery = self.recovery
        means = recovery.together(lambda: f"averaged() after {self.t} steps", self.means, lambda: recovery.means)
        buffers = self.buffers.tensors
        own, own_buffers = self.flat, [b.clone() for b in buffers]
        self.own_values = own
        self._show(means[0], buffers, means[1:])
        try:
            with torch.enable_grad():
                yield
        finally:
            self._show(own, buffers, own_buffers)
            self.own_values = None

    def _show(self, row: Tensor, buffers: list[Tensor], values: list[Tensor]) -> None:
        self.parameters.show(row)
        for b, value in zip(buffers, values, strict=True):
            b.copy_(value)

    def means(self) -> list[Tensor]:
        """Over all nodes: of the answers, then of the buffers."""
        with self.recovery.exchange():
            sources = [self.rule.result(self.waited_snapshot().state), *self.buffers.tensors]
            return [self.network.mean(source.reshape(1, -1).clone()).view_as(source) for source in sources]

    @torch.inference_mode(False)
    @torch.no_grad()
    def consensus(self) -> float:
        """(1/n) sum |x_i - xbar|^2 of the answers: how far the nodes are apart."""
        recovery = self.recovery
        return recovery.together(lambda: f"consensus() after {self.t} steps", self.distance, lambda: recovery.consensus)

    def distance(self) -> float:
        """What `consensus` returns, for nodes that all compute it at the same time."""
        with self.recovery.exchange():
            answer = self.rule.result(self.waited_snapshot().state)
            return float(self.network.mean(squared_distances(answer, self.network.mean(answer.clone()))))

    # ------------------------------------------------------------ processes that leave and join

    @property
    def nodes(self) -> list[int]:
        """The nodes that take part now."""
        return list(self.network.node_ids)

    @property
    def lost_steps(self) -> int:
        """Steps that this process left out, because the others had done them when the network changed."""
        return self.recovery.lost_steps

    def stopped(self) -> Snapshot:
        """The state after the last complete step; nothing is in flight any more."""
        snapshot = _cloned(self._unstarted() if self.stepper is None else self.stepper.complete)
        self._halt()
        return snapshot

    def resume(self, network: Network, snapshot: Snapshot, t: int) -> None:
        """Continue from there on another network.

        Args:
            network: The network.
            snapshot: The state after a complete step.
            t: The number of steps taken until then.
        """
        self.network = self.buffers.network = network
        self.snapshot, self.t = snapshot, t
        self._move_to(snapshot, t)

    def _move_to(self, snapshot: Snapshot, t: int) -> None:
        point = self.rule.gradient_points(snapshot.state, t)[0]
        if self.own_values is None:
            self.parameters.show(point)
        else:
            self.own_values.copy_(point)

    # ------------------------------------------------------------ steps

    def _follow_parameters(self) -> None:
        """A model may be moved to its device after the optimizer was made, as `accelerator.prepare` does, but not later."""
        if self.stepper is None and self.t == 0 and self.parameters.moved():
            if self.buffers.tensors and not self.follows:
                return
            self.parameters.place_gradients()
            self.fuse = self._fuses()

    def _fuses(self) -> bool:
        g = self.parameters.gradient
        return bool(g.is_cuda and g.numel() >= MIN_PARAMETERS and self.made.compiles)

    def _begin(self, has_closure: bool) -> None:
        """At the first step, so that model and optimizer may be loaded in any order before it."""
        if self.first_pass is not None and not has_closure:
            self.first_pass.check_wrapping()
        with self.recovery.exchange():
            if self.network.nodes > 1:
                agree(self.network, {"the step": self.t})
        snapshot = self._unstarted()
        self.versions = self.parameters.versions()
        self._check_first_point(self.rule.gradient_points(snapshot.state, self.t)[0], has_closure)
        alone = self.network.nodes == 1
        if self.fuse and alone and fuses_alone(self.rule):
            self.stepper = InPlace(self.made, _cloned(snapshot))
        else:
            compiles = self.fuse and not alone
            rule = with_compiled_messages(self.made, self.parameters.gradient) if compiles else self.rule
            args = ([rule], [1], self.network, [_cloned(snapshot)], Timeline(), self.overlap, self.t)
            self.stepper = make_stepper(*args)
        self.snapshot = _without_memory(snapshot)
        if self.rule.points is not None:
            self.parameters.show(self.stepper.points(self.t)[0])

    def _check_first_point(self, point: Tensor, has_closure: bool) -> None:
        """A gradient computed before the first step must be of the point where the rule wants it."""
        if self.rule.points is None or torch.allclose(point, self.flat, equal_nan=True):
            return
        if self.t > 0:
            raise InputError(
                "The model's parameters are not those of the optimizer's state, and this rule cannot begin elsewhere: load "
                "the model and the optimizer as they were saved together."
            )
        if not has_closure:
            raise InputError(
                "This rule takes its first gradient at another point than the start: call step(closure) with a function that "
                "clears the gradients, computes the loss and calls backward."
            )

    def _unstarted(self) -> Snapshot:
        """The state before the first step: at the start the parameters may still change."""
        self._follow_parameters()
        return self._initial() if self.t == 0 else self._with_parameters(self.snapshot)

    def _with_parameters(self, snapshot: Snapshot) -> Snapshot:
        """The state with x as the model's parameters have it, where they are x."""
        if self.rule.points is not None:
            return snapshot
        return snapshot._replace(state=with_x(snapshot.state, self._own_parameters()))

    def waited_snapshot(self) -> Snapshot:
        """The state with nothing in flight."""
        snapshot = self._unstarted() if self.stepper is None else self.stepper.snapshots[0]
        self.buffers.receive()
        return snapshot

    def _halt(self) -> None:
        """Wait for what is in flight, and discard it."""
        if self.stepper is not None:
            with suppress(RunError):
                self.stepper.finish()
            self.buffers.discard()
            self.stepper.close()
        self.stepper = None

    def _check_unchanged(self) -> None:
        """The next iterate may have been sent already: a change by hand would be lost silently."""
        if self.parameters.versions() != self.versions or self._edited():
            raise InputError(
                "The parameters were changed by hand between two steps: every node must instead save and load, "
                "opt.load_state_dict(opt.state_dict()), after such a change."
            )

    def _edited(self) -> bool:
        """Changes through `p.data` leave no version. Comparing would wait for a GPU, so a node alone there is not checked."""
        alone_on_gpu = self.parameters.gradient.is_cuda and self.network.nodes == 1
        return not alone_on_gpu and self.parameters.differ(self.stepper.points(self.t)[0])

    def _unscale(self) -> None:
        """With a GradScaler: undo the scale."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            self.parameters.gradient.div_(scale)

    def _all_skip(self, gradients: tuple[Tensor, ...]) -> bool:
        """Whether all skip this step, since a node's gradient has overflowed or is not finite."""
        found = getattr(self, "found_inf", None)
        unusable = not self._usable(gradients) if found is None else bool(found)
        if found is None and self.nonfinite == "raise" and not self.joined:
            return False
        return self._vote(True, unusable)[1]

    def _usable(self, gradients: tuple[Tensor, ...]) -> bool:
        """Whether they are finite. A node alone on a GPU is not checked: it would wait for the GPU, and nothing is mixed."""
        if (self.parameters.gradient.is_cuda and self.network.nodes == 1) or all(map(finite, gradients)):
            return True
        worst = next(g for g in gradients if not finite(g))
        reason = describe(views(worst, self.parameters.trained), self.parameters.values, self.parameters.names)
        reason = f"Rank {self.network.rank}, step {self.t + 1}: {reason}."
        if self.nonfinite == "skip":
            warnings.warn(f"{reason} All skip this step.", stacklevel=4)
            return False
        reason += " Check this process' batch and loss, or let all skip such steps: nonfinite='skip'."
        self.network.membership.fail(reason)
        raise RunError(reason)

    def _vote(self, active: bool, unusable: bool) -> tuple[bool, bool]:
        """Whether any node has a batch, and whether any node cannot use its gradient."""
        with self.recovery.exchange():
            self.waited_snapshot()
            has_batch, skip = self.network.mean(torch.tensor([[float(active), float(unusable)]])).view(-1).tolist()
        return has_batch > 0, skip > 0


def _loss(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _cloned(snapshot: Snapshot) -> Snapshot:
    """With memory of its own for each array."""
    arrays = {name: a.clone() for name, a in leaves(snapshot.state).items()}
    return snapshot._replace(state=rebuilt(snapshot.state, arrays))


def _without_memory(snapshot: Snapshot) -> Snapshot:
    """The names and shapes of the state's arrays."""
    return Snapshot(
        rebuilt(snapshot.state, {name: a.to("meta") for name, a in leaves(snapshot.state).items()}), {}, Sent()
    )
