"""What a finished run leaves: the trained model and its tests."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dnasa.arrays import to_numpy
from dnasa.core import InputError, Network, RunError
from dnasa.data import Dataset
from dnasa.files import to_json
from dnasa.problems.supervised import Supervised
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result
from dnasa.trained import evaluation
from dnasa.trained.evaluation import Evaluation
from dnasa.trained.model import TrainedModel, encoding_of, kind_of
from dnasa.trained.saving import save


def save_run(
    folder: Path | None, problem: Supervised, rows: Dataset, name: str, result: Result, network: Network
) -> bool:
    """Write the mean of the nodes' models, of the first seed that did not diverge, and its tests; says whether it was tested.

    `name` is the network, as `--model` takes it. All processes call it, and the first writes; without a folder, nothing is
    written. A model of a text is not tested further.
    """
    run = int(np.argmax(result.runs.diverged.isna()))
    x, statistics = _of_run(problem, result, run)
    model = TrainedModel(problem.network(x.mean(0), statistics), encoding_of(rows), kind_of(rows))
    measured = None if model.kind == "tokens" else _tested(problem, rows, model, result, network)
    if folder is not None and result.writes:
        if measured is not None:
            OwnFiles(folder).write("evaluation.json", to_json(measured))
        row = result.final().loc[run]
        about = {"rule": row.rule, "seed": row.seed, "steps": row.step, "nodes": len(x), "data": rows.source}
        save(folder, model, name, {"trained": about})
    return measured is not None


def _tested(
    problem: Supervised, rows: Dataset, model: TrainedModel, result: Result, network: Network
) -> Evaluation | None:
    """The tests of the model by all processes; None after a loss of processes that had test rows, or during the tests."""

    def of_all(part: Evaluation) -> Evaluation:
        return evaluation.merged(network.processes.allgather_json(part, lambda other: evaluation.like(part, other)))

    own_tests = bool(rows.test_counts) and not network.simulated  # each process has the test rows of its nodes
    lost = result.settings.get("lost")
    if own_tests and lost:
        warnings.warn("The trained model was not tested: nodes with test rows were lost in the run.", stacklevel=3)
        return None
    try:
        measured = evaluation.evaluate(model, rows) if own_tests or result.writes else Evaluation()
        measured = of_all(measured) if own_tests else measured
        if rows.sites and not lost:
            kind = "test" if rows.test_counts else "training"
            measured |= of_all(evaluation.at_sites(model, _parts(problem, rows), kind))
    except RunError as error:  # every process has the model
        warnings.warn(f"The trained model was not tested: {error}", stacklevel=3)
        return None
    return measured


def _parts(problem: Supervised, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of each site that nobody else has: its test rows, or those for training where all share the test rows."""
    for node, shard in enumerate(problem.shards):
        if rows.test_counts:
            own = problem.own_test_rows(node)
            yield rows.test_inputs[own], rows.test_labels[own]
        else:
            yield rows.inputs[shard], rows.labels[shard]


def _of_run(problem: Supervised, result: Result, run: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All nodes' parameters, and the statistics of batch norm."""
    x = to_numpy(result.x).reshape(len(result.runs), *result.x.shape[-2:])[run]
    if x.shape[1] != sum(int(np.prod(shape)) for _, shape in problem.layout):
        raise InputError("The saved parameters are not those of this model: train it again.")
    statistics = result.statistics
    if statistics is not None:
        statistics = torch.tensor(to_numpy(statistics).reshape(len(result.runs), -1)[run]).to(problem.device)
    return torch.tensor(x).to(problem.device, problem.dtype), statistics
