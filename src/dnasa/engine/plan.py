"""What a run is: its rules, seeds, starting points, evaluation steps and network, checked before the first step."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dnasa.arrays import concatenate, copied, crc32, like, stack, to_numpy
from dnasa.checks import UserCode, as_list, choose, distinct, positive, seed_list, whole
from dnasa.communication import Network
from dnasa.core import Array, InputError, Prox, Rule
from dnasa.engine.budget import make_budget
from dnasa.networks.processes import COLLECTED, agree
from dnasa.networks.simulated import connect
from dnasa.problems.privacy import Budget
from dnasa.problems.problem import Problem
from dnasa.problems.prox import checked
from dnasa.rules import registry
from dnasa.rules.forms import with_current_form
from dnasa.rules.registry import DEFAULT_RULE, FULL_GRADIENT_RULE, RULES, Eta, Variant, VariantGroup
from dnasa.rules.schedules import constant
from dnasa.rules.weight_decay import check_weight_decay, with_weight_decay
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.progress import Progress
from dnasa.topology import TOPOLOGIES, Topology, make
from dnasa.topology.matrices import check_weights

AnyRule = str | Rule | Variant


class RunOptions(NamedTuple):
    """The options of a run, as `dnasa.solve` documents them."""

    evaluate: int | Sequence[int] | None = None
    node_weights: Sequence[float] | Literal["rows"] | None = None
    weight_decay: float = 0.0
    folder: str | Path | RunFolder | None = None
    resume: bool = False
    progress: Progress = None
    record: Record = Record()


class Plan(NamedTuple):
    """A run that has been checked: what it computes, and on which network."""

    topology: Topology  # at the start, before any process is lost
    network: Network
    groups: list[VariantGroup]
    full_gradients: bool  # whether the rule was chosen because gradients have no noise
    unsuited: bool  # whether gradients have noise and a rule needs full ones
    x: list[Array]  # where each group starts, (variants, seeds, k, d)
    seeds: list[int]
    steps: int
    eval_steps: set[int]
    rows: np.ndarray | None  # of each node, (n,), or (seeds, n) where they differ by seed; None if the data is unlimited
    node_data: str  # a checksum of all nodes' data; where each process keeps its own, `own_data` has that of its nodes
    own_data: str
    node_weights: np.ndarray | None  # (n,), or (seeds, n) where nodes have different rows for each seed
    start: Array  # of the first seed, for the settings
    start_given: bool  # whether the user gave it
    weight_decay: float
    budget: Budget | None  # of differential privacy

    @property
    def epoch(self) -> float | None:
        """Samples per node in one pass over the data."""
        return None if self.rows is None else float(self.rows.mean())


def make_plan(
    problem: Problem,
    network: Network | Topology | str,
    rule: AnyRule | Sequence[AnyRule] | None,
    steps: int,
    eta: Eta | Sequence[Eta] | None,
    seed: int | Sequence[int],
    start: Array | None,
    options: RunOptions,
) -> Plan:
    """Check the arguments of `solve` and make everything that the first step needs. All processes call it together."""
    runs, steps = check_method(DEFAULT_RULE if rule is None else rule, eta, steps), int(steps)
    check_options(options)
    seeds = seed_list(seed)
    network = _network(problem, network)
    topology = network.topology
    points = _starting_points(problem, topology, seeds, start)
    first = _local_rows(points, network)
    prox, every = _prox(problem, first, network), network.settings.every
    full = (
        rule is None
        and problem.privacy is None
        and _suits_full_gradients(network, options)
        and _has_full_gradients(problem, network, first, seeds)
    )
    if full:
        runs = check_method(FULL_GRADIENT_RULE, eta, steps)
    groups = registry.groups(runs, topology.nodes, steps, first, problem.layout, prox, every)
    needs_full = not full and any(each.variants[0].rule.split("+")[-1] == FULL_GRADIENT_RULE for each in groups)
    if options.weight_decay:
        groups = [_decayed(group, options.weight_decay) for group in groups]
    _check_exchanges(network, groups, steps)
    if network.settings.late is not None:
        _check_late(options, network, groups)
    _check_record(problem, network, options)
    checksum, own_data, rows = _node_data(problem, network, seeds)
    weights = _node_weights(options.node_weights, topology.nodes, rows)
    return Plan(
        topology,
        network,
        groups,
        full,
        needs_full and not _has_full_gradients(problem, network, first, seeds),
        [concatenate([first] * group.size) for group in groups],
        seeds,
        steps,
        _eval_steps(options, steps, problem.batch, rows),
        rows,
        checksum,
        own_data,
        weights,
        points[0],
        start is not None,
        float(options.weight_decay),
        make_budget(problem, network, groups, first, steps, rows, weights),
    )


# ---------------------------------------------------------------- rules


def check_method(rule: AnyRule | Sequence[AnyRule], eta: Eta | Sequence[Eta] | None, steps: int) -> list[Variant | Rule]:
    """Check these arguments of `solve`, which need no data. Returns variants of named rules, and the user's rules, in order."""
    whole("steps", steps)
    each = [rule] if isinstance(rule, (str, Rule, Variant)) or not isinstance(rule, Iterable) else list(rule)
    if not each:
        raise InputError(f"No rule given. Choose from: {', '.join(RULES)}.")
    if any(map(callable, each)):
        raise InputError("A function that makes rules is no rule: give its name, as in 'dsgd', or call it with schedules.")
    shape: tuple[int, ...] = np.shape(eta)  # type: ignore[arg-type]
    if len(shape) > 1:
        raise InputError(f"eta must be a number, a function of t or a list of these; it has shape {shape}.")
    etas = [] if eta is None else distinct("eta", as_list(eta))
    named = [str(one) for one in each if not isinstance(one, (Rule, Variant))]
    takes_eta = [registry.find(name).needs_eta for name in named]
    if etas and not any(takes_eta):
        takes_none = f"Rule '{named[0]}' takes no stepsize" if named else "A rule of your own has its schedules inside"
        raise InputError(f"{takes_none}: leave eta out.")
    runs: list[Variant | Rule] = []
    for one in each:
        if isinstance(one, Rule):
            runs.append(with_current_form(one))
        elif isinstance(one, Variant):
            runs += registry.variants(one.rule, [] if one.eta is None else [one.eta], one.schedule)
        else:
            runs += registry.variants(str(one), etas)
    distinct("rule", [_text(run) for run in runs if isinstance(run, Variant)], ", perhaps once without its schedule")
    return runs


