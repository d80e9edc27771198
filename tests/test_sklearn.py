"""The estimators for scikit-learn."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from dnasa.core import InputError
from dnasa.problems.shrinkage import Shrinkage
from dnasa.sklearn import DecentralizedClassifier, DecentralizedRegressor


@pytest.mark.parametrize("kind", [DecentralizedClassifier, pytest.param(DecentralizedRegressor, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore:Can't check")
def test_scikit_learns_own_checks_pass(kind: Any) -> None:
    random = "rows are divided at random, as in scikit-learn's own SGDClassifier"
    weighted = {f"check_sample_weight_equivalence_on_{kind}_data": random for kind in ("dense", "sparse")}
    checks = check_estimator(kind(steps=20, nodes=3), on_skip=None, expected_failed_checks=weighted)
    assert len(checks) > 40
    failed = {check["check_name"] for check in checks if check["status"] in ("failed", "xfail")}
    assert failed <= {*weighted}


def test_a_classifier_learns_classes_of_any_type() -> None:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    names = np.where(y, "benign", "malignant")
    classifier = DecentralizedClassifier(model="mlp:16", steps=150, random_state=0).fit(X, names)
    assert classifier.score(X, names) > 0.95
    assert list(classifier.classes_) == ["benign", "malignant"]
    assert list(classifier.feature_names_in_) == list(X)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1)
    assert (classifier.model_.predict(X[list(X)[::-1]]) == classifier.predict(X)).all()  # by name


def test_a_regressor_predicts_in_the_units_of_the_target() -> None:
    X, y = load_diabetes(return_X_y=True)
    regressor = DecentralizedRegressor(model="linear", steps=300, random_state=0).fit(X, 10 * y + 5000)
    assert regressor.score(X, 10 * y + 5000) > 0.45
    assert 6000 < regressor.predict(X).mean() < 7000


def test_rows_of_a_group_belong_to_one_node() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    groups = np.repeat(["a", "b", "c"], [100, 400, 69])
    classifier = DecentralizedClassifier(steps=30, random_state=0)
    assert classifier.fit(X, y).nodes_ == 8
    assert classifier.fit(X, y, groups=groups).nodes_ == 3
    assert [len(shard) for shard in classifier._shards(X, groups, 0)] == [100, 400, 69]
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.fit(X, y, groups=groups[:5])


def test_a_linear_classifier_has_the_risks_of_pooled_rows_with_its_penalty() -> None:
    """Without a penalty, its risks are too extreme: they differ from these by 0.05 on average."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 20))
    y = rng.random(250) < 1 / (1 + np.exp(2 - X @ rng.normal(size=20) / 4))
    ours = DecentralizedClassifier(model="linear", nodes=5, random_state=0, early_stopping=False).fit(X, y)
    inputs, factor = (X - X.mean(0)) / X.std(0), 1.0
    penalty = Shrinkage(20 / 250, 2 * y.mean() * (1 - y.mean()))
    for _ in range(20):
        pooled = LogisticRegression(C=2 / (250 * factor), tol=1e-8).fit(inputs, y)
        weights = torch.tensor(np.concatenate([-pooled.coef_[0], pooled.coef_[0]]) / 2)
        factor = float((penalty.gradient(weights) / weights)[0])
    assert np.abs(ours.predict_proba(X) - pooled.predict_proba(inputs)).mean() < 0.006
    assert np.abs(ours.predict_proba(X) - LogisticRegression(C=1e8).fit(inputs, y).predict_proba(inputs)).mean() > 0.03


