"""A residual net with batch norm in the simulator: four nodes with different digits, on one CPU.

python examples/residual_net.py [steps]
"""

import sys
from functools import partial

import torch
from torch.nn.functional import pad

import dnasa
from dnasa.data import load, partition
from dnasa.problems import Supervised
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import resnet


def shift(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A batch moved by at most one pixel, 0 outside; all that is random comes from the generator."""
    down, right = torch.randint(3, (2,), generator=generator, device=images.device).tolist()
    return pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def main(steps: int) -> None:
    digits = load("digits")
    digits = digits._replace(inputs=digits.inputs.reshape(-1, 1, 8, 8), test_inputs=digits.test_inputs.reshape(-1, 1, 8, 8))
    problem = Supervised(
        partial(resnet, channels=1, widths=(8, 16)),
        cross_entropy,
        digits,
        partition("dirichlet(1)", digits.labels, nodes=4),
        batch=16,
        augment=shift,
        metrics={"confidence": lambda outputs, labels: outputs.softmax(-1).amax(-1).mean()},
        train_metrics=False,
    )
    result = dnasa.solve(problem, dnasa.topology.ring(4), steps=steps, evaluate=max(1, steps // 4))
    columns = ["step", "test_loss", "test_accuracy", "confidence", "consensus"]
    print(result.history[columns].to_string(index=False))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
