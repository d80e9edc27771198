"""Buffers of a model, such as the statistics of batch norm, mixed with the neighbours' after every step."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from dnasa.core import Network, RunError


class MixedBuffers:
    def __init__(self, buffers: Iterable[Tensor], network: Network):
        self.tensors = [b for b in buffers if b.is_floating_point()]
        self.network = network
        self.in_flight: tuple[Tensor, Future[Any]] | None = (
            None  # the buffers as they were sent, and the future of their mixture
        )

    def send(self, submit: Callable[..., Future[Any]], dtype: torch.dtype, t: int) -> None:
        if self.tensors and self.network.nodes > 1:
            self.receive()
            sent = torch.cat([b.reshape(-1).to(dtype) for b in self.tensors])[None]
            self.in_flight = sent, submit(self._mixed, sent, t)

    def _mixed(self, sent: Tensor, t: int) -> Tensor:
        """On a directed graph the weights with which a node receives may not sum to 1: they are divided by their sum."""
        if not getattr(self.network.topology, "directed", False):
            return self.network.multiply((sent,), t)[0]
        mixed, total = self.network.multiply((sent, torch.ones_like(sent[:, :1])), t)
        return mixed / total

    def receive(self) -> None:
        """Each buffer moves by (W - I) times what was sent, so that what the model has added meanwhile stays."""
        if self.in_flight is not None:
            (sent, future), self.in_flight = self.in_flight, None
            moves = (future.result() - sent).view(-1).split([b.numel() for b in self.tensors])
            for b, move in zip(self.tensors, moves, strict=True):
                b += move.view_as(b)

    def discard(self) -> None:
        """Wait for what is in flight, and drop it."""
        if self.in_flight is not None:
            with suppress(RunError):
                self.in_flight[1].result()
        self.in_flight = None
