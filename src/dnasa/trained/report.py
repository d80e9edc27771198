"""The tests of a trained model as tables and as a picture."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dnasa.runs.names import node_name
from dnasa.trained.evaluation import (
    BINS,
    OF_CALIBRATION,
    Evaluation,
    calibration_error,
    members,
    of_nodes,
    of_sites,
    regression_errors,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 16  # classes of a confusion matrix that is printed, and nodes that are listed
MOST_LISTED = 40  # classes of which each has a line
Tables = Iterator[tuple[str, "pd.DataFrame"]]


def tables(evaluation: Evaluation, sites: Sequence[str] = ()) -> Tables:
    """Titles and tables, of what `evaluate` measured; `sites` are the names of the nodes, where they have some."""
    yield from OF_TASK[evaluation["task"]](evaluation)
    found = of_each_node(evaluation)
    if found:
        yield "Each site" if sites else "Each node's copy of the model", _nodes(found, members(evaluation), sites)


def of_each_node(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """What was measured of each node, with a title."""
    found, where = {}, ""
    if "site_totals" in evaluation:
        title = f"{metric(evaluation)} of the joint model on its own {evaluation['site_kind']} rows"
        found[title], where = of_sites(evaluation), " on all test rows"
    if evaluation["nodes"]:
        found[f"{metric(evaluation)} of its copy of the model{where}"] = of_nodes(evaluation)
    return found


def metric(evaluation: Evaluation) -> str:
    return "R2" if evaluation["task"] == "regression" else "accuracy"


def _classification(evaluation: Evaluation) -> Tables:
    import pandas as pd

    names, counts = list(map(str, evaluation["names"])), np.array(evaluation["confusion"])
    most = f"{100 * counts.sum(1).max() / max(1, counts.sum()):.2f} %"
    rows = f"{evaluation['rows']:,} test rows, {most} of the most frequent class"
    if len(names) <= MOST:
        matrix = pd.DataFrame(counts, columns=names)
        matrix.insert(0, "true / predicted", names)
        yield f"Confusion matrix of {rows}", matrix
    else:
        yield f"The most frequent errors in {rows}", _most_frequent_errors(names, counts)
    yield _each("class", names, rows, np.diag(counts), counts.sum(1), counts.sum(0))
    yield _calibration(evaluation)


def _most_frequent_errors(names: list[str], counts: np.ndarray) -> "pd.DataFrame":
    import pandas as pd

    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [divmod(int(i), len(names)) for i in order if wrong.flat[i]]
    rows = [(names[true], names[predicted], int(counts[true, predicted])) for true, predicted in pairs]
    return pd.DataFrame(rows, columns=["true class", "predicted class", "rows"])


def _multilabel(evaluation: Evaluation) -> Tables:
    counts = np.array(evaluation["confusion"])  # of each label: rows are without and with it
    names, rows = list(map(str, evaluation["names"])), f"{evaluation['rows']:,} test rows"
    right = np.trace(counts, axis1=1, axis2=2) / evaluation["rows"]
    more = {"accuracy": right, "baseline accuracy": counts.sum(2).max(1) / counts.sum((1, 2))}
    yield _each("label", names, rows, counts[:, 1, 1], counts[:, 1].sum(1), counts[:, :, 1].sum(1), **more)
    yield _calibration(evaluation)


def _each(
    kind: str,
    names: list[str],
    where: str,
    right: np.ndarray,
    rows: np.ndarray,
    predicted: np.ndarray,
    **more: np.ndarray,
) -> tuple[str, "pd.DataFrame"]:
    """Recall is the share of the rows of a class that is recognised, precision the share of its predictions that is right."""
    import pandas as pd

    with np.errstate(invalid="ignore", divide="ignore"):
        shares = {"recall": right / rows, "precision": right / predicted}
    table = pd.DataFrame({kind: names, "rows": rows, "predicted": predicted, **more, **shares})
    if len(table) <= MOST_LISTED:
        return f"Each {kind} in {where}", table
    lowest = table.sort_values("recall", kind="stable")[:MOST]
    return f"The {MOST} of {len(table)} with the lowest recall in {where}", lowest


def _calibration(evaluation: Evaluation) -> tuple[str, "pd.DataFrame"]:
    import pandas as pd

    decided, confidence, right = (np.array(evaluation[name]) for name in OF_CALIBRATION)
    used = np.flatnonzero(decided)
    columns = {
        "probability": [f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}" for i in used],
        "decisions": decided[used].astype(int),
        "mean probability": confidence[used] / decided[used],
        "accuracy": right[used] / decided[used],
    }
    return f"Calibration: the expected error is {calibration_error(evaluation):.3f}", pd.DataFrame(columns)


def _regression(evaluation: Evaluation) -> Tables:
    import pandas as pd

    columns = {"target": list(map(str, evaluation["names"]))} | regression_errors(evaluation)
    yield f"Errors on {evaluation['rows']:,} test rows, in units of the target", pd.DataFrame(columns)


def _nodes(found: dict[str, np.ndarray], nodes: Sequence[int], sites: Sequence[str]) -> "pd.DataFrame":
    """All nodes where they are few, else the lowest, the middle and the highest."""
    import pandas as pd

    values = next(iter(found.values()))
    order = np.argsort(values, kind="stable")
    shown = list(range(len(values))) if len(values) <= MOST else [int(order[i]) for i in (0, len(order) // 2, -1)]
    numbers = [nodes[i] for i in shown]
    names = {"site": [node_name(sites, node) for node in numbers]} if sites else {"node": numbers}
    return pd.DataFrame(names | {title: column[shown] for title, column in found.items()})


OF_TASK = {"classification": _classification, "multilabel": _multilabel, "regression": _regression}


# ---------------------------------------------------------------- the picture


def draw(evaluation: Evaluation, sites: Sequence[str] = ()) -> "Figure":
    """Confusion matrix, calibration, and each node's own model, as far as they were measured."""
    from matplotlib.figure import Figure

    parts: list[Callable[..., None]] = [_draw_matrix] if evaluation["task"] == "classification" else []
    parts += [_draw_calibration] if "decisions" in evaluation else []
    parts += [partial(_draw_nodes, sites=sites)] if evaluation["nodes"] or not parts else []
    figure = Figure(figsize=(4.6 * len(parts), 3.4), dpi=120, layout="constrained")
    for part, axis in zip(parts, figure.subplots(1, len(parts), squeeze=False).flat, strict=True):
        part(axis, evaluation)
    return figure


