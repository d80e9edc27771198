"""The optimizer: an ordinary loop of torch on the outside, steps of a rule with the neighbors inside."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dnasa.communication import Network
from dnasa.core import InputError, Rule, RunError, Schedule
from dnasa.networks.processes import agree
from dnasa.optim.agreement import settings, start_at_the_same_point
from dnasa.optim.buffers import MixedBuffers, statistics
from dnasa.optim.flat import NO_LEARNING_RATE, Flat, ParameterGroup, check_group, views
from dnasa.optim.node import Node, make_rule
from dnasa.optim.recovery import Recovery
from dnasa.optim.saving import load_state, saved_state
from dnasa.optim.shards import own_network
from dnasa.optim.wrapping import Wrapping

BETWEEN = 100  # steps from one search for replaced parameters to the next
BEYOND = "step() is called more often than steps={} says: the stepsize is 0 now, so the nodes only exchange their models."


class Decentralized(torch.optim.Optimizer):
    """Trains with the neighbors, without a stepsize.

    Parameter groups may differ in `weight_decay` and in nothing else, because the step is normalized over all of them together.
    Their "lr" is the stepsize of the last step, for logs.

    In a network that survives losses, a call continues without lost processes and with those that joined: `nodes` are those
    that take part now, `lost_steps` counts the steps that this process left out because the others had done them already.

    The model's parameters are where the rule takes its next gradient; inside `averaged()` they are the answer, averaged over
    all nodes. Rules that want gradients at several points need `step(closure)`.
    Everything here is done by all nodes together: each must call `step`, `averaged` and `consensus` equally often, or, with
    different numbers of batches, train inside `Join`. A gradient that is not finite stops all processes, unless a GradScaler
    found it: then all skip that step.

    Args:
        params: As for any optimizer, or the model itself: its buffers and frozen parameters are then made equal at the start,
            its modules are compared between the processes, and its batch norm statistics are mixed with the neighbors' at
            every step.
        network: What `dnasa.connect` returns.
        rule: The name of a rule, or a `Rule`.
        eta: The stepsize, for rules that need one: a number or a function of t.
        schedule: The schedule of the stepsize; each rule has a default.
        steps: The number of steps, for schedules that depend on it, such as "fixed".
        weight_decay: Decoupled weight decay, as in `torch.optim.AdamW`: a step multiplies x by 1 - stepsize * weight_decay and
            leaves the gradient as it is. AdaNASA's stepsize is that of a coordinate.
        buffers: What to mix with the neighbors' instead of batch norm statistics, such as `model.buffers()`; `()` mixes none.
        overlap: Exchange while the next gradient is computed; by default wherever the rule can and there are neighbors. The
            iterates are the same either way.
        lr: Must be left out, since there is no learning rate to set.

    Examples:
        ```python
        network = dnasa.connect()
        optimizer = Decentralized(model, network)
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        ```
    """

    _step_supports_amp_scaling = True  # so that a GradScaler lets all nodes decide together which steps to skip

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
        lr: None = None,
    ):
        if lr is not None:
            raise InputError(NO_LEARNING_RATE)
        if not isinstance(network, Network):
            raise InputError(f"The network must come from dnasa.connect(...), not {type(network).__name__}.")
        if len(network.local_nodes) != 1:
            raise InputError(f"This process holds {len(network.local_nodes)} nodes, an optimizer is one: start more processes.")
        model = params if isinstance(params, nn.Module) else None
        super().__init__(params if model is None else model.named_parameters(), {"weight_decay": weight_decay})
        parameters, mixed = Flat(self.param_groups), MixedBuffers(model, buffers)
        if network.private and (mixed.tensors or (model is not None and statistics(model))):
            raise InputError("A private run does not hide statistics of batch norm: use layer or group norm, and no buffers.")
        network = own_network(network, parameters)
        everyone = len(network.processes.names) or network.nodes  # of sites, also those that come later
        recipe = make_rule(rule, eta, schedule, steps, everyone, parameters.layout, network.settings.every)
        self.node = Node(parameters, mixed, network, recipe, overlap)
        own = settings(self.node, model)
        self.recovery = Recovery(self.node, own)
        self.model = model
        self.warned = False  # of a missing backward pass
        self.wrapping: Wrapping | None = None
        self.joined = False  # whether processes have different numbers of batches, inside `Join`
        if network.processes.membership.join is not None:
            self.recovery.join()
        else:
            self.recovery.begin(lambda: self._start(own))

    @torch.no_grad()
    def _start(self, own: dict[str, Any]) -> None:
        """Check that all have the same settings and modules, and start at the weights of rank 0."""
        if self.network.nodes > 1:
            agree(self.network, own)
            start_at_the_same_point(self.node)
        if self.network.nodes > 1 or self.node.shards.count > 1:
            self.wrapping = Wrapping(self.node.parameters.trained, self.network)

    @property
    def t(self) -> int:
        """The number of steps taken."""
        return self.node.t

    @property
    def network(self) -> Network:
        """The current network, with the processes that are there now."""
        return self.node.network

    @property
    def nodes(self) -> list[int]:
        """The nodes that take part now."""
        return list(self.network.processes.node_ids)

    @property
    def lost_steps(self) -> int:
        """The number of steps that this process left out, because the others had done them when the network changed."""
        return self.recovery.lost_steps

    @property
    def flat(self) -> Tensor:
        """A copy of all trained parameters as one row."""
        return self.node.parameters.row()

    # ------------------------------------------------------------ steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the current gradients, and exchange with the neighbors; returns the closure's loss.

        Args:
            closure: Clears the gradients, computes the loss, calls backward and returns the loss, as for `torch.optim.LBFGS`.
        """
        if self.node.own_values is not None:
            raise InputError("Inside averaged() the model holds the mean of all nodes: take steps outside of it.")
        losses: list[Any] = []  # of the closure, once the gradients are collected

        def attempt() -> None:
            self._begin(closure is not None)
            if not losses:
                losses.append(self._collected(closure))
            gradients = self.node.gradients(closure)
            if not self._all_skip(gradients):
                self._take_step(gradients)

        try:
            self.recovery.step(attempt, self.recovery.miss_step)
        except BaseException:
            for name in ("found_inf", "grad_scale"):  # a GradScaler leaves them set after an error
                self.__dict__.pop(name, None)
            raise
        return losses[0] if losses else _loss(closure)

    @torch.no_grad()
    def shadow_step(self) -> bool:
        """Take part in a step of the others with gradient zero, for `Join`; returns whether anyone had a batch."""

        def attempt() -> bool:
            self._begin(True)
            has_batch, skip = self._vote(has_batch=False, skip=False)
            if has_batch:
                self._check_first_pass()
            if has_batch and not skip:
                self.zero_grad()
                self._take_step(self.node.gradients(self.zero_grad))
            return has_batch

        return self.recovery.step(attempt, lambda: True)

    def _begin(self, has_closure: bool) -> None:
        self.node.follow_decay()
        if self.node.stepper is None:
            if self.wrapping is not None and not has_closure:
                self.wrapping.check()
            with self.recovery.exchange():
                agree(self.network, {"step": self.t})
            self.node.begin(has_closure)

    def _collected(self, closure: Callable[[], Any] | None) -> Any:
        """Run the closure and collect all gradients in the flat vector; returns the loss."""
        if self.t == self.node.recipe.steps:
            warnings.warn(BEYOND.format(self.t), stacklevel=5)
        loss = _loss(closure)
        self._check_first_pass()
        self._warn_without_backward()
        if self.model is not None and self.t % BETWEEN == 0:
            self.node.parameters.check_complete(self.model)
        self.node.check_unchanged()
        self.node.parameters.collect_gradients()
        scale = getattr(self, "grad_scale", None)  # set by a GradScaler
        if scale is not None:
            self.node.parameters.gradient.div_(scale)
        return loss

    def _check_first_pass(self) -> None:
        """Check what the first backward pass shows of the model, where all nodes make it in the same step."""
        wrapping, self.wrapping = self.wrapping, None
        if wrapping is not None:
            wrapping.check()
            self.node.root = self.node.root or wrapping.model
            if self.t == 0 and self.model is None:
                with self.recovery.exchange():
                    wrapping.compare(self.network)

    def _warn_without_backward(self) -> None:
        if not self.warned and self.node.parameters.untouched():
            self.warned = True
            where = f"At {self.network.processes.name_of(self.network.rank)}, step {self.t + 1}"
            warnings.warn(f"{where}: no parameter has got a gradient: call backward() before step().", stacklevel=11)

    def _all_skip(self, gradients: tuple[Tensor, ...]) -> bool:
        """Whether all skip this step, since the step of one node needs the messages of the others."""
        overflowed = getattr(self, "found_inf", None)  # set by a GradScaler
        if overflowed is None:
            self._check_finite(gradients)
            if not self.joined:
                return False
        return self._vote(has_batch=True, skip=bool(overflowed))[1]

    def _vote(self, has_batch: bool, skip: bool) -> tuple[bool, bool]:
        """Whether any node has a batch, and whether any wants to skip this step."""
        with self.recovery.exchange():
            self.node.snapshot()
            votes = self.network.mean(torch.tensor([[float(has_batch), float(skip)]])).view(-1).tolist()
        return votes[0] > 0, votes[1] > 0

    def _check_finite(self, gradients: tuple[Tensor, ...]) -> None:
        """Stop all processes before a gradient that is not finite is mixed in."""
        parameters = self.node.parameters
        if self.network.nodes == 1 and parameters.gradient.is_cuda:  # nothing is mixed, and a check would wait for the GPU
            return
        wrong = (part for g in gradients if not _is_finite(g) for part in enumerate(views(g, parameters.gradients)))
        number = next((i for i, part in wrong if not _is_finite(part)), len(parameters.names))
        name = [*parameters.names, ""][self.node.shards.least(number)]  # all processes of a site stop
        if not name:
            return
        where = f"At {self.network.processes.name_of(self.network.rank)}, step {self.t + 1}"
        reason = f"{where}: the gradient of {name} is not finite. Check this process's batch, loss and weights."
        self.network.processes.membership.fail(reason)
        raise RunError(reason)

    def _take_step(self, gradients: tuple[Tensor, ...]) -> None:
        with self.recovery.exchange():
            self.node.step(gradients)

    # ------------------------------------------------------------ gradients, groups and checkpoints

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The gradients stay in one flat vector, so they become zero rather than None.

        Args:
            set_to_none: Not used; here because optimizers have it.
        """
        self.node.follow_parameters()
        self.node.parameters.clear_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by the constructor only: later groups are refused, because all parameters are one vector.

        Args:
            param_group: A dictionary with "params" and, if it differs, "weight_decay".
        """
        if hasattr(self, "node"):
            raise InputError("All parameters are one vector here: give all groups when the optimizer is made.")
        check_group(param_group)
        super().add_param_group(param_group)
        self.param_groups[-1] = ParameterGroup(self.param_groups[-1])

    @torch.inference_mode(False)  # in which frameworks evaluate and save; its tensors could not be changed later
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """This node's own state; every node saves and loads its own, together with the model's."""
        by_parameter, own = saved_state(self.node)
        self.state.update(by_parameter)
        out = super().state_dict() | {"decentralized": own}
        self.state.clear()  # or the arrays of this step would stay in memory
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where the state was taken, once the model has its parameters of that moment again.

        Args:
            state_dict: What `state_dict` returned at this node.
        """
        load_state(self.node, state_dict)
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group["weight_decay"] = loaded["weight_decay"]

    # ------------------------------------------------------------ the mean over all nodes

    @contextmanager
    @torch.inference_mode(False)
    @torch.no_grad()
    def averaged(self) -> Iterator[None]:
        """A block in which the model holds the mean of all nodes' answers and buffers, for evaluation and saving."""
        with self.node.showing(self.recovery.averaged()), torch.enable_grad():
            yield

    @torch.inference_mode(False)
    @torch.no_grad()
    def consensus(self) -> float:
        """(1/n) sum |x_i - xbar|^2 of the answers: how far the nodes are apart."""
        return self.recovery.distance()


def _loss(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _is_finite(a: Tensor) -> bool:
    """A sum is the quick check; large finite numbers may overflow it."""
    return bool(a.sum().isfinite()) or bool(a.isfinite().all())


class Join:
    """A block in which processes may have different numbers of batches.

    A process that leaves the block takes part in the steps of the others, with gradient zero, until all have left it: what
    `optimizer.zero_grad(); optimizer.step()` does. So every batch counts the same, and mean(u) = mean(v) holds as in any step.
    Every step exchanges one more small message with all processes, and waits for hidden exchanges. `averaged` and `consensus`
    are called after the block.

    Args:
        optimizers: The optimizers. Each takes one step per batch, in this order.

    Examples:
        ```python
        with Join([optimizer]):
            for x, y in loader:
                ...
        ```
    """

    def __init__(self, optimizers: Sequence[Decentralized]):
        self.optimizers = list(optimizers)

    def __enter__(self) -> None:
        for opt in self.optimizers:
            opt.joined = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            while error is None and self.optimizers[0].shadow_step():
                for opt in self.optimizers[1:]:
                    opt.shadow_step()
        finally:
            for opt in self.optimizers:
                opt.joined = False