def test_rows_count_by_their_weights() -> None:
    X, y = np.zeros((400, 1)), np.repeat([0.0, 1.0], 200)
    weights = np.repeat([1.0, 3.0], 200)
    options: Any = {"model": "linear", "nodes": 4, "rule": "adanasa", "steps": 300, "random_state": 0, "early_stopping": False}
    regressor = DecentralizedRegressor(**options).fit(X, y, sample_weight=weights)
    assert regressor.predict(X[:1])[0] == pytest.approx(0.75, abs=0.03)  # the weighted mean
    groups = np.repeat([0, 1], 200)  # each node has one target: the nodes count by their weights too
    assert DecentralizedRegressor(**options).fit(X, y, groups, weights).predict(X[:1])[0] == pytest.approx(0.75, abs=0.03)
    without = DecentralizedRegressor(**options).fit(X, y, sample_weight=np.repeat([1.0, 0.0], 200))
    assert without.predict(X[:1])[0] == pytest.approx(0, abs=0.03)


def test_missing_values_and_text_in_a_pipeline() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    age = rng.normal(size=400) + y
    age[y == 1] = np.where(rng.random((y == 1).sum()) < 0.6, np.nan, age[y == 1])  # that a value is missing says something
    table = pd.DataFrame({"age": age, "ward": np.where(rng.random(400) < 0.9, np.where(y, "a", "b"), "c")})
    columns = make_column_transformer((OneHotEncoder(), ["ward"]), remainder="passthrough", sparse_threshold=1)
    piped = make_pipeline(columns, DecentralizedClassifier(model="mlp:8", steps=200, random_state=0))
    assert piped.fit(table, y).score(table, y) > 0.93
    alone = DecentralizedClassifier(model="linear", steps=200, random_state=0).fit(table[["age"]], y)
    assert alone.model_.encoding.inputs == ("age", "age missing")
    assert alone.predict(pd.DataFrame({"age": [np.nan]})) == 1


def test_the_seed_decides_the_result() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    first, again, other = (
        DecentralizedClassifier(steps=20, random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("kind", [DecentralizedClassifier, DecentralizedRegressor])
def test_weight_decay_shrinks_the_weights(kind: Any) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    plain, decayed = (
        kind(rule="adanasa", steps=20, random_state=0, weight_decay=decay, early_stopping=False).fit(X, y).model_.to_torch()
        for decay in (0.0, 1.0)
    )
    norms = [sum(p.detach().square().sum() for p in net.parameters()) for net in (plain, decayed)]
    assert norms[1] < 0.9 * norms[0]


@pytest.mark.long
def test_estimators_work_in_pipelines_searches_and_cross_validation() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    groups = np.arange(len(X)) % 4
    piped = make_pipeline(StandardScaler(), DecentralizedClassifier(steps=40, random_state=0))
    assert cross_val_score(piped, X, y, cv=2).min() > 0.9
    passed = {"groups": groups}
    assert cross_val_score(DecentralizedClassifier(steps=40, random_state=0), X, y, cv=2, params=passed).min() > 0.9
    search = GridSearchCV(DecentralizedClassifier(steps=40, random_state=0), {"model": ["linear", "mlp:8"]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.9
    with sklearn.config_context(enable_metadata_routing=True):
        search.estimator.set_fit_request(groups=True)
        assert search.fit(X, y, groups=groups).best_estimator_.nodes_ == 4


def test_a_run_that_diverges_is_an_error() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(ValueError, match="The run diverged at step"):
        DecentralizedClassifier(rule="dsgd", eta=1e300, steps=20).fit(X, y)


def test_estimators_keep_the_best_model_on_validation_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20))
    y = X[:, 0] + 2 * rng.normal(size=300)
    options: Any = {"nodes": 4, "steps": 400, "random_state": 0, "rule": "adanasa"}
    early = DecentralizedRegressor(**options).fit(X[:150], y[:150])
    whole = DecentralizedRegressor(**options, early_stopping=False).fit(X[:150], y[:150])
    assert early.n_iter_ < whole.n_iter_ == 400
    assert early.score(X[150:], y[150:]) > whole.score(X[150:], y[150:])


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 2.5}, {"early_stopping": "yes"}])
def test_wrong_parameters_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        DecentralizedRegressor(steps=1, **wrong).fit(np.eye(4), np.arange(4.0))
