"""From options to the objects that `solve` takes."""

import json
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from dnasa import networks
from dnasa.checks import choose, positive, whole
from dnasa.cli import configs
from dnasa.cli.exits import running
from dnasa.cli.options import Options, flag, split
from dnasa.cli.rendering import console, print_error, print_line, showing_warnings
from dnasa.core import InputError
from dnasa.rules.registry import example, find, split_schedule

if TYPE_CHECKING:
    from dnasa.communication import Channel, Network
    from dnasa.data.ledger import Ledger
    from dnasa.networks.processes import Traffic
    from dnasa.runs.folder import RunFolder
    from dnasa.runs.progress import Progress
    from dnasa.sites.file import Sites
    from dnasa.tasks.sources import Source, SourceOptions
    from dnasa.topology import Topology

T = TypeVar("T")
OF_DATA = (  # options without effect on a synthetic problem
    *("target", "task", "drop_columns", "id_column", "labels", "recode", "min_count", "shard_dir", "partition"),
    *("model", "weights_by", "class_weight", "early_stopping", "device", "epsilon"),
)


class Begun(NamedTuple):
    """What is known before data is read: the completed options, the graph, how messages travel, the sites and the folder."""

    options: Options
    graph: "Topology"
    channel: "Channel | None"
    sites: "Sites | None"
    folder: "RunFolder | None"


def begin(context: typer.Context, options: Options, rules: Sequence[str]) -> Begun:
    """Complete and check the options, and make the graph."""
    from dnasa import topology
    from dnasa.sites.file import read_sites

    whole("--steps", options.steps)
    check_source(options, configs.explicit(context))
    channel = make_channel(options, rules)
    sites = None if options.sites is None else read_sites(options.sites)
    nodes, partition = find_nodes(context, options, sites)
    name, weights = options.topology, options.weights
    if name is None and options.late is not None:
        name = "exponential"
    if name is None:
        name, weights = default_graph(nodes, rules, channel, weights)
    graph = topology.make(name, nodes, weights)
    completed: dict[str, Any] = {"nodes": nodes, "topology": name, "weights": weights, "partition": partition}
    context.params |= completed  # for the config
    options = replace(options, **completed)
    return Begun(options, graph, channel, sites, configs.make_run_folder(context, options))


def default_graph(nodes: int, rules: Sequence[str], channel: "Channel | None", weights: str | None) -> tuple[str, str | None]:
    """The graph that suits all rules, and its weights; says which of several rules need it."""
    from dnasa.topology.graphs import default_name

    chosen, alone = (default_name(nodes, [example(rule) for rule in each], channel, weights) for each in (rules, ()))
    needing = [find(rule).title for rule in rules if default_name(nodes, [example(rule)], channel, weights) == chosen]
    if chosen != alone and len(rules) > len(needing):
        need, graph = ("lazy weights", "ring with lazy weights") if chosen[1] else ("a fixed graph", chosen[0])
        print_line(f"{' and '.join(needing)} need{'' if needing[1:] else 's'} {need}: all rules use {graph}.")
    return chosen


def method(options: Options) -> dict[str, Any]:
    """The rule with its schedule and the stepsize, checked before data is read."""
    from dnasa.engine.plan import check_method

    rule = f"{options.rule}:{options.schedule}" if options.schedule else options.rule
    check_method(rule, options.eta, options.steps)
    return {"rule": rule, "eta": options.eta}


def prepare(
    begun: Begun, validate: bool = False, check: Callable[..., None] = lambda problem, **shared: None
) -> tuple["Source", dict[str, Any]]:
    """The problem and its data, and what `train` and `compare` pass to `solve`.

    With `validate`, the problem has validation rows, and its curves have enough points. A site calls `check`, with the
    arguments of `solve`, before it connects.
    """
    from dnasa.engine.plan import RunOptions, check_options
    from dnasa.runs.history import Record
    from dnasa.tasks.sources import make_source

    options, folder = begun.options, begun.folder
    record = Record(checkpoint_every=options.checkpoint_every)
    check_options(RunOptions(options.evaluate, None, options.weight_decay, folder, record=record))
    first = whole("A seed", options.seed, low=0)
    by_default = "nodes" if options.shard_dir is None else "rows"
    shared = {
        "steps": options.steps,
        "weight_decay": options.weight_decay,
        "seed": range(first, first + whole("--seeds", options.seeds, high=100_000)),
        "node_weights": choose("value of --weights-by", options.weights_by or by_default, {"rows": "rows", "nodes": None}),
        "folder": folder,
    }

    def load(network: "Network") -> tuple["Source", dict[str, Any]]:
        chosen, nodes, allgather_text = told(begun, network)
        source = make_source(chosen, nodes, validate, allgather_text)
        recorded = replace(record, patience=source.patience, average=source.average)
        return source, shared | {"network": network, "evaluate": source.evaluate, "record": recorded}

    warned = list[str]()

    def warn(line: str) -> None:
        warned.append(line)
        if begun.sites is not None:  # a site may wait for others: it says so at once
            print_error(line)

    with showing_warnings(warn):
        network, (source, shared) = load_together(begun, load, lambda loaded: check(loaded[0].problem, **loaded[1]))
    progress, shown = set_output(options, network.processes.writes), len(warned) if begun.sites is not None else 0
    if source.rows is not None:
        warned += [f"Warning: {sentence}" for sentence in source.rows.warnings]
    names = list(network.processes.names) or source.sites
    if folder is not None:
        folder.warnings = [*source.description.splitlines()[1:], *warned]  # also whether it stops early
        folder.config |= {"engine": running.engine} | {"model": source.model} | ({"sites": names} if names else {})
    if source.description:
        print_line(source.description)
    for line in warned[shown:] if network.processes.writes else ():
        print_error(line)
    return source, shared | {"progress": progress}


