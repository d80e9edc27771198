"""How a trained model does on the test rows: confusion matrix, calibration, errors of a regression, and at each site.

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
Evaluation = dict[str, Any]


def evaluate(model: "TrainedModel", rows: Dataset) -> Evaluation:
    """Evaluate a model on the test rows of the data; the sums of a regression are in units of the target's deviation."""
    labels, outputs = rows.test_labels, model.outputs(rows.test_inputs)
    out = {"task": model.task, "names": model.classes.tolist(), "rows": len(labels)}
    if model.task == "regression":
        residuals, labels = labels - outputs, labels.astype(np.float64)
        sums = [part.sum(0).tolist() for part in (residuals**2, np.abs(residuals), labels, labels**2)]
        scale = np.ones(labels.shape[1]) if model.encoding.target_scale is None else model.encoding.target_scale
        return out | {"scale": scale.tolist()} | dict(zip(OF_REGRESSION, sums, strict=True))
    p = model.probabilities(outputs)
    decided, confidence = model.decide(p), np.maximum(p, 1 - p) if model.task == "multilabel" else p.max(1)
    out["confusion"] = confusion(decided, labels, len(model.classes), model.task)
    return out | calibration(confidence, decided == labels)


def at_sites(model: "TrainedModel", parts: Iterable[tuple[np.ndarray, np.ndarray]], kind: str) -> Evaluation:
    """The model on each site's own inputs and labels; zero where another process has them. `kind` of rows they are.

    Scores are right decisions, totals all decisions; in a regression, squared errors and squared deviations from the mean.
    """
    scores, totals = [], []
    for inputs, labels in parts:
        outputs = model.outputs(inputs) if len(labels) else np.zeros((0, model.encoding.outputs))
        if model.task == "regression":
            scores.append(float(((labels - outputs) ** 2).sum()))
            totals.append(float(((labels - labels.mean(0)) ** 2).sum()) if len(labels) else 0.0)
        else:
            scores.append(float((model.decide(model.probabilities(outputs)) == labels).sum()))
            totals.append(float(labels.size))
    return {"site_kind": kind, "site_scores": scores, "site_totals": totals}


def merged(parts: Sequence[Evaluation]) -> Evaluation:
    """Merge the evaluations of processes that hold different rows into one of all rows."""
    return {
        name: value if name in NOT_SUMMED else np.sum([part[name] for part in parts], axis=0).tolist()
        for name, value in parts[0].items()
    }


def like(own: Evaluation, received: Any) -> Evaluation:
    """Another process's evaluation; raises an error if its sums have other shapes than those of this one."""
    merged([own, received])
    return {name: value if name in NOT_SUMMED else received[name] for name, value in own.items()}


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


# ---------------------------------------------------------------- what the sums say


def calibration_error(evaluation: Evaluation) -> float:
    """The expected calibration error: |share of right decisions - mean probability| of a bin, averaged over the decisions."""
    decided, confidence, right = (np.array(evaluation[name]) for name in OF_CALIBRATION)
    return float(np.abs(right - confidence).sum() / decided.sum())


def regression_errors(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """For each target: root mean squared error and mean absolute error in its own units, and R2."""
    squared, absolute, mean, squares = (np.array(evaluation[name]) / evaluation["rows"] for name in OF_REGRESSION)
    scale, variance = np.array(evaluation["scale"]), squares - mean**2
    r2 = 1 - squared / np.where(variance > 0, variance, np.nan)
    return {"RMSE": np.sqrt(squared) * scale, "mean |error|": absolute * scale, "R2": r2}


def members(evaluation: Evaluation) -> list[int]:
    """The nodes with scores of their own."""
    return list(range(len(evaluation.get("site_totals", ()))))


def of_sites(evaluation: Evaluation) -> np.ndarray:
    """The accuracy, or R2, of the model at each site; not a number where a site has no rows for it."""
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
    sites = (len(stored.get("site_totals", ())),)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("site_scores", "site_totals"), sites) if sites[0] else {}
    if task == "regression":
        shapes |= dict.fromkeys((*OF_REGRESSION, "scale"), (k,))
    else:
        shapes |= {"confusion": (k, k) if task == "classification" else (k, 2, 2)} | dict.fromkeys(
            OF_CALIBRATION, (BINS,)
        )
    arrays = {name: np.array(stored[name], dtype=np.float64) for name in shapes}
    right = all(np.isfinite(a).all() and (name == "target" or (a >= 0).all()) for name, a in arrays.items())
    right &= task in ("classification", "multilabel", "regression") and stored.get("site_kind", "test") in (
        "test",
        "training",
    )
    right &= len(stored["names"]) == k > 0 and type(stored["rows"]) is int and stored["rows"] > 0
    if not right or {name: a.shape for name, a in arrays.items()} != shapes:
        raise ValueError("sums are missing, or do not fit together")
