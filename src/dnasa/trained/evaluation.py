"""How a trained model does on the test rows: confusion matrix, calibration, errors of a regression, and each node's own model.

The numbers are sums over the test rows, so that processes which hold different ones can add them. They are stored with the
run as `evaluation.json`, and a report needs no data.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.data import Dataset
from dnasa.files import read_json, refusing_damage

if TYPE_CHECKING:
    from dnasa.trained.model import TrainedModel

BINS = 10  # of equal width, for calibration
OF_CALIBRATION = ("decisions", "confidence", "right")
OF_REGRESSION = ("squared_error", "absolute_error", "target", "squared_target")
NOT_SUMMED = ("task", "names", "scale", "site_kind")
SITE_KINDS = ("test", "training")
Evaluation = dict[str, Any]


def evaluate(model: "TrainedModel", rows: Dataset, of_nodes: "Iterable[TrainedModel]" = ()) -> Evaluation:
    """Evaluate a model on the test rows of the data; `of_nodes` are the nodes' own models."""
    labels, outputs = rows.test_labels, model.outputs(rows.test_inputs)
    out = {"task": model.task, "names": model.classes.tolist(), "rows": len(labels)}
    if model.task == "regression":
        scale = np.ones(labels.shape[1]) if model.encoding.target_scale is None else model.encoding.target_scale
        out |= {"scale": scale.tolist()} | errors(outputs, labels)
    else:
        p = model.probabilities(outputs)
        decided, confidence = model.decide(p), np.maximum(p, 1 - p) if model.task == "multilabel" else p.max(1)
        out["confusion"] = confusion(decided, labels, len(model.classes), model.task)
        out |= calibration(confidence, decided == labels)
    return out | {"nodes": [score(each, rows.test_inputs, labels) for each in of_nodes]}


def at_sites(model: "TrainedModel", parts: Iterable[tuple[np.ndarray, np.ndarray]], kind: str) -> Evaluation:
    """The model on each site's own inputs and labels, as sums; zero where another process has them. `kind` of rows they are."""
    sums = [(score(model, *part), _total(model, part[1])) if len(part[1]) else (0.0, 0.0) for part in parts]
    scores, totals = map(list, zip(*sums, strict=True))
    return {"site_kind": kind, "site_scores": scores, "site_totals": totals}


def _total(model: "TrainedModel", labels: np.ndarray) -> float:
    """The number of decisions; in a regression, the sum of squared deviations from the mean."""
    return float(((labels - labels.mean(0)) ** 2).sum()) if model.task == "regression" else float(labels.size)


def merged(parts: Sequence[Evaluation]) -> Evaluation:
    """Merge the evaluations of processes that hold different rows into one of all rows."""
    return {
        name: value if name in NOT_SUMMED else np.sum([part[name] for part in parts], axis=0).tolist()
        for name, value in parts[0].items()
    }


def like(own: Evaluation, given: Any) -> Evaluation:
    """Another process's evaluation; raises an error if its sums have other shapes than those of this one."""
    merged([own, given])
    return {name: value if name in NOT_SUMMED else given[name] for name, value in own.items()}


def score(model: "TrainedModel", inputs: np.ndarray, labels: np.ndarray) -> float:
    """The number of right decisions; in a regression, the sum of squared errors."""
    outputs = model.outputs(inputs)
    if model.task == "regression":
        return float(((labels - outputs) ** 2).sum())
    return float((model.decide(model.probabilities(outputs)) == labels).sum())


def confusion(decided: np.ndarray, labels: np.ndarray, classes: int, task: str) -> list[Any]:
    """Rows are the true classes, columns those predicted; of several labels, a matrix for each."""
    if task == "multilabel":
        pairs = zip(decided.T, labels.T.astype(np.int64), strict=True)
        return [confusion(of_label, true, 2, "classification") for of_label, true in pairs]
    return np.bincount(labels * classes + decided, minlength=classes**2).reshape(classes, classes).tolist()


def calibration(confidence: np.ndarray, right: np.ndarray) -> Evaluation:
    """For each bin of the probability given to a decision: their number, the sum of probabilities, and how many are right."""
    bins = np.minimum((confidence.ravel() * BINS).astype(int), BINS - 1)
    sums = [np.bincount(bins, part.ravel().astype(float), BINS) for part in (np.ones(right.shape), confidence, right)]
    return {name: part.tolist() for name, part in zip(OF_CALIBRATION, sums, strict=True)}


