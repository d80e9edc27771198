"""The tests of a trained model as tables and as a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.trained.evaluation import BINS, calibration_error

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 16  # classes of a confusion matrix that is printed, and nodes that are listed
Tables = Iterator[tuple[str, "pd.DataFrame"]]


def tables(evaluation: dict[str, Any]) -> Tables:
    """Titles and tables, of what `evaluate` measured."""
    yield from OF_TASK[evaluation["task"]](evaluation)
    if evaluation["nodes"]:
        yield f"Test {metric(evaluation)} of each node's own model", _nodes(evaluation)


def metric(evaluation: dict[str, Any]) -> str:
    return "R2" if evaluation["task"] == "regression" else "accuracy"


def _classification(evaluation: dict[str, Any]) -> Tables:
    import pandas as pd

    names, counts = list(map(str, evaluation["names"])), np.array(evaluation["confusion"])
    rows = f"{evaluation['rows']:,} test rows"
    if len(names) <= MOST:
        matrix = pd.DataFrame(counts, columns=names)
        matrix.insert(0, "true class", names, allow_duplicates=True)
        yield f"Confusion matrix of {rows}: columns are the predicted classes", matrix
    else:
        yield f"The most frequent errors in {rows}", _most_frequent_errors(names, counts)
    yield "Each class", _each(names, np.diag(counts), counts.sum(1), counts.sum(0))
    yield _calibration(evaluation["calibration"])


def _most_frequent_errors(names: list[str], counts: np.ndarray) -> "pd.DataFrame":
    import pandas as pd

    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [divmod(int(i), len(names)) for i in order if wrong.flat[i]]
    rows = [(names[true], names[predicted], int(counts[true, predicted])) for true, predicted in pairs]
    return pd.DataFrame(rows, columns=["true class", "predicted class", "rows"])


def _multilabel(evaluation: dict[str, Any]) -> Tables:
    counts = np.array(evaluation["confusion"])  # of each label: rows are without and with it
    names = list(map(str, evaluation["names"]))
    title = f"Each label in {evaluation['rows']:,} test rows"
    yield title, _each(names, counts[:, 1, 1], counts[:, 1].sum(1), counts[:, :, 1].sum(1))
    yield _calibration(evaluation["calibration"])


def _each(names: list[str], right: np.ndarray, rows: np.ndarray, predicted: np.ndarray) -> "pd.DataFrame":
    """Accuracy is the share of the rows of a class that is recognised; precision, of those predicted that is right."""
    import pandas as pd

    with np.errstate(invalid="ignore", divide="ignore"):
        shares = {"accuracy": right / rows, "precision": right / predicted}
    return pd.DataFrame({"class": names, "rows": rows, "predicted": predicted, **shares})


def _calibration(calibration: dict[str, list[float]]) -> tuple[str, "pd.DataFrame"]:
    import pandas as pd

    edges = [f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}" for i in range(BINS)]
    names = {"count": "decisions", "confidence": "mean probability", "accuracy": "accuracy"}
    table = pd.DataFrame({"probability": edges} | {names[key]: calibration[key] for key in names})
    title = f"Calibration: the expected calibration error is {calibration_error(calibration):.3f}"
    return title, table[table.decisions > 0]


def _regression(evaluation: dict[str, Any]) -> Tables:
    import pandas as pd

    columns = {"target": list(map(str, evaluation["names"]))}
    columns |= {label: evaluation[name] for name, label in (("rmse", "RMSE"), ("mae", "mean |error|"), ("r2", "R2"))}
    yield f"Errors on {evaluation['rows']:,} test rows, in units of the target", pd.DataFrame(columns)


def _nodes(evaluation: dict[str, Any]) -> "pd.DataFrame":
    """All nodes where they are few, else the lowest, the middle and the highest."""
    import pandas as pd

    values = np.array(evaluation["nodes"])
    order = np.argsort(values, kind="stable")
    shown = range(len(values)) if len(values) <= MOST else [int(order[i]) for i in (0, len(order) // 2, -1)]
    return pd.DataFrame({"node": list(shown), metric(evaluation): values[list(shown)]})


OF_TASK = {"classification": _classification, "multilabel": _multilabel, "regression": _regression}


# ---------------------------------------------------------------- the picture


def draw(evaluation: dict[str, Any]) -> "Figure":
    """Confusion matrix, calibration, and each node's own model, as far as they were measured."""
    from dnasa.plots import panels

    parts = [_draw_matrix] if evaluation["task"] == "classification" else []
    parts += [_draw_calibration] if "calibration" in evaluation else []
    parts += [_draw_nodes] if evaluation["nodes"] or not parts else []
    figure, axes = panels(len(parts))
    for part, axis in zip(parts, axes.flat, strict=True):
        part(axis, evaluation)
    return figure


def _draw_matrix(axis: "Axes", evaluation: dict[str, Any]) -> None:
    names, counts = list(map(str, evaluation["names"])), np.array(evaluation["confusion"], float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.grid(False)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.figure.colorbar(image, ax=axis, label="share of the true class")
    if len(names) <= MOST:
        labels = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
        crowded = max(map(len, labels)) > 3
        axis.set_xticks(range(len(names)), labels, rotation=90 if crowded else 0)
        axis.set_yticks(range(len(names)), labels)
    axis.set(xlabel="predicted class", ylabel="true class")


def _draw_calibration(axis: "Axes", evaluation: dict[str, Any]) -> None:
    """A reliability diagram; larger points are more decisions."""
    count, confidence, accuracy = (np.array(evaluation["calibration"][n]) for n in ("count", "confidence", "accuracy"))
    used = count > 0
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    axis.plot(confidence[used], accuracy[used], color="C0", linewidth=1)
    axis.scatter(confidence[used], accuracy[used], 20 + 200 * count[used] / count.sum(), color="C0", label="model")
    axis.set(xlabel="probability of the decision", ylabel="share of right decisions", xlim=(0, 1.03), ylim=(0, 1.03))
    axis.legend()


def _draw_nodes(axis: "Axes", evaluation: dict[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.plot(evaluation["nodes"], "o", markersize=4)
    axis.set(xlabel="node", ylabel=f"test {metric(evaluation)} of the node's own model")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
