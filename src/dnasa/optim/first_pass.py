"""What the first training pass shows of the model: what the optimizer was not given, and how a framework has wrapped it."""

import json
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from dnasa.arrays import crc32
from dnasa.core import InputError, Network
from dnasa.networks.processes import check_equal
from dnasa.optim.agreement import described
from dnasa.optim.buffers import statistics
from dnasa.optim.frameworks import SHARDED, is_sharded, keeps_gradients


class FirstPass:
    """The outermost module whose forward pass uses a trained parameter is the model, or what a framework made of it."""

    def __init__(self, trained: Iterable[Tensor], equal: Iterable[Tensor], network: Network):
        self.trained = [id(p) for p in trained]
        self.equal = {*self.trained, *(id(a) for a in equal)}
        self.model: nn.Module | None = None
        self.sharded, self.checksum = False, 0
        rank = dist.get_rank() if dist.is_initialized() else -1
        pairs = network.processes.allgather_json([network.rank, rank], lambda given: (int(given[0]), int(given[1])))
        self.ranks = {other for node, other in pairs if node == network.rank}  # several for a site
        method = weakref.WeakMethod(self._before_forward)  # an optimizer that is no longer used is not held by the hook

        def before_forward(module: nn.Module, args: Any) -> None:
            if (call := method()) is not None:
                call(module)

        self.hook = register_module_forward_pre_hook(before_forward)
        weakref.finalize(self, self.hook.remove)

    def _before_forward(self, module: nn.Module) -> None:
        if not torch.is_grad_enabled():  # an evaluation may use the model without its wrapping
            return
        self.sharded = self.sharded or is_sharded(module)  # which may have replaced the parameters
        if not {id(p) for p in module.parameters()}.isdisjoint(self.trained):
            self.hook.remove()
            self.model, self.sharded = module, is_sharded(module)
            tensors = (a for a in (*module.parameters(), *module.buffers()) if id(a) not in self.equal)
            self.checksum = crc32(*(a for a in tensors if not is_lazy(a) and not a.is_sparse))

    def check_wrapping(self) -> None:
        """Refuse a DistributedDataParallel that averages gradients over several nodes rather than inside a site."""
        self.hook.remove()
        if self.sharded:
            raise InputError(SHARDED)
        model = self.model
        if not isinstance(model, DistributedDataParallel) or keeps_gradients(model):
            return
        averaged = dist.get_process_group_ranks(model.process_group)
        if len(averaged) > 1 and not self.ranks.issuperset(averaged):
            raise InputError(
                "DistributedDataParallel averages the gradients of all nodes before the optimizer mixes them: call "
                "dnasa.optim.local_gradients(model) before the first backward pass. Inside a site: "
                "DistributedDataParallel(model, process_group=site)."
            )

    def compare(self, network: Network, tell: bool) -> None:
        """Refuse different models, and warn about tensors not given: those that differ now, and statistics that will."""
        own = None if self.model is None else [self.checksum, self._described(self.model)]
        texts = network.processes.allgather_text(json.dumps(own))
        known = {network.processes.name_of(rank): json.loads(text) for rank, text in enumerate(texts) if text != "null"}
        check_equal({name: model for name, (_, model) in known.items() if model})
        first = next(iter(known), "")
        for name, (checksum, _) in known.items():
            if checksum != known[first][0]:
                warnings.warn(
                    f"Frozen parameters or buffers of the model differ between {first} and {name}. "
                    "Decentralized(model, network) makes them equal at the start.",
                    stacklevel=4,
                )
                break
        if tell and network.rank == 0 and self.model and statistics(self.model):
            warnings.warn(
                "Each node keeps its own batch norm statistics, since the optimizer was given parameters only: "
                "Decentralized(model, network) mixes them, too.",
                stacklevel=4,
            )

    def _described(self, model: nn.Module) -> dict[str, list[str]]:
        """The model and its parameters as they were given; empty if not all were, since a node may have layers of its own."""
        names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        if not names.keys() <= {*self.trained}:
            return {}
        return {"the model": described(model), "a parameter": [names.get(key, "") for key in self.trained]}
