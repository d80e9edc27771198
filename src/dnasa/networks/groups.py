"""Sites of several processes that hold one node together, over torch.distributed.

DistributedDataParallel gives the processes of a site the same gradient. The first process of each site exchanges messages with
the other sites and broadcasts what it receives inside its own. So a message crosses the link between two sites only once, and
all processes of a site take the same step.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from dnasa.arrays import crc32
from dnasa.checks import first_line
from dnasa.core import Array, Channel, InputError, Network, RunError
from dnasa.networks import processes
from dnasa.networks.torchdist import TorchTransport, as_tensor
from dnasa.networks.transport import Message
from dnasa.topology import Topology

CHECKED = 2  # exchanges; the first gradient is in one of them
DIFFERENT = (
    "The processes of a site have different gradients: wrap the model in "
    "DistributedDataParallel(model, process_group=site), with the group that dnasa.connect(site=...) has."
)


def find_groups(site: Any, timeout: float) -> list[list[int]]:
    """The ranks of all sites, where `site` is the process group of this process's own."""
    if not dist.is_initialized():
        raise InputError(
            "site is a process group: call torch.distributed.init_process_group, then "
            "site, _ = torch.distributed.new_subgroups(group_size=...)."
        )
    own = sorted(dist.get_process_group_ranks(site)) if isinstance(site, dist.ProcessGroup) else []
    texts = TorchTransport((), timeout).allgather_text(json.dumps({"site": own}))
    everyone = [json.loads(text)["site"] or [] for text in texts]
    if any(rank not in ranks or everyone[ranks[0]] != ranks for rank, ranks in enumerate(everyone)):
        raise InputError(f"Every process must be in one site, the same for all of its processes; they gave {everyone}.")
    return sorted({ranks[0]: ranks for ranks in everyone}.values())


def connect(
    topology: Topology,
    sites: list[list[int]],
    timeout: float,
    rounds: int | str | None = None,
    channel: Channel | None = None,
    every: int = 1,
) -> Network:
    """The network of these sites; its `rank` is the number of this process's site."""
    transport = GroupTransport(sites, processes.blocks(topology.nodes, len(sites)), timeout)
    processes.agree_on_network(transport, topology, rounds, channel, every, timeout=timeout)
    return processes.connect(topology, transport, rounds, channel, every)


class GroupTransport:
    """Messages between the first processes of the sites, and from each of them to the others of its site."""

    def __init__(self, sites: list[list[int]], nodes: Sequence[range], timeout: float):
        self.sites = sites
        self.nodes = nodes
        self.unchecked = CHECKED
        self.rank = next(i for i, ranks in enumerate(sites) if dist.get_rank() in ranks)
        self.first = sites[self.rank][0]
        self.is_first = dist.get_rank() == self.first
        self.across = TorchTransport(nodes, timeout, [ranks[0] for ranks in sites])
        self.within, _ = dist.new_subgroups_by_enumeration(sites)  # a group of our own: DDP may be using the user's
        self.tag = self.across.tag
        self.liveness = self.across.liveness
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
        with self._errors():
            for _, buffer in receives:
                dist.broadcast(as_tensor(buffer), self.first, self.within)

    def sum(self, buffer: Array) -> Array:
        if not self.is_first:
            as_tensor(buffer).zero_()
        return self.across.sum(buffer)

    def allgather_text(self, text: str) -> list[str]:
        """The texts of all processes of all sites."""
        return self.across.allgather_text(text)

    def duplicate(self) -> "GroupTransport":
        return GroupTransport(self.sites, self.nodes, self.across.timeout)

    def _check_equal(self, sends: Sequence[Message]) -> None:
        own = crc32(*(buffer for _, buffer in sends))
        checksums = [torch.zeros(1, dtype=torch.int64) for _ in self.sites[self.rank]]
        with self._errors():
            dist.all_gather(checksums, torch.tensor([own]), self.within)
        if len(set(map(int, checksums))) > 1:
            raise InputError(DIFFERENT)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            site = ", ".join(map(str, self.sites[self.rank]))
            raise RunError(f"No answer inside the site of ranks {site}: {first_line(error)}.") from error
