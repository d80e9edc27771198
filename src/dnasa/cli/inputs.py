"""From options to the objects that `solve` takes."""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from dnasa import networks
from dnasa.cli import configs, pictures, plugins
from dnasa.cli.exits import running
from dnasa.cli.options import Options, flag, split
from dnasa.cli.rendering import console, print_error, print_line, showing_warnings
from dnasa.core import InputError, choose, whole

if TYPE_CHECKING:
    from dnasa.core import Channel, Network
    from dnasa.networks.processes import Traffic
    from dnasa.runs.folder import RunFolder
    from dnasa.runs.progress import Progress
    from dnasa.tasks.sources import Source
    from dnasa.topology import Topology

PARTITION = ("partition", "partition_seed")
DRY_STEPS = 40


class Begun(NamedTuple):
    """What is known before data is read: the completed options, the graph, how messages travel, and the folder."""

    given: Options
    graph: "Topology"
    channel: "Channel | None"
    folder: "RunFolder | None"


def begin(context: typer.Context, given: Options, rules: Sequence[str]) -> Begun:
    """Complete and check the options, and make the graph."""
    from dnasa import topology
    from dnasa.rules.registry import example

    plugins.load(given.plugin or ())
    check_source(given, configs.explicit(context))
    channel = make_channel(given)
    nodes, name, weights = count_nodes(context, given), given.topology, given.weights
    if name is None and given.late is not None:
        name = "exponential"
    if name is None:
        name, weights = topology.default_name(nodes, map(example, rules), channel, weights)
    graph = topology.make(name, nodes, weights)
    completed: dict[str, Any] = {"nodes": nodes, "topology": name, "weights": weights}
    if given.late is not None and given.sites is not None and given.patience is None:
        completed["early_stopping"] = bool(given.early_stopping)  # such sites cannot, so they do not by default
    context.params |= completed  # for the config
    given = replace(given, **completed)
    folder = configs.make_run_folder(context, given)
    given = replace(given, extend=given.extend or configs.is_extended(folder))
    return Begun(given, graph, channel, folder)


def prepare(
    begun: Begun,
    watched: dict[str, Any],
    validate: bool = False,
    check: Callable[..., None] = lambda problem, **shared: None,
) -> tuple["Source", dict[str, Any]]:
    """The problem and its data, and what `train` and `compare` pass to `solve`.

    `watched` is what `train` alone has in its record. With `validate`, the problem has validation rows, and its curves have
    enough points. A site calls `check`, with the arguments of `solve`, before it connects.
    """
    from dnasa.runs.record import Record
    from dnasa.tasks.sources import SourceOptions, checked_summaries, make_source

    given, graph, channel, folder = begun
    rounds = given.rounds or ("1" if given.drop or given.away or given.stale else str(graph.rounds))
    shared = {
        "steps": given.steps,
        "weight_decay": given.weight_decay,
        "seed": seed_range(given.seed, given.seeds),
        "node_weights": given.weights_by and choose("value of --weights-by", given.weights_by, {"rows": "rows"}),
        "folder": folder,
    }

    def made(network: "Network") -> tuple["Source", dict[str, Any]]:
        def allgather_text(text: str) -> list[str]:
            return network.processes.allgather_json(text, lambda given: checked_summaries(text, given))

        source = make_source(SourceOptions.of(vars(given)), network.local_nodes, validate, allgather_text)
        record = Record(patience=source.patience, checkpoint_every=given.checkpoint_every, **watched)
        return source, shared | {"network": network, "evaluate": source.evaluate, "record": record}

    if given.sites is not None and not given.dry_run:
        silent = make_network(graph, rounds, replace(given, dry_run=True), channel)
        try:
            check_alone(silent, made, check)
        except InputError as error:
            if error.kind:
                tell_sites(given, error.kind, folder)
            raise
    network = make_network(graph, rounds, given, channel, folder)
    progress, warned = set_output(given, network.processes.writes), list[str]()
    try:
        with showing_warnings(warned.append):
            source, shared = made(network)
    except InputError as error:
        network.processes.membership.fail(error.kind)
        if folder is not None and folder.journal is not None:
            folder.journal.write(0)
        raise
    warned += [f"Warning: {sentence}" for sentence in source.warnings]
    names = list(network.processes.names) or source.sites
    if folder is not None:
        folder.warnings = warned
        folder.config |= {"engine": running.engine} | source.facts | ({"sites": names} if names else {})
    if source.description:
        print_line(source.description)
    for line in warned if network.processes.writes else ():
        print_error(line)
    return source, shared | {"progress": progress}


