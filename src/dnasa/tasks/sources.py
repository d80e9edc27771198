"""From options by name to the problem that is trained, as `dnasa train`, `dnasa compare` and `dnasa study` take them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.core import InputError, choose, size, whole
from dnasa.data.columns import MISSING
from dnasa.data.shards import alone
from dnasa.data.text import CONTEXT
from dnasa.extras import needed_by
from dnasa.problems.least_squares import LeastSquares
from dnasa.problems.robust_regression import RobustRegression

if TYPE_CHECKING:
    from dnasa.data.dataset import Dataset, Site
    from dnasa.data.partitions import Shards
    from dnasa.problems.problem import Problem

CURVE_POINTS = 50
UNEVEN = 10  # times as many rows at a site as at another
OF_TABLES = ("target", "columns", "drop_columns", "id_column", "separator", "no_header", "task")  # options of data
OF_FILES = (*OF_TABLES, "no_standardise")  # without effect on known datasets
PROBLEMS = ("least_squares", "spike", "robust_regression")  # that need no data


class Source(NamedTuple):
    """A problem, when to evaluate it, and one line about its model and data; of a problem with data, these too.

    `warnings` are sentences about what the user should look at.
    """

    problem: "Problem"
    evaluate: int | list[int] | None
    description: str = ""
    model: str = ""
    rows: "Dataset | None" = None
    warnings: tuple[str, ...] = ()

    @property
    def sites(self) -> list[str]:
        """The names of the nodes, where their data has some."""
        return [site.name for site in self.rows.sites] if self.rows else []


def make_source(
    given: SimpleNamespace, local_nodes: range, validate: bool, allgather_text: Callable[[str], list[str]] = alone
) -> Source:
    """`given` has the options of `dnasa train`; a process makes the problem of its `local_nodes`.

    With `validate`, the problem has validation rows, and curves have up to 50 points. `allgather_text` is the network's.
    """
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be at least 1, not {given.batch}.")
    if given.dtype not in (None, "float32", "float64"):
        raise InputError(f"Unknown dtype '{given.dtype}'. Choose from: float32, float64.")
    if given.problem is not None:
        steps = evenly(given.steps, CURVE_POINTS) if validate and given.evaluate is None else given.evaluate
        return Source(synthetic(given), steps)
    with needed_by("Training on data"):
        from dnasa.tasks import models, tasks

    options: Any = {
        "batch": given.batch or tasks.BATCH,
        "loss_scale": given.loss_scale,
        "dtype": given.dtype or "float32",
        "device": given.device,
    }
    rows, shards, validation = divided(given, local_nodes, validate, allgather_text)
    model = given.model or models.default(rows)
    evaluate = curve_steps(given, rows, options["batch"]) if validate else None
    options |= {
        "class_weight": given.class_weight,
        "model": model,
        "validation": validation,
        "train_metrics": evaluate is None,
    }
    task = tasks.on_shards(rows, shards, **options)
    lines = [f"Model {model} with {size(task.layout):,} parameters, data from {rows.source}.", *preparation(rows)]
    lines.insert(1, f"Layers: {models.layers(task.make())}.")
    if given.model is None and model == "resnet" and task.device.type == "cpu":
        lines.append("A residual net is slow on a CPU: --model resnet:8 is a smaller one.")
    warnings = (*rows.warnings, *uneven(rows.sites, given.weights_by))
    return Source(task, evaluate or given.evaluate, " ".join(lines), model, rows, warnings)


def uneven(sites: Sequence["Site"], weights_by: str | None) -> list[str]:
    """What to know where one site has many times the rows of another."""
    small, large = (pick(sites, key=lambda site: site.rows, default=None) for pick in (min, max))
    if weights_by is not None or small is None or large is None or large.rows < UNEVEN * small.rows:
        return []
    return [
        f"{small.name} trains on {small.rows:,} rows and {large.name} on {large.rows:,}, and each site counts the same: with "
        "--weights-by rows, each row does."
    ]


def synthetic(given: SimpleNamespace) -> "Problem":
    name = choose("problem", given.problem, dict(zip(PROBLEMS, PROBLEMS, strict=True)))
    if name != "robust_regression":
        return LeastSquares(spike=name == "spike", batch=given.batch or 1, dtype=given.dtype or "float64")
    if given.batch is not None or given.dtype == "float32":
        raise InputError("robust_regression has one sample per node and step, in float64: leave batch and dtype out.")
    return RobustRegression(given.nodes)


def divided(
    given: SimpleNamespace, local_nodes: range, validate: bool, allgather_text: Callable[[str], list[str]] = alone
) -> tuple["Dataset", "Shards | Callable[[int], Shards]", "Shards | tuple[()]"]:
    """The data, which rows each node trains on, by seed where each draws its own partition, and which it validates on."""
    from dnasa import data

    if given.shard_dir is not None:
        rows, shards = shards_of(given, local_nodes, allgather_text)
        return rows, *(data.hold_out_of_each(shards) if validate else (shards, ()))
    rows = loaded(given)
    train, held_out = data.hold_out(rows) if validate else (np.arange(len(rows.labels)), None)
    validation = () if held_out is None else data.divide_validation(held_out, given.nodes)
    divide = partial(data.divide, rows, train, given.partition, given.nodes)
    if given.partition_seed is not None:
        return rows, divide(whole("--partition-seed", given.partition_seed, low=0)), validation
    return rows, divide(0) if given.partition == "contiguous" else divide, validation


def shards_of(
    given: SimpleNamespace, local_nodes: range, allgather_text: Callable[[str], list[str]] = alone
) -> tuple["Dataset", "Shards"]:
    from dnasa import data

    folder, options = Path(given.shard_dir), reading_options(given)
    return data.from_shards(folder, local_nodes, given.nodes, given.target, allgather_text=allgather_text, **options)


def loaded(given: SimpleNamespace) -> "Dataset":
    """The data that --data names, read as the other options say."""
    from dnasa import data

    if given.data in data.DATASETS:
        for name in OF_FILES:
            if getattr(given, name):
                raise InputError(f"--{name.replace('_', '-')} is for files of your own: leave it out for {given.data}.")
    text, context = text_options(given.model)
    for name in OF_TABLES if text else ():
        if getattr(given, name):
            option = name.replace("_", "-")
            raise InputError(
                f"--{option} is for tables, and gpt is a model of the characters of a text: leave one out."
            )
    return data.load(given.data, given.target, context, text=text, **reading_options(given))


def text_options(model: str | None) -> tuple[bool | None, int]:
    """Whether the model is one of a text (None: the data decides), and how many characters it sees at once."""
    if model is None:
        return None, CONTEXT
    with needed_by("A model"):
        from dnasa.tasks import models

    return models.parse(model)[0] == "gpt" or None, models.context(model)


def reading_options(given: SimpleNamespace) -> dict[str, Any]:
    """How the user's files are read."""
    return {
        "separator": given.separator,
        "header": False if given.no_header else None,
        "task": given.task,
        "standardise": not given.no_standardise,
        "columns": given.columns,
        "drop_columns": given.drop_columns,
        "id_column": given.id_column,
    }


