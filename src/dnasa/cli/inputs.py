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
    from dnasa.runs.progress import Progress
    from dnasa.tasks.sources import Source
    from dnasa.topology import Topology


def prepare(context: typer.Context, validate: bool = False) -> tuple["Source", "Topology", dict[str, Any]]:
    """For `train` and `compare`: the problem and its data, the graph, and the options that both pass to `solve`.

    With `validate`, the problem has validation rows, and curves have up to 50 points.
    """
    from dnasa import topology
    from dnasa.tasks.sources import make_source

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
        "progress": set_output(context, network.rank),
    }
    source = make_source(given, network.local_nodes, validate, network.allgather_text)
    if folder is not None and source.sites:
        folder.config["sites"] = source.sites
    if source.description:
        print_line(source.description)
    for sentence in source.warnings:
        print_line(f"Warning: {sentence}")
    return source, graph, shared | {"evaluate": source.evaluate}


def set_output(context: typer.Context, rank: int | None = None) -> "Progress":
    """What is printed: tables by the first process, JSON lines instead, or nothing. The progress that `solve` shows."""
    quiet, log_json = context.params["quiet"], context.params["log_json"]
    if quiet and log_json:
        raise InputError("--quiet and --log-json cannot be combined: leave one of them out.")
    console.quiet = (networks.launched_rank() if rank is None else rank) != 0 or quiet or log_json
    return "json" if log_json else False if quiet else None


def check_source(context: typer.Context) -> None:
    """Refuse options that would have no effect."""
    from dnasa.tasks.sources import OF_FILES

    given = SimpleNamespace(**context.params)
    data = "data" in configs.explicit(context)
    if given.shard_dir is not None and data:
        raise InputError("--data and --shard-dir cannot be combined: leave one of them out.")
    for name in ("partition", "partition_seed"):
        if given.shard_dir is not None and name in configs.explicit(context):
            raise InputError(
                f"--{name.replace('_', '-')} cannot be used with --shard-dir: the files are the partition."
            )
    if given.problem is None:
        return
    unused = {name: context.params[name] for name in (*OF_FILES, "shard_dir", "model", "weights_by", "class_weight")}
    unused |= {"partition": given.partition != "iid", "partition_seed": given.partition_seed is not None}
    unused |= {"loss_scale": given.loss_scale != "1", "device": given.device != "cpu"}
    for name, value in unused.items():
        if value:
            raise InputError(f"--{name.replace('_', '-')} belongs to --data: it does nothing with --problem.")
    if data:
        raise InputError("--data and --problem cannot be combined: leave one of them out.")


def make_network(graph: "Topology", given: SimpleNamespace) -> "Network":
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
        given.compress,
    )
    running.engine = engine
    return network


def make_channel(given: SimpleNamespace) -> "Channel | None":
    """Simulated faults, if there are any."""
    if not (given.drop or given.away or given.stale):
        return None
    from dnasa.channels import faulty

    if given.compress is not None:
        raise InputError("--compress cannot be combined with --drop, --away and --stale: leave one of them out.")
    if given.rounds != 1:
        raise InputError("--drop, --away and --stale need one exchange per step: leave out --rounds.")
    return faulty(given.drop, given.away, given.stale, given.seed, given.message_dtype)


def check_comparison(context: typer.Context) -> None:
    """Refuse what would fail or have no effect at the end."""
    from dnasa.cli import pictures
    from dnasa.comparing.comparison import X

    given = SimpleNamespace(**context.params)
    pictures.formats(given.format)
    choose("x", given.x, X)
    if given.latex and given.out is None:
        raise InputError("--latex writes table.tex into the folder of the run: give --out.")
    if given.survive and (given.extend or given.x == "seconds"):
        raise InputError("--extend and --x seconds begin further runs, which need all processes: leave out --survive.")


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
