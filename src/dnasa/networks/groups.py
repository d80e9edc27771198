"""Sites of several processes that hold one node together, over torch.distributed.

The first process of each site exchanges messages with the other sites and broadcasts what it receives inside its own. With
FSDP2 each process exchanges its shard of the node's vectors with the processes of its position in other sites.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dnasa.arrays import crc32
from dnasa.core import Array, InputError
from dnasa.networks.torchdist import TorchTransport, as_tensor, torch_errors
from dnasa.networks.transport import Message, Transport

CHECKED = 2  # exchanges; the first gradient is in one of them
DIFFERENT = "The processes of a site have different gradients: use DistributedDataParallel(model, process_group=site)."


def find_groups(site: Any) -> list[list[int]]:
    """The ranks of all sites, where `site` is the process group of this process's own."""
    if not dist.is_initialized():
        raise InputError("site is a process group: site, _ = torch.distributed.new_subgroups(group_size=...).")
    own = sorted(dist.get_process_group_ranks(site)) if isinstance(site, dist.ProcessGroup) else []
    texts = TorchTransport(()).allgather_text(json.dumps({"site": own}))
    everyone = [json.loads(text)["site"] or [] for text in texts]
    if any(rank not in ranks or everyone[ranks[0]] != ranks for rank, ranks in enumerate(everyone)):
        raise InputError(f"Every process must be in one site, the same for all of its processes; they gave {everyone}.")
    return sorted({ranks[0]: ranks for ranks in everyone}.values())


class GroupTransport(Transport):
    """Messages between the first processes of the sites, and from each of them to the others of its site."""

    def __init__(self, sites: list[list[int]], nodes: Sequence[range]):
        super().__init__(find_site(sites), nodes)
        self.sites = sites
        self.unchecked = CHECKED
        self.first = sites[self.rank][0]
        self.is_first = dist.get_rank() == self.first
        self.across = TorchTransport(nodes, [[ranks[0] for ranks in sites]])
        self.within, _ = dist.new_subgroups_by_enumeration(sites)  # a group of our own: DDP may be using the user's
        self.carries_cuda = self.across.carries_cuda

    def start(self, receives: Sequence[Message], sends: Sequence[Message]) -> Any:
        if self.unchecked:
            self._check_equal(sends)
            self.unchecked -= 1
        return receives, self.across.start(receives, sends) if self.is_first else None

    def finish(self, pending: Any) -> None:
        receives, messages = pending
        if self.is_first:
            self.across.finish(messages)
        buffers = [as_tensor(buffer).view(-1).view(torch.uint8) for _, buffer in receives]
        if buffers:
            everything = torch.cat(buffers)
            with torch_errors():
                dist.broadcast(everything, self.first, self.within)  # once, whatever the number of neighbors
            for buffer, part in zip(buffers, everything.split([len(buffer) for buffer in buffers]), strict=True):
                buffer.copy_(part)

    def sum(self, buffer: Array) -> Array:
        if not self.is_first:
            as_tensor(buffer).zero_()
        return self.across.sum(buffer)

    def gather(self, own: np.ndarray) -> np.ndarray:
        """The arrays of all processes of all sites."""
        return self.across.gather(own)

    def duplicate(self) -> "GroupTransport":
        return GroupTransport(self.sites, self.nodes)

    def sharded(self, ranks: Sequence[int]) -> Transport:
        meshes = [json.loads(text) for text in self.allgather_text(json.dumps(list(ranks)))]
        if not any(meshes):
            return self.duplicate()
        sizes = [len(site) for site in self.sites]
        if len(set(sizes)) > 1:
            raise InputError(f"Sites exchange shard by shard, so all need the same number of processes; they have {sizes}.")
        if any(mesh not in self.sites or rank not in mesh for rank, mesh in enumerate(meshes)):
            raise InputError(f"fully_shard needs a mesh of the site's ranks: the sites are {self.sites}, the meshes {meshes}.")
        return ShardTransport(self.sites, self.nodes)

    def _check_equal(self, sends: Sequence[Message]) -> None:
        own = crc32(*(buffer for _, buffer in sends))
        checksums = [torch.zeros(1, dtype=torch.int64) for _ in self.sites[self.rank]]
        with torch_errors():
            dist.all_gather(checksums, torch.tensor([own]), self.within)
        if len(set(map(int, checksums))) > 1:
            raise InputError(DIFFERENT)


class ShardTransport(TorchTransport):
    """Messages between the processes of the same position in their sites; sums are those of their shards."""

    def __init__(self, sites: Sequence[Sequence[int]], nodes: Sequence[range]):
        super().__init__(nodes, list(zip(*sites, strict=True)))
        self.rank, self.sites, self.shards = find_site(sites), sites, len(self.groups)
        self.across, (self.within, _) = self.new_group(), dist.new_subgroups_by_enumeration([*map(list, sites)])

    def sum(self, buffer: Array) -> Array:
        return self._sum(self.across, buffer)

    def sum_shards(self, buffer: Array) -> Array:
        return self._sum(self.within, buffer)

    def duplicate(self) -> "ShardTransport":
        return ShardTransport(self.sites, self.nodes)


def find_site(sites: Sequence[Sequence[int]]) -> int:
    """The number of this process's site."""
    return next(i for i, ranks in enumerate(sites) if dist.get_rank() in ranks)
