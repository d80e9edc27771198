"""Any rule as a `torch.optim.Optimizer`: two changed lines make an ordinary training loop a decentralised one.

All parameters live in one flat vector, since D-NASA normalises the whole of it, and so do their gradients.
"""

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dnasa import rules
from dnasa.core import InputError, Network, Rule, RunError, Schedule, choose, positive, whole
from dnasa.metrics import spread
from dnasa.networks.exchange import agree
from dnasa.schedules import constant
from dnasa.stepping import stepping
from dnasa.timing import Timeline
from dnasa.topology import check_weights

CHUNK = 1 << 20  # parameters that travel at once when node 0 tells the others where to start
WORTH_COMPILING = 1 << 20  # parameters on a GPU from which on fusing the update pays
NO_LEARNING_RATE = (
    "Decentralized has no learning rate, its schedule is built in: leave 'lr' and learning-rate schedulers out "
    "(dnasa has nothing to tune; other rules take eta and schedule)."
)


class Group(dict):
    """A parameter group that says why there is no learning rate in it."""

    def __missing__(self, key: str) -> Any:
        raise InputError(NO_LEARNING_RATE) if key == "lr" else KeyError(key)


class Decentralized(torch.optim.Optimizer):
    """Trains with the neighbours, without a stepsize.

    `params` as for any optimizer; parameter groups may differ in `weight_decay` (an L2 term in the loss) and in nothing else,
    because the step is normalised over all of them together. `network` comes from `dnasa.connect`. `rule` is a name (those
    that need a stepsize take `eta`; `schedule="fixed"` takes the number of `steps`) or a `Rule`. `buffers`, such as
    `model.buffers()`, are mixed with the neighbours' as well. `overlap` exchanges while the next gradient is computed; by
    default wherever the rule can (D-NASA, D-ASAGT) and there is somebody to talk to. The iterates are the same either way.

    Everything here is done by all nodes together: each must call `step`, `averaged` and `consensus` equally often.
    """

    _step_supports_amp_scaling = (
        True  # a GradScaler then leaves it to `step` to skip one: that must be everyone's decision
    )

    def __init__(
        self,
        params: Any,
        network: Network,
        rule: str | Rule = "dnasa",
        *,
        eta: float | None = None,
        schedule: str | None = None,
        steps: int | None = None,
        weight_decay: float = 0.0,
        buffers: Iterable[Tensor] = (),
        overlap: bool | None = None,
    ):
        if len(network.here) != 1:
            raise InputError(
                f"This process holds {len(network.here)} nodes, an optimizer is one: start as many processes as the graph "
                "has nodes, or use dnasa.connect('ring')."
            )
        super().__init__(params, {"weight_decay": weight_decay})
        self.network, self.t = network.channel() if network.channel else network, 0
        everyone = [p for group in self.param_groups for p in group["params"]]
        self.trained = [p for p in everyone if p.requires_grad]
        self.frozen = [p for p in everyone if not p.requires_grad]
        sizes = [sum(p.numel() for p in group["params"] if p.requires_grad) for group in self.param_groups]
        self.parts = [
            slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)
        ]  # of the groups
        _check_parameters(self.trained)
        self.buffers = [b for b in buffers if b.is_floating_point()]
        self.in_flight: Any = None  # the buffers as they were sent, and the future of their mixture

        self.flat = torch.cat([p.detach().reshape(-1) for p in self.trained])[None]
        self.gradient = torch.zeros_like(self.flat)
        self.values = _views(self.flat, self.trained)
        self.gradients = _views(self.gradient, self.trained)
        for p, value in zip(self.trained, self.values, strict=True):
            p.data = value
        self.zero_grad()

        self.made = _made(rule, eta, schedule, steps, network.nodes)
        self.rule = self.made.rule
        if network.topology is not None:
            check_weights(self.rule, network.topology, network.rounds)
        self.overlap = network.nodes > 1 and self.rule.move is not None if overlap is None else overlap
        self.fuse = bool(self.flat.is_cuda and self.flat.numel() >= WORTH_COMPILING and self.made.schedules)
        self.mean_inside = False
        self._agree("the rule", self.made.name)
        self._agree("overlap", self.overlap)
        self._agree("the weight decay", [group["weight_decay"] for group in self.param_groups])
        for what, tensors in (
            ("parameters", self.trained),
            ("frozen parameters", self.frozen),
            ("buffers", self.buffers),
        ):
            self._agree(f"the shape of the {what}", [[*p.shape, str(p.dtype)] for p in tensors])
        _start_at_the_same_point(network, [self.flat, *self.frozen, *self.buffers])
        self.running: Any = None
        self.between = self.rule.init(self.flat)  # the state while nothing is running

    def _agree(self, name: str, value: Any) -> None:
        if self.network.nodes > 1:
            agree(self.network, {name: value})

    # ------------------------------------------------------------ what an optimizer does

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the rule with the gradients there are; one exchange with the neighbours."""
        if self.mean_inside:
            raise InputError("Inside averaged() the model holds the mean of all nodes: take steps outside of it.")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.running is None:
            self._begin()
        try:
            self._advance()
        except BaseException:
            for name in ("found_inf", "grad_scale"):  # a GradScaler forgets to take them back
                self.__dict__.pop(name, None)
            raise
        return loss

    def _advance(self) -> None:
        self._check_untouched()
        self._collect_gradients()
        if self._everyone_skips():
            return
        self.running.step(self._own_gradient(), self.t)
        if self.running.x is not self.flat:
            self.flat.copy_(self.running.x)
        increment_version(self.trained)  # so that a backward pass through an older graph is noticed
        self.versions = self._versions()
        self._mix_buffers()
        self.t += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The gradients keep their place in one flat vector, so they become zero rather than None."""
        self.gradient.zero_()
        for p, view in zip(self.trained, self.gradients, strict=True):
            p.grad = view
        for p in self.frozen:
            p.grad = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "flat"):
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

    def state_dict(self) -> dict[str, Any]:
        """This node's own state; every node saves and loads its own, together with the model's."""
        state = self._settled()
        for field, array in state._asdict().items():
            if field != "x":
                for p, view in zip(self.trained, _views(array, self.trained), strict=True):
                    self.state[p][field] = view
        own = {"step": self.t, "node": self.network.here[0], "nodes": self.network.nodes}
        return super().state_dict() | {"decentralized": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, once the model has its parameters of that moment back."""
        own, node = state_dict.get("decentralized", {}), self.network.here[0]
        if own.get("nodes") != self.network.nodes or own.get("node") != node:
            raise InputError(
                f"This state is of node {own.get('node')} of {own.get('nodes')}, this process is node {node} of "
                f"{self.network.nodes}: every node saves and loads a file of its own."
            )
        numbers = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        saved = [state_dict["state"].get(numbers[id(p)], {}) for p in self.trained]
        fields = [field for field in self.between._fields if field != "x"]
        for p, each in zip(self.trained, saved, strict=True):
            if any(field not in each or each[field].shape != p.shape for field in fields):
                raise InputError(
                    "This state is of another model or another rule: make both as they were when it was saved."
                )
        arrays = {f: torch.cat([each[f].reshape(-1) for each in saved])[None].to(self.flat) for f in fields}
        self._halt()
        self.between, self.t = self.between._replace(**arrays), own["step"]
        for group, kept in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group["weight_decay"] = kept["weight_decay"]

    # ------------------------------------------------------------ what a node does besides

    @contextmanager
    @torch.no_grad()
    def averaged(self) -> Iterator[None]:
        """Inside, the model holds the mean over all nodes (of the buffers, too): for evaluation and saving."""
        self._settled()
        held = [self.flat, *self.buffers]
        own = [a.clone() for a in held]
        self.mean_inside = True
        for a in held:
            a.copy_(self.network.mean(a.reshape(1, -1)).view_as(a))
        try:
            with torch.enable_grad():
                yield
        finally:
            for a, before in zip(held, own, strict=True):
                a.copy_(before)
            self.mean_inside = False

    @torch.no_grad()
    def consensus(self) -> float:
        """(1/n) sum |x_i - xbar|^2: how far the nodes are apart."""
        self._settled()
        x = self.flat if self.running is None else self.running.x  # the node's own, inside averaged() too
        return float(self.network.mean(spread(x, self.network.mean(x))))

    # ------------------------------------------------------------ inside

    def _begin(self) -> None:
        """Lazily at the first step, so that model and optimizer may be loaded in any order before it."""
        self._agree("the step", self.t)
        self.versions = self._versions()
        state = type(self.between)(*(a.clone() for a in self.between._replace(x=self.flat)))
        if self.fuse and self.network.nodes == 1:
            self.running = InPlace(self.made, state._replace(x=self.flat))
        else:
            rule = fused(self.made, self.flat) if self.fuse and self.overlap else self.rule
            self.running = stepping(rule, self.network, state, Timeline(), self.overlap, self.t)

    def _settled(self) -> Any:
        """The state with nothing in flight."""
        state = self.between if self.running is None else self.running.state
        self._land_buffers()
        return state

    def _halt(self) -> None:
        """Let what is under way arrive, and forget it."""
        if self.running is not None:
            with suppress(RunError):
                self.running.state  # noqa: B018 (waits)
            if self.in_flight is not None:
                with suppress(RunError):
                    self.in_flight[1].result()
            self.running.close()
        self.running = self.in_flight = None

    def _versions(self) -> int:
        return sum(p._version for p in self.trained)

    def _check_untouched(self) -> None:
        """The next iterate may have been sent already: a change by hand would be lost without a word."""
        if self._versions() != self.versions:
            raise InputError(
                "The parameters were changed by hand between two steps: every node must instead save and load, "
                "opt.load_state_dict(opt.state_dict()), after such a change."
            )

    def _collect_gradients(self) -> None:
        """Into the flat vector; a parameter without a gradient has gradient zero."""
        for p, value, view in zip(self.trained, self.values, self.gradients, strict=True):
            if p.data_ptr() != value.data_ptr():
                raise InputError(
                    "The parameters were moved or replaced: make the optimizer after model.to(...) and loading."
                )
            if p.grad is None:
                view.zero_()
            elif p.grad.is_sparse:
                view.copy_(p.grad.to_dense())
            elif p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
        if any(p.grad is not None for p in self.frozen):
            raise InputError("A parameter that was frozen has a gradient now: make a new optimizer after unfreezing.")

    def _everyone_skips(self) -> bool:
        """With a GradScaler: undo the scale, and skip the step if any node's gradient has overflowed."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return False
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            self.gradient.div_(scale)
        self._settled()
        return bool(self.network.mean(found.reshape(1, 1)) > 0)

    def _own_gradient(self) -> Tensor:
        """A vector that the rule may keep, with the weight decay in it."""
        decays = [group["weight_decay"] for group in self.param_groups]
        if isinstance(self.running, InPlace) and not any(decays):
            return self.gradient
        g = self.gradient.clone()
        for part, decay in zip(self.parts, decays, strict=True):
            if decay:
                g[:, part].add_(self.flat[:, part], alpha=decay)
        return g

    def _mix_buffers(self) -> None:
        if self.buffers and self.network.nodes > 1:
            self._land_buffers()
            sent = torch.cat([b.reshape(-1).to(self.flat.dtype) for b in self.buffers])[None]
            self.in_flight = sent, self.running.aside(self.network.at(self.t), sent)

    def _land_buffers(self) -> None:
        """Each buffer moves by (W - I) times what was sent, so that what the model has added meanwhile is kept."""
        if self.in_flight is not None:
            (sent, future), self.in_flight = self.in_flight, None
            moves = (future.result()[0] - sent).view(-1).split([b.numel() for b in self.buffers])
            for b, move in zip(self.buffers, moves, strict=True):
                b += move.view_as(b)


# ---------------------------------------------------------------- making


class Made(NamedTuple):
    """A rule, and what it takes to make it again with other schedules (nothing, for a rule of the user's own)."""

    name: str
    rule: Rule
    make: Callable[..., Rule] | None = None
    schedules: tuple[Schedule, ...] = ()


def _made(rule: str | Rule, eta: float | None, schedule: str | None, steps: int | None, nodes: int) -> Made:
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        return Made("a rule of the user's", rule)
    method: rules.Method = choose("rule", rule, rules.RULES)
    if eta is not None and not method.needs_eta:
        raise InputError(f"Rule '{rule}' takes no stepsize: leave eta out.")
    variant = rules.variants(rule, [] if eta is None else [eta], schedule)[0]
    if variant.schedule.endswith("fixed") and steps is None:
        raise InputError(f"Schedule '{variant.schedule}' depends on the number of steps: give steps.")
    schedules = method.schedules[variant.schedule](nodes, whole("steps", steps or 1), variant.eta or 0.0)
    return Made(str(tuple(variant)), method.make(*schedules), method.make, schedules)


def _check_parameters(trained: Sequence[Tensor]) -> None:
    if not trained:
        raise InputError("There is no parameter to train: all are frozen.")
    kinds = sorted({f"{p.dtype} on {p.device}" for p in trained})
    if len(kinds) > 1:
        raise InputError(f"All parameters must have one dtype and one device; here are {' and '.join(kinds)}.")
    if trained[0].dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"Parameters of {trained[0].dtype} are too coarse for small steps: keep them in float32 and use torch.autocast."
        )


