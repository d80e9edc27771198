"""Frozen parameters and buffers that the optimizer was not given: users are told if they differ between the processes."""

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from dnasa.core import Network
from dnasa.optim.parameters import checksum


class Untrained:
    """The outermost module whose forward pass uses a trained parameter is the model; its other tensors are compared once."""

    def __init__(self, trained: Iterable[Tensor], equal: Iterable[Tensor]):
        self.trained = {id(p) for p in trained}
        self.equal = self.trained | {id(a) for a in equal}
        self.checksum: int | None = None
        method = weakref.WeakMethod(self._before_forward)  # an optimizer that is no longer used is not held by the hook

        def before_forward(module: nn.Module, args: Any) -> None:
            if (call := method()) is not None:
                call(module)

        self.hook = register_module_forward_pre_hook(before_forward)
        weakref.finalize(self, self.hook.remove)

    def _before_forward(self, module: nn.Module) -> None:
        if any(id(p) in self.trained for p in module.parameters()):
            self.hook.remove()
            tensors = (a for a in (*module.parameters(), *module.buffers()) if id(a) not in self.equal)
            self.checksum = checksum(a for a in tensors if not is_lazy(a) and not a.is_sparse)

    def compare(self, network: Network) -> None:
        self.hook.remove()
        checksums = network.allgather_text(str(self.checksum))
        for rank, other in enumerate(checksums):
            if other != checksums[0] and "None" not in (other, checksums[0]):
                warnings.warn(
                    f"Frozen parameters or buffers of the model differ between rank 0 and rank {rank}. "
                    "Decentralized(model, network) makes them equal at the start.",
                    stacklevel=4,
                )
                return
