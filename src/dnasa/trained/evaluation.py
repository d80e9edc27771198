"""How a trained model does on the test rows: confusion matrix, calibration, errors of a regression, and each node's own model.

The numbers are stored with the run as `evaluation.json`, so that a report needs no data.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError
from dnasa.data import Dataset
from dnasa.files import read_json
from dnasa.trained.model import TrainedModel

BINS = 10  # of equal width, for calibration


def evaluate(model: TrainedModel, rows: Dataset, of_nodes: Iterable[TrainedModel] = ()) -> dict[str, Any]:
    """On the test rows of the data; `of_nodes` are the nodes' own models."""
    labels, outputs = rows.test_labels, model.outputs(rows.test_inputs)
    out = {"task": model.task, "names": model.classes.tolist(), "rows": len(labels)}
    if model.task == "regression":
        out |= errors(model.values(outputs), model.values(labels))
    else:
        decided, confidence = decisions(model, outputs)
        out["confusion"] = confusion(decided, labels, len(model.classes), model.task)
        out["calibration"] = calibration(confidence, decided == labels)
    return out | {"nodes": [score(each, rows) for each in of_nodes]}


def score(model: TrainedModel, rows: Dataset) -> float:
    """Accuracy; of several labels, the share of right ones; in a regression R2, the mean over the targets."""
    outputs = model.outputs(rows.test_inputs)
    if model.task == "regression":
        return float(np.mean(errors(model.values(outputs), model.values(rows.test_labels))["r2"]))
    return float((decisions(model, outputs)[0] == rows.test_labels).mean())


def decisions(model: TrainedModel, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of each row, or 0 or 1 for each label, and the probability that the model gives to it."""
    p = model.probabilities(outputs)
    if model.task == "multilabel":
        return (p >= 0.5).astype(np.int64), np.maximum(p, 1 - p)
    return p.argmax(1), p.max(1)


def confusion(decided: np.ndarray, labels: np.ndarray, classes: int, task: str) -> list[Any]:
    """Rows are the true classes, columns those predicted; of several labels, a matrix for each."""
    if task == "multilabel":
        pairs = zip(decided.T, labels.T.astype(np.int64), strict=True)
        return [confusion(of_label, true, 2, "classification") for of_label, true in pairs]
    return np.bincount(labels * classes + decided, minlength=classes**2).reshape(classes, classes).tolist()


def calibration(confidence: np.ndarray, right: np.ndarray) -> dict[str, list[float]]:
    """For each bin of the probability given to the decision: decisions, mean probability, and share of right ones."""
    bins = np.minimum((confidence.ravel() * BINS).astype(int), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, part.ravel().astype(float), BINS) for part in (confidence, right)]
    means = [(part / np.maximum(count, 1)).tolist() for part in sums]
    return {"count": count.tolist(), "confidence": means[0], "accuracy": means[1]}


def calibration_error(calibration: dict[str, list[float]]) -> float:
    """The expected calibration error: |share of right decisions - mean probability|, averaged over the decisions."""
    count, confidence, accuracy = (np.array(calibration[name]) for name in ("count", "confidence", "accuracy"))
    return float((count * np.abs(accuracy - confidence)).sum() / count.sum())


def errors(values: np.ndarray, truth: np.ndarray) -> dict[str, list[float]]:
    """For each target, in its own units: root mean squared error, mean absolute error, and R2."""
    residuals = truth - values
    spread = ((truth - truth.mean(0)) ** 2).mean(0)
    r2 = 1 - (residuals**2).mean(0) / np.where(spread > 0, spread, np.nan)
    parts = {"rmse": np.sqrt((residuals**2).mean(0)), "mae": np.abs(residuals).mean(0), "r2": np.nan_to_num(r2)}
    return {name: part.tolist() for name, part in parts.items()}


# ---------------------------------------------------------------- stored with the run


def read(folder: Path) -> dict[str, Any] | None:
    """What was stored with the run, checked; None where nothing was."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    stored = read_json(path, "evaluation.json")
    try:
        _check(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}): train the model again.") from error
    return stored


def _check(stored: dict[str, Any]) -> None:
    k, task = len({str(name) for name in stored["names"]}), stored["task"]
    if not k or len(stored["names"]) != k or type(stored["rows"]) is not int:
        raise ValueError("names or rows")
    _numbers(stored["nodes"], (len(stored["nodes"]),))
    if task == "regression":
        for name in ("rmse", "mae", "r2"):
            _numbers(stored[name], (k,))
    elif task in ("classification", "multilabel"):
        counts = _numbers(stored["confusion"], (k, k) if task == "classification" else (k, 2, 2))
        parts = [_numbers(stored["calibration"][name], (BINS,)) for name in ("count", "confidence", "accuracy")]
        if min(counts.min(), parts[0].min()) < 0 or not parts[0].sum():
            raise ValueError("negative counts")
    else:
        raise ValueError("the task")


def _numbers(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array(values)
    if array.shape != shape or (array.size and array.dtype.kind not in "if") or not np.isfinite(array.sum()):
        raise ValueError(f"numbers of shape {shape} are missing")
    return array
