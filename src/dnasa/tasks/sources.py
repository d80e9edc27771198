"""From options by name to the problem that is trained, as `dnasa train`, `dnasa compare` and `dnasa study` take them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from dnasa import data
from dnasa.checks import choose, counted, whole
from dnasa.core import InputError, size
from dnasa.data import DATASETS, Dataset
from dnasa.data.agreement import aligned, unclear_event
from dnasa.data.columns import MISSING
from dnasa.data.ledger import Ledger
from dnasa.data.partitions import BY_NODE, Shards, hold_out_of_each, tenth
from dnasa.data.reading import CONTEXT
from dnasa.data.recoding import as_recode
from dnasa.data.shards import alone, exchange_summaries
from dnasa.data.summaries import MIN_COUNT, Summary
from dnasa.engine.plan import evenly
from dnasa.extras import needed_by
from dnasa.problems.least_squares import LeastSquares
from dnasa.problems.privacy import DELTA, Privacy
from dnasa.problems.problem import Problem
from dnasa.problems.robust_regression import RobustRegression
from dnasa.tasks import BATCH

Allgather = Callable[[str], list[str]]
CURVE_POINTS = 50
SMALL, MORE_POINTS = 10_000, 100  # rows and points: up to so many rows, evaluations cost little compared to steps
PATIENCE = 40  # D-NASA's loss can stall for a while: with 10 it lost 0.03 in R^2 on a table of 4,000 rows
FEW_EVENTS = 20  # validation rows of the rarer classes
SHRUNK = "the weights of a linear model of two classes are shrunk instead"
LINEAR = "a linear model on enough rows needs none"
ENOUGH_LINEAR = 5  # training rows for each input, from which on a linear model without a penalty does not overfit much
ENOUGH_ROWS, FEW_PASSES = 100, 5  # of a table, to stop early by default
EARLY_STOPPING = "Early stopping is on: a tenth of the training rows is held out, and the best model on them is kept."
OF_FILES = ("target", "drop_columns", "id_column", "task")  # options without effect on known datasets


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is trained on: data and how it is read and divided, or a synthetic problem; the model; when it is evaluated.

    Each field is documented by the option of `dnasa train` or `dnasa compare` that has its name.
    """

    data: str | None = None
    target: str | None = None
    drop_columns: str | None = None
    id_column: str | None = None
    task: str | None = None
    labels: str | None = None
    recode: Path | None = None
    shard_dir: Path | None = None
    min_count: int = MIN_COUNT
    site: str | None = None
    ledger: Ledger | None = None
    partition: str | None = "iid"
    partition_seed: int | None = None
    model: str | None = None
    problem: str | None = None
    nodes: int = 8
    class_weight: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    batch: int | None = None
    loss_scale: str | float = 1.0
    dtype: str | None = None
    device: str = "cpu"
    steps: int = 1000
    evaluate: int | None = None
    metric: str | None = None
    early_stopping: bool | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Pick the fields from the options of a command or a study, which has more of them."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    @property
    def reading(self) -> dict[str, Any]:
        """How the user's files are read, as `dnasa.data` takes it."""
        return {name: getattr(self, name) for name in OF_FILES} | {"recode": as_recode(self.recode, self.labels)}

    @property
    def is_own(self) -> bool:
        """Whether the data is the user's."""
        return self.shard_dir is not None or self.data not in DATASETS

    @property
    def samples(self) -> int:
        """The rows that all nodes draw in a run."""
        return self.steps * (self.batch or BATCH) * self.nodes


class Source(NamedTuple):
    """A problem, when to evaluate it, and a description of its model and data; of a problem with data, these too."""

    problem: Problem
    evaluate: int | list[int] | None
    description: str = ""
    model: str = ""
    rows: Dataset | None = None
    patience: int | None = None
    average: bool = False

    @property
    def sites(self) -> list[str]:
        """The names of the nodes, where their data has some."""
        return [site.name for site in self.rows.sites] if self.rows else []

    @property
    def altered(self) -> dict[str, str]:
        """The title of a sample or of altered rows, in the place of the option that names the data."""
        return {"data": self.rows.title} if self.rows and self.rows.altered else {}