def load_together(begun: Begun, load: Callable[["Network"], T], check: Callable[[T], None]) -> tuple["Network", T]:
    """Connect, and load data with the other processes; a site checks alone first. An error here tells the others its kind."""
    options, folder = begun.options, begun.folder
    if begun.sites is not None and not options.dry_run:
        check_alone(begun, load, check)
    network = silent_network(begun) if options.dry_run else make_network(begun)
    set_output(options, network.processes.writes)
    try:
        return network, load(network)
    except InputError as error:
        network.processes.membership.fail(error.kind)
        if folder is not None and folder.journal is not None:
            folder.journal.write(0)
        raise


def told(begun: Begun, network: "Network") -> tuple["SourceOptions", range, Callable[[str], list[str]]]:
    """What data is loaded with: the options, the site's name and ledger, the nodes here, and how others are told."""
    from dnasa.tasks.sources import SourceOptions, checked_summaries

    options, names, nodes = begun.options, network.processes.names, network.local_nodes

    def allgather_text(text: str) -> list[str]:
        own = json.loads(text)
        return network.processes.allgather_json(own, lambda other: checked_summaries(text, json.dumps(other)))

    about = {"site": names[nodes.start] if names else None, "ledger": ledger(begun, network)}
    return SourceOptions.of(vars(options) | about), nodes, allgather_text


def ledger(begun: Begun, network: "Network") -> "Ledger | None":
    """What this site has told of its rows; None where no sites are listed."""
    from dnasa.data.ledger import Ledger

    if begun.sites is None:
        return None
    folder = Path(os.environ.get("DNASA_LEDGER") or begun.sites.keys)
    return Ledger(folder, network.processes.own_folders, begun.options.again)


def check_alone(begun: Begun, load: Callable[["Network"], T], check: Callable[[T], None]) -> None:
    """Find the mistakes of this site before it connects, with a network that sends nothing.

    Once the sites would have told each other what their tables hold, an error says nothing: the others' rows may mend it.
    """
    silent, exchanged = silent_network(begun), list[str]()

    def allgather_text(text: str) -> list[str]:
        exchanged.append(text)
        return silent.processes.allgather_text(text)

    processes = replace(silent.processes, allgather_text=allgather_text)
    try:
        with showing_warnings(lambda line: None):
            loaded = load(replace(silent, processes=processes))
    except InputError as error:
        if exchanged:
            return
        if error.kind:
            tell_sites(begun, error.kind)
        raise
    check(loaded)


def tell_sites(begun: Begun, reason: str) -> None:
    """Tell the other sites that the table of this one is refused, and the kind of reason."""
    from dnasa.networks.sites import tell_stopped

    timeout = begun.options.timeout
    print_line(f"Telling the other sites that this one stops, for at most {timeout:g} s.")
    with suppress(InputError):  # as for a port in use: the table matters more
        tell_stopped(begun.sites, reason, timeout, begin_journal(begun))  # type: ignore[arg-type]


def find_nodes(context: typer.Context, options: Options, sites: "Sites | None" = None) -> tuple[int, str]:
    """The number of nodes and the partition: where they are not given, those of the data.

    A process among several may see the shards of its own nodes alone.
    """
    from dnasa.data import shards
    from dnasa.data.loading import names_of_nodes
    from dnasa.data.partitions import BY_NODE, full_name

    explicit = configs.explicit(context)
    partition = full_name(options.partition) if options.shard_dir is None else BY_NODE
    if sites is not None:
        if "nodes" in explicit and options.nodes != len(sites.sites):
            raise InputError(f"{options.sites} has {len(sites.sites)} sites: leave out --nodes.")
        return len(sites.sites), partition
    names: Sequence[object] = ()
    if options.shard_dir is not None:
        one_process = (options.engine or networks.detect()) == "simulated"
        names = shards.node_entries(options.shard_dir) if one_process and "nodes" not in explicit else ()
    elif options.problem is None and ("partition" not in explicit or partition == BY_NODE):
        names = names_of_nodes(options.data, text=(options.model or "").startswith("gpt"))
        partition = BY_NODE if names else partition
    return len(names) if names and "nodes" not in explicit else options.nodes, partition


