"""Two sites that train together: DistributedDataParallel inside each, dnasa between them.

    torchrun --nproc-per-node 4 examples/sites.py         # 2 sites of 2 processes

The processes of a site share its data and hold one node together. Only parameters and what the rule sends travel between
sites, once for each pair of neighbouring sites.
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dnasa

PROCESSES = 2  # of each site


def main(steps: int) -> None:
    dist.init_process_group("gloo")  # "cpu:gloo,cuda:nccl" for GPUs
    site, _ = dist.new_subgroups(group_size=PROCESSES)
    network = dnasa.connect("ring", site=site)

    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    rows_of_site = torch.arange(300 + network.rank, len(labels), network.nodes)  # network.rank is the number of the site

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    parallel = DistributedDataParallel(model, process_group=site)  # averages the gradients of the site
    optimizer = dnasa.optim.Decentralized(model.parameters(), network, steps=steps)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        rows = rows_of_site[torch.randint(len(rows_of_site), (16,), generator=generator)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    with optimizer.averaged(), torch.no_grad():
        accuracy = (model(inputs[:300]).argmax(1) == labels[:300]).float().mean()
    if dist.get_rank() == 0:
        print(f"{network.nodes} sites, test accuracy {100 * accuracy:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
