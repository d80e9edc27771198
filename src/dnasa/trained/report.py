"""The tests of a trained model as tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnasa.runs.names import node_name
from dnasa.trained.evaluation import Evaluation, members, of_sites, regression_errors

if TYPE_CHECKING:
    import pandas as pd

MOST = 16  # classes of a confusion matrix that is printed
MOST_LISTED = 40  # classes of which each has a line
Tables = Iterator[tuple[str, "pd.DataFrame"]]


def tables(evaluation: Evaluation, sites: Sequence[str] = ()) -> Tables:
    """Titles and tables, of what `evaluate` measured; `sites` are the names of the nodes, where they have some."""
    import pandas as pd

    if evaluation["task"] == "classification":
        yield from _classification(evaluation)
    else:
        errors = {"target": str(evaluation["names"][0])} | regression_errors(evaluation)
        yield f"Errors on {evaluation['rows']:,} test rows, in units of the target", pd.DataFrame([errors])
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
    """Recall is the share of the rows of a class that is recognized, precision the share of its predictions that is right."""
    import pandas as pd

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
    table = pd.DataFrame({"class": names, "rows": rows, "predicted": predicted, **shares})
    if len(table) <= MOST_LISTED:
        yield f"Each class in {where}", table
    else:
        lowest = table.sort_values("recall", kind="stable")[:MOST]
        yield f"The {MOST} of {len(table)} with the lowest recall in {where}", lowest
