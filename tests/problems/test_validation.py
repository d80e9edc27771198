"""Test metrics are also measured on validation rows, with the same model and nothing of the test rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dnasa import data
from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.problems.classification import Classification
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import perceptron
from dnasa.problems.supervised import Supervised

ROWS = data.load("digits")
TRAIN, HELD_OUT = data.hold_out(ROWS)
NODES = 4


def classification(rows: Dataset = ROWS, validation: Sequence[np.ndarray] = (), **options: Any) -> Classification:
    shards = data.divide(rows, TRAIN, "iid", NODES)
    parts = rows.inputs, rows.labels, shards, rows.test_inputs, rows.test_labels
    return Classification(lambda: perceptron(64, 8, 10), *parts, validation=validation, **options)


def supervised(rows: Dataset = ROWS, validation: Sequence[np.ndarray] = (), **options: Any) -> Supervised:
    def normalized() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 10))

    shards = data.divide(rows, TRAIN, "iid", NODES)
    return Supervised(normalized, cross_entropy, rows, shards, validation=validation, train_metrics=False, **options)


def evaluated(problem: Classification | Supervised, weights: Any = None) -> dict[str, np.ndarray]:
    points = torch.stack([problem.start(seed) for seed in (0, 1)])[None]
    found = problem.evaluate(points, range(NODES), weights)
    return {name: value.numpy() for name, value in found.items() if name != "gradient"}


@pytest.mark.parametrize("make", [classification, supervised])
def test_validation_metrics_are_test_metrics_on_other_rows(make: Callable[..., Any]) -> None:
    """With as many rows at every node, the average over the nodes is that over the rows."""
    rows = HELD_OUT[: len(HELD_OUT) // NODES * NODES]
    validated = evaluated(make(validation=data.divide_validation(rows, NODES)))
    as_test = evaluated(make(ROWS._replace(test_inputs=ROWS.inputs[rows], test_labels=ROWS.labels[rows])))
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(validated[f"validation_{name}"], as_test[f"test_{name}"], rtol=1e-5)
    plain = evaluated(make())
    assert "validation_loss" not in plain
    for name in plain:
        np.testing.assert_array_equal(validated[name], plain[name])


def test_nodes_and_classes_count_in_validation_as_in_training() -> None:
    parts = [HELD_OUT[:50], HELD_OUT[50:60], HELD_OUT[60:61], HELD_OUT[61:64]]
    alone = [evaluated(classification(validation=[part] * NODES))["validation_loss"] for part in parts]
    for weights in (None, np.array([50, 10, 1, 3]) / 16):
        found = evaluated(classification(validation=parts), weights)["validation_loss"]
        np.testing.assert_allclose(found, np.average(alone, axis=0, weights=weights), rtol=1e-5)
    some = classification(validation=[*parts[:2], parts[0][:0], parts[3]])  # a node without any counts for nothing
    np.testing.assert_allclose(some.derived(evaluated(some))["validation_loss"], np.mean([*alone[:2], alone[3]], 0), rtol=1e-5)
    rare = np.arange(10.0)
    weighted = classification(validation=parts, class_weight=rare)
    point = weighted.start(0)
    outputs = weighted.network(point)(torch.as_tensor(ROWS.inputs[HELD_OUT[:50]]).float())
    expected = torch.nn.functional.cross_entropy(outputs, torch.as_tensor(ROWS.labels[HELD_OUT[:50]]), reduction="none")
    expected = (expected.detach().numpy() * rare[ROWS.labels[HELD_OUT[:50]]]).mean()
    loss = weighted.evaluate(point[None, None], range(1))["validation_loss"]
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_validation_rows_are_part_of_what_a_resumed_run_must_have() -> None:
    problems = [classification(validation=data.divide_validation(rows, NODES)) for rows in (HELD_OUT, HELD_OUT[:-1])]
    prints = [[problem.node_fingerprint(node) for node in range(NODES)] for problem in (*problems, classification())]
    assert prints[0] != prints[1] != prints[2]


def test_validation_rows_must_be_given_for_every_node() -> None:
    with pytest.raises(InputError, match="validation rows for 1 nodes and shards for 4"):
        classification(validation=[HELD_OUT])
