"""The tests of a trained model as tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnasa.runs.names import node_name
from dnasa.trained.evaluation import (
    BINS,
    OF_CALIBRATION,
    Evaluation,
    calibration_error,
    members,
    of_sites,
    regression_errors,
)

if TYPE_CHECKING:
    import pandas as pd

MOST = 16  # classes of a confusion matrix that is printed
MOST_LISTED = 40  # classes of which each has a line
Tables = Iterator[tuple[str, "pd.DataFrame"]]


def tables(evaluation: Evaluation, sites: Sequence[str] = ()) -> Tables:
    """Titles and tables, of what `evaluate` measured; `sites` are the names of the nodes, where they have some."""
    import pandas as pd

    yield from OF_TASK[evaluation["task"]](evaluation)
    if columns := of_each_node(evaluation):
        names = [node_name(sites, node) for node in members(evaluation)]
        yield (
            "Each site" if sites else "Each node's own rows",
            pd.DataFrame({"site" if sites else "node": names} | columns),
        )


def of_each_node(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """What was measured of each node, with a title."""
    if "site_totals" not in evaluation:
        return {}
    return {f"{metric(evaluation)} of the model on its own {evaluation['site_kind']} rows": of_sites(evaluation)}


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
    yield _each("class", names, rows, np.diag(counts), counts.sum(1), counts.sum(0))
    yield _calibration(evaluation)


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
    """Recall is the share of the rows of a class that is recognized, precision the share of its predictions that is right."""
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


OF_TASK = {"classification": _classification, "multilabel": _multilabel, "regression": _regression}
