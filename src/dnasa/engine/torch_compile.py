"""On a GPU, what a rule with a declared form sends, fused by torch.compile: where its product with W is not one kernel.

The rule itself is compiled, so there is no second version of it. Where compiling fails, it runs as it is.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dnasa.core import Gradients, Messages, Rule, State
from dnasa.rules.forms import Form
from dnasa.rules.schedules import constant


def compiled_or_plain(function: Callable[..., Any]) -> Callable[..., Any]:
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


def with_stored_schedules(form: Form, like: Tensor) -> tuple[Rule, Callable[[int], None]]:
    """The rule with the values of its schedules in memory, where compiled code reads them, and how to set them for step t."""
    first = [schedule(0) for schedule in form.schedules]
    values = [v.clone() if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64, device=like.device) for v in first]

    def set_step(t: int) -> None:
        for stored, schedule in zip(values, form.schedules, strict=True):
            value = schedule(t)
            stored.copy_(value) if isinstance(value, Tensor) else stored.fill_(value)  # this does not wait for the GPU

    return form.make(*map(constant, values)), set_step


def with_compiled_messages(rule: Rule, state: State) -> Rule:
    """The rule with `early` and `send` compiled, each with schedules of its own: they may run on different CUDA streams."""
    form, like = rule.form, state.x

    def at_step(call: Callable[..., Any]) -> Callable[..., Any]:
        """`call(rule, ...)` compiled, as a function that takes the step as its last argument."""
        stored, set_step = with_stored_schedules(form, like)
        fast = compiled_or_plain(lambda *args: call(stored, *args))

        def call_at(*args: Any) -> Any:
            *arrays, t = args
            set_step(t)
            return fast(*arrays)

        return call_at

    early = rule.early and at_step(lambda stored, state: stored.early_messages(state, 0))
    return rule._replace(send=at_step(_send), early=early, form=None)


def _send(rule: Rule, state: Any, gradients: Gradients) -> tuple[Messages, Any]:
    messages, after = rule.send(state, gradients, 0)
    # torch 2.11 with Python 3.12 compiles what `_replace` returns into an empty tuple
    return messages, type(after)(*after)
