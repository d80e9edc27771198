"""On a GPU, a rule with a declared form fused by torch.compile: in the simulator and in the optimizer.

The rule itself is compiled, so there is no second version of it. Where compiling fails, it runs as it is.
"""

import io
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from typing import Any

import torch
from torch import Tensor

from dnasa.communication import Network
from dnasa.core import Gradients, Messages, Rule, State, leaves, rebuilt
from dnasa.engine.simulate import next_state
from dnasa.engine.steppers import Stepper
from dnasa.rules.forms import Form
from dnasa.rules.schedules import constant
from dnasa.runs.snapshots import Snapshot

# compiled products with W: for 8 nodes of 10 million numbers, a library's take 2.5 times as long
OPTIONS: dict[str, Any] = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON,ATEN"}


def compiled_or_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function; where that fails, use it as it is."""
    fast: Callable[..., Any] = torch.compile(function, dynamic=False, options=OPTIONS)
    quiet: Any = redirect_stderr(io.StringIO())  # at the first call, torch writes there how it chose the products

    def call(*args: Any) -> Any:
        nonlocal fast, quiet
        try:
            with quiet:
                quiet = nullcontext()
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


class TorchCompiled(Stepper):
    """The whole step compiled, with the product with W."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot):
        self.state, self.sent = snapshot.state, snapshot.sent
        self.network = network
        self.rule, self.set_step = with_stored_schedules(rule.form, self.x)
        self.weights = [torch.as_tensor(W, dtype=self.x.dtype, device=self.x.device) for W in network.step_weights]
        self.row_bytes = rule.form.width_sent(self.x.shape[-1]) * self.x.dtype.itemsize
        self.advance = compiled_or_plain(self._advance)

    def _advance(self, state: Any, g: Tensor, W: Tensor) -> list[Tensor]:
        def mix(messages: Messages, number: int) -> Messages:
            return messages if len(W) == 1 else tuple(W @ message for message in messages)

        after = next_state(self.rule, state, (g,), 0, mix)
        return [a.clone() if a is g else a for a in leaves(after).values()]  # the problem may reuse its buffer

    def step(self, gradients: Gradients, t: int) -> None:
        self.set_step(t)
        new = self.advance(self.state, gradients[0].detach(), self.weights[t % len(self.weights)])
        self.state = rebuilt(self.state, dict(zip(leaves(self.state), new, strict=True)))
        self.sent.compute(self.network, 1)
        self.sent.add(self.network, self.row_bytes, t)
