"""Fine-tune a residual net on CIFAR-10: the largest fall in 50 steps and the change after 200, in points.

python experiments/finetuning.py cuda                # group norm
python experiments/finetuning.py cuda batch          # batch norm
python experiments/finetuning.py cuda fixed          # batch norm that keeps the statistics of the pretraining
python experiments/finetuning.py cpu small           # width 8, images of 16 x 16, batches of 16, 600 steps of pretraining
python experiments/finetuning.py cuda partitions 0 1   # from scratch on these partitions: complete, few bytes, exact
"""

import sys
from collections.abc import Callable
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
from dnasa.problems.supervised import Model

NODES, STEPS = 8, 200
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


def halved(images: np.ndarray) -> np.ndarray:
    """Each pixel the mean of 2 x 2."""
    n, channels, height, width = images.shape
    return images.reshape(n, channels, height // 2, 2, width // 2, 2).mean((3, 5)).astype(np.uint8)


def fall_and_change(accuracy: pd.Series) -> tuple[float, float]:
    """The largest fall in the first 50 steps, and the change at the last, of a series by step."""
    return accuracy[0] - accuracy.loc[:50].min(), accuracy.iloc[-1] - accuracy[0]  # without loc, 50 rows


def from_scratch(problem: Callable[[str, int, Model], Supervised], model: Model, steps: int, seeds: list[int]) -> None:
    """Few bytes against the complete graph, the limit for a given partition: the accuracy of each."""
    few_bytes = [("complete", every, "feedback:2") for every in (5, 2)]
    for graph, every, compress in [("complete", 1, None), *few_bytes, ("exact", 1, None)]:
        for seed in seeds:
            network = dnasa.connect(dnasa.topology.make(graph, NODES), "simulated", every=every, compress=compress)
            run = dnasa.solve(problem("dirichlet(0.1)", seed, model), network, "adanasa", steps=steps, evaluate=steps)
            print(graph, every, compress, seed, f"{100 * run.history.test_accuracy.iloc[-1]:.2f}", flush=True)


def main(device: str, norm: str, small: bool, partitions: list[int]) -> None:
    cifar, widths, batch, pretrain, shift = load("cifar10"), (32, 64, 128), 32, 1500, 4
    tests: int | list[int] = 10
    if small:
        inputs, test_inputs = halved(cifar.inputs), halved(cifar.test_inputs[:2000])
        cifar = cifar._replace(inputs=inputs, test_inputs=test_inputs, test_labels=cifar.test_labels[:2000])
        widths, batch, pretrain, shift, tests = (8, 16, 32), 16, 600, 2, [0, 10, 25, 50, 100, STEPS]

    def problem(division: str, seed: int, model: Model) -> Supervised:
        shards, augment = partition(division, cifar.labels, NODES, seed=seed), partial(flip_and_shift, most=shift)
        return Supervised(model, cross_entropy, cifar, shards, batch, augment, device=device, train_metrics=False)

    graph = dnasa.topology.exact(NODES)
    model: Model = partial(resnet, widths=widths, norm="group" if norm == "group" else "batch")
    if partitions:
        return from_scratch(problem, model, pretrain, partitions)
    first = problem("iid", 0, model)
    trained = dnasa.solve(first, graph, "adanasa", steps=pretrain, evaluate=pretrain)
    if norm == "fixed":
        model = first.network(trained.mean, trained.statistics)
    rows = []
    for division, seed in CELLS:
        for rule, eta in [("adanasa", None), ("dadam", ETAS)]:
            tuned = dnasa.solve(
                problem(division, seed, model),
                graph,
                rule,
                eta=eta,
                steps=STEPS,
                start=trained.mean,
                evaluate=tests,
                node_weights="rows",
            )
            history = tuned.history
            for name, run in history.groupby(history.eta.fillna(0) if "eta" in history else np.zeros(len(history))):
                accuracy = 100 * run.set_index("step").test_accuracy
                rows.append((division, seed, rule, name, accuracy[0], *fall_and_change(accuracy)))
                print(*rows[-1], flush=True)
    table = pd.DataFrame(rows, columns=["division", "seed", "rule", "eta", "start", "fall", "change"])
    print(table.groupby(["division", "rule", "eta"], sort=False)[["start", "fall", "change"]].mean().round(2).to_string())


if __name__ == "__main__":
    norm = next((norm for norm in ("batch", "fixed") if norm in sys.argv), "group")
    main(sys.argv[1], norm, "small" in sys.argv, [int(word) for word in sys.argv if word.isdigit()])
