"""The runs that figures are made of."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data import load
from dnasa.engine.loop import solve
from dnasa.networks import simulated
from dnasa.problems.problem import Problem
from dnasa.rules.registry import example, variants
from dnasa.tasks import tasks
from dnasa.tasks.sources import PROBLEMS, SourceOptions, divide, synthetic
from dnasa.topology import Topology
from dnasa.topology.graphs import suits

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
    schedules: Sequence[str | None] | None = None,
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
        problem = on_data(task, graph.nodes, **data_options)
    usable = [rule for rule in rules if suits(graph, [example(rule)])]
    chosen = [variant for rule in usable for schedule in schedules or [None] for variant in variants(rule, etas, schedule)]
    options: Any = {"steps": steps, "seed": seeds, "evaluate": evaluate or [steps], "progress": progress}
    return solve(problem, simulated.connect(graph, rounds), chosen, **options).history


def on_data(
    name: str, nodes: int, validate: bool = False, train_metrics: bool = False, rows: int | None = None, **options: Any
) -> Problem:
    """The default model on the first `rows` of a dataset, or all; all seeds share one partition."""
    data = dataset(name)
    data = data._replace(inputs=data.inputs[:rows], labels=data.labels[:rows])
    source = SourceOptions(nodes=nodes, partition_seed=0, **options)
    shards, validation = divide(source, data, [], validate)
    return tasks.on_shards(
        data,
        shards,
        loss_scale=source.loss_scale,
        device=source.device,
        train_metrics=train_metrics,
        validation=validation,
    )


def missing(data: str) -> str:
    """Why a dataset cannot be read; empty if it can."""
    try:
        dataset(data)
    except InputError as error:
        return f"{data} is left out: {error}"
    return ""
