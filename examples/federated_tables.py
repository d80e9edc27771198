"""Clinics whose tables differ in size and in their patients train one classifier; rows stay where they are.

    python examples/federated_tables.py [figure.png]

The breast cancer table of scikit-learn is divided among six clinics: the largest has 279 rows, the smallest 2, and some see
hardly any patients of one class. Rows count the same wherever they are (`node_weights="rows"`).
Features are standardised with the mean and deviation of all rows, which need only sums from each clinic. Training together is
compared with each clinic alone and with all rows in one place.
"""

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

import dnasa
from dnasa.comparing.plots import panels, save_figure
from dnasa.problems import Classification

CLINICS, STEPS, SEEDS = 6, 400, 5
features, labels = load_breast_cancer(return_X_y=True)  # class 1 is benign
is_test = np.arange(len(labels)) % 5 == 4
train, test = features[~is_test], features[is_test]
classes, test_classes = labels[~is_test], labels[is_test]
shards = dnasa.data.partition("dirichlet(0.3)", classes, CLINICS, seed=5)


def standardised() -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows; each clinic gives its number of rows and the sums of their values and squares."""
    own = [train[shard] for shard in shards]
    count, total, squares = (sum(parts) for parts in zip(*[(len(a), a.sum(0), (a**2).sum(0)) for a in own], strict=True))
    mean, deviation = total / count, np.sqrt(squares / count - (total / count) ** 2)
    return ((train - mean) / deviation).astype(np.float32), ((test - mean) / deviation).astype(np.float32)


def accuracy(clinics: list[np.ndarray]) -> list[float]:
    """Of a linear model on the test rows after these clinics have trained together, for each seed."""
    inputs, tests = standardised()
    problem = Classification(lambda: nn.Linear(tests.shape[1], 2), inputs, classes, clinics, tests, test_classes)
    graph = dnasa.topology.ring(len(clinics))
    result = dnasa.solve(problem, graph, steps=STEPS, seed=range(SEEDS), node_weights="rows", evaluate=[STEPS])
    return (100 * result.final().test_accuracy).tolist()


def draw(results: dict[str, list[float]], path: str) -> None:
    figure, axes = panels(1, width=7.4, height=3.8)
    axis, means = axes[0, 0], np.array([np.mean(values) for values in results.values()])
    spread = [(m - min(v), max(v) - m) for m, v in zip(means, results.values(), strict=True)]
    colours = ["0.65"] * CLINICS + ["#d62728", "#1f77b4"]
    axis.bar(range(len(means)), means, yerr=np.array(spread).T.clip(0), color=colours, capsize=3)
    axis.set_xticks(range(len(means)), list(results), fontsize=8)
    title = f"Mean and range over {SEEDS} seeds, {len(test_classes)} test rows"
    axis.set(ylabel="test accuracy (%)", ylim=(max(0, means.min() - 10), 100), title=title)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    results = {f"alone\n{len(shard)} rows\n{100 * classes[shard].mean():.0f} % benign": accuracy([shard]) for shard in shards}
    results["together"] = accuracy(shards)
    results["all rows in\none place"] = accuracy([np.concatenate(shards)])
    for name, values in results.items():
        print(f"{' '.join(name.split()):30s} test accuracy {np.mean(values):.1f} %")
    draw(results, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "federated_tables.png")
