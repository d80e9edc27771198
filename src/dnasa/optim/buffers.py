"""Buffers of a model, such as the statistics of batch norm, mixed with the neighbours' after every step."""

import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dnasa.core import Network, RunError

LEAST = 50  # exchanges after which the nodes' statistics are compared
DIFFERENT = (
    0.025  # standard deviations; by chance up to 0.022 in perceptrons with 180 rows at a node, and less with more
)
DIFFERENT_ALONE = (
    0.05  # at one node: by chance up to 0.036 there, and from 0.11 on where each node has one or two classes
)


def norms(model: nn.Module) -> list[Any]:
    """The normalization layers with running statistics."""
    return [part for part in model.modules() if isinstance(part, _NormBase) and part.running_mean is not None]


def statistics(model: nn.Module) -> list[Tensor]:
    """The running means and variances of its normalization layers."""
    return [b for layer in norms(model) for b in (layer.running_mean, layer.running_var)]


class MixedBuffers:
    """The buffers to mix: those given, or the model's statistics, looked up each time since moving a model replaces them."""

    def __init__(self, model: nn.Module | None, given: Iterable[Tensor] | None):
        self.model, self.given = model, None if given is None else list(given)
        self.in_flight: tuple[Tensor, Future[Any]] | None = None  # as they were sent, and the future of their mixture
        self.exchanges, self.moved = 0, torch.zeros(1)  # by how much all exchanges together have moved the buffers
        self.warned = False

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers that are mixed."""
        found = self.given
        if found is None:
            found = [] if self.model is None else statistics(self.model)
        return [b for b in found if b.is_floating_point()]

    @property
    def all_tensors(self) -> list[Tensor]:
        """All buffers of the model, which are made equal at the start."""
        return self.tensors if self.model is None else list(self.model.buffers())

    def send(self, network: Network, submit: Callable[..., Future[Any]], dtype: torch.dtype, t: int) -> None:
        tensors = self.tensors if network.nodes > 1 and network.exchanges(t) else []
        if tensors:
            self.receive()
            if self.exchanges == LEAST and self.given is None:
                self._warn_above(DIFFERENT_ALONE, self._difference(), network)
            sent = torch.cat([b.reshape(-1).to(dtype) for b in tensors])[None]
            self.in_flight = sent, submit(_mixed, network, sent, t)

    def receive(self) -> None:
        """Move each buffer by (W - I) times what was sent, which keeps what the model has added since then."""
        if self.in_flight is not None:
            (sent, future), self.in_flight = self.in_flight, None
            tensors = self.tensors
            moved = (future.result() - sent).view(-1)
            self.exchanges, self.moved = self.exchanges + 1, self.moved.to(moved.device) + moved
            for b, move in zip(tensors, moved.split([b.numel() for b in tensors]), strict=True):
                b += move.view_as(b)

    def warn_if_different(self, network: Network) -> None:
        """Warn once if the means of the nodes' own rows differ by more than chance: all nodes call this together."""
        if self.given is None and self.tensors and network.nodes > 1:
            self._warn_above(DIFFERENT, network.mean(self._difference().view(1, 1)), network)

    def _warn_above(self, limit: float, difference: Tensor, network: Network) -> None:
        if network.rank == 0 and not self.warned and float(difference) > limit:
            self.warned = True
            warnings.warn(
                "The batch norm statistics differ between the nodes by more than chance, which can cost accuracy: "
                "train dnasa.problems.models.replace_batch_norm(model), which has group norm instead.",
                stacklevel=3,
            )

    def _difference(self) -> Tensor:
        """How far the means of this node's rows are from the running means, in standard deviations.

        The running means are mixed, and hence close to the others'. But a forward pass moves them by `momentum` times the
        difference, and on average an exchange moves them back.
        """
        layers = norms(self.model) if self.model is not None and self.exchanges >= LEAST else []
        moves = self.moved.split([b.numel() for b in self.tensors])[::2] if layers else ()
        parts = [
            move.abs() / (self.exchanges * (layer.momentum or 0.1) * (layer.running_var + layer.eps).sqrt())
            for layer, move in zip(layers, moves, strict=True)
        ]
        return torch.cat(parts).mean() if parts else self.tensors[0].new_zeros(())

    def discard(self) -> None:
        """Wait for the exchange in flight, and drop its result."""
        if self.in_flight is not None:
            with suppress(RunError):
                self.in_flight[1].result()
        self.in_flight = None


def _mixed(network: Network, sent: Tensor, t: int) -> Tensor:
    """Mix the buffers; on a directed graph, divide by the sum of the receiving weights, which may not be 1."""
    if not getattr(network.topology, "directed", False):
        return network.multiply((sent,), t)[0]
    mixed, total = network.multiply((sent, torch.ones_like(sent[:, :1])), t)
    return mixed / total
