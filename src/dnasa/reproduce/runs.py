"""The runs that figures and published numbers are made of."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data import divide, divide_validation, hold_out, load
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.problems.problem import Problem
from dnasa.rules.registry import variants
from dnasa.tasks import tasks
from dnasa.tasks.sources import PROBLEMS, SourceOptions, synthetic
from dnasa.topology import Topology

dataset = cache(load)  # several figures and numbers need the same


def evaluation_steps(steps: int, count: int) -> list[int]:
    """Evenly spaced steps from 0 to the last, one more than `count`; rounded down, as in the published results."""
    return sorted({int(t) for t in np.linspace(0, steps, count + 1)})


def run(
    task: str,
    graph: Topology,
    rules: Sequence[str],
    steps: int,
    seeds: Sequence[int],
    etas: Sequence[float] = (),
    schedules: Sequence[str] | None = None,
    rounds: int | None = None,
    evaluate: Sequence[int] | None = None,
    progress: bool | None = None,
    **data_options: Any,
) -> pd.DataFrame:
    """The history of every rule with each stepsize and seed, side by side, on a dataset (`on_data`) or a synthetic problem.

    Rules that W does not suit are left out. By default only the end is evaluated.
    """
    if task in PROBLEMS:
        problem = synthetic(SourceOptions(problem=task, nodes=graph.nodes))
    else:
        problem = on_data(task, graph, **data_options)
    chosen = [variant for rule in rules if suits(rule, graph) for variant in variants(rule, etas, schedules)]
    options: Any = {"steps": steps, "seed": seeds, "evaluate": evaluate or [steps], "progress": progress}
    return solve(problem, simulated.connect(graph, rounds), chosen, **options).history


def suits(rule: str, graph: Topology) -> bool:
    """Whether the rule converges with these weights: D2 needs eigenvalues above -1/3."""
    return rule != "d2" or graph.smallest_eigenvalue > -1 / 3 + 1e-9


def on_data(
    name: str,
    graph: Topology,
    partition: str = "iid",
    validate: bool = False,
    loss_scale: str | float = 1.0,
    train_metrics: bool = False,
    device: str = "cpu",
    rows: int | None = None,
) -> Problem:
    """The default model on the first `rows` of a dataset, or all; all seeds share one partition."""
    data = dataset(name)
    if rows is not None:
        data = data._replace(inputs=data.inputs[:rows], labels=data.labels[:rows])
    train, validation = hold_out(data) if validate else (np.arange(len(data.labels)), None)
    shards = divide(data, train, partition, graph.nodes)
    held_out = () if validation is None else divide_validation(validation, graph.nodes)
    options: Any = {"loss_scale": loss_scale, "device": device, "train_metrics": train_metrics, "validation": held_out}
    return tasks.on_shards(data, shards, **options)


def missing(data: str) -> str:
    """Why a dataset cannot be read; empty if it can."""
    try:
        dataset(data)
    except InputError as error:
        return f"{data} is left out: {error}"
    return ""
