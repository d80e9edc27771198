"""Mistakes in a training loop that would go unnoticed: no backward pass, a replaced parameter, a link that is too slow."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

import torch
from torch import nn

from dnasa.core import InputError
from dnasa.optim.node import Node

BETWEEN = 100  # steps from one search for replaced parameters to the next
TIMED = 20  # steps after which the times of gradients and exchanges are compared
SHORT = 0.05  # seconds; shorter exchanges are not those of a slow link
SLOW = (
    "Exchanges take longer than gradients ({:.2g} s and {:.2g} s per step). Send fewer bits: "
    "dnasa.connect(compress='moniqua:8'), with AdaNASA 'moniqua:8,4,8/8', or message_dtype='bfloat16'. Fewer exchanges "
    "(every=) were measured with small models only, and large ones lose accuracy: see docs/links.md."
)


class Checks:
    """The checks of a node; `model` is None where the optimizer was given parameters only."""

    def __init__(self, node: Node, model: nn.Module | None):
        self.node, self.model = node, model
        self.warned = False
        self.times: list[tuple[float, float]] = []  # of the first gradients and exchanges, in seconds
        self.ended = perf_counter()  # the last step

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
        plain = network.settings.channel is None and network.settings.every == 1
        measures = plain and network.nodes > 1 and self.node.t <= TIMED
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
