"""Studies at equal budgets: what the study's steps cost on a ring, with one array per message.

The results are in one file, a row for each rule and cell. What is in it is not run again, so a rule can be added to a study
that others have run.
"""

import re
from collections.abc import Iterable
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from dnasa import networks, topology
from dnasa.arrays import crc32
from dnasa.communication import Network
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.study_file import Cell
from dnasa.comparing.tuning import Selection
from dnasa.core import Array, InputError, Rule, assign
from dnasa.engine.loop import solve
from dnasa.files import read_bytes, to_json
from dnasa.rules.registry import Variant, split_schedule

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem

FILE = "results.csv"
PROBED = 20  # exchanges by which the cost of a step is measured; K-GT makes one in 10 steps
MOST = 10  # times the steps of the study: the most that any rule takes
Cells = list[tuple[Cell, Comparison]]
PLACE = ["problem", "graph", "partition", "budget"]
COLUMNS = [*PLACE, "rule", "schedule", "eta", "edge", "steps", "metric", "chosen_by", "settings"]


class Iterates(NamedTuple):
    x: Array


ONE_ARRAY = Rule(Iterates, lambda s, gradients, t: ((s.x,), s), assign("x"))


def affordable_steps(problem: "Problem", network: Network, variant: Variant, cell: Cell) -> int:
    """The steps of a rule for the bytes, or the predicted seconds, of the cell's steps of `ONE_ARRAY` on a ring."""
    ring = networks.connect(topology.ring(network.nodes), "simulated", clock=cell.settings["clock"])
    column = "bytes" if cell.settings["clock"] is None else "clock_seconds"

    def cost(network: Network, rule: Rule | Variant) -> float:
        count = PROBED * network.settings.every
        return (
            float(solve(problem, network, rule, steps=count, evaluate=count, progress=False).history[column].iloc[-1]) / count
        )

    own, steps = cost(network, variant), int(cell.settings["steps"])
    return max(1, int(min(MOST, cost(ring, ONE_ARRAY) / own if own else MOST) * steps))


def fingerprint(cell: Cell) -> str:
    """The same text for the same settings."""
    settings = {
        name: value for name, value in cell.settings.items() if name != "drop" or value
    }  # studies of before it have none
    return f"{crc32(to_json([cell[:3], cell.network, cell.budget, settings])):08x}"


def row(cell: Cell, comparison: Comparison) -> dict[str, Any]:
    """The cell's rule, its chosen stepsize, and what each seed gave: nothing if it diverged."""
    (choice,) = comparison.choice.to_dict("records")
    runs = comparison.reported()
    facts: list[Any] = [cell.problem, cell.network or cell.graph, cell.partition or "", cell.budget, cell.rule]
    facts += [choice["schedule"], choice["eta"], choice["edge"], int(runs.step.max()), comparison.metric]
    seeds = {f"seed {run.seed}": np.nan if run.diverged else run[comparison.metric] for _, run in runs.iterrows()}
    return dict(zip(COLUMNS, [*facts, comparison.selection.metric, fingerprint(cell)], strict=True)) | seeds


def read(folder: Path) -> pd.DataFrame:
    """The rows that are in a study's folder."""
    path = folder / FILE
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    try:
        rows = pd.read_csv(BytesIO(read_bytes(path)), dtype=str, keep_default_na=False)
        if missing := {*COLUMNS} - {*rows}:
            raise ValueError(f"it has no column {min(missing)}")
        numbers = ["eta", "steps", *seeds_of(rows)]
        rows[numbers] = rows[numbers].apply(pd.to_numeric)
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}. Restore the file, or delete it to run the study again.") from error
    return rows


def seeds_of(rows: pd.DataFrame) -> list[str]:
    """The columns with the results of a seed."""
    return [name for name in rows if re.fullmatch(r"seed \d{1,9}", name)]


def known(rows: pd.DataFrame, cells: Iterable[Cell]) -> set[str]:
    """The folders of the cells whose results are there, with the same settings."""
    settings = {*rows.settings}
    return {cell.folder for cell in cells if fingerprint(cell) in settings}


def with_results(rows: pd.DataFrame, results: Cells) -> pd.DataFrame:
    """These rows and those of what was run, which take precedence."""
    new = pd.DataFrame([row(cell, comparison) for cell, comparison in results])
    both = [each for each in (rows, new) if len(each)]
    return pd.concat(both, ignore_index=True).drop_duplicates("settings", keep="last") if both else rows


def by_place(rows: pd.DataFrame, cells: Iterable[Cell]) -> Cells:
    """A comparison of the rules for each problem, network, partition and budget."""
    out: Cells = []
    for _, group in groupby(cells, key=lambda cell: (*cell[:3], cell.network, cell.budget)):
        same = list(group)
        found = rows[rows.settings.isin([fingerprint(cell) for cell in same])]
        if len(found):
            settings = same[0].settings | {"rules": [cell.rule for cell in same]}
            out.append((same[0]._replace(rule="", settings=settings), _comparison(found)))
    return out


def _comparison(rows: pd.DataFrame) -> Comparison:
    rows = rows.assign(rule=[split_schedule(rule)[0] for rule in rows.rule])
    metric = rows.metric.iloc[0]
    runs = rows.melt(["rule", "schedule", "eta", "steps"], seeds_of(rows), "seed", metric).rename(columns={"steps": "step"})
    runs = runs.assign(
        seed=runs.seed.str.split().str[1].astype(int), consensus=runs[metric].where(~np.isfinite(runs[metric]), 0.0)
    )
    seeds, chosen_by = tuple(runs.seed.unique()), rows.chosen_by.iloc[0]
    others = seeds if chosen_by.startswith("validation_") else tuple(seed + len(seeds) for seed in seeds)
    choice = rows[["rule", "schedule", "eta", "edge"]].reset_index(drop=True).assign(value=np.nan)
    return Comparison(runs, metric, Selection(chosen_by, others, seeds), choice)
