"""What the nodes check: their settings and models before they train, then their gradients, and how long exchanges take."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from dnasa.core import InputError
from dnasa.networks.processes import agree
from dnasa.optim.agreement import start_at_the_same_point
from dnasa.optim.first_pass import FirstPass
from dnasa.optim.recovery import Recovery

BETWEEN = 100  # steps from one search for replaced parameters to the next
TIMED = 20  # steps after which the times of gradients and exchanges are compared
SHORT = 0.05  # seconds; shorter exchanges are not those of a slow link
SLOW = (
    "Exchanges take longer than gradients ({:.2g} s and {:.2g} s per step). Send fewer bits: "
    "dnasa.connect(compress='moniqua:8'), with AdaNASA 'moniqua:8,4,8/8', or message_dtype='bfloat16'. Fewer exchanges "
    "(every=) were measured with small models only, and large ones lose accuracy: see docs/links.md."
)


class Checks:
    """The checks at the start, before the first step, after backward passes, and of the first steps' times."""

    def __init__(self, recovery: Recovery, model: nn.Module | None):
        self.recovery = recovery
        self.node = recovery.node
        self.model = model
        self.first_pass: FirstPass | None = None
        self.warned = False
        self.times: list[tuple[float, float]] = []  # of the first gradients and exchanges, in seconds
        self.ended = perf_counter()  # the last step

    @torch.no_grad()
    def start(self, settings: dict[str, Any]) -> None:
        """Check that all have the same settings and modules, and start at the weights of rank 0."""
        network = self.node.network
        if network.nodes == 1:
            return
        agree(network, settings)
        start_at_the_same_point(self.node)
        self.first_pass = FirstPass(self.node.parameters.trained, self.node.untrained, network)

    def before_first_step(self, has_closure: bool) -> None:
        """Check the wrapping, unless a closure is still to run the first backward pass, and agree on the step."""
        if self.first_pass is not None and not has_closure:
            self.first_pass.check_wrapping()
        with self.recovery.exchange():
            agree(self.node.network, {"the step": self.node.t})

    def after_backward(self) -> None:
        """Check what the first backward pass shows of the model; later passes are not checked."""
        first, self.first_pass = self.first_pass, None
        if first is None:
            return
        first.check_wrapping()
        if self.node.t == 0 and self.model is None:
            with self.recovery.exchange():
                first.compare(self.node.network, tell=self.node.buffers.given is None)

    def gradients(self) -> None:
        """Warn once if no backward pass was made, and refuse a parameter that has a gradient and would not be trained."""
        node, parameters = self.node, self.node.parameters
        if not self.warned and parameters.untouched():
            self.warned = True
            where = f"At {node.network.processes.name_of(node.network.rank)}, step {node.t + 1}"
            warnings.warn(f"{where}: no parameter has got a gradient: call backward() before step().", stacklevel=11)
        if self.model is None or node.t % BETWEEN:
            return
        known = {id(p) for p in (*parameters.trained, *parameters.frozen)}
        for name, p in self.model.named_parameters():
            if p.grad is not None and id(p) not in known:
                raise InputError(
                    f"Parameter '{name}' was replaced or added after the optimizer was made, so it is not trained: make "
                    "the optimizer after such changes of the model."
                )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Wrap an exchange. What came since the last one is a gradient; GPUs have ended it when it was found finite."""
        network = self.node.network
        measures = (
            self.node.t <= TIMED
            and network.nodes > 1
            and network.settings.channel is None
            and network.settings.every == 1
        )
        if measures and self.node.t == TIMED:
            self._compare_times()
        began = perf_counter()
        yield
        if measures:
            self.times.append((began - self.ended, perf_counter() - began))
            self.ended = perf_counter()

    def _compare_times(self) -> None:
        """Warn if exchanges take longer than gradients at the node with the slowest ones, which waits for no other."""
        self.node.snapshot()
        own = [median(times) for times in zip(*self.times, strict=True)] or [0.0, 0.0]  # a process that joined has none
        gradient, exchange = max(self.node.network.processes.gather(torch.tensor([own])).tolist())
        if exchange > max(gradient, SHORT) and self.node.network.rank == 0:
            warnings.warn(SLOW.format(exchange, gradient), stacklevel=13)