def make_source(options: SourceOptions, local_nodes: range, validate: bool, allgather_text: Allgather = alone) -> Source:
    """Make the problem of the process with these nodes.

    With `validate`, validation rows are held out also without early stopping, and a curve gets enough evaluations.
    """
    if options.batch is not None and options.batch < 1:
        raise InputError(f"--batch must be at least 1, not {options.batch}.")
    choose("dtype", options.dtype or "float32", dict.fromkeys(("float32", "float64")))
    if options.problem is not None:
        curve = evenly(options.steps, MORE_POINTS) if validate else None
        return Source(synthetic(options), curve if options.evaluate is None else options.evaluate)
    with needed_by("Training on data"):
        from dnasa.problems.sharded import SAMPLE, find_device
        from dnasa.tasks import models, tasks

    find_device(options.device)
    rows, shards = load_rows(options, local_nodes, allgather_text)
    model = options.model or models.default(rows)
    off = "comparisons run to the end" if validate and not options.early_stopping else why_not_early(options, rows, model)
    early = not off
    is_ordered = rows.encoding and rows.encoding.recode and rows.encoding.recode.order
    if options.is_own and rows.encoding and not is_ordered and (remedy := unclear_event(rows.encoding.classes)):
        rows = rows._replace(warnings=(*rows.warnings, f"The event is {rows.encoding.classes[1]:.40}: {remedy}."))
    if early and (warning := few_events(rows)):
        rows = rows._replace(warnings=(*rows.warnings, warning))
    parts, validation = divide(options, rows, shards, (validate or early) and can_validate(rows))
    train_metrics, curve = plan_comparison(options, rows, model) if validate else (True, None)
    task = tasks.on_shards(
        rows,
        parts,
        options.batch or BATCH,
        options.loss_scale,
        options.dtype or "float32",
        options.device,
        train_metrics=train_metrics and SAMPLE,
        model=model,
        validation=validation,
        class_weight=options.class_weight,
        privacy=None
        if options.epsilon is None
        else Privacy(options.epsilon, DELTA if options.delta is None else options.delta),
    )
    if (options.batch or 0) > (least := min(filter(None, map(len, task.shards)))):
        repeated = f"Rows repeat in a batch of {options.batch:,}: the smallest node has {counted(least, 'row')}."
        rows = rows._replace(warnings=(*rows.warnings, repeated))
    why = " (few rows for the number of inputs)" if model == "linear" != options.model else ""
    about = f"Model {model}{why} with {size(task.layout):,} parameters, data from {rows.source}."
    if task.train_metrics > 1:
        about += f" Training loss and gradient norm are those of a sample of {SAMPLE:,} rows."
    description = " ".join([about, *preparation(rows)])
    if not validate or early:
        description += f"\nEarly stopping is off: {off}." if off else f"\n{EARLY_STOPPING}"
    average = off in (SHRUNK, LINEAR)
    description += " The model is the running average of the iterates." * average
    evaluate = curve if options.evaluate is None else options.evaluate
    return Source(task, evaluate, description, model, rows, PATIENCE if early else None, average)


