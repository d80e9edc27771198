"""Your own model, trained by several processes that never see each other's data.

    torchrun --nproc-per-node 4 examples/own_model.py
    mpirun -n 4 python examples/own_model.py              # as root: --allow-run-as-root; few cores: --oversubscribe
    python examples/own_model.py                          # one process: a network of one node

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
    network = dnasa.connect()  # first line: the processes that were started together

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    test, train = range(0, 300), range(300 + network.rank, len(labels), network.nodes)  # the rows of this node
    inputs, targets = images[list(train)], labels[list(train)]

    model = network_for_digits()
    optimizer = dnasa.optim.Decentralized(model.parameters(), network)  # second line: instead of torch.optim.Adam
    generator = torch.Generator().manual_seed(network.rank)
    for step in range(steps + 1):
        if step % 100 == 0:
            model.eval()
            with optimizer.averaged(), torch.no_grad():  # the mean over all nodes, for evaluation and saving
                accuracy = (model(images[list(test)]).argmax(1) == labels[list(test)]).float().mean()
            model.train()
            consensus = optimizer.consensus()
            if network.rank == 0:
                print(f"step {step:4d}  test accuracy {100 * accuracy:5.1f} %  consensus error {consensus:.2e}")
        rows = torch.randint(len(inputs), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