def check_alone(
    silent: "Network",
    made: Callable[["Network"], tuple["Source", dict[str, Any]]],
    check: Callable[..., None],
) -> None:
    """Find the mistakes of this site before it connects, with a network that sends nothing.

    Once the sites would have told each other what their tables hold, an error says nothing: the others' rows may mend it.
    """
    exchanged = []

    def allgather_text(text: str) -> list[str]:
        exchanged.append(text)
        return silent.processes.allgather_text(text)

    own = replace(silent.processes, allgather_text=allgather_text, mailbox=lambda: None)
    try:
        with showing_warnings(lambda line: None):
            source, shared = made(replace(silent, processes=own))
    except InputError:
        if exchanged:
            return
        raise
    check(source.problem, **shared)


def tell_sites(given: Options, kind: str, folder: "RunFolder | None") -> None:
    """Tell the other sites that the table of this one is refused, and what kind of reason it has."""
    from dnasa.networks.processes import Traffic
    from dnasa.networks.sites import tell_stopped
    from dnasa.sites.file import read_sites

    print_line(f"Telling the other sites that this one stops, for at most {given.timeout:g} s.")
    with suppress(InputError):  # as for a port in use: the table matters more
        traffic = Traffic() if folder is None else begin_journal(folder, given)
        tell_stopped(read_sites(given.sites or ""), kind, given.timeout, traffic)


def count_nodes(context: typer.Context, given: Options) -> int:
    """The number of nodes: where it is not given, that of the shards; a process among several may see its own alone."""
    from dnasa.data import shards

    if given.sites is not None:
        from dnasa.sites.file import read_sites

        count = len(read_sites(given.sites).sites)
        if "nodes" in configs.explicit(context) and given.nodes != count:
            raise InputError(f"{given.sites} has {count} sites: leave out --nodes.")
        return count
    one_process = (given.engine or networks.detect()) == "simulated"
    if given.shard_dir is None or "nodes" in configs.explicit(context) or not one_process:
        return given.nodes
    return shards.count_nodes(given.shard_dir)


def set_output(given: Options, writes: bool | None = None) -> "Progress":
    """What is printed: tables by the first process, JSON lines instead, or nothing. The progress that `solve` shows."""
    if given.quiet and given.log_json:
        raise InputError("--quiet and --log-json cannot be combined: leave one of them out.")
    writes = networks.launched_rank() == 0 if writes is None else writes
    console.quiet = not writes or given.quiet or given.log_json
    return "json" if given.log_json else False if given.quiet else None


def check_source(given: Options, explicit: Collection[str]) -> None:
    """Refuse options that would have no effect; `explicit` are those of the command line."""
    from dnasa.tasks.sources import OF_FILES

    for other in ("shard_dir", "problem"):
        if getattr(given, other) is not None and "data" in explicit:
            raise InputError(f"--data and {flag(other)} cannot be combined: leave one of them out.")
    for name in PARTITION:
        if given.shard_dir is not None and name in explicit:
            raise InputError(f"{flag(name)} cannot be used with --shard-dir: the files are the partition.")
    of_training = ("model", "weights_by", "class_weight", "early_stopping", "patience", "loss_scale", "device")
    of_data = (*OF_FILES, "shard_dir", *of_training, *PARTITION)
    for name in of_data if given.problem is not None else ():
        if getattr(given, name) != getattr(Options, name):
            raise InputError(f"{flag(name)} belongs to --data: it does nothing with --problem.")


