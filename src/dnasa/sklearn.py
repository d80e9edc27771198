"""scikit-learn estimators that train one model on several nodes.

They work in pipelines, with `GridSearchCV` and with `cross_val_score`. `groups` in `fit` says which node a row belongs to.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dnasa import topology
from dnasa.checks import choose, whole
from dnasa.data import Dataset, Encoding, Feature
from dnasa.data.partitions import hold_out_of_each
from dnasa.engine.loop import solve
from dnasa.extras import needed_by
from dnasa.rules.registry import DEFAULT_RULE, example
from dnasa.runs.history import Record

with needed_by("dnasa.sklearn"):
    from scipy.sparse import issparse
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )

    from dnasa.problems.supervised import Supervised
    from dnasa.tasks.sources import PATIENCE, too_short_to_stop, why_linear_is_enough
    from dnasa.tasks.tasks import on_shards
    from dnasa.trained import TrainedModel

__all__ = ["DecentralizedClassifier", "DecentralizedRegressor"]
COPIES = 32  # of a row of mean weight, among which a step draws: weights are rounded to this fraction
INPUTS: Any = {"dtype": np.float64, "accept_sparse": "csr", "ensure_all_finite": "allow-nan"}


@dataclass(repr=False, eq=False)
class _Decentralized(BaseEstimator):  # type: ignore[misc]
    """What the estimators share; their `_labels(X, y)` returns what is trained on, and how it was made from y."""

    model: str = "mlp:64"
    nodes: int = 8
    topology: str | None = None
    rule: str = "dnasa"
    eta: float | None = None
    steps: int = 1000
    batch: int = 32
    random_state: Any = None
    weight_decay: float = 0.0
    early_stopping: bool | str = "auto"

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train on these rows.

        Args:
            X: The inputs, `(rows, features)`, dense or sparse; NaN is a missing value.
            y: The class or the target of each row.
            groups: Rows of the same group belong to the same node. By default rows are divided among `nodes` nodes at random.
            sample_weight: How much each row counts in training and validation, rounded to 1/32 of the mean.
        """
        X, y = validate_data(self, X, y, **INPUTS, y_numeric=is_regressor(self))
        X = X.toarray() if issparse(X) else X
        labels, encoding = self._labels(X, y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        shards, node_weights = self._shards(X, groups, seed), None
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            shards = [shard for shard in shards if sample_weight[shard].any()]
            node_weights = [sample_weight[shard].mean() for shard in shards]
        self.nodes_ = len(shards)
        inputs = encoding.transform(X)
        rows = Dataset("X", inputs, labels, inputs[:1], labels[:1], encoding=encoding)
        problem, stops_early = self._problem(rows, shards, sample_weight)
        name, weights = self.topology, None
        if name is None:
            name, weights = topology.graphs.default_name(self.nodes_, [example(self.rule)])
        graph = topology.make(name, self.nodes_, weights)
        is_linear = self.model == "linear"
        result = solve(
            problem,
            graph,
            self.rule,
            steps=self.steps,
            eta=self.eta,
            seed=seed,
            weight_decay=self.weight_decay,
            node_weights=node_weights,
            evaluate=None if stops_early or is_linear else self.steps,
            record=Record(patience=PATIENCE if stops_early else None, average=is_linear),
            progress=False,
        )
        if result.runs.diverged.notna().any():
            step, remedy = result.runs.diverged.iloc[0], f"a smaller eta, or rule='{DEFAULT_RULE}', which needs none"
            raise ValueError(f"The run diverged at step {step}: try {remedy}.")
        self.n_iter_ = int(result.history.step.iloc[-1])
        network = problem.network(result.mean, result.statistics)
        self.model_ = TrainedModel(network.double(), encoding)  # so that a row's result does not depend on the others
        return self

    def _problem(self, rows: Dataset, shards: list[np.ndarray], sample_weight: Any) -> tuple[Supervised, bool]:
        """What is minimized, and whether it has rows to stop early by."""
        stops_early = choose("early_stopping", str(self.early_stopping), {"auto": "auto", "True": True, "False": False})
        if stops_early == "auto":
            short = too_short_to_stop([len(shard) for shard in shards], self.steps * self.batch)
            stops_early = not (short or why_linear_is_enough(rows, self.model))
        validation: list[np.ndarray] = []
        if stops_early:
            shards, validation = hold_out_of_each(shards, strata=rows.strata)
        if sample_weight is not None:
            shards, validation = ([repeated(part, sample_weight[part]) for part in parts] for parts in (shards, validation))
        class_weight = getattr(self, "class_weight", None)
        options: Any = {"model": self.model, "class_weight": class_weight, "validation": validation}
        return on_shards(rows, shards, self.batch, train_metrics=not stops_early, **options), bool(stops_early)

    def _shards(self, X: np.ndarray, groups: Any, seed: int) -> list[np.ndarray]:
        if groups is None:
            order = np.random.default_rng(seed).permutation(len(X))
            return np.array_split(order, min(whole("nodes", self.nodes), len(X)))
        names = column_or_1d(np.asarray(groups))
        check_consistent_length(X, names)
        return [np.flatnonzero(names == name) for name in np.unique(names)]

    def _encoding(self, X: np.ndarray, task: str, **more: Any) -> Encoding:
        names = getattr(self, "feature_names_in_", range(X.shape[1]))
        missing = np.isnan(X)
        known = np.where(missing, 0, X).sum(0) / np.maximum((~missing).sum(0), 1)
        fills = [float(mean) if some else None for mean, some in zip(known, missing.any(0), strict=True)]
        features = tuple(Feature(str(name), "number", fill) for name, fill in zip(names, fills, strict=True))
        width = len(features) + int(missing.any(0).sum())
        plain = Encoding(task, features, (width,), "y", **more)
        encoded = plain.encode(X) if missing.any() else X
        mean, deviation = encoded.mean(0, dtype=np.float64), encoded.std(0, dtype=np.float64)
        deviation[deviation == 0] = 1
        return plain._replace(mean=mean, scale=deviation)

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, **INPUTS)
        return self.model_.outputs(self.model_.encoding.transform(rows.toarray() if issparse(rows) else rows))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags


