"""The update of large models on a GPU, fused by torch.compile."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dnasa.core import Array, Gradients, Messages, Rule, Snapshot, leaves
from dnasa.engine.steppers import Immediate, next_state
from dnasa.optim.recipe import Recipe
from dnasa.rules.forms import ScaledAverage, form_of
from dnasa.rules.schedules import constant

MIN_PARAMETERS = 1 << 20  # from this number on, compiling the update pays off


def torch_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function; where that fails, use it as it is."""
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


def with_stored_schedules(recipe: Recipe, like: Tensor) -> tuple[Rule, Callable[[int], None]]:
    """The rule with the values of its schedules in memory, where compiled code reads them, and how to set them for step t."""
    values = [torch.zeros((), dtype=torch.float64, device=like.device) for _ in recipe.schedules]
    rule = recipe.make(*map(constant, values))  # type: ignore[misc]

    def set_step(t: int) -> None:
        for value, schedule in zip(values, recipe.schedules, strict=True):
            value.fill_(schedule(t))

    return rule, set_step


def with_compiled_messages(recipe: Recipe, like: Tensor) -> Rule:
    """The rule with `early` and `send` compiled, each with schedules of its own: they may run on different CUDA streams."""
    rule = recipe.rule._replace(send=_at_step(recipe, like, _send))
    if rule.early is None:
        return rule
    return rule._replace(early=_at_step(recipe, like, lambda made, state: made.early_messages(state, 0)))


def _send(rule: Rule, state: Any, gradients: Gradients) -> tuple[Messages, Any]:
    messages, after = rule.send(state, gradients, 0)
    return messages, type(after)(
        *after
    )  # torch 2.11 with Python 3.12 compiles what `_replace` returns into an empty tuple


def _at_step(recipe: Recipe, like: Tensor, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call(rule, ...)` compiled, as a function that takes the step as its last argument."""
    rule, set_step = with_stored_schedules(recipe, like)
    compiled = torch_compiled(lambda *args: call(rule, *args))

    def call_at(*args: Any) -> Any:
        *arrays, t = args
        set_step(t)
        return compiled(*arrays)

    return call_at


def fuses_alone(rule: Rule) -> bool:
    """Whether a node alone compiles the whole step. D-NASA's family has a kernel in `engine.fused` that is as fast."""
    return isinstance(form_of(rule), ScaledAverage)


class InPlace(Immediate):
    """AdaNASA at a node alone: the whole step compiled into one pass, in the memory that the parameters and the state have."""

    def __init__(self, recipe: Recipe, snapshot: Snapshot):
        self.rule, self.set_step = with_stored_schedules(recipe, snapshot.state.x)
        self.state, self.memory, self.sent = snapshot
        self.advance = torch_compiled(self._advance)

    @property
    def x(self) -> Tensor:
        return self.state.x

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.state, self.memory, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return (self.x,)

    def _advance(self, state: Any, g: Tensor) -> None:
        after = next_state(self.rule, state, (g,), 0, mix=lambda messages, number: messages)
        new = [a.clone() for a in leaves(after).values()]
        for a, b in zip(leaves(state).values(), new, strict=True):
            a.copy_(b)

    def step(self, gradients: Gradients, t: int) -> None:
        self.set_step(t)
        self.advance(self.state, gradients[0])
