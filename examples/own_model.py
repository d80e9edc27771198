"""A model of your own, trained by several processes that never see each other's data.

    torchrun --nproc-per-node 4 examples/own_model.py
    mpirun -n 4 python examples/own_model.py
    python examples/own_model.py                          # alone: the same script, a network of one node

An ordinary PyTorch loop. The two lines that make it decentralised are marked.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import dnasa


def network_for_digits() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def main(steps: int) -> None:
    network = dnasa.connect("ring")  # line one: who are the others?

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    test, train = range(0, 300), range(300 + network.rank, len(labels), network.nodes)  # a node has its own rows only
    mine, answers = images[list(train)], labels[list(train)]

    model = network_for_digits()
    optimizer = dnasa.optim.Decentralized(
        model.parameters(), network
    )  # line two: instead of torch.optim.Adam(..., lr=?)
    generator = torch.Generator().manual_seed(network.rank)
    for step in range(steps + 1):
        if step % 100 == 0:
            model.eval()
            with optimizer.averaged(), torch.no_grad():  # the mean over all nodes, for evaluation and saving
                right = (model(images[list(test)]).argmax(1) == labels[list(test)]).float().mean()
            model.train()
            apart = optimizer.consensus()
            if network.rank == 0:
                print(f"step {step:4d}  test accuracy {100 * right:5.1f} %  nodes apart {apart:.2e}")
        rows = torch.randint(len(mine), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine[rows]), answers[rows]).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
