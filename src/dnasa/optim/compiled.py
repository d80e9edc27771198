"""The update of large models on a GPU, fused by torch.compile."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnasa.core import Array, Gradients, InputError, Layout, Rule, Schedule, Snapshot, choose, leaves, whole
from dnasa.engine.steppers import Immediate
from dnasa.rules import registry
from dnasa.rules.forms import form_of
from dnasa.rules.registry import RULES, Method, Variant
from dnasa.rules.schedules import constant

MIN_PARAMETERS = 1 << 20  # from which on compiling the update pays


class Made(NamedTuple):
    """A rule, and how to make it again with other schedules (nothing, for the user's own rule)."""

    name: str
    rule: Rule
    make: Callable[..., Rule] | None = None
    schedules: tuple[Schedule, ...] = ()
    steps: int | None = None  # after which its steps are 0

    @property
    def compiles(self) -> bool:
        """Whether its steps depend on t through its schedules alone, as those of a declared form do."""
        return self.make is not None and form_of(self.rule) is not None


UNKNOWN_LENGTH = (
    "steps is how often step() will be called, a positive whole number, not {}: leave it out where you do not know "
    "(in Hugging Face's Trainer it is trainer.state.max_steps; args.max_steps is -1 when num_train_epochs counts)."
)


def make_rule(rule: str | Rule, eta: Any, schedule: str | None, steps: int | None, nodes: int, layout: Layout) -> Made:
    if steps is not None and whole("steps", steps, low=-(2**62)) < 1:
        raise InputError(UNKNOWN_LENGTH.format(steps))
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        return Made("a rule of the user's", rule)
    method: Method = choose("rule", rule, RULES)
    if eta is not None and not method.needs_eta:
        raise InputError(f"Rule '{rule}' takes no stepsize: leave eta out.")
    if schedule is None and steps is None and not method.needs_eta:
        schedule = next((name for name, made in method.schedules.items() if not made.needs_steps), None)
    variant: Variant = registry.variants(rule, [] if eta is None else [eta], schedule)[0]
    schedules = registry.schedules_of(variant, nodes, steps)
    make, spec = partial(_make, method, layout), variant.spec
    known = steps if spec and spec.needs_steps is not False else None
    ends = steps if spec and spec.ends else None
    return Made(str([*variant.label().values(), known]), make(*schedules), make, schedules, ends)


def _make(method: Method, layout: Layout, *schedules: Schedule) -> Rule:
    return registry.make(method, schedules, layout)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fused by torch.compile; where that fails, the function as it is."""
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


def with_stored_schedules(made: Made, like: Tensor) -> tuple[Rule, Callable[[int], None]]:
    """The rule with the values of its schedules in memory, where compiled code reads them, and how to set them for step t."""
    values = [torch.zeros((), dtype=torch.float64, device=like.device) for _ in made.schedules]
    rule = made.make(*map(constant, values))  # type: ignore[misc]

    def set_step(t: int) -> None:
        for value, schedule in zip(values, made.schedules, strict=True):
            value.fill_(schedule(t))

    return rule, set_step


def fused(made: Made, like: Tensor) -> Rule:
    """The rule with `early` and `send` compiled, each with schedules of its own: they may run on different CUDA streams."""
    first, set_first = with_stored_schedules(made, like)
    second, set_second = with_stored_schedules(made, like)
    send = compiled(lambda s, gradients: second.send(s, gradients, 0))
    rule = made.rule._replace(send=lambda s, gradients, t: (set_second(t), send(s, gradients))[1])
    if rule.early is None:
        return rule
    early = compiled(lambda s: first.early_messages(s, 0))
    return rule._replace(early=lambda s, t: (set_first(t), early(s))[1])


class InPlace(Immediate):
    """A node alone: the whole step compiled into one pass, in the memory that the parameters and the state have."""

    def __init__(self, made: Made, snapshot: Snapshot):
        self.rule, self.set_step = with_stored_schedules(made, snapshot.state.x)
        self.state, self.memory, self.sent = snapshot
        self.advance = compiled(self._advance)

    @property
    def x(self) -> Tensor:
        return self.state.x

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.state, self.memory, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return (self.x,)

    def _advance(self, state: Any, g: Tensor) -> None:
        messages, after = self.rule.send(state, (g,), 0)
        after = self.rule.receive(after, (*self.rule.early_messages(state, 0), *messages))
        new = [a.clone() for a in leaves(after).values()]
        for a, b in zip(leaves(state).values(), new, strict=True):
            a.copy_(b)

    def step(self, gradients: Gradients, t: int) -> None:
        self.set_step(t)
        self.advance(self.state, gradients[0])
