"""How a trained model does on the test rows: confusion matrix, errors of a regression, and the same model at each site.

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

OF_REGRESSION = ("squared_error", "absolute_error", "target", "squared_target")
NOT_SUMMED = ("task", "names", "scale", "site_kind")
Evaluation = dict[str, Any]


def evaluate(model: "TrainedModel", rows: Dataset) -> Evaluation:
    """Evaluate a model on the test rows of the data; the sums of a regression are in units of the target's deviation."""
    labels, outputs = rows.test_labels, model.outputs(rows.test_inputs)
    if model.task == "regression":
        residuals, labels = labels - outputs, labels.astype(np.float64)
        sums = [float(part.sum()) for part in (residuals**2, np.abs(residuals), labels, labels**2)]
        scale = 1.0 if model.encoding.target_scale is None else float(model.encoding.target_scale[0])
        about = {"task": "regression", "names": [model.encoding.target], "rows": len(labels), "scale": scale}
        return about | dict(zip(OF_REGRESSION, sums, strict=True))
    k = len(model.classes)
    confusion = np.bincount(labels * k + outputs.argmax(1), minlength=k**2).reshape(k, k)
    names = model.classes.tolist()
    return {"task": model.task, "names": names, "rows": len(labels), "confusion": confusion.tolist()}


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
            scores.append(float((outputs.argmax(1) == labels).sum()))
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


# ---------------------------------------------------------------- what the sums say


def regression_errors(evaluation: Evaluation) -> dict[str, float]:
    """Root mean squared error and mean absolute error in the target's own units, and R2."""
    squared, absolute, mean, squares = (evaluation[name] / evaluation["rows"] for name in OF_REGRESSION)
    scale, variance = evaluation["scale"], squares - mean**2
    r2 = 1 - squared / variance if variance > 0 else np.nan
    return {"RMSE": squared**0.5 * scale, "mean |error|": absolute * scale, "R2": r2}


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
    k, sites = len({str(name) for name in stored["names"]}), len(stored.get("site_totals", ()))
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("site_scores", "site_totals"), (sites,)) if sites else {}
    shapes |= (
        {"confusion": (k, k)} if stored["task"] == "classification" else dict.fromkeys((*OF_REGRESSION, "scale"), ())
    )
    arrays = {name: np.array(stored[name], dtype=np.float64) for name in shapes}
    right = all(np.isfinite(a).all() and (name == "target" or (a >= 0).all()) for name, a in arrays.items())
    right &= stored["task"] in ("classification", "regression") and stored.get("site_kind") in (
        None,
        "test",
        "training",
    )
    right &= len(stored["names"]) == k > 0 and type(stored["rows"]) is int and stored["rows"] > 0
    if not right or {name: a.shape for name, a in arrays.items()} != shapes:
        raise ValueError("sums are missing, or do not fit together")
