"""From options to the objects that `solve` takes."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from dnasa import networks
from dnasa.cli import configs, plugins
from dnasa.cli.exits import running
from dnasa.cli.rendering import console, print_line
from dnasa.core import InputError, choose, whole

if TYPE_CHECKING:
    from dnasa.core import Channel, Network
    from dnasa.data import Dataset
    from dnasa.data.partitions import Shards
    from dnasa.problems import Problem
    from dnasa.topology import Topology

    Evaluations = int | list[int] | None

CURVE_POINTS = 50


def prepare(context: typer.Context, validate: bool = False) -> tuple["Problem", "Topology", dict[str, Any]]:
    """For `train` and `compare`: the problem, the graph, and the options that both pass to `solve`.

    With `validate`, the problem has validation rows, and curves have up to 50 points.
    """
    from dnasa import topology

    given = SimpleNamespace(**context.params)
    plugins.load(given.plugin or ())
    check_source(context)
    folder = configs.make_run_folder(context, given.out, given.force)
    graph = topology.make(given.topology, given.nodes, given.weights)
    network = make_network(graph, given)
    shared = {
        "steps": given.steps,
        "schedule": given.schedule,
        "seed": seed_range(given.seed, given.seeds),
        "node_weights": given.weights_by and choose("value of --weights-by", given.weights_by, {"rows": "rows"}),
        "network": network,
        "folder": folder,
        "checkpoint_every": given.checkpoint_every,
    }
    task, shared["evaluate"] = make_problem(network, given, validate)
    return task, graph, shared


def check_source(context: typer.Context) -> None:
    """Refuse options that would have no effect."""
    given = SimpleNamespace(**context.params)
    data = "data" in configs.explicit(context)
    if given.shard_dir is not None and data:
        raise InputError("--data and --shard-dir cannot be combined: leave one of them out.")
    if given.problem is None:
        return
    unused = {"--target": given.target, "--shard-dir": given.shard_dir, "--partition": given.partition != "iid"}
    unused |= {"--model": given.model, "--weights-by": given.weights_by}
    unused |= {"--loss-scale": given.loss_scale != "1", "--device": given.device != "cpu"}
    for option, value in unused.items():
        if value:
            raise InputError(f"{option} belongs to --data: it does nothing with --problem.")
    if data:
        raise InputError("--data and --problem cannot be combined: leave one of them out.")


def make_network(graph: "Topology", given: SimpleNamespace) -> "Network":
    """The network; from here on only the first of several processes prints."""
    engine = given.engine or networks.detect()
    channel = make_channel(given)
    network = networks.connect(
        graph,
        engine,
        given.rounds,
        given.timeout,
        given.device,
        given.message_dtype if channel is None else None,
        channel,
        given.survive,
    )
    running.engine = engine
    console.quiet = network.rank != 0
    return network


def make_channel(given: SimpleNamespace) -> "Channel | None":
    """Simulated faults, if there are any."""
    if not (given.drop or given.away or given.stale):
        return None
    from dnasa.channels import faulty

    if given.rounds != 1:
        raise InputError("--drop, --away and --stale need one exchange per step: leave out --rounds.")
    return faulty(given.drop, given.away, given.stale, given.seed, given.message_dtype)


def check_comparison(context: typer.Context) -> None:
    """Refuse what would fail or have no effect at the end."""
    from dnasa.cli.pictures import FORMATS
    from dnasa.studies.comparison import X

    given = SimpleNamespace(**context.params)
    choose("format", given.format, dict.fromkeys(FORMATS))
    choose("x", given.x, X)
    if given.latex and given.out is None:
        raise InputError("--latex writes table.tex into the folder of the run: give --out.")
    if given.survive and (given.extend or given.x == "seconds"):
        raise InputError("--extend and --x seconds begin further runs, which need all processes: leave out --survive.")


def make_problem(network: "Network", given: SimpleNamespace, validate: bool) -> "tuple[Problem, Evaluations]":
    """The problem, and when to evaluate it."""
    if given.batch is not None and given.batch < 1:
        raise InputError(f"--batch must be at least 1, not {given.batch}.")
    if given.dtype not in (None, "float32", "float64"):
        raise InputError(f"Unknown dtype '{given.dtype}'. Choose from: float32, float64.")
    if given.problem is not None:
        from dnasa.problems.least_squares import LeastSquares

        spike = choose("problem", given.problem, {"least_squares": False, "spike": True})
        problem = LeastSquares(spike=spike, batch=given.batch or 1, dtype=given.dtype or "float64")
        return problem, given.evaluate
    from dnasa.studies import models, tasks

    options: Any = {
        "batch": given.batch or tasks.BATCH,
        "loss_scale": given.loss_scale,
        "dtype": given.dtype or "float32",
        "device": given.device,
    }
    rows, shards, validation = divided(network, given, validate)
    model = given.model or models.default(rows)
    evaluate = curve_steps(given, rows, options["batch"]) if validate else None
    options |= {"model": model, "validation": validation, "train_metrics": evaluate is None}
    task = tasks.on_shards(rows, shards, **options)
    parameters = sum(math.prod(shape) for _, shape in task.layout)
    print_line(f"Model {model} with {parameters:,} parameters, data from {rows.source}.")
    return task, evaluate or given.evaluate


def divided(
    network: "Network", given: SimpleNamespace, validate: bool
) -> tuple["Dataset", "Shards", "Shards | tuple[()]"]:
    """The data, which rows each node trains on, and which it validates on."""
    from dnasa import data
    from dnasa.studies import models

    context = models.context(given.model)
    if given.shard_dir is not None:
        rows, shards = data.from_shards(given.shard_dir, network.local_nodes, network.nodes, given.target)
        return rows, *(data.hold_out_of_each(shards) if validate else (shards, ()))
    rows = data.load(given.data, given.target, context)
    if not validate:
        return rows, data.partition(given.partition, rows.labels, network.nodes), ()
    train, validation = data.hold_out(rows)
    shards = data.divide(rows, train, given.partition, network.nodes)
    return rows, shards, data.divide_validation(validation, network.nodes)


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


def best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def seed_range(seed: int, seeds: int) -> range:
    first, count = whole("A seed", seed, low=0), whole("--seeds", seeds, high=100_000)
    return range(first, first + count)


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in split(text)]
    except ValueError:
        raise InputError(f"--etas takes numbers separated by commas, such as 0.1,1,10; not '{text}'.") from None


def thresholds(texts: Sequence[str]) -> dict[str, float]:
    """From METRIC=NUMBER to what `solve` stops at."""
    out: dict[str, float] = {}
    for text in texts:
        metric, _, number = (part.strip() for part in text.partition("="))
        try:
            out[metric] = float(number)
        except ValueError:
            out[metric] = math.nan
        if not metric or math.isnan(out[metric]):
            raise InputError(f"--stop takes METRIC=NUMBER, such as grad_norm=0.01; not '{text}'.")
    if len(out) < len(texts):
        raise InputError("--stop was given twice for the same metric: give each metric once.")
    return out
