"""Processes with different numbers of batches."""

from collections.abc import Sequence
from types import TracebackType

from dnasa.core import InputError
from dnasa.optim.decentralized import Decentralized


class Join:
    """A block in which processes may have different numbers of batches.

    A process that leaves the block takes part in the steps of the others, with gradient zero, until all have left it: what
    `optimizer.zero_grad(); optimizer.step()` does. So every batch counts the same, and mean(u) = mean(v) holds as in any step.
    Every step exchanges one more small message with all processes, and waits for hidden exchanges. `averaged` and `consensus`
    are called after the block.

    Args:
        optimizers: The optimizers. Each takes one step per batch, in this order.

    Examples:
        ```python
        with Join([optimizer]):
            for x, y in loader:
                ...
        ```
    """

    def __init__(self, optimizers: Sequence[Decentralized]):
        self.optimizers = list(optimizers)
        if not self.optimizers or not all(isinstance(opt, Decentralized) for opt in self.optimizers):
            raise InputError("Join takes a list of dnasa.optim.Decentralized: Join([optimizer]).")

    def __enter__(self) -> None:
        for opt in self.optimizers:
            opt.skipping.joined = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self.optimizers[0].shadow_step():
                for opt in self.optimizers[1:]:
                    opt.shadow_step()
        finally:
            for opt in self.optimizers:
                opt.skipping.joined = False
