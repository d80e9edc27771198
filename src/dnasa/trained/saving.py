"""A trained model in a run folder: `model.safetensors` has its parameters and buffers, `model.json` says what they belong to.

Nothing is pickled. The model of a user's own file is stored with a copy of that file, `model.py`, and its checksum; loading
executes the copy and no other file, and only if the caller trusts it.
"""

import hashlib
import math
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dnasa.arrays import to_numpy
from dnasa.checks import choose
from dnasa.communication import Network
from dnasa.core import InputError, RunError
from dnasa.data import Dataset, Encoding
from dnasa.data.reading import refusing
from dnasa.files import make_folder, read_bytes, read_json, refusing_damage, to_json
from dnasa.problems.supervised import Supervised
from dnasa.runs.environment import versions
from dnasa.runs.own_files import OwnFiles
from dnasa.runs.result import Result
from dnasa.tasks import models
from dnasa.trained import evaluation, results
from dnasa.trained.evaluation import Evaluation, Part, Reason
from dnasa.trained.model import TrainedModel, encoding_of, kind_of

FORMAT = 1
KINDS = ("numbers", "bytes", "tokens")
COPY = "model.py"
NOISY = " Noise can outweigh few rows: try --model linear, --private, a larger --epsilon; each run spends a budget of its own."


def save(folder: str | Path, model: TrainedModel, name: str, about: dict[str, Any] | None = None) -> None:
    """Write the model into a folder, from which `load` reads it.

    Args:
        folder: The folder; it is created if necessary.
        model: The trained model.
        name: The name of its network, as `--model` takes it.
        about: Further entries of `model.json`.
    """
    from safetensors.torch import save as serialized

    files = OwnFiles(make_folder(folder))
    description = {
        "format": FORMAT,
        "model": name,
        "inputs": model.kind,
        "encoding": model.encoding.to_json(),
        "threshold": model.threshold,
        "versions": versions(),
        **(about or {}),
    }
    kind, words = models.parse(name)
    if kind == "file":
        _, code = models.load_function(Path(words[0]).resolve(), words[1], None)
        description |= {"model": f"{COPY}:{words[1]}", "sha256": hashlib.sha256(code).hexdigest()}
        files.write(COPY, code)
    tensors = {part: a.detach().cpu().contiguous() for part, a in _named(model.network).items()}
    files.write("model.safetensors", serialized(tensors))
    files.write("model.json", to_json(description))


def load(folder: str | Path, trust: bool = False, site: str | None = None) -> TrainedModel:
    """The model of a finished run.

    Args:
        folder: The folder of the run.
        trust: Whether to execute the folder's `model.py`, which a model from a file of your own needs.
        site: New rows are recoded as those of this site of the run were.
    """
    path = Path(folder)
    if not (path / "model.json").is_file():
        raise InputError(f"{path} holds no trained model: give the folder of a finished `dnasa train --out` with data.")
    description = read_json(path / "model.json", "model.json")
    with refusing_damage(path / "model.json"):
        name, kind = str(description["model"]), description["inputs"]
        if description["format"] != FORMAT or kind not in KINDS:
            raise ValueError("another format")
        encoding, threshold = Encoding.from_json(description["encoding"]), float(description.get("threshold", 0.5))
    if site is not None:
        recode = encoding.recode
        if recode is None or not recode.sites:
            raise InputError("The model was not trained on tables of sites: leave out --site.")
        encoding = encoding._replace(recode=recode.at(choose("site", site, {name: name for name in recode.sites})))
    parsed, words = models.parse(name)
    code = None
    if parsed == "file":
        code = _trusted_code(path, words[0], description.get("sha256"), trust)
        name = str(path / name)
    maker = models.make_for(name, encoding.shape, encoding.outputs, str(path), code)
    with refusing(f"{path}/model.safetensors does not hold the parameters of {name}: train it again."):
        network = _filled(maker, path / "model.safetensors", check_first=parsed != "file")
    return TrainedModel(network, encoding, kind, threshold)


def _named(network: nn.Module) -> dict[str, Tensor]:
    """The tensors to save; shared parameters occur once, under the first of their names."""
    persistent = network.state_dict(keep_vars=True)
    first = {id(a): name for name, a in reversed(persistent.items())}
    return {name: a for name, a in persistent.items() if first[id(a)] == name}


def _trusted_code(folder: Path, file: str, expected: Any, trust: bool) -> bytes:
    """The copy of the user's file. Its checksum shows damage, but not who wrote it: it is in the same folder."""
    code, copy = b"", folder / COPY
    with suppress(OSError):
        code = read_bytes(copy)
    if file != COPY or hashlib.sha256(code).hexdigest() != expected:
        raise InputError(f"{copy} is not the file that the model was trained with: it is not executed.")
    if not trust:
        raise InputError(f"This model needs code that is not executed: read {copy}, then add --trust (in Python, trust=True).")
    return code


