"""Accuracy against epsilon: five sites that share the noise, and Opacus on pooled rows.

    python experiments/privacy.py a9a linear 2
    python experiments/privacy.py digits mlp:32 5

The number is that of seeds. Delta is 1e-5. A site draws 64 rows a step, pooled training 320. Opacus
(1.6.0, if it is installed) has SGD with gradients clipped at 1, and gets the best of five stepsizes on the test rows.
"""

import sys
import warnings
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch

import dnasa
from dnasa.networks import private_channel
from dnasa.problems import Privacy
from dnasa.tasks.models import make

SITES, BATCH, STEPS, EPSILONS = 5, 64, 500, (1, 3, 8, None)
STEPSIZES = (0.1, 0.3, 1.0, 3.0, 10.0)


def ours(rows: Any, model: str, epsilon: float | None, seeds: range, rule: str = "dnasa", eta: float | None = None) -> float:
    def shards(seed: int) -> list[np.ndarray]:
        return np.array_split(np.random.default_rng(seed).permutation(len(rows.labels)), SITES)

    privacy = None if epsilon is None else Privacy(epsilon)
    problem = dnasa.on_shards(rows, shards, BATCH, model=model, privacy=privacy, train_metrics=False)
    network = dnasa.connect(dnasa.topology.complete(SITES), "simulated", channel=private_channel(wide=True))
    result = dnasa.solve(problem, network, rule, eta=eta, steps=STEPS, seed=seeds, evaluate=[STEPS], progress=False)
    return float(result.final().test_accuracy.mean())


def opacus(rows: Any, model: str, epsilon: float, stepsize: float, seed: int) -> float:
    from opacus import PrivacyEngine
    from opacus.accountants.utils import get_noise_multiplier

    data = (torch.as_tensor(part) for part in (rows.inputs, rows.labels, rows.test_inputs, rows.test_labels))
    inputs, labels, test_inputs, test_labels = (
        (a / 255 - 0.5) / 0.25 if a.dtype == torch.uint8 and a.ndim > 1 else a for a in data
    )
    torch.manual_seed(seed)
    module, training = make(model, rows)(), torch.utils.data.TensorDataset(inputs, labels.long())
    loader: Any = torch.utils.data.DataLoader(training, batch_size=BATCH * SITES)
    sigma = get_noise_multiplier(target_epsilon=epsilon, target_delta=1e-5, sample_rate=1 / len(loader), steps=STEPS)
    optimizer: Any = torch.optim.SGD(module.parameters(), stepsize)
    private = {"noise_multiplier": sigma, "max_grad_norm": 1.0}
    module, optimizer, loader = PrivacyEngine().make_private(module=module, optimizer=optimizer, data_loader=loader, **private)
    for x, y in islice(chain.from_iterable(repeat(loader)), STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return float((module(test_inputs).argmax(1) == test_labels).double().mean())


def main(data: str, model: str, seeds: range) -> None:
    rows = dnasa.data.load(data)
    for epsilon in EPSILONS:
        found: dict[str, Any] = {
            "D-NASA": ours(rows, model, epsilon, seeds),
            "D-SGD, cosine, eta = 1": ours(rows, model, epsilon, seeds, "dsgd:cosine", 1.0),
        }
        if epsilon is not None:
            found["Opacus"] = max(np.mean([opacus(rows, model, epsilon, eta, seed) for seed in seeds]) for eta in STEPSIZES)
        print(
            f"{data}, epsilon {epsilon}:", ", ".join(f"{name} {100 * share:.2f} %" for name, share in found.items()), flush=True
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], range(int(sys.argv[3])))