def load_rows(options: SourceOptions, local_nodes: range, allgather_text: Allgather = alone) -> tuple[Dataset, Shards]:
    """The data that --data or --shard-dir names, read as the other options say; the nodes' rows where they have their own."""
    name, text, context = options.data or "", False, CONTEXT
    if options.model is not None:
        with needed_by("A model"):
            from dnasa.tasks import models
        kind, words = models.parse(options.model)
        if kind == "file":
            models.check_file(Path(words[0]), words[1])
        text = kind == "gpt"
        context = int(words[2]) if text and words else CONTEXT
    if options.shard_dir is not None:
        shared = {"allgather_text": allgather_text, "min_count": options.min_count, "site": options.site, **options.reading}
        return data.from_shards(options.shard_dir, local_nodes, options.nodes, ledger=options.ledger, **shared)
    unused = next((option for option in (*OF_FILES, "labels", "recode") if getattr(options, option)), None)
    if unused and (text or name in DATASETS):
        reason = f"{options.model} is a model of text" if text else f"{name} is known"
        raise InputError(f"--{unused.replace('_', '-')} is for tables of your own, and {reason}: leave it out.")
    rows = data.load(name, context=context, text=text, **options.reading)
    if options.partition != BY_NODE:
        return rows._replace(sites=(), shards=()), []
    if not rows.shards:
        raise InputError(f"{rows.name} does not say which rows are whose: use another --partition, such as iid.")
    if len(rows.shards) != options.nodes:
        names = first_of([site.name for site in rows.sites], 5)
        raise InputError(f"{rows.name} has {len(rows.shards)} nodes ({names}): give --nodes, or --partition iid.")
    return rows, list(rows.shards)


def _least_squares(options: SourceOptions, spike: bool = False) -> Problem:
    return LeastSquares(spike=spike, batch=options.batch or 1, dtype=options.dtype or "float64")


def _robust_regression(options: SourceOptions) -> Problem:
    if options.batch is not None or options.dtype == "float32":
        raise InputError("robust_regression has one sample per node and step, in float64: leave batch and dtype out.")
    return RobustRegression(options.nodes)


PROBLEMS: dict[str, Callable[[SourceOptions], Problem]] = {  # those that need no data
    "least_squares": _least_squares,
    "spike": partial(_least_squares, spike=True),
    "robust_regression": _robust_regression,
}


def synthetic(options: SourceOptions) -> Problem:
    return choose("problem", options.problem or "", PROBLEMS)(options)


