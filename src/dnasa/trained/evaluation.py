"""How a trained model does on the test rows: confusion matrix, errors of a regression, and the same model at each site.

The numbers are sums over the test rows, so that processes which hold different ones can add them. They are stored with the
run as `evaluation.json`, and a report needs no data.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dnasa.data import Dataset
from dnasa.data.encoding import TASKS
from dnasa.files import read_json, refusing_damage
from dnasa.runs.names import node_name

if TYPE_CHECKING:
    from dnasa.trained.model import TrainedModel

REGRESSION_SUMS = ("squared_error", "absolute_error", "target", "squared_target")
NOT_SUMMED = ("task", "names", "scale", "site_kind")
MOST = 16  # classes of a confusion matrix that is printed
Evaluation = dict[str, Any]


def evaluate(model: "TrainedModel", rows: Dataset) -> Evaluation:
    """Evaluate a model on the test rows of the data; the sums of a regression are in units of the target's deviation."""
    labels, outputs = rows.test_labels, model.outputs(rows.test_inputs)
    if model.task == "classification":
        k = len(model.classes)
        confusion = np.bincount(labels * k + outputs.argmax(1), minlength=k**2).reshape(k, k)
        names = model.classes.tolist()
        return {"task": model.task, "names": names, "rows": len(labels), "confusion": confusion.tolist()}
    errors, labels = labels - outputs, labels.astype(np.float64)
    sums = [float(part.sum()) for part in (errors**2, np.abs(errors), labels, labels**2)]
    encoding = model.encoding
    scale = 1.0 if encoding.target_scale is None else float(encoding.target_scale[0])
    about = {"task": model.task, "names": [encoding.target], "rows": len(labels), "scale": scale}
    return about | dict(zip(REGRESSION_SUMS, sums, strict=True))


def at_sites(model: "TrainedModel", parts: Iterable[tuple[np.ndarray, np.ndarray]], kind: str) -> Evaluation:
    """The model on each site's own inputs and labels; zero where another process has them. `kind` of rows they are.

    Scores are right decisions, totals all decisions; in a regression, squared errors and squared deviations from the mean.
    """
    pairs = [_score(model, inputs, labels) if len(labels) else (0.0, 0.0) for inputs, labels in parts]
    return {"site_kind": kind, "site_scores": [pair[0] for pair in pairs], "site_totals": [pair[1] for pair in pairs]}


def _score(model: "TrainedModel", inputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    outputs = model.outputs(inputs)
    if model.task == "regression":
        return float(((labels - outputs) ** 2).sum()), float(((labels - labels.mean(0)) ** 2).sum())
    return float((outputs.argmax(1) == labels).sum()), float(labels.size)


def merged(parts: Sequence[Evaluation]) -> Evaluation:
    """Merge the evaluations of processes that hold different rows into one of all rows."""
    return {
        name: value if name in NOT_SUMMED else np.sum([part[name] for part in parts], axis=0).tolist()
        for name, value in parts[0].items()
    }


def like(local: Evaluation, received: Any) -> Evaluation:
    """Another process's evaluation; raises an error if its sums have other shapes than those of this one."""
    merged([local, received])
    return {name: value if name in NOT_SUMMED else received[name] for name, value in local.items()}


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
    """Raise an error where no tables can be made of it, or where its sums are no finite numbers of at least 0."""
    sums = {name: np.array(stored[name], np.float64) for name in stored if name not in NOT_SUMMED}
    if not all(np.isfinite(a).all() and (name == "target" or (a >= 0).all()) for name, a in sums.items()):
        raise ValueError("sums must be numbers of at least 0")
    k = len({str(name) for name in stored["names"]})
    if stored["task"] not in TASKS or not k or sums.get("confusion", np.empty((k, k))).shape != (k, k):
        raise ValueError("its parts do not fit together")
    list(tables(stored))


def regression_errors(evaluation: Evaluation) -> dict[str, float]:
    """Root mean squared error and mean absolute error in the target's own units, and R2."""
    squared, absolute, mean, squares = (evaluation[name] / evaluation["rows"] for name in REGRESSION_SUMS)
    scale, variance = evaluation["scale"], squares - mean**2
    r2 = 1 - squared / variance if variance > 0 else np.nan
    return {"RMSE": squared**0.5 * scale, "mean |error|": absolute * scale, "R2": r2}


def site_metric(evaluation: Evaluation) -> np.ndarray:
    """The accuracy, or R2, of the model at each site; not a number where a site has no rows for it."""
    totals = np.array(evaluation["site_totals"])
    shares = np.array(evaluation["site_scores"]) / np.where(totals > 0, totals, np.nan)
    return 1 - shares if evaluation["task"] == "regression" else shares


def tables(evaluation: Evaluation, sites: Sequence[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """Titles and tables; `sites` are the names of the nodes, where they have some."""
    if evaluation["task"] == "classification":
        yield from _class_tables(evaluation)
    else:
        errors = {"target": str(evaluation["names"][0])} | regression_errors(evaluation)
        yield f"Errors on {evaluation['rows']:,} test rows, in units of the target", pd.DataFrame([errors])
    if "site_totals" in evaluation:
        values = site_metric(evaluation)
        metric = "R2" if evaluation["task"] == "regression" else "accuracy"
        title = f"{metric} of the model on its own {evaluation['site_kind']} rows"
        names = [node_name(sites, node) for node in range(len(values))]
        frame = pd.DataFrame({"site" if sites else "node": names, title: values})
        yield "Each site" if sites else "Each node's own rows", frame


def _class_tables(evaluation: Evaluation) -> Iterator[tuple[str, pd.DataFrame]]:
    """Recall is the share of the rows of a class that is recognized, precision the share of its predictions that is right."""
    names, counts = list(map(str, evaluation["names"])), np.array(evaluation["confusion"])
    right, rows, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    most = f"{100 * rows.max() / max(1, counts.sum()):.2f} %"
    where = f"{evaluation['rows']:,} test rows, {most} of the most frequent class"
    if len(names) <= MOST:
        matrix = pd.DataFrame(counts, columns=names)
        matrix.insert(0, "true / predicted", names)
        yield f"Confusion matrix of {where}", matrix
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = {"recall": right / rows, "precision": right / predicted}
    yield f"Each class in {where}", pd.DataFrame({"class": names, "rows": rows, "predicted": predicted, **shares})
