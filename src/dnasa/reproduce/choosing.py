"""The best stepsize of each rule: on the test rows, as in the paper, or on validation rows; and words for it."""

import numpy as np
import pandas as pd

from dnasa.comparing import tuning
from dnasa.comparing.plots import title
from dnasa.comparing.statistics import over_seeds
from dnasa.reproduce.network_tasks import CENTRAL, PRODIGY, SCHEDULE_FREE, Measure, Task


def averages(table: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The mean over the seeds for each rule and stepsize, and the spread of the test results; where a seed diverged, the
    mean is infinitely bad."""
    worst = -np.inf * measure.scale
    runs = table.assign(diverged=table.test.isna())
    tested, validated = (over_seeds(runs, name, ["rule", "eta"]) for name in ("test", "validation"))
    return tested.assign(test=tested["mean"].fillna(worst), validation=validated["mean"].fillna(worst))


def chosen(means: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The row of each rule with the best validation result, and whether that is the first or last stepsize of its grid."""
    best = means.loc[(measure.scale * means.validation).groupby(means.rule, sort=False).idxmax()]
    edges = [tuning.edge_of(means.eta[means.rule == row.rule], row.eta) for row in best.itertuples()]
    return best.assign(edge=edges).set_index("rule")


def chosen_first(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Each rule at the stepsize that the tuning seeds choose, with the results of all seeds."""
    best = chosen(averages(rows[rows.seed < task.tuning_seeds], task.measure), task.measure)
    means = averages(rows, task.measure).set_index("rule")
    at_best = means[(means.eta == best.eta[means.index]) | means.eta.isna()]
    return at_best.loc[best.index].assign(edge=best.edge)


def name_of(rule: object) -> str:
    central = {CENTRAL: "central AdamW", SCHEDULE_FREE: "central Schedule-Free AdamW", PRODIGY: "central Prodigy"}
    return central.get(str(rule)) or title(str(rule))


def edges(best: pd.DataFrame) -> str:
    """A sentence on the rules whose best stepsize may lie beyond their grid."""
    at_edge = [f"{name_of(rule)} ({row.eta:g}, the {row.edge})" for rule, row in best[best.edge != ""].iterrows()]
    return f" Best stepsize at an edge of the grid: {', '.join(at_edge)}." if at_edge else ""