def of_dry_run(given: Options) -> Options:
    """The options of a run that sends and writes nothing: few steps, as many as K-GT needs to send something."""
    if given.out is not None or given.engine is not None:
        raise InputError("--dry-run writes nothing and connects to nobody: leave out --out and --engine.")
    if given.late is not None:
        raise InputError("What is sent with --late depends on when messages arrive: leave it out of a --dry-run.")
    return replace(given, steps=min(given.steps, DRY_STEPS), checkpoint_every=None)


def start_logs(given: Options) -> None:
    """Begin what lasts until the process ends: the log of events and the metrics."""
    if given.log is not None:
        from dnasa.runs import events

        events.LOGGER.addHandler(events.json_lines(given.log))
    if given.metrics_port is not None:
        from dnasa.runs.exporter import Exporter

        Exporter(given.metrics_port)


def make_network(
    graph: "Topology", rounds: str, given: Options, channel: "Channel | None", folder: "RunFolder | None" = None
) -> "Network":
    count = int(rounds) if rounds.isdecimal() else rounds
    if given.dry_run:
        from dnasa.networks import dry_run

        silent = dry_run.connect(graph, count, channel, given.sites, every=given.every)
        return networks.with_timing(silent, given.late, given.overlap, given.clock)
    engine = given.engine or ("sites" if given.sites else networks.detect())
    traffic = begin_journal(folder, given) if folder is not None and engine == "sites" else None
    network = networks.connect(
        graph,
        engine,
        count,
        given.timeout if engine == "sites" else None,
        given.device,
        channel=channel,
        sites=given.sites,
        every=given.every,
        traffic=traffic,
        late=given.late,
        overlap=given.overlap,
        clock=given.clock,
    )
    running.engine = engine
    return network


def begin_journal(folder: "RunFolder", given: Options) -> "Traffic":
    """Begin the audit of this site before it connects; returns what counts its messages."""
    from dnasa.networks.processes import Traffic
    from dnasa.runs.journal import Journal
    from dnasa.sites.file import read_sites

    listed = read_sites(given.sites or "")
    names = [site.name for site in listed.sites]
    folder.journal = Journal(folder.path, names[listed.own], traffic := Traffic(), names)
    return traffic


def make_channel(given: Options) -> "Channel | None":
    """How messages travel: with simulated faults, compressed, in 16 bits, or as they are."""
    if not (given.drop or given.away or given.stale):
        return networks.choose_channel(given.message_dtype, None, given.compress)
    from dnasa.channels import faulty

    if given.clock is not None:
        raise InputError("--clock expects all messages to arrive: leave it out, or --drop, --away and --stale.")
    if given.compress is not None or given.message_dtype is not None:
        raise InputError("--compress and --message-dtype cannot be combined with --drop, --away and --stale.")
    if given.rounds not in (None, "1"):
        raise InputError("--drop, --away and --stale need one round per exchange: leave out --rounds.")
    return faulty(given.drop, given.away, given.stale, given.seed)


def check_comparison(given: Options) -> list[str]:
    """Refuse what would fail or have no effect at the end; return the formats of the figures."""
    from dnasa.comparing.grid import check_axes

    check_axes(split(given.x))
    if given.latex and given.out is None:
        raise InputError("--latex writes table.tex into the folder of the run: give --out.")
    return pictures.formats(given.format, given.style)


def rule_with_schedule(given: Options) -> str:
    """The rule as `solve` takes it, with its schedule in its name."""
    if given.schedule is None:
        return given.rule
    if ":" in given.rule:
        raise InputError(f"--rule {given.rule} names its schedule: leave out --schedule.")
    return f"{given.rule}:{given.schedule}"


def best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def seed_range(seed: int, seeds: int) -> range:
    first, count = whole("A seed", seed, low=0), whole("--seeds", seeds, high=100_000)
    return range(first, first + count)


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in split(text)]
    except ValueError:
        raise InputError(f"--etas takes numbers separated by commas, such as 0.1,1,10; not '{text}'.") from None


def thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Parse METRIC=NUMBER into the thresholds that `solve` stops at."""
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
