"""What the nodes check together before they train: their settings, their models, and how a framework has wrapped these."""

from typing import Any

import torch
from torch import nn

from dnasa.networks.processes import agree
from dnasa.optim.agreement import check_same_modules, start_at_the_same_point
from dnasa.optim.first_pass import FirstPass
from dnasa.optim.recovery import Recovery


class Checks:
    """The checks at the start, before the first step, and after the first backward pass."""

    def __init__(self, recovery: Recovery, model: nn.Module | None):
        self.recovery = recovery
        self.node = recovery.node
        self.model = model
        self.first_pass: FirstPass | None = None

    @torch.no_grad()
    def start(self, settings: dict[str, Any]) -> None:
        """Check that all have the same settings and modules, and start at the weights of rank 0."""
        network = self.node.network
        if network.nodes == 1:
            return
        agree(network, settings)
        if self.model is not None:
            check_same_modules(network, self.model)
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