def _draw_matrix(axis: "Axes", evaluation: Evaluation) -> None:
    names, counts = list(map(str, evaluation["names"])), np.array(evaluation["confusion"], float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.grid(False)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.figure.colorbar(image, ax=axis, label="share of the true class")
    if len(names) <= MOST:
        labels = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
        upright = max(map(len, labels)) * len(labels) < 32  # they fit next to each other
        axis.set_xticks(range(len(names)), labels, rotation=0 if upright else 90)
        axis.set_yticks(range(len(names)), labels)
        for i, j in np.argwhere(counts):
            dark = "white" if shares[i, j] > 0.5 else "black"
            axis.text(j, i, f"{counts[i, j]:.0f}", ha="center", va="center", fontsize=7, color=dark)
    axis.set(xlabel="predicted class", ylabel="true class")


def _draw_calibration(axis: "Axes", evaluation: Evaluation) -> None:
    """A reliability diagram; larger points are more decisions."""
    decided, confidence, right = (np.array(evaluation[name]) for name in OF_CALIBRATION)
    used = decided > 0
    x, y, sizes = (part[used] / decided[used] for part in (confidence, right, decided**2 / decided.sum()))
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    axis.plot(x, y, color="C0", linewidth=1)
    axis.scatter(x, y, 20 + 200 * sizes, color="C0", label="model")
    axis.set(xlabel="probability of the decision", ylabel="share of right decisions", xlim=(0, 1.03), ylim=(0, 1.03))
    axis.legend()


def _draw_nodes(axis: "Axes", evaluation: Evaluation, sites: Sequence[str]) -> None:
    """The range is at least a hundredth around the values, and ends at 1, the highest that there is."""
    from matplotlib.ticker import MaxNLocator

    values = of_nodes(evaluation)
    axis.plot(values, "o", markersize=4, clip_on=False)
    axis.set(xlabel="node, with its copy of the model", ylabel=f"test {metric(evaluation)}")
    if sites and len(values) <= MOST:
        names = [node_name(sites, node) for node in members(evaluation)]
        axis.set_xticks(range(len(values)), [f"{name:.12}" for name in names], rotation=90)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.ticklabel_format(axis="y", useOffset=False)
    if np.isfinite(values).any():
        low, high = np.nanmin(values), np.nanmax(values)
        margin = max(0.01, 0.1 * (high - low))
        axis.set_ylim(low - margin, min(high + margin, 1))