def set_output(options: Options, writes: bool | None = None) -> "Progress":
    """Set what is printed: tables by the first process, JSON lines, or nothing. Returns the progress that `solve` shows."""
    if options.quiet and options.log_json:
        raise InputError("--quiet and --log-json cannot be combined: leave one of them out.")
    writes = networks.launched_rank() == 0 if writes is None else writes
    console.quiet = not writes or options.quiet or options.log_json
    if options.log_json:
        return "json"
    return False if options.quiet else None


def check_source(options: Options, explicit: Collection[str]) -> None:
    """Refuse options that would have no effect; `explicit` are those of the command line."""
    for other in ("shard_dir", "problem"):
        if getattr(options, other) is not None and "data" in explicit:
            raise InputError(f"--data and {flag(other)} cannot be combined: leave one of them out.")
    if options.again and options.sites is None:
        raise InputError("--again does nothing without --sites: leave it out.")
    if options.epsilon is None and options.delta is not None:
        raise InputError("--delta belongs to --epsilon: give both.")
    if options.shard_dir is not None and "partition" in explicit:
        raise InputError("--partition cannot be used with --shard-dir: the files are the partition.")
    for name in OF_DATA if options.problem is not None else ():
        if getattr(options, name) != getattr(Options, name):
            raise InputError(f"{flag(name)} belongs to --data: it does nothing with --problem.")
    choose("class weight", options.class_weight or "balanced", {"balanced": None})


def of_dry_run(options: Options) -> Options:
    """The options of a run that sends and writes nothing."""
    if options.engine is not None:
        raise InputError("--dry-run connects to nobody: leave out --engine.")
    if options.late is not None:
        raise InputError("What is sent with --late depends on when messages arrive: leave it out of a --dry-run.")
    return replace(options, checkpoint_every=None, out=None)


def make_network(begun: Begun) -> "Network":
    options = begun.options
    engine = options.engine or ("sites" if options.sites else networks.detect())
    network = networks.connect(
        begun.graph,
        engine,
        rounds(begun),
        options.timeout if engine == "sites" else None,
        options.device,
        channel=begun.channel,
        sites=options.sites,
        every=options.every,
        traffic=begin_journal(begun) if engine == "sites" else None,
        late=options.late,
        clock=options.clock,
    )
    running.engine = engine
    return network


def silent_network(begun: Begun) -> "Network":
    """A network that sends nothing and counts what it would send."""
    from dnasa.networks import dry_run

    options, sites = begun.options, begun.sites
    names, rank = ([], 0) if sites is None else ([site.name for site in sites.sites], sites.own)
    silent = dry_run.connect(begun.graph, rounds(begun), begun.channel, names, rank, options.every)
    return networks.with_timing(silent, options.late, clock=options.clock)


def rounds(begun: Begun) -> int | str:
    written = begun.options.rounds or ("1" if begun.options.drop else str(begun.graph.rounds))
    return int(written) if written.isdecimal() else written


def begin_journal(begun: Begun) -> "Traffic":
    """Begin the audit of this site before it connects; returns what counts its messages."""
    from dnasa.networks.processes import Traffic
    from dnasa.runs.journal import Journal

    traffic = Traffic()
    if begun.folder is not None and begun.sites is not None:
        names = [site.name for site in begun.sites.sites]
        begun.folder.journal = Journal(begun.folder.path, names[begun.sites.own], traffic, names)
    return traffic


def make_channel(options: Options, rules: Sequence[str]) -> "Channel | None":
    """How messages travel: some of them lost, compressed, masked, or as they are."""
    from dnasa.channels.named import channel_of

    if options.private:
        if options.drop or options.compress or options.late is not None:
            raise InputError("--private cannot be combined with --compress, --drop and --late: leave them out.")
        shared = options.epsilon is not None and options.every == 1 and all(example(rule).only_sums for rule in rules)
        return networks.private_channel(wide=shared)
    return channel_of(vars(options))


def stepsizes(text: str, rules: Sequence[str]) -> dict[str, list[float]]:
    """The value of --etas for each rule: `0.1,1`, and after `dadam=` those of that rule."""
    grids: dict[str, list[float]] = {"": []}
    name = ""
    for part in split(text):
        *names, number = part.split("=", 1)
        name = names[0] if names else name
        try:
            grids.setdefault(name, []).append(float(number))
        except ValueError:
            example = "such as 0.1,1,10 or 0.1,1,dadam=0.001,0.01"
            raise InputError(f"--etas takes numbers separated by commas, {example}; not '{text}'.") from None
        positive("Each of --etas", grids[name][-1])
    bare = {rule: split_schedule(rule)[0] for rule in rules}
    unknown = [name for name in grids if name not in ("", *rules, *bare.values())]
    if unknown:
        raise InputError(f"--etas names the rule '{unknown[0]}', which is not compared. Choose from: {', '.join(rules)}.")
    return {rule: grids.get(rule, grids.get(bare[rule], grids[""])) for rule in rules}