def check_options(options: RunOptions) -> None:
    """Check the options that need no data."""
    if options.weight_decay:
        positive("weight_decay, unless it is 0,", options.weight_decay)
    evaluate: Any = options.evaluate
    if evaluate is not None and np.ndim(evaluate) == 0:
        whole("evaluate", evaluate)
    if options.record.checkpoint_every is not None:
        whole("checkpoint_every", options.record.checkpoint_every)
        if options.folder is None:
            raise InputError("Checkpoints need a folder: give folder (--out).")


def _suits_full_gradients(network: Network, options: RunOptions) -> bool:
    """Whether the rule for full gradients can be used: with plain messages both ways, for which all wait."""
    settings = network.settings
    plain = settings.channel is None and settings.late is None and not settings.overlap
    return plain and not network.topology.directed and not options.weight_decay


def _has_full_gradients(problem: Problem, network: Network, x: Array, seeds: list[int]) -> bool:
    """Whether the gradients at the start are the same in three steps, to the bit, at all nodes of all processes."""

    def gradient(t: int) -> Array:
        return problem.gradient(x, network.local_nodes, seeds, t)

    with np.errstate(all="ignore"):
        try:
            first = copied(gradient(0))
            full = all(bool((gradient(t) == first).all()) for t in (1, 2))
        except Exception:  # the first step raises it again, and tells the other processes
            full = False
    return all(network.processes.allgather_json(full, bool))


def _text(variant: Variant) -> str:
    text = f"{variant.rule}:{variant.schedule}"
    return text if variant.eta is None else f"{text} with eta {variant.eta}"


def _decayed(group: VariantGroup, weight_decay: float) -> VariantGroup:
    check_weight_decay(group.rule, _named(group))
    return group._replace(rule=with_weight_decay(group.rule, constant(weight_decay)))


def _named(group: VariantGroup) -> str:
    name = group.variants[0].rule
    return f"Rule '{name}'" if registry.look(name) else "This rule"


def _prox(problem: Problem, first: Array, network: Network) -> Prox | None:
    """The problem's prox, checked at every call; a call at the starting point finds mistakes before the first step."""
    if problem.prox is None:
        return None
    prox = checked(problem.prox, network.local_nodes)
    prox(first, 1.0)
    return prox


# ---------------------------------------------------------------- network and nodes


