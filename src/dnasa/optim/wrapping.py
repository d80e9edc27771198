"""Models that a framework has wrapped."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.networks.processes import check_equal
from dnasa.optim.agreement import described
from dnasa.optim.flat import local
from dnasa.optim.shards import is_sharded

SHARDED = "The model was sharded after the optimizer was made, or not by FSDP2: call fully_shard(model, mesh=...) first."


def local_gradients(model: nn.Module) -> None:
    """Every node keeps its own gradients and buffers, although a framework wrapped the model in DistributedDataParallel.

    Call it before the first backward pass.

    Args:
        model: The wrapped model. One that is not wrapped stays as it is.
    """
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, noop_hook)
        model.broadcast_buffers = False


class Wrapping:
    """What the first training pass shows: the outermost module that uses a trained parameter is what a framework made."""

    def __init__(self, trained: Iterable[Tensor], network: Network):
        trained = list(trained)
        self.trained = [id(p) for p in trained]
        self.whole = all(local(p) is p for p in trained)
        self.model: nn.Module | None = None
        self.sharded = False
        rank = dist.get_rank() if dist.is_initialized() else -1
        pairs = network.processes.allgather_json([network.rank, rank], lambda pair: (int(pair[0]), int(pair[1])))
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

    def check(self) -> None:
        """Refuse a DistributedDataParallel that averages gradients over several nodes rather than inside a site."""
        self.hook.remove()
        if self.sharded and self.whole:
            raise InputError(SHARDED)
        model = self.model
        if not isinstance(model, DistributedDataParallel) or not model.require_forward_param_sync:  # inside `no_sync`
            return
        if any(hook is noop_hook for hook, _ in model._comm_hooks):  # after `local_gradients`
            return
        averaged = dist.get_process_group_ranks(model.process_group)
        if len(averaged) > 1 and not self.ranks.issuperset(averaged):
            raise InputError(
                "DistributedDataParallel averages the gradients of all nodes before the optimizer mixes them: call "
                "dnasa.optim.local_gradients(model) before the first backward pass. Inside a site: "
                "DistributedDataParallel(model, process_group=site)."
            )

    def compare(self, network: Network) -> None:
        """Refuse other modules, or parameters in another order, than at other nodes; a node may have layers of its own."""
        names = {} if self.model is None else {id(p): k for k, p in self.model.named_parameters() if p.requires_grad}
        about = {"model": described(self.model), "parameter": [names.get(key, "") for key in self.trained]}
        everyone = network.processes.allgather_json(about if names.keys() == {*self.trained} else {}, dict)
        check_equal({network.processes.name_of(rank): each for rank, each in enumerate(everyone) if each})