def _filled(maker: models.Maker, file: Path, check_first: bool) -> nn.Module:
    """Build the network and fill it; shapes are checked before memory is used."""
    from safetensors.torch import load as parse

    tensors = parse(read_bytes(file, largest=math.inf))
    if check_first:
        with torch.device("meta"):
            _check(maker(), tensors)
    network = maker()
    _check(network, tensors)
    network.to(next(a.dtype for a in tensors.values() if a.is_floating_point()))
    network.load_state_dict(tensors, strict=False)
    return network


def _check(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    if _forms(_named(network)) != _forms(tensors):
        raise ValueError("other names or shapes")


def _forms(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, bool]]:
    return {name: (a.shape, a.is_floating_point()) for name, a in tensors.items()}


def save_run(folder: Path | None, problem: Supervised, rows: Dataset, name: str, result: Result, network: Network) -> bool:
    """Write the mean of the nodes' models, of the first seed that did not diverge, and its tests; says whether it was tested.

    `name` is the model, as `--model` takes it. All processes call it, and the first writes; without a folder, nothing is
    written. A model of a text is not tested further.
    """
    run = int(np.argmax(result.runs.diverged.isna()))
    x, statistics = _state_of_run(problem, result, run)
    model = TrainedModel(problem.network(x.mean(0), statistics), encoding_of(rows), kind_of(rows))
    now = result.network or network
    measured = None if model.kind == "tokens" else _evaluate_everywhere(problem, rows, model, result, now)
    if folder is not None and result.writes:
        if measured is not None:
            OwnFiles(folder).write("evaluation.json", to_json(measured.model_dump(mode="json")))
            model.threshold = results.threshold_of(measured)
            for sentence in results.shortcomings(measured):
                warnings.warn(sentence + (NOISY if problem.privacy else ""), stacklevel=2)
        row = result.final().loc[run]
        about = {"rule": row.rule, "seed": row.seed, "steps": row.step, "nodes": len(x), "data": rows.source}
        save(folder, model, name, {"trained": about})
    return measured is not None


def _evaluate_everywhere(
    problem: Supervised, rows: Dataset, model: TrainedModel, result: Result, network: Network
) -> Evaluation | None:
    """The tests of the model by the processes that are left; None if one is lost during the tests."""
    measured = evaluation.begun(model, rows)
    try:
        if result.writes and not rows.test_counts:
            common = evaluation.evaluate(model, rows.test_inputs, rows.test_labels, min_count=1)
            measured.common = None if common == "few" else common
        if rows.sites and (rows.test_counts or problem.privacy is None):  # training rows have no noise here
            measured.sites = _of_sites(problem, rows, model, measured.min_count)
            own = measured.model_dump(mode="json", exclude={"common"})
            parts = network.processes.allgather_json(own, lambda other: evaluation.like(measured, other))
            measured.sites = evaluation.merged(parts)
    except RunError as error:  # every process has the model
        warnings.warn(f"The trained model was not tested: {error}", stacklevel=3)
        return None
    return measured


def _of_sites(problem: Supervised, rows: Dataset, model: TrainedModel, min_count: int) -> list[Part | Reason | None]:
    """The tests at the sites of this process: on their test rows or, where all share these, once, on those for training."""
    own = bool(rows.test_counts)
    inputs, labels = (rows.test_inputs, rows.test_labels) if own else (rows.inputs, rows.labels)
    untested = np.ones(len(labels), bool) if rows.ledger is None else rows.ledger.untested(record=True)
    measured: list[Part | Reason | None] = []
    for node, shard in enumerate(problem.shards):
        numbers = problem.own_test_rows(node) if own else np.concatenate([shard, *problem.validation[node : node + 1]])
        which = numbers[untested[numbers]]
        part = evaluation.evaluate(model, inputs[which], labels[which], min_count) if len(numbers) else None
        measured.append("tested" if part == "few" and len(which) < len(numbers) else part)
    return measured


def _state_of_run(problem: Supervised, result: Result, run: int) -> tuple[Tensor, Tensor | None]:
    x = to_numpy(result.x).reshape(len(result.runs), *result.x.shape[-2:])[run]
    statistics = result.statistics
    if statistics is not None:
        statistics = torch.tensor(to_numpy(statistics).reshape(len(result.runs), -1)[run]).to(problem.device)
    return torch.tensor(x).to(problem.device, problem.dtype), statistics
