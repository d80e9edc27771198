"""Each seed draws its own partition; the same seed has the same partition for every rule and stepsize."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnasa import data, solve, topology
from dnasa.core import InputError, Interrupted
from dnasa.data import partitions
from dnasa.problems.classification import Classification
from dnasa.problems.losses import cross_entropy
from dnasa.problems.models import perceptron
from dnasa.problems.supervised import Supervised
from dnasa.runs.history import Record

DIGITS = data.load("digits")
ROWS = DIGITS._replace(**{name: getattr(DIGITS, name)[:90] for name in DIGITS._fields[1:5]})
TRAIN, HELD_OUT = data.hold_out(ROWS)
NODES = 3
RING = topology.complete(NODES)
TRAINED: Any = {"rule": ["dsgd", "dnasa"], "eta": [0.1, 1.0], "steps": 4, "evaluate": [0, 2, 4], "progress": False}
DIVIDED = partial(data.divide, ROWS, TRAIN, "dirichlet(0.3)", NODES)


def normalized() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 10))


def classification(shards: Any) -> Classification:
    parts = ROWS.inputs, ROWS.labels, shards, ROWS.test_inputs, ROWS.test_labels
    validation = data.divide_validation(HELD_OUT, NODES)
    return Classification(lambda: perceptron(64, 4, 10), *parts, batch=8, validation=validation)


def supervised(shards: Any) -> Supervised:
    validation = data.divide_validation(HELD_OUT, NODES)
    options: Any = {"batch": 8, "validation": validation, "dtype": "float64"}
    return Supervised(normalized, cross_entropy, ROWS, shards, **options)


def numbers(history: pd.DataFrame) -> pd.DataFrame:
    return history.drop(columns=["run", "seconds"]).reset_index(drop=True)


@pytest.mark.parametrize(("make", "weights"), [(classification, None), (classification, "rows"), (supervised, "rows")])
def test_a_run_is_that_of_the_partition_of_its_seed(make: Any, weights: Any) -> None:
    together = solve(make(DIVIDED), RING, seed=[0, 2], node_weights=weights, **TRAINED)
    for seed in (0, 2):
        alone = solve(make(DIVIDED(seed=seed)), RING, seed=seed, node_weights=weights, **TRAINED)
        runs = together.history[together.history.seed == seed]
        pd.testing.assert_frame_equal(numbers(runs), numbers(alone.history), rtol=1e-6)
        np.testing.assert_allclose(together.x[together.runs.seed == seed], alone.x, rtol=1e-5, atol=1e-7)


def test_a_run_with_partitions_by_seed_is_resumed_exactly_and_not_with_another_partition(tmp_path: Path) -> None:
    def stop(evaluation: Any) -> bool:
        if evaluation.step == 2:
            raise Interrupted("Interrupted at step 2; resume it.")
        return False

    options = TRAINED | {"seed": [0, 1], "folder": tmp_path / "a"}
    with pytest.raises(Interrupted):
        solve(classification(DIVIDED), RING, record=Record(callback=stop, checkpoint_every=1), **options)
    with pytest.raises(InputError, match="node data"):
        solve(classification(DIVIDED(seed=0)), RING, resume=True, **options)
    resumed = solve(classification(DIVIDED), RING, resume=True, **options)
    whole = solve(classification(DIVIDED), RING, **TRAINED | {"seed": [0, 1]})
    pd.testing.assert_frame_equal(numbers(resumed.history), numbers(whole.history), check_exact=True)
    np.testing.assert_array_equal(resumed.x, whole.x)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (lambda seed: [np.arange(10)] * (NODES + seed), "different numbers of nodes"),
        (lambda seed: [np.arange(10) + 10**6 * seed] * NODES, "must hold row numbers from 0"),
    ],
)
def test_wrong_shards_of_a_later_seed_are_refused_before_the_first_step(shards: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        solve(classification(shards), RING, seed=[0, 1], **TRAINED)


def test_every_node_has_validation_rows_that_nobody_trains_on() -> None:
    rows = data.load("digits")
    train, validation = data.hold_out(rows)
    assert sorted([*train, *validation]) == list(range(len(rows.labels)))
    assert len(validation) == len(rows.labels) // 10
    shards = data.divide(rows, train, "dirichlet(0.1)", 8)
    assert sorted(np.concatenate(shards)) == sorted(train)
    for numbers, nodes in ((np.arange(10, 33), 4), (np.arange(3), 5)):
        parts = data.divide_validation(numbers, nodes)
        assert all(len(part) for part in parts)
        assert {*np.concatenate(parts)} == {*numbers}


def test_data_that_stays_at_its_node_is_validated_there() -> None:
    shards = [np.arange(30), np.arange(30, 32), np.empty(0, int)]
    train, validation = partitions.hold_out_of_each(shards)
    assert [len(part) for part in validation] == [3, 1, 0]
    assert [len(part) for part in partitions.hold_out_of_each(shards, least=2)[1]] == [3, 0, 0]
    for before, kept, out in zip(shards, train, validation, strict=True):
        assert sorted([*kept, *out]) == list(before)
    with pytest.raises(InputError, match="one training row"):
        partitions.hold_out_of_each([np.arange(1)])


def test_rows_of_each_class_are_held_out_in_its_share() -> None:
    labels = np.repeat(["no", "yes", "no", "yes"], [420, 40, 480, 60])
    frame = pd.DataFrame({"x": np.arange(1000.0), "kind": labels})
    rows = data.from_frame(frame, "kind")
    assert (np.bincount(rows.labels).tolist(), np.bincount(rows.test_labels).tolist()) == ([720, 80], [180, 20])
    _, validation = data.hold_out(rows)
    assert np.bincount(rows.labels[validation]).tolist() == [72, 8]
    _, (first, second) = partitions.hold_out_of_each(np.split(np.arange(800), 2), 0, 5, rows.strata)
    for part, shard in ((first, rows.labels[:400]), (second, rows.labels[400:])):
        assert (len(part), rows.labels[part].sum()) == (40, pytest.approx(shard.sum() / 10, abs=1))
    few = [partitions.stratified(np.repeat([0, 1], [n, 4]), n // 10).max() >= n for n in range(50, 500)]
    assert np.mean(few) == pytest.approx(0.4, abs=0.1), "4 rows of a class: one is held out in 4 of 10 sites"
    assert data.from_frame(frame, "x").strata is data.load("digits").strata is None


@given(
    how=st.sampled_from(["iid", "contiguous", "by_label", "dirichlet(0.1)", "dirichlet(10)", "dirichlet"]),
    nodes=st.integers(1, 12),
    rows=st.integers(12, 300),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_every_row_belongs_to_exactly_one_node(how: str, nodes: int, rows: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, rows)
    shards = data.partition(how, labels, nodes, seed)
    assert sorted(np.concatenate(shards).tolist()) == list(range(rows))
    assert min(map(len, shards)) > 0
    again = data.partition(how, labels, nodes, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    if how in ("iid", "contiguous", "by_label"):
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert partitions.class_table(labels, shards, 4).sum() == rows


def test_by_label_separates_the_classes_and_dirichlet_lies_between() -> None:
    labels = np.repeat(np.arange(8), 100)

    def purity(how: str) -> float:
        return np.mean([t.max() / t.sum() for t in partitions.class_table(labels, data.partition(how, labels, 8), 8)])

    assert purity("by_label") == 1
    assert purity("iid") < 0.3 < purity("dirichlet(0.1)") < 1


@pytest.mark.parametrize("how", ["wat", "dirichlet(x)", "dirichlet(-1)", "iid(3)", "dirichlet(1"])
def test_an_unreadable_partition_is_refused(how: str) -> None:
    with pytest.raises(InputError):
        data.partition(how, np.arange(20) % 2, 4)