def errors(outputs: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Sums for each target, in units of its deviation."""
    residuals, labels = labels - outputs, labels.astype(np.float64)
    each = (residuals**2, np.abs(residuals), labels, labels**2)
    return {name: part.sum(0).tolist() for name, part in zip(OF_REGRESSION, each, strict=True)}


# ---------------------------------------------------------------- what the sums say


def calibration_error(evaluation: Evaluation) -> float:
    """The expected calibration error: |share of right decisions - mean probability| of a bin, averaged over the decisions."""
    decided, confidence, right = (np.array(evaluation[name]) for name in OF_CALIBRATION)
    return float(np.abs(right - confidence).sum() / decided.sum())


def regression_errors(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """For each target: root mean squared error and mean absolute error in its own units, and R2."""
    squared, absolute, _, _ = (np.array(evaluation[name]) / evaluation["rows"] for name in OF_REGRESSION)
    scale = np.array(evaluation["scale"])
    return {
        "RMSE": np.sqrt(squared) * scale,
        "mean |error|": absolute * scale,
        "R2": 1 - squared / variance(evaluation),
    }


def variance(evaluation: Evaluation) -> np.ndarray:
    """The variance of each target on the test rows, in units of its training deviation; NaN where it is 0."""
    mean, squares = (np.array(evaluation[name]) / evaluation["rows"] for name in OF_REGRESSION[2:])
    spread = squares - mean**2
    return np.where(spread > 0, spread, np.nan)


def of_nodes(evaluation: Evaluation) -> np.ndarray:
    """The accuracy, or R2, of each node's own model."""
    sums = np.array(evaluation["nodes"])
    if evaluation["task"] == "regression":
        return 1 - sums / (evaluation["rows"] * variance(evaluation).sum())
    return sums / sum(evaluation["decisions"])


def members(evaluation: Evaluation) -> list[int]:
    """The nodes that were not lost, in the order of their models."""
    return list(evaluation.get("members", range(len(evaluation.get("site_totals") or evaluation["nodes"]))))


def of_sites(evaluation: Evaluation) -> np.ndarray:
    """The accuracy, or R2, of the joint model at each site; not a number where a site has no rows for it."""
    totals = np.array(evaluation["site_totals"])
    shares = np.array(evaluation["site_scores"]) / np.where(totals > 0, totals, np.nan)
    return 1 - shares if evaluation["task"] == "regression" else shares


# ---------------------------------------------------------------- stored with the run


def read(folder: Path) -> Evaluation | None:
    """What was stored with the run, checked; None where nothing was."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    stored = read_json(path, "evaluation.json")
    with refusing_damage(path):
        _check(stored)
        stored["names"] = [str(name).encode(errors="replace").decode() for name in stored["names"]]
    return stored


def _check(stored: Evaluation) -> None:
    k, task = len({str(name) for name in stored["names"]}), stored["task"]
    if not k or len(stored["names"]) != k or type(stored["rows"]) is not int or stored["rows"] < 1:
        raise ValueError("names or rows")
    _check_counts(stored["nodes"], (len(stored["nodes"]),))
    if not all(type(node) is int for node in members(stored)):
        raise ValueError("the members")
    if "site_totals" in stored:
        for name in ("site_scores", "site_totals"):
            _check_counts(stored[name], (len(stored["site_totals"]),))
        if stored["site_kind"] not in SITE_KINDS:
            raise ValueError("the rows of the sites")
    if task == "regression":
        for name in ("squared_error", "absolute_error", "squared_target", "scale"):
            _check_counts(stored[name], (k,))
        _check_counts(np.abs(stored["target"]), (k,))
    elif task in ("classification", "multilabel"):
        _check_counts(stored["confusion"], (k, k) if task == "classification" else (k, 2, 2))
        for name in OF_CALIBRATION:
            _check_counts(stored[name], (BINS,))
    else:
        raise ValueError("the task")


def _check_counts(values: Any, shape: tuple[int, ...]) -> None:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{shape} numbers that are not negative are missing")
