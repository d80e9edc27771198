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
from dnasa.problems.sharded import Sharded
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result
from dnasa.trained import evaluation
from dnasa.trained.evaluation import Evaluation
from dnasa.trained.model import TrainedModel, encoding_of, kind_of
from dnasa.trained.saving import save


def save_run(folder: Path | None, problem: Sharded, rows: Dataset, name: str, result: Result, network: Network) -> bool:
    """Write the mean of the nodes' models, of the first seed that did not diverge, and its tests; says whether it was tested.

    `name` is the network, as `--model` takes it. All processes call it, and the first writes; without a folder, nothing is
    written. A model of a text is not tested further, nor one after a loss of processes that had test rows of their own, or
    during the tests.
    """
    run = int(np.argmax(result.runs.diverged.isna()))
    x, statistics = _of_run(problem, result, run)
    encoding, kind = encoding_of(rows), kind_of(rows)

    def trained(point: torch.Tensor) -> TrainedModel:
        return TrainedModel(problem.network(point, statistics), encoding, kind)

    def of_all(part: Evaluation) -> Evaluation:
        return evaluation.merged(network.processes.allgather_json(part, lambda given: evaluation.like(part, given)))

    own_tests = bool(rows.test_counts) and not network.simulated  # each process has the test rows of its nodes
    lost = result.settings.get("lost")
    tested = kind != "tokens" and not (own_tests and lost)
    model, row, measured = trained(x.mean(0)), result.final().loc[run], Evaluation()

    def tests() -> Evaluation:
        found = Evaluation()
        if own_tests or result.writes:
            samples = problem.batch * int(row.step)
            quick = problem.test_total <= 3 * samples  # all nodes take less time than the training
            found = evaluation.evaluate(model, rows, map(trained, x) if quick else ())
        if own_tests:
            found = of_all(found)
        if rows.sites and not lost:
            kind_of_rows = "test" if rows.test_counts else "training"
            found |= of_all(evaluation.at_sites(model, _parts(problem, rows), kind_of_rows))
        return found

    if own_tests and lost:
        warnings.warn("The trained model was not tested: nodes with test rows were lost in the run.", stacklevel=2)
    if tested:
        try:
            measured = tests()
        except RunError as error:  # every process has the model
            warnings.warn(f"The trained model was not tested: {error}", stacklevel=2)
            tested = False
    if folder is not None and result.writes:
        if tested:
            measured |= {"members": list(problem.remaining)} if lost else {}
            OwnFiles(folder).write("evaluation.json", to_json(measured))
        about = {"rule": row.rule, "seed": row.seed, "steps": row.step, "nodes": len(x), "data": rows.source}
        save(folder, model, name, {"trained": about})
    return tested


def _parts(problem: Sharded, rows: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of each site that nobody else has: its test rows, or those for training where all share the test rows."""
    for node, shard in enumerate(problem.shards):
        if rows.test_counts:
            own = problem.own_test_rows(node)
            yield rows.test_inputs[own], rows.test_labels[own]
        else:
            yield rows.inputs[shard], rows.labels[shard]


def _of_run(problem: Sharded, result: Result, run: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All nodes' parameters, and the statistics of batch norm."""
    x = to_numpy(result.x).reshape(len(result.runs), *result.x.shape[-2:])[run]
    if x.shape[1] != sum(int(np.prod(shape)) for _, shape in problem.layout):
        raise InputError("The saved parameters are not those of this model: train it again.")
    statistics = result.statistics
    if statistics is not None:
        statistics = torch.tensor(to_numpy(statistics).reshape(len(result.runs), -1)[run]).to(problem.device)
    return torch.tensor(x).to(problem.device, problem.dtype), statistics
