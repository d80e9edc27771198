"""From options by name to the problem that is trained, as `dnasa train`, `dnasa compare` and `dnasa study` take them."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from dnasa.core import InputError, choose, size
from dnasa.problems.least_squares import LeastSquares
from dnasa.problems.robust_regression import RobustRegression

if TYPE_CHECKING:
    from dnasa.data import Dataset
    from dnasa.data.partitions import Shards
    from dnasa.problems import Problem

CURVE_POINTS = 50
PROBLEMS = ("least_squares", "spike", "robust_regression")  # that need no data


class Source(NamedTuple):
    """A problem, when to evaluate it, and one line about its model and data; of a problem with data, these too."""

    problem: "Problem"
    evaluate: int | list[int] | None
    description: str = ""
    model: str = ""
    rows: "Dataset | None" = None


def make_source(given: SimpleNamespace, local_nodes: range, validate: bool) -> Source:
    """`given` has the options of `dnasa train`; a process makes the problem of its `local_nodes`.

    With `validate`, the problem has validation rows, and curves have up to 50 points.
    """
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be at least 1, not {given.batch}.")
    if given.dtype not in (None, "float32", "float64"):
        raise InputError(f"Unknown dtype '{given.dtype}'. Choose from: float32, float64.")
    if given.problem is not None:
        return Source(synthetic(given), given.evaluate)
    from dnasa.studies import models, tasks

    options: Any = {
        "batch": given.batch or tasks.BATCH,
        "loss_scale": given.loss_scale,
        "dtype": given.dtype or "float32",
        "device": given.device,
    }
    rows, shards, validation = divided(given, local_nodes, validate)
    model = given.model or models.default(rows)
    evaluate = curve_steps(given, rows, options["batch"]) if validate else None
    options |= {"model": model, "validation": validation, "train_metrics": evaluate is None}
    task = tasks.on_shards(rows, shards, **options)
    line = f"Model {model} with {size(task.layout):,} parameters, data from {rows.source}."
    line += f" Layers: {models.layers(task.make())}."
    return Source(task, evaluate or given.evaluate, line, model, rows)


def synthetic(given: SimpleNamespace) -> "Problem":
    name = choose("problem", given.problem, dict(zip(PROBLEMS, PROBLEMS, strict=True)))
    if name != "robust_regression":
        return LeastSquares(spike=name == "spike", batch=given.batch or 1, dtype=given.dtype or "float64")
    if given.batch is not None or given.dtype == "float32":
        raise InputError("robust_regression has one sample per node and step, in float64: leave batch and dtype out.")
    return RobustRegression(given.nodes)


def divided(
    given: SimpleNamespace, local_nodes: range, validate: bool
) -> tuple["Dataset", "Shards", "Shards | tuple[()]"]:
    """The data, which rows each node trains on, and which it validates on."""
    from dnasa import data
    from dnasa.studies import models

    context = models.context(given.model)
    if given.shard_dir is not None:
        rows, shards = data.from_shards(given.shard_dir, local_nodes, given.nodes, given.target)
        return rows, *(data.hold_out_of_each(shards) if validate else (shards, ()))
    rows = data.load(given.data, given.target, context)
    if not validate:
        return rows, data.partition(given.partition, rows.labels, given.nodes), ()
    train, validation = data.hold_out(rows)
    shards = data.divide(rows, train, given.partition, given.nodes)
    return rows, shards, data.divide_validation(validation, given.nodes)


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
    return sorted({round(i * given.steps / count) for i in range(count + 1)})
