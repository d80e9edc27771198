"""What the processes of `test_sites.py` do. Not a test."""

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from conftest import take_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dnasa
from dnasa import topology
from dnasa.communication import Network
from dnasa.core import InputError
from dnasa.networks import simulated
from dnasa.optim import Decentralized

STEPS, ROWS, SITES, PROCESSES = 20, 6, 2, 2


def model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(process: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * process + t)
    x = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


def loss(net: nn.Module, *batches: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return nn.functional.cross_entropy(net(x), y)


def train(network: Network, site: Any, **options: Any) -> tuple[Decentralized, torch.Tensor, Any]:
    net = model(dist.get_rank())
    parallel = DistributedDataParallel(net, process_group=site) if site else net
    opt = dnasa.optim.Decentralized(net.parameters(), network, **options)
    start = parameters_to_vector(net.parameters()).detach().clone()
    for t in range(STEPS):
        opt.zero_grad()
        loss(parallel, batch(dist.get_rank(), t)).backward()
        opt.step()
    rows = network.processes.gather(opt.flat.clone())
    with opt.averaged():
        torch.testing.assert_close(opt.flat[0], rows.mean(0))
    return opt, start, rows


def expected(opt: Decentralized, start: torch.Tensor) -> torch.Tensor:
    """Two nodes, each with the joint batch of its site's processes, by the rule's own functions."""
    network, net = simulated.connect(topology.ring(SITES)), model(0)

    def gradient(points: torch.Tensor, t: int) -> torch.Tensor:
        rows = []
        for node, point in enumerate(points):
            vector_to_parameters(point.clone(), net.parameters())
            joint = [batch(PROCESSES * node + process, t) for process in range(PROCESSES)]
            rows.append(parameters_to_vector(torch.autograd.grad(loss(net, *joint), list(net.parameters()))))
        return torch.stack(rows)

    state = opt.node.rule.init(start.repeat(SITES, 1))
    for t in range(STEPS):
        state = take_step(opt.node.rule, state, gradient, network, t)
    return state.x


def main() -> None:
    dist.init_process_group("gloo")
    site, _ = dist.new_subgroups(group_size=PROCESSES)
    network = dnasa.connect("ring", site=site)
    assert (network.nodes, network.rank) == (SITES, dist.get_rank() // PROCESSES)
    for options in ({"rule": "adanasa", "steps": STEPS}, {"rule": "dnasa"}, {"rule": "dsgt", "eta": 0.1}):
        opt, start, rows = train(network, site, **options)
        checksums = network.processes.allgather_text(str(zlib.crc32(opt.flat.numpy().tobytes())))
        assert checksums[0] == checksums[1] != checksums[2] == checksums[3]
        np.testing.assert_allclose(rows, expected(opt, start), rtol=0, atol=1e-10)
        if dist.get_rank() == 0:
            print("same", options["rule"], flush=True)
    compressed = dnasa.connect("ring", site=site, compress="topk:0.5")
    opt, *_ = train(compressed, site, rule="dnasa")
    checksums = network.processes.allgather_text(str(zlib.crc32(opt.flat.numpy().tobytes())))
    assert checksums[0] == checksums[1] != checksums[2] == checksums[3]
    try:
        train(network, None)
    except InputError as error:
        print(error, flush=True)
    dist.barrier()
    try:
        dnasa.connect("ring", site=dist.new_group([0, 1, 2]))
    except InputError as error:
        print(error, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
