"""Fine-tune a residual net on CIFAR-10: the largest fall in 50 steps and the change after 200, in points.

python experiments/finetuning.py cuda [batch]     # group norm, or batch norm
"""

import sys
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

import dnasa
from dnasa.data import load, partition
from dnasa.problems import Supervised
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import resnet

NODES, PRETRAIN, STEPS = 8, 1500, 200
CELLS = [("iid", 0), *(("dirichlet(0.1)", seed) for seed in range(3)), ("by_label", 0)]  # the partition and its seed
ETAS = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]


def flip_and_shift(images: Tensor, generator: torch.Generator, most: int = 4, flip: bool = True) -> Tensor:
    """Each image shifted at random, 0 outside; half of them mirrored.

    Args:
        images: A batch `(b, channels, height, width)`.
        generator: What the changes are drawn from.
        most: The largest shift, in pixels.
        flip: Whether to mirror images.
    """
    b, channels, height, width = images.shape

    def draw(high: int) -> Tensor:
        return torch.randint(high, (b, 1), generator=generator, device=images.device)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=images.device)

    rows = count(height) + draw(2 * most + 1)
    columns = count(width) + draw(2 * most + 1)
    if flip:
        columns = torch.where(draw(2) == 1, columns, width - 1 + 2 * most - columns)
    image, channel = count(b)[:, None, None, None], count(channels)[:, None, None]
    return pad(images, (most,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def main(device: str, norm: str) -> None:
    cifar = load("cifar10")

    def problem(division: str, seed: int) -> Supervised:
        shards = partition(division, cifar.labels, NODES, seed=seed)
        return Supervised(
            partial(resnet, norm=norm), cross_entropy, cifar, shards, augment=flip_and_shift, device=device, train_metrics=False
        )

    graph = dnasa.topology.exact(NODES)
    trained = dnasa.solve(problem("iid", 0), graph, "adanasa", steps=PRETRAIN, evaluate=PRETRAIN)
    rows = []
    for division, seed in CELLS:
        for rule, eta in [("adanasa", None), ("dadam", ETAS)]:
            tuned = dnasa.solve(
                problem(division, seed), graph, rule, eta=eta, steps=STEPS, start=trained.mean, evaluate=10, node_weights="rows"
            )
            history = tuned.history
            for name, run in history.groupby(history.eta.fillna(0) if "eta" in history else np.zeros(len(history))):
                accuracy = 100 * run.set_index("step").test_accuracy
                fall, change = accuracy[0] - accuracy[:50].min(), accuracy[STEPS] - accuracy[0]
                rows.append((division, seed, rule, name, accuracy[0], fall, change))
                print(*rows[-1], flush=True)
    table = pd.DataFrame(rows, columns=["division", "seed", "rule", "eta", "start", "fall", "change"])
    print(table.groupby(["division", "rule", "eta"], sort=False)[["start", "fall", "change"]].mean().round(2).to_string())


if __name__ == "__main__":
    main(sys.argv[1], "batch" if "batch" in sys.argv else "group")