def why_not_early(options: SourceOptions, rows: Dataset, model: str) -> str:
    """Why the run does not stop early; empty if it does: if the user says so, or by default on the user's tables."""
    if options.epsilon is not None and not options.early_stopping:
        return "with --epsilon, no rows are held out, whose loss would tell of them"
    if options.early_stopping is False:
        return "it is switched off, and the last model is kept"
    if not can_validate(rows):
        return "no site has enough rows to hold out a tenth"
    if options.early_stopping:
        return ""
    if rows.inputs.ndim != 2 or rows.vocabulary or not options.is_own:
        return "the default is for tables of your own, --early-stopping is for all data"
    counts = [site.rows for site in rows.sites] or [len(rows.labels) // options.nodes] * options.nodes
    return too_short_to_stop(counts, options.samples // options.nodes) or why_linear_is_enough(rows, model)


def why_linear_is_enough(rows: Dataset, model: str) -> str:
    """Why a linear model on these rows does not stop early; empty for other models."""
    from dnasa.tasks.tasks import shrinkage

    if model != "linear":
        return ""
    if shrinkage(rows):
        return SHRUNK
    return LINEAR if rows.informative >= ENOUGH_LINEAR * rows.inputs.shape[1] else ""


def few_events(rows: Dataset) -> str:
    """A warning where a tenth of the rows has few of the rarer classes, by what the sites have told of their rows."""
    if rows.strata is None:
        return ""
    events = rows._replace(sites=tuple(site for site in rows.sites if tenth(site.rows) >= site.min_count)).informative // 10
    if events >= FEW_EVENTS:
        return ""
    few = f"a tenth of the rows has about {events} of the rarer classes, and fewer than {FEW_EVENTS} say little"
    return f"Early stopping depends on chance: {few}. --model linear depends less on it."


def can_validate(rows: Dataset) -> bool:
    """Whether a tenth of some site's training rows is as much as its minimum count; all sites find the same."""
    return not rows.sites or any(tenth(site.rows) >= site.min_count for site in rows.sites)


def too_short_to_stop(counts: Sequence[int], samples: int) -> str:
    """Why nodes with so many training rows, which draw this many samples each, do not stop early; empty if they do."""
    if sum(counts) < ENOUGH_ROWS or min(counts) < 2:
        return f"with fewer than {ENOUGH_ROWS} training rows, or 2 at a node, none are held out"
    passes = samples * len(counts) / sum(counts)
    return "" if passes > FEW_PASSES else f"the run makes {passes:.2g} passes over the rows, at most {FEW_PASSES}"


def divide(
    options: SourceOptions, rows: Dataset, shards: Shards, validate: bool
) -> tuple[Shards | Callable[[int], Shards], Sequence[np.ndarray]]:
    """Which rows each node trains on, by seed where each draws its own partition, and which it validates on."""
    if shards:
        least = options.min_count if options.shard_dir else 1
        return hold_out_of_each(shards, rows.context, least, rows.strata) if validate else (shards, ())
    train, held_out = data.hold_out(rows) if validate else (np.arange(len(rows.labels)), None)
    validation = () if held_out is None else data.divide_validation(held_out, options.nodes)
    by_seed = partial(data.divide, rows, train, options.partition or "iid", options.nodes)
    if options.partition_seed is not None:
        return by_seed(whole("partition_seed", options.partition_seed, low=0)), validation
    return by_seed(0) if options.partition == "contiguous" else by_seed, validation


def checked_summaries(sent: str, received: str) -> str:
    """Another process's text about its tables; raises an error if it is none. Tables that do not fit are named later."""
    with suppress(InputError):
        reduce(Summary.merged, aligned(exchange_summaries((), lambda _: [sent, received])))
    return received


def preparation(rows: Dataset) -> list[str]:
    """What was done to the user's rows, in sentences."""
    encoding = rows.encoding
    if encoding is None:
        return []
    features = encoding.features
    lines = [f"Regression of {encoding.target}."] if encoding.task == "regression" else []
    if encoding.mean is not None:
        what = f"{len(encoding.inputs)} inputs" if features else "Inputs"
        lines.append(f"{what} standardized with the mean and standard deviation of the training rows.")
    encoded = {
        "Text became one input for each category": [f.name for f in features if f.kind == "text"],
        "Missing values became the mean, with a flag": [f.name for f in features if f.fill is not None],
        "Missing text became a category of its own": [f.name for f in features if MISSING in f.categories],
    }
    lines += [f"{sentence}: {first_of(names)}." for sentence, names in encoded.items() if names]
    if rows.test_counts:
        lines.append("No common test rows: each node tests on a fifth of its own, or its test file; sites at the end only.")
    return lines


def first_of(names: list[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plan_comparison(options: SourceOptions, rows: Dataset, model: str) -> tuple[bool, list[int] | None]:
    """Whether a comparison evaluates the training rows too, and after which steps it evaluates.

    Training rows: where it compares by them, has only some of them, or they cost little. Steps: 100 if there are few rows,
    else 50, or as many as cost as much as the training, at least 5 (small models: 20). None: the engine knows all rows.
    """
    samples, count, is_small = options.samples, len(rows.labels), len(rows.labels) <= SMALL
    by_training = options.metric is not None and not options.metric.startswith("test_")
    evaluations = CURVE_POINTS if options.evaluate is None else options.steps / max(1, options.evaluate)
    train_metrics = by_training or options.shard_dir is not None or samples >= 2 * evaluations * count
    if options.shard_dir is not None:
        return True, None
    # a gradient costs three times as much as a test
    affordable = samples // count if train_metrics else 3 * samples // len(rows.test_labels)
    points = min(MORE_POINTS if is_small else CURVE_POINTS, affordable)
    return train_metrics, evenly(options.steps, max(20 if model.startswith(("linear", "mlp")) else 5, points))
