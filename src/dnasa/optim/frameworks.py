"""Models that a framework has wrapped."""

import sys

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

SHARDED = (
    "FSDP divides the parameters among the processes, and here each process needs all of them: use "
    "DistributedDataParallel inside a site, dnasa.connect(..., site=...)."
)


def local_gradients(model: Module) -> None:
    """Every node keeps its own gradients and buffers, although a framework wrapped the model in DistributedDataParallel.

    Call it before the first backward pass.

    Args:
        model: The wrapped model. One that is not wrapped stays as it is.
    """
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, noop_hook)
        model.broadcast_buffers = False


def keeps_gradients(model: DistributedDataParallel) -> bool:
    """Whether the last backward pass averaged nothing: after `local_gradients`, or inside `no_sync`."""
    return not model.require_forward_param_sync or any(hook is noop_hook for hook, _ in model._comm_hooks)


def is_sharded(module: Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where it was never imported, nothing is sharded
    return fsdp is not None and isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule))