def _network(problem: Problem, network: Network | Topology | str) -> Network:
    """The network that was given, or the simulated one of a graph."""
    if isinstance(network, str):
        choose("topology", network, TOPOLOGIES)
        if problem.nodes is None:
            raise InputError(
                f"The problem does not say how many nodes '{network:.40}' has: give the graph's size, such as "
                "topology.ring(8), or set `nodes` in your problem."
            )
        network = make(network, problem.nodes)
    if isinstance(network, Topology):
        network = connect(network)
    if not isinstance(network, Network) or network.topology is None:
        raise InputError(
            "The network must be one of dnasa.connect, or a graph, such as topology.ring(8), "
            f"topology.from_networkx(graph) or topology.from_matrix(W), not {type(network).__name__}."
        )
    if problem.nodes not in (None, network.topology.nodes):
        raise InputError(
            f"The problem has data for {problem.nodes} nodes, the topology has {network.topology.nodes}: give both the same "
            "number."
        )
    if network.nodes < len(network.processes.names):
        raise InputError("solve needs all sites at the start: leave out wait_for, which is for the optimizer.")
    return network


def _check_exchanges(network: Network, groups: list[VariantGroup], steps: int) -> None:
    settings = network.settings
    for group in groups:
        check_weights(group.rule, network.topology, settings.rounds, _named(group), settings.every)
    if settings.every > steps and network.nodes > 1:
        raise InputError(f"every is {settings.every}, but the run has {steps} steps: nothing would be exchanged.")


def _check_late(options: RunOptions, network: Network, groups: list[VariantGroup]) -> None:
    """Refuse what cannot be done without waiting."""
    settings, record, graph, rule = network.settings, options.record, network.topology, groups[0].rule
    whole("late", settings.late, low=0)
    fixed = graph.period == 1 and not graph.directed and graph.sparse.diagonal().min() >= 0
    plain = (settings.rounds, settings.every, settings.channel, settings.overlap) == (1, 1, None, False)
    resumes = record.checkpoint_every is not None or options.resume or getattr(options.folder, "resume", False)
    if len(groups) > 1 or not rule.needs.late or rule.then or not fixed or not plain or resumes:
        safe = ", ".join(name for name in RULES if registry.example(name).needs.late)
        raise InputError(
            f"late takes one rule, of {safe}, on an undirected graph that stays the same, such as ring, and messages as they "
            "are: leave out rounds, every, overlap, compression and checkpoints."
        )
    if settings.clock is None:
        raise InputError("late is for simulated runs with a clock: give --clock.")


def _check_record(problem: Problem, network: Network, options: RunOptions) -> None:
    record = options.record
    if record.callback is not None and not callable(record.callback):
        raise InputError("callback must be a function that is called with an Evaluation.")
    if record.patience is not None:
        whole("patience", record.patience)
        if not len(getattr(problem, "validation", ())):
            raise InputError("Early stopping needs validation rows: give the problem validation, or leave it out.")
    collects = network.private and not network.simulated and not network.processes.names  # sites write their own
    if record.checkpoint_every is not None and collects:
        raise InputError(COLLECTED)


def _node_weights(weights: Sequence[float] | str | None, nodes: int, rows: np.ndarray | None) -> np.ndarray | None:
    if weights is None:
        return None
    each = rows if isinstance(weights, str) and weights == "rows" else weights
    if each is None or isinstance(each, str):
        raise InputError(
            f"node_weights must be a positive number for each node, or 'rows' where nodes have rows; not '{weights}'."
        )
    for weight in np.ravel(each).tolist():
        positive("A node weight", weight)
    if each is not rows and np.shape(each) != (nodes,):
        raise InputError(f"There must be one node weight for each of the {nodes} nodes, not {np.shape(each)}.")
    return np.asarray(each, dtype=np.float64)


def _node_data(problem: Problem, network: Network, seeds: list[int]) -> tuple[str, str, np.ndarray | None]:
    """Checksums of all nodes' data and of a site's own, and the number of rows of each node; None if the data is unlimited.

    A checksum tells of the rows, so those of a site stay there. The rest is the same in all processes.
    """
    by_seed: dict[str, Any] = {"seeds": seeds} if problem.by_seed else {}
    with UserCode(lambda: "The problem's node_fingerprint(node) or rows(node)"):
        local = [[problem.node_fingerprint(node, **by_seed), problem.rows(node, **by_seed)] for node in network.local_nodes]
    own_data = ""
    if network.processes.names:  # also in a dry run of a site
        own_data = _checksum([mark for mark, _ in local])
        local = [["", count] for _, count in local]
    shape = np.shape(local[0][1] or 0)

    def read(pairs: Any) -> list[tuple[str, Any]]:
        counts = [None if count is None else np.array(count, int).reshape(shape).tolist() for _, count in pairs]
        return list(zip([str(mark) for mark, _ in pairs], counts, strict=True))

    everyone = [pair for pairs in network.processes.allgather_json(local, read) for pair in pairs]
    rows = [count for _, count in everyone]
    return _checksum([mark for mark, _ in everyone]), own_data, None if None in rows else np.array(rows).T


def _checksum(texts: list[Any]) -> str:
    return f"{crc32(json.dumps(texts).encode()):08x}"


