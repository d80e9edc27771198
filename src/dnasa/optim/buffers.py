"""Buffers of a model, such as the statistics of batch norm, mixed with the neighbors' after every step."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dnasa.communication import Network
from dnasa.core import RunError


def statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of its normalization layers."""
    layers = [part for part in model.modules() if isinstance(part, _NormBase) and part.running_mean is not None]
    return [b for layer in layers for b in (layer.running_mean, layer.running_var) if b is not None]


class MixedBuffers:
    """The buffers to mix: those the user chose, or the model's statistics, read each time, as moving a model replaces them."""

    def __init__(self, model: nn.Module | None, chosen: Iterable[Tensor] | None):
        self.model = model
        self.chosen = None if chosen is None else list(chosen)  # by the user
        self.in_flight: tuple[Tensor, Future[Tensor]] | None = None  # as they were sent, and mixed

    @property
    def tensors(self) -> list[Tensor]:
        buffers = self.chosen
        if buffers is None:
            buffers = [] if self.model is None else statistics(self.model)
        return [b for b in buffers if b.is_floating_point()]

    @property
    def all_tensors(self) -> list[Tensor]:
        """All buffers of the model, which are made equal at the start."""
        return self.tensors if self.model is None else list(self.model.buffers())

    def send(self, network: Network, submit: Callable[..., Future[Any]], dtype: torch.dtype, t: int) -> None:
        tensors = self.tensors if network.nodes > 1 and network.exchanges(t) else []
        if tensors:
            self.receive()
            sent = torch.cat([b.reshape(-1).to(dtype) for b in tensors])[None]
            self.in_flight = sent, submit(_mixed, network, sent, t)

    def receive(self) -> None:
        """Move each buffer by (W - I) times what was sent, which keeps what the model has added since then."""
        if self.in_flight is not None:
            (sent, future), self.in_flight = self.in_flight, None
            tensors = self.tensors
            moved = (future.result() - sent).view(-1)
            for b, move in zip(tensors, moved.split([b.numel() for b in tensors]), strict=True):
                b += move.view_as(b)

    def discard(self) -> None:
        """Wait for the exchange in flight, and drop its result."""
        if self.in_flight is not None:
            with suppress(RunError):
                self.in_flight[1].result()
        self.in_flight = None


def _mixed(network: Network, sent: Tensor, t: int) -> Tensor:
    """Mix the buffers; on a directed graph, divide by the sum of the receiving weights, which may not be 1."""
    sent = network.processes.mean_of_shards(sent)  # the processes of a site have seen different batches
    if not getattr(network.topology, "directed", False):
        return network.multiply((sent,), t)[0]
    mixed, total = network.multiply((sent, torch.ones_like(sent[:, :1])), t)
    return mixed / total