class DecentralizedRegressor(RegressorMixin, _Decentralized):  # type: ignore[misc]
    """A model that predicts a number, trained with the squared error.

    Inputs are standardized. `model_.to_torch()` is the trained network, `nodes_` the number of nodes, `n_iter_` the number
    of steps taken.

    Args:
        model: The network by its name, as `--model` takes it: "mlp:64" is a perceptron with 64 hidden units.
        nodes: The number of nodes, where `fit` is given no groups.
        topology: The name of the graph; by default exact, or ring where the rule needs a fixed graph.
        rule: The name of the rule.
        eta: The stepsize, for rules that need one.
        steps: The number of steps.
        batch: Rows that a node draws in each step.
        random_state: The seed, as in scikit-learn.
        weight_decay: Decoupled weight decay, as in `dnasa.solve`.
        early_stopping: Whether to hold out a tenth of each node's rows, to stop when the loss on them no longer improves, and
            to keep the best model. "auto": with at least 100 rows and more than 5 passes over them, unless the model is
            linear and of two classes or has 5 rows for each input. Without it, a linear model is the average of its iterates.
    """

    def _labels(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, Encoding]:
        mean, scale = np.array([y.mean()]), np.array([y.std() or 1.0])
        labels = ((y[:, None] - mean) / scale).astype(np.float32)
        return labels, self._encoding(X, "regression", target_mean=mean, target_scale=scale)

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each row.

        Args:
            X: The inputs, `(rows, features)`.
        """
        outputs = self._outputs(X)
        return self.model_.encoding.target_values(outputs)[:, 0]


@dataclass(repr=False, eq=False)
class DecentralizedClassifier(ClassifierMixin, _Decentralized):  # type: ignore[misc]
    """A model that predicts classes and their probabilities, trained with cross-entropy.

    Its other arguments and attributes are those of `DecentralizedRegressor`.

    Args:
        class_weight: None, "balanced" or a weight for each class, as in scikit-learn.

    Examples:
        ```python
        classifier = DecentralizedClassifier(nodes=4).fit(X, y)
        classifier.predict(X)
        ```
    """

    class_weight: Any = None

    def _labels(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, Encoding]:
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("All rows are of one class: a classifier needs at least two.")
        return labels, self._encoding(X, "classification", classes=tuple(self.classes_.tolist()))

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row.

        Args:
            X: The inputs, `(rows, features)`.
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`.

        Args:
            X: The inputs, `(rows, features)`.
        """
        outputs = self._outputs(X)
        return self.model_.probabilities(outputs)


def repeated(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The rows, each as often as its weight demands."""
    places = (np.arange(COPIES * len(rows)) + 0.5) / (COPIES * len(rows))
    return rows[np.searchsorted(np.cumsum(weights) / weights.sum(), places)]