def preparation(rows: "Dataset") -> list[str]:
    """What was done to the user's rows, in sentences."""
    made = rows.encoding
    if made is None:
        return []
    lines = {
        "classification": [],
        "regression": [f"Regression of {made.target[0]}: the loss is that of the standardised target."],
        "multilabel": [f"{len(made.target)} labels: {', '.join(made.target)}."],
    }[made.task]
    if made.mean is not None:
        count = len(made.inputs)
        what = f"{count} input{'s' if count > 1 else ''}" if made.features else "Inputs"
        lines.append(f"{what} standardised with the mean and standard deviation of the training rows.")
    elif rows.inputs.dtype != "uint8":
        lines.append("Inputs are not standardised.")
    words = [feature.name for feature in made.features if feature.kind == "text"]
    gaps = [feature.name for feature in made.features if feature.fill is not None]
    empty = [feature.name for feature in made.features if MISSING in feature.categories]
    lines += [f"Text became one input for each category: {listed(words)}."] if words else []
    lines += [f"Missing values became the mean, with an input that flags them: {listed(gaps)}."] if gaps else []
    lines += [f"Missing text became a category of its own: {listed(empty)}."] if empty else []
    lines += (
        ["No common test rows: each node tests on its own, every fifth or its test file."] if rows.test_counts else []
    )
    return [*lines, *rows.notes]


def listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def curve_steps(given: SimpleNamespace, rows: "Dataset", batch: int) -> list[int] | None:
    """Where to evaluate the test rows alone: at 50 steps, or as many as cost about as much as the training.

    None where the training data are evaluated too: where they are compared by, few enough, or only partly here.
    """
    by_training = given.metric is not None and not given.metric.startswith("test_")
    samples = given.steps * batch * given.nodes
    few = samples >= 2 * CURVE_POINTS * len(rows.labels)
    if given.evaluate is not None or given.shard_dir is not None or by_training or few:
        return None
    count = max(5, min(CURVE_POINTS, 3 * samples // len(rows.test_labels)))  # a gradient costs three times as much
    return evenly(given.steps, count)


def evenly(steps: int, count: int) -> list[int]:
    return sorted({round(i * steps / count) for i in range(count + 1)})
