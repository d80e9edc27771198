"""What a curious site learns of another one's rows, with messages as they are and with secure summation.

    OMP_NUM_THREADS=1 python -m benchmarks.attacks [EPSILON]

Five sites train a small network on half of the breast cancer table of scikit-learn, by D-SGD. The attacker knows the stepsize,
the model at each step, and what it receives: the messages of a neighbor or, with secure summation, the average of all. So it
computes the gradients of the neighbor or of all. With EPSILON, these have noise (delta 1e-5).

- Rows: dW/db of the hidden units at the start is a row, if the batch is one row. The error is the distance of the best of them
  to a row of the neighbor's batch, relative to the row's length; the median of the runs.
- Members by gradients: whether a row is the neighbor's, by inner products of its gradients with those seen (Nasr et al., 2019).
- Members by the model: whether a row is anybody's, by the trained model (LiRA, Carlini et al., 2022); the other runs are the
  shadow models.
"""

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import dnasa
from dnasa.communication import Channel
from dnasa.networks import private_channel
from dnasa.problems import Privacy
from dnasa.problems.noisy import Noisy

SITES, ETA, HIDDEN, VICTIM = 5, 0.5, 16, 1
INPUTS, LABELS = (torch.as_tensor(part) for part in load_breast_cancer(return_X_y=True))
INPUTS = ((INPUTS - INPUTS.mean(0)) / INPUTS.std(0)).float()


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))


NETWORK = make()


class Attacked(NamedTuple):
    """Runs side by side: the trained models, and at each step the model and the gradient that the attacker sees."""

    problem: dnasa.problems.Classification
    models: Tensor  # (runs, d)
    points: list[Tensor]
    gradients: list[Tensor]


def shards(seed: int) -> list[np.ndarray]:
    """Half of the rows, divided among the sites; the others are no members."""
    return np.array_split(np.random.default_rng(seed).permutation(len(INPUTS))[: len(INPUTS) // 2], SITES)


def train(private: bool, batch: int, steps: int, runs: int, privacy: Privacy | None) -> Attacked:
    inner = private_channel(wide=privacy is not None)
    points: list[Tensor] = []
    gradients: list[Tensor] = []

    def exchange(memory: Any, messages: Any, multiply: Any, t: int, first: int) -> Any:
        mixed, after = inner.exchange(memory, messages, multiply, t, first) if private else (multiply(messages), memory)
        received = mixed[0] if private else messages[0]
        gradients.append((points[-1] - received[0, :, VICTIM]) / ETA)
        points.append(mixed[0][0, :, 0].clone())
        return mixed, after

    data = INPUTS.numpy(), LABELS.numpy()
    problem = dnasa.problems.Classification(make, *data, shards, *data, batch=batch, privacy=privacy)
    points.append(torch.stack([problem.start(seed) for seed in range(runs)]))
    channel = Channel(inner.init if private else lambda message: (), exchange, averages=True, only_sums=private)
    network = dnasa.connect(dnasa.topology.complete(SITES), "simulated", channel=channel)
    dnasa.solve(problem, network, "dsgd:constant", eta=ETA, steps=steps, seed=range(runs), evaluate=[steps], progress=False)
    return Attacked(problem, points.pop(), points, gradients)


def losses(models: Tensor) -> Tensor:
    """The loss of each row with each model, (runs, rows)."""
    return torch.stack([cross_entropy(outputs(model, INPUTS), LABELS, reduction="none") for model in models])


def outputs(flat: Tensor, inputs: Tensor) -> Tensor:
    parts = {}
    for name, parameter in NETWORK.named_parameters():
        parts[name], flat = flat[: parameter.numel()].view_as(parameter), flat[parameter.numel() :]
    return functional_call(NETWORK, parts, inputs)


def reconstruction_error(attacked: Attacked, runs: int) -> float:
    width, errors = INPUTS.shape[1], []
    for run in range(runs):
        gradient = attacked.gradients[0][run]
        weights, biases = gradient[: HIDDEN * width].view(HIDDEN, width), gradient[HIDDEN * width :][:HIDDEN]
        units = biases.abs() > 1e-3
        batch = INPUTS[drawn(attacked, run)]
        if not len(batch):
            continue
        errors.append(float((torch.cdist(weights[units] / biases[units, None], batch) / batch.norm(dim=1)).min()))
    return float(np.median(errors))


def drawn(attacked: Attacked, run: int) -> Tensor:
    """The rows of the victim's first batch."""
    problem, executor = attacked.problem, attacked.problem.executor
    if not isinstance(executor, Noisy):
        return problem.drawn([VICTIM], [run], 0).flatten()
    return executor.drawn(executor.key(attacked.points[0][run], VICTIM, run, 0), VICTIM, run)


def members_by_gradients(attacked: Attacked, runs: int) -> float:
    """The area under the ROC curve: the neighbor's rows against those of no site."""
    row_gradients = vmap(grad(lambda x, row, label: cross_entropy(outputs(x, row), label)), (None, 0, 0))
    found = []
    for run in range(runs):
        scores = sum(
            row_gradients(x[run], INPUTS, LABELS) @ g[run] for x, g in zip(attacked.points, attacked.gradients, strict=True)
        )
        own, all_members = shards(run)[VICTIM], np.concatenate(shards(run))
        others = np.setdiff1d(np.arange(len(INPUTS)), all_members)
        found.append(roc_auc_score(np.repeat([1, 0], [len(own), len(others)]), scores[np.concatenate([own, others])]))
    return float(np.mean(found))


def members_by_the_model(attacked: Attacked) -> float:
    """The same for all members, of each run with the others as shadow models."""
    loss = losses(attacked.models).detach().double()
    scores = (-loss - torch.log(-torch.expm1(-loss) + 1e-12)).numpy()  # log p / (1 - p)
    members = np.zeros(scores.shape, bool)
    for run in range(len(members)):
        members[run, np.concatenate(shards(run))] = True
    found = []
    for run in range(len(members)):
        others = np.arange(len(members)) != run

        def likelihood(chosen: np.ndarray, others: np.ndarray = others, run: int = run) -> np.ndarray:
            some = np.where(chosen[others], scores[others], np.nan)
            mean, deviation = np.nanmean(some, 0), np.nanstd(some, 0) + 1e-6
            return np.asarray(-np.log(deviation) - ((scores[run] - mean) / deviation) ** 2 / 2)

        found.append(roc_auc_score(members[run], likelihood(members) - likelihood(~members)))
    return float(np.mean(found))


def main(runs: int = 64, steps: int = 300, epsilon: float | None = None) -> None:
    privacy = None if epsilon is None else Privacy(epsilon)
    for private in (False, True):
        errors = [reconstruction_error(train(private, batch, 1, runs, privacy), runs) for batch in (1, 8)]
        attacked = train(private, 8, steps, runs, privacy)
        some = min(4, runs)
        print(
            f"{'private' if private else 'open'}: error of a row {errors[0]:.1%} (batch 1), {errors[1]:.1%} (batch 8); members "
            f"by gradients {members_by_gradients(attacked, some):.3f}, by the model {members_by_the_model(attacked):.3f}"
        )


if __name__ == "__main__":
    main(epsilon=float(sys.argv[1]) if sys.argv[1:] else None)