def _views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.view(-1).split([p.numel() for p in like])
    return [part.view(p.shape) for part, p in zip(parts, like, strict=True)]


@torch.no_grad()
def _start_at_the_same_point(network: Network, arrays: Sequence[Tensor]) -> None:
    """Node 0's values go to everyone, a piece at a time, and everyone checks that they arrived."""
    if network.nodes == 1:
        return
    checksum = 0
    for a in arrays:
        row = a.detach().reshape(1, -1)
        for piece in row.split(CHUNK, dim=1):
            piece.copy_(network.gather(piece)[:1])
        a.copy_(row.view_as(a))
        checksum = zlib.crc32(row.contiguous().view(torch.uint8).cpu().numpy().tobytes(), checksum)
    agree(network, {"the starting point": checksum})


# ---------------------------------------------------------------- fusing, for large models on a GPU


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fused by torch.compile; where that cannot be done, the function as it is."""
    fast: Callable[..., Any] = torch.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        nonlocal fast
        try:
            return fast(*args)
        except Exception as error:
            if fast is function:
                raise
            warnings.warn(f"The update could not be compiled and runs slower: {error!r:.200}", stacklevel=2)
            fast = function
            return function(*args)

    return call


def adjustable(made: Made, like: Tensor) -> tuple[Rule, list[Callable[[int], Any]]]:
    """The rule with the values of its schedules in memory, where compiled code finds them, and how to set each for step t."""
    knobs = [torch.zeros((), dtype=torch.float64, device=like.device) for _ in made.schedules]
    rule = made.make(*(constant(knob) for knob in knobs))  # type: ignore[misc]
    return rule, [partial(_turn, knob, schedule) for knob, schedule in zip(knobs, made.schedules, strict=True)]


def _turn(knob: Tensor, schedule: Schedule, t: int) -> None:
    knob.fill_(schedule(t))


def fused(made: Made, like: Tensor) -> Rule:
    """The rule with both halves compiled: eta belongs to the first, alpha to the second."""
    rule, (set_eta, set_alpha) = adjustable(made, like)
    move = compiled(lambda s: rule.move(s, 0))  # type: ignore[misc]
    track = compiled(lambda s, g: rule.track(s, g, 0))  # type: ignore[misc]
    return rule._replace(
        move=lambda s, t: (set_eta(t), move(s))[1], track=lambda s, g, t: (set_alpha(t), track(s, g))[1]
    )


class InPlace:
    """A node alone: the whole step compiled into one pass, in the memory that the parameters and the state already have."""

    def __init__(self, made: Made, state: Any):
        self.rule, self.knobs = adjustable(made, state.x)
        self.state = state
        self.advance = compiled(self._advance)

    @property
    def x(self) -> Tensor:
        return self.state.x

    def _advance(self, state: Any, g: Tensor) -> None:
        after = [a.clone() for a in self.rule.step(state, g, lambda *arrays: arrays, 0)]
        for a, new in zip(state, after, strict=True):
            a.copy_(new)

    def step(self, g: Tensor, t: int) -> None:
        for knob in self.knobs:
            knob(t)
        self.advance(self.state, g)

    def close(self) -> None: ...