def _eval_steps(options: RunOptions, steps: int, batch: int, rows: np.ndarray | None) -> set[int]:
    """The steps to evaluate at: by default 50, down to 5 where passes over the data cost more than half of the training.

    To stop early or to average, at each pass over the data, 20 to 200 times.
    """
    evaluate: Any = options.evaluate
    if evaluate is None:
        passes = np.inf if rows is None else steps * batch / rows.mean()
        count = max(5, min(50, passes / 2))
        if options.record.averages:
            count = max(20, min(200, passes))
        return {*evenly(steps, int(count))}
    if np.ndim(evaluate) == 0:
        return {*range(0, steps, int(evaluate)), steps}
    chosen = {whole("An evaluation step", t, low=0) for t in as_list(evaluate)}
    if not chosen or max(chosen) > steps:
        raise InputError(f"Evaluation steps must lie between 0 and {steps}.")
    return chosen


def evenly(steps: int, count: int) -> list[int]:
    """Steps from 0 to the last at which to evaluate, up to one more than `count`."""
    return sorted({round(i * steps / count) for i in range(count + 1)})


# ---------------------------------------------------------------- what makes a run this run


def run_settings(problem: Problem, plan: Plan, options: RunOptions) -> dict[str, Any]:
    """What real processes must agree on, and what a resumed run must have in common with the saved one."""
    network, start, eval_steps = plan.network, to_numpy(plan.start), sorted(plan.eval_steps)
    messages = network.settings
    settings = {
        "nodes": plan.topology.nodes,
        "topology": plan.topology.fingerprint,
        "steps": plan.steps,
        "seed": plan.seeds,
        "rule": [list(variant.label().values()) for group in plan.groups for variant in group.variants],
        "weight_decay": plan.weight_decay,
        "batch": problem.batch,
        "model": f"{len(problem.layout)} arrays with {start.shape[-1]:,} parameters, checksum {_checksum([*problem.layout])}",
        "data": problem.fingerprint,  # after the model, which is part of it
        "node_data": plan.node_data,
        "parameters": int(start.shape[-1]),
        "dtype": str(plan.start.dtype).removeprefix("torch."),
        "rounds": messages.rounds,
        "every": messages.every,
        "channel": messages.channel.settings if messages.channel else None,
        "clock": messages.clock.fingerprint if messages.clock else None,
        "late": messages.late,
        "evaluate": f"{len(eval_steps)} up to {eval_steps[-1]}, {crc32(str(eval_steps).encode()):08x}",
        "patience": options.record.patience,
        **({"average": True} if options.record.average else {}),
        "loss_scale": problem.loss_scale,
        "node_weights": None if plan.node_weights is None else plan.node_weights.tolist(),
        "start": f"{crc32(start):08x}",
        "privacy": None if plan.budget is None else plan.budget.settings(),
    }
    if not network.simulated:
        folder = {"folder": "missing" if options.folder is None else "given"} if network.processes.own_folders else {}
        agree(network, settings | folder)
    return settings


# ---------------------------------------------------------------- arrays


def _starting_points(problem: Problem, topology: Topology, seeds: Sequence[int], start: Array | None) -> list[Array]:
    """The starting point of each seed: `(d,)`, or `(n, d)` with a row for each node."""
    with UserCode(lambda: "The problem's start(seed)"):
        points = [problem.start(s) for s in seeds]
    if getattr(points[0], "ndim", None) != 1:
        raise InputError("The problem's start must return a one-dimensional NumPy array or torch tensor.")
    shape = points[0].shape
    if start is not None:
        points = [_as_start(start, points[0])] * len(seeds)
    if points[0].shape not in {shape, (topology.nodes, *shape)}:
        raise InputError(
            f"start has shape {tuple(points[0].shape)}; it must be {tuple(shape)} or one row per node, "
            f"{(topology.nodes, *shape)}."
        )
    for point in map(to_numpy, points):
        wrong = np.argwhere(~np.isfinite(point)).tolist()
        if wrong:
            raise InputError(f"start is {point[tuple(wrong[0])]} at {wrong[0]}: give finite numbers to start from.")
    return points


def _as_start(start: Any, point: Array) -> Array:
    try:
        return like(start.detach() if hasattr(start, "detach") else np.asarray(start, np.float64), point)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("start must be an array of real numbers.") from None


def _local_rows(points: Sequence[Array], network: Network) -> Array:
    """The starting points of the local nodes, (1, seeds, k, d)."""
    local = slice(network.local_nodes.start, network.local_nodes.stop)
    return stack([p[local] if p.ndim == 2 else stack([p] * len(network.local_nodes)) for p in points])[None]
