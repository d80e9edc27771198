"""Classes with few rows count as much as the others: class_weight, with the meaning that it has in scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import succeed
from sklearn.metrics import recall_score
from sklearn.utils.class_weight import compute_class_weight
from test_shards import frames, in_processes, write

from dnasa import data
from dnasa.core import InputError
from dnasa.sklearn import DecentralizedClassifier
from dnasa.tasks import tasks


def rare(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """5 % of the rows are of a class whose inputs overlap with those of the others."""
    rng, y = np.random.default_rng(0), np.arange(rows) % 20 == 0
    return rng.normal(size=(rows, 3)) + 0.9 * y[:, None], np.where(y, "ill", "well")


def test_balanced_weights_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rows = data.from_arrays(*rare())
    expected = compute_class_weight("balanced", classes=np.unique(rows.labels), y=rows.labels)
    np.testing.assert_allclose(tasks.class_weights(rows, "balanced"), expected)  # type: ignore[arg-type]
    shards, _ = data.from_shards(write(tmp_path / "d", frames((25, 40, 30))), range(3), 3, "kind")
    given = np.repeat(np.arange(3), shards.class_counts)  # rounded
    assert np.abs(np.bincount(shards.labels) - shards.class_counts).max() <= 2 * 3
    expected = compute_class_weight("balanced", classes=np.arange(3), y=given)
    for blocks in ([range(3)], [range(1), range(1, 3)]):
        for part, _ in in_processes(tmp_path / "d", blocks, 3, target="kind"):
            np.testing.assert_allclose(tasks.class_weights(part, "balanced"), expected)  # type: ignore[arg-type]


def test_a_class_of_the_test_rows_alone_has_no_weight() -> None:
    rows = data.from_frame(pd.DataFrame({"a": range(8), "y": list("aaabbbbb")}), "y", test=pd.DataFrame({"a": [1], "y": ["c"]}))
    np.testing.assert_allclose(tasks.class_weights(rows, "balanced"), [8 / 6, 8 / 10, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["mlp:8", "mlp:8,dropout=0.5"])
@pytest.mark.parametrize("weight", ["balanced", {"ill": 7.0}])
def test_the_training_loss_is_weighted_and_the_test_loss_is_not(model: str, weight: Any) -> None:
    rows = data.from_arrays(*rare(100))
    shards = data.partition("iid", rows.labels, 2)
    options: Any = {"batch": 5, "dtype": "float64", "model": model, "loss_scale": 0.5}
    problem: Any = tasks.on_shards(rows, shards, class_weight=weight, **options)
    problem.train_metrics = True
    x, weights = problem.start(0).expand(1, 2, -1).contiguous(), torch.as_tensor(tasks.class_weights(rows, weight))
    measured = problem.evaluate(x[:, 0], range(2))
    each = losses(problem, x[0, 0], rows.inputs, rows.labels, weights)
    torch.testing.assert_close(measured["train_loss"][0], torch.stack([each[shard].mean() for shard in shards]).mean())
    tested = losses(problem, x[0, 0], rows.test_inputs, rows.test_labels)
    torch.testing.assert_close(measured["test_loss"][0], tested.mean())
    assert tasks.on_shards(rows, shards, **options).fingerprint != problem.fingerprint
    for node, drawn in enumerate(problem.drawn(range(2), [0], 0)[0] if "dropout" not in model else ()):
        point = x[0, node].clone().requires_grad_()
        each = losses(problem, point, rows.inputs[drawn], rows.labels[drawn], weights)
        expected = torch.autograd.grad(0.5 * each.mean(), point)[0]
        torch.testing.assert_close(problem.gradient(x, range(2), [0], 0)[0, node], expected)


def losses(problem: Any, point: torch.Tensor, inputs: Any, labels: Any, weights: Any = None) -> torch.Tensor:
    """Of each row, with torch alone; without dropout."""
    sizes = [int(np.prod(shape)) for _, shape in problem.layout]
    parts = {name: part.view(shape) for (name, shape), part in zip(problem.layout, point.split(sizes), strict=True)}
    outputs = torch.func.functional_call(problem.network(point.detach()), parts, (torch.as_tensor(inputs).double(),))
    return torch.nn.functional.cross_entropy(outputs, torch.as_tensor(labels), weights, reduction="none")


def test_a_rare_class_is_recognized_with_balanced_weights(tmp_path: Path) -> None:
    x, y = rare()
    options: Any = {"model": "linear", "steps": 300, "nodes": 3, "random_state": 0}
    recalls = [
        recall_score(y, DecentralizedClassifier(class_weight=weight, **options).fit(x, y).predict(x), pos_label="ill")
        for weight in (None, "balanced")
    ]
    assert recalls[0] < 0.2
    assert recalls[1] > 0.5
    np.savez(tmp_path / "x.npz", inputs=x, labels=y)
    words = ["--data", tmp_path / "x.npz", "--class-weight", "balanced", "--model", "linear", "--nodes", 3]
    succeed("train", *words, "--steps", 300, "--out", tmp_path / "run")
    succeed("report", tmp_path / "run", "--html", "--threshold", 0.5)
    found = pd.read_csv(tmp_path / "run" / "report.csv").set_index("measure").value
    assert found["specificity"] > 0.4, "the event is 'well'"


def test_weights_that_do_not_fit_are_refused() -> None:
    x, y = rare(100)
    rows = data.from_arrays(x, y)
    for wrong in ({"sick": 1.0}, {"ill": -1.0}):
        with pytest.raises(InputError, match="does not fit: classes are"):
            tasks.class_weights(rows, wrong)
    with pytest.raises(InputError, match=r"Unknown class weight 'even'. Choose from: balanced"):
        tasks.class_weights(rows, "even")
    with pytest.raises(InputError, match="Only rows with classes have class weights"):
        tasks.class_weights(data.from_arrays(x, x[:, 0]), "balanced")
