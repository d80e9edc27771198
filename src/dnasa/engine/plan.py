"""What a run is: its rules, seeds, starting points, evaluation steps and network, checked before the first step."""

import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.arrays import concatenate, crc32, like, stack, to_numpy
from dnasa.core import COLUMNS, Array, InputError, Network, Prox, Rule, UserCode, positive, whole
from dnasa.engine.options import RunOptions
from dnasa.problems.prox import checked
from dnasa.rules import registry
from dnasa.rules.registry import RULES, Variant, VariantGroup
from dnasa.rules.schedules import constant
from dnasa.rules.weight_decay import check_weight_decay, with_weight_decay

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology


class Plan(NamedTuple):
    topology: Any
    network: Network
    groups: list[VariantGroup]
    x: list[Array]  # where each group starts, (variants, seeds, k, d)
    seeds: list[int]
    steps: int
    eval_steps: set[int]
    epoch: float | None  # samples per node in one pass over the data; None if it is unlimited
    node_data: str  # a checksum of all nodes' data
    node_weights: np.ndarray | None  # (n,), or (seeds, n) where nodes have different rows for each seed
    start: Array  # of the first seed, for the settings
    weight_decay: float
    trained: bool  # whether the user gave a start


def make_plan(
    problem: "Problem",
    network: "Network | Topology | str",
    rule: str | Rule | Variant | Sequence[str | Rule | Variant],
    steps: int,
    eta: Any,
    seed: int | Sequence[int],
    start: Array | None,
    options: RunOptions,
) -> Plan:
    from dnasa.topology import check_weights

    steps = whole("steps", steps)
    seeds = distinct("seed", [whole("A seed", s, low=0) for s in as_list(seed)])
    network = _network(problem, network)
    topology: Any = network.topology
    _check_nodes(problem, topology)
    points = _points(problem, topology, seeds, start)
    first = _local_rows(points, network)
    runs = _runs(rule, eta)
    prox = _prox(problem, first, network)
    groups = registry.groups(runs, topology.nodes, steps, first, problem.layout, prox)
    if options.weight_decay:
        groups = [_decayed(group, options.weight_decay) for group in groups]
    for group in groups:
        check_weights(group.rule, topology, network.settings.rounds, _named(group), network.settings.every)
    if network.settings.every > steps and network.nodes > 1:
        raise InputError(
            f"every is {network.settings.every}, but the run has {steps} steps: nothing would be exchanged."
        )
    if network.settings.late is not None:
        _check_late(options, network, groups)
    _check_storage(options)
    _check_watching(options)
    _check_patience(problem, options.record.patience)
    x = [concatenate([first] * group.size) for group in groups]
    checksum, rows = _node_data(problem, network, seeds)
    weights = _node_weights(options.node_weights, topology.nodes, rows)
    epoch = None if rows is None else float(rows.mean())
    eval_steps = _eval_steps(options.evaluate, steps, problem.batch, epoch, options.record.patience is not None)
    decay = float(options.weight_decay)
    about = (steps, eval_steps, epoch, checksum, weights, points[0], decay, start is not None)
    return Plan(topology, network, groups, x, seeds, *about)


# ---------------------------------------------------------------- rules


def _runs(rule: Any, eta: Any) -> list[Any]:
    """Variants of named rules, and the user's rules, in the order given."""
    given = [rule] if isinstance(rule, (str, Rule, Variant)) or not isinstance(rule, Iterable) else list(rule)
    named = distinct("rule", [name for name in given if not isinstance(name, (Rule, Variant))])
    if any(callable(name) for name in named):
        raise InputError(
            "A function that makes a rule is not a rule: call it with its schedules, or register it by name."
        )
    if not given:
        raise InputError(f"No rule given. Choose from: {', '.join(RULES)}.")
    if np.ndim(eta) > 1:
        raise InputError(f"eta must be a number, a function of t or a list of these; it has shape {np.shape(eta)}.")
    etas = [] if eta is None else distinct("eta", as_list(eta))
    takes_eta = [registry.find(str(name)).needs_eta for name in named]
    if not named and etas:
        raise InputError("A rule of your own has its schedules inside: leave eta out, or register it.")
    if etas and not any(takes_eta):
        raise InputError(f"Rule '{named[0]}' takes no stepsize: leave eta out.")
    runs: list[Any] = []
    for each in given:
        if isinstance(each, Variant):
            runs += registry.variants(each.rule, [] if each.eta is None else [each.eta], each.schedule)
        else:
            runs += [each] if isinstance(each, Rule) else registry.variants(each, etas)
    distinct("rule", [_text(run) for run in runs if isinstance(run, Variant)])  # such as "dsgd" and "dsgd:diminishing"
    return runs


def _text(variant: Variant) -> str:
    text = f"{variant.rule}:{variant.schedule}"
    return text if variant.eta is None else f"{text} with eta {variant.eta}"


def as_list(value: Any) -> list[Any]:
    """A list of the values: one thing becomes a list of one."""
    return [value] if value is None or isinstance(value, str) or callable(value) or np.ndim(value) == 0 else list(value)


def distinct(kind: str, values: list[Any]) -> list[Any]:
    """Refuse the same value twice: its runs could not be told apart."""
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise InputError(f"The {kind} {repeated[0]} is given twice: give each {kind} once.")
    if kind == "seed" and not values:
        raise InputError("No seed given: give one, or several as a list.")
    return values


def _decayed(group: VariantGroup, weight_decay: float) -> VariantGroup:
    positive("weight_decay, unless it is 0,", weight_decay)
    check_weight_decay(group.rule, _named(group))
    return group._replace(rule=with_weight_decay(group.rule, constant(weight_decay)))


def _named(group: VariantGroup) -> str:
    name = group.variants[0].rule
    return f"Rule '{name}'" if name in RULES else "This rule"


def _prox(problem: "Problem", first: Array, network: Network) -> Prox | None:
    """The problem's prox, checked at every call; a call at the starting point finds mistakes before the first step."""
    if problem.prox is None:
        return None
    prox = checked(problem.prox, network.local_nodes)
    prox(first, 1.0)
    return prox


# ---------------------------------------------------------------- network and nodes


def _network(problem: "Problem", network: "Network | Topology | str") -> Network:
    """The network that was given, or the simulated one of a graph."""
    from dnasa.networks.simulated import connect
    from dnasa.topology import Topology, make

    if isinstance(network, Network):
        if network.topology is None:
            raise InputError("The network does not say which graph it has: give it a topology.")
        return network
    if isinstance(network, str):
        if problem.nodes is None:
            raise InputError(
                f"The problem does not say how many nodes '{network:.40}' has: give the graph's size, such as "
                "topology.ring(8), or set `nodes` in your problem."
            )
        network = make(network, problem.nodes)
    if not isinstance(network, Topology):
        raise InputError(
            "The network must be one of dnasa.connect, or a graph, such as topology.ring(8), "
            f"topology.from_networkx(graph) or topology.from_matrix(W), not {type(network).__name__}."
        )
    return connect(network)


def _check_nodes(problem: "Problem", topology: "Topology") -> None:
    if problem.nodes is not None and problem.nodes != topology.nodes:
        raise InputError(
            f"The problem has data for {problem.nodes} nodes, the topology has {topology.nodes}: give both the same number."
        )


def _check_late(options: RunOptions, network: Network, groups: list[VariantGroup]) -> None:
    """Refuse what cannot be done without waiting."""
    whole("late", network.settings.late, low=0)
    if not network.simulated and network.processes.mailbox is None:
        raise InputError(
            "late is for simulated runs and sites: leave it out, other processes wait for their neighbours."
        )
    if network.simulated and network.settings.clock is None:
        raise InputError("late needs the speeds of nodes and links: give clock (--clock).")
    if not network.simulated and (options.record.stop or options.record.patience is not None):
        raise InputError("Sites that do not wait are evaluated at the end only: leave out stop and early stopping.")
    if len(groups) > 1:
        raise InputError("With late, each rule has an order of events of its own: give one rule at a time.")
    if not groups[0].rule.needs.late or groups[0].rule.then:
        safe = ", ".join(name for name in RULES if registry.example(name).needs.late)
        raise InputError(f"{_named(groups[0])} needs nodes that wait for each other: leave late out, or use {safe}.")
    graph = network.topology
    if graph.period > 1 or graph.directed or graph.sparse.diagonal().min() < 0:
        raise InputError(
            f"late needs an undirected graph that stays the same, with weights that are not negative, unlike {graph.name}: use "
            "exponential or ring."
        )
    if (
        network.settings.rounds > 1
        or network.settings.every > 1
        or network.settings.channel is not None
        or network.settings.overlap
    ):
        raise InputError("late exchanges messages once, as they are: leave out rounds, every, overlap and compression.")
    if options.record.checkpoint_every is not None or options.resume or getattr(options.folder, "resume", False):
        raise InputError("A run with late cannot be resumed, since messages are under way: leave out checkpoints.")


def _check_storage(options: RunOptions) -> None:
    if options.record.checkpoint_every is not None:
        whole("checkpoint_every", options.record.checkpoint_every)
        if options.folder is None:
            raise InputError("Checkpoints need a folder: give folder (--out).")


def _check_watching(options: RunOptions) -> None:
    """Check the callback, the metrics and the thresholds of an evaluation."""
    if options.record.callback is not None and not callable(options.record.callback):
        raise InputError("callback must be a function that is called with an Evaluation.")
    for name in ("metrics", "stop"):
        if not isinstance(getattr(options.record, name), Mapping):
            raise InputError(f"{name} must be a dictionary with the metrics' names.")
    for metric in options.record.metrics:
        if metric in COLUMNS:
            raise InputError(f"'{metric}' is a column of every history: give your metric another name.")
    for metric, threshold in options.record.stop.items():
        if isinstance(threshold, bool) or not isinstance(threshold, Real) or np.isnan(float(threshold)):
            raise InputError(f"The threshold of '{metric}' to stop at must be a number, not {threshold!r:.40}.")


def _check_patience(problem: "Problem", patience: int | None) -> None:
    if patience is not None:
        whole("patience", patience)
        if not len(getattr(problem, "validation", ())):
            raise InputError("Early stopping needs validation rows: give the problem validation, or leave it out.")


def _node_weights(given: Sequence[float] | str | None, nodes: int, rows: np.ndarray | None) -> np.ndarray | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given != "rows":
            raise InputError(f"node_weights must be 'rows' or a positive number for each node, not '{given}'.")
        if rows is None:
            raise InputError(
                "This problem's data is unlimited, so nodes have no number of rows: give node_weights as numbers."
            )
        for count in rows.flat:
            positive("A node weight", float(count))
        return rows.astype(np.float64)
    weights = [] if np.ndim(given) != 1 else list(given)
    for weight in weights:
        positive("A node weight", weight)
    if len(weights) != nodes:
        raise InputError(
            f"There must be one positive node weight for each of the {nodes} nodes, not {np.shape(given)}."
        )
    return np.asarray(weights, dtype=np.float64)


def _node_data(problem: "Problem", network: Network, seeds: list[int]) -> tuple[str, np.ndarray | None]:
    """A checksum of all nodes' data and the number of rows of each, (n,) or (seeds, n); None if the data is unlimited.

    Both are the same in all processes.
    """
    given: dict[str, Any] = {"seeds": seeds} if problem.by_seed else {}
    with UserCode(lambda: "The problem's node_fingerprint(node) or rows(node)"):
        local = [[problem.node_fingerprint(node, **given), problem.rows(node, **given)] for node in network.local_nodes]
    shape = np.shape(local[0][1] or 0)

    def read(given: Any) -> list[tuple[str, Any]]:
        counts = [None if count is None else np.array(count, int).reshape(shape).tolist() for _, count in given]
        return list(zip([str(mark) for mark, _ in given], counts, strict=True))

    everyone = [pair for pairs in network.processes.allgather_json(local, read) for pair in pairs]
    rows = [count for _, count in everyone]
    checksum = crc32(json.dumps([fingerprint for fingerprint, _ in everyone]).encode())
    return f"{checksum:08x}", None if None in rows else np.array(rows).T


def _eval_steps(
    evaluate: int | Sequence[int] | None, steps: int, batch: int, epoch: float | None, stops_early: bool
) -> set[int]:
    """The steps to evaluate at: by default 50, down to 5 where passes over the data cost more than half of the training.

    To stop early, at each pass over the data, 20 to 200 times.
    """
    if evaluate is None:
        passes = steps * batch / epoch if epoch else np.inf
        count = int(max(20, min(200, passes)) if stops_early else max(5, min(50, passes / 2)))
        return {*evenly(steps, count)}
    if np.isscalar(evaluate):
        return {*range(0, steps, whole("evaluate", evaluate)), steps}
    chosen = {whole("An evaluation step", t, low=0) for t in as_list(evaluate)}
    if not chosen or max(chosen) > steps:
        raise InputError(f"Evaluation steps must lie between 0 and {steps}.")
    return chosen


def evenly(steps: int, count: int) -> list[int]:
    """Steps from 0 to the last at which to evaluate, up to one more than `count`."""
    return sorted({round(i * steps / count) for i in range(count + 1)})


# ---------------------------------------------------------------- what makes a run this run


def run_settings(problem: "Problem", plan: Plan, options: RunOptions) -> dict[str, Any]:
    """What real processes must agree on, and what a resumed run must have in common with the saved one."""
    network = plan.network
    eval_steps = sorted(plan.eval_steps)
    start = to_numpy(plan.start)
    settings = {
        "the number of nodes": plan.topology.nodes,
        "the topology": plan.topology.fingerprint,
        "steps": plan.steps,
        "seed": plan.seeds,
        "the rule": [list(variant.label().values()) for group in plan.groups for variant in group.variants],
        "the weight decay": plan.weight_decay,
        "the batch": problem.batch,
        "the data": problem.fingerprint,
        "the nodes' data": plan.node_data,
        "the number of parameters": int(start.shape[-1]),
        "dtype": str(plan.start.dtype).removeprefix("torch."),
        "rounds": network.settings.rounds,
        "the steps between exchanges": network.settings.every,
        "the channel": network.settings.channel.settings if network.settings.channel else None,
        "the clock": network.settings.clock.fingerprint if network.settings.clock else None,
        "late": network.settings.late,
        "the evaluation steps": f"{len(eval_steps)} up to {eval_steps[-1]}, {crc32(str(eval_steps).encode()):08x}",
        "the own metrics": list(options.record.metrics),
        "the patience": options.record.patience,
        "the loss scale": problem.loss_scale,
        "the node weights": None if plan.node_weights is None else plan.node_weights.tolist(),
        "the starting point": f"{crc32(start):08x}",
    }
    if not network.simulated:
        from dnasa.networks.processes import agree

        folder = (
            {"the run folder": "missing" if options.folder is None else "given"}
            if network.processes.own_folders
            else {}
        )
        agree(network, settings | folder)
    return settings


# ---------------------------------------------------------------- arrays


def _points(problem: "Problem", topology: "Topology", seeds: Sequence[int], start: Array | None) -> list[Array]:
    """The starting point of each seed: `(d,)`, or `(n, d)` with a row for each node."""
    with UserCode(lambda: "The problem's start(seed)"):
        own = [problem.start(s) for s in seeds]
    if getattr(own[0], "ndim", None) != 1:
        what = f"an array of shape {tuple(own[0].shape)}" if hasattr(own[0], "shape") else type(own[0]).__name__
        raise InputError(f"The problem's start must return a one-dimensional NumPy array or torch tensor, not {what}.")
    points = own if start is None else [_as_start(start, own[0])] * len(seeds)
    if points[0].shape not in {own[0].shape, (topology.nodes, *own[0].shape)}:
        raise InputError(
            f"start has shape {tuple(points[0].shape)}; it must be {tuple(own[0].shape)} or one row per node, "
            f"{(topology.nodes, *own[0].shape)}."
        )
    for point in points:
        _check_start(to_numpy(point))
    return points


def _check_start(point: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(point))
    if len(wrong):
        *node, coordinate = wrong[0]
        whose = f" of node {node[0]}" if node else ""
        raise InputError(
            f"start{whose} is {point[tuple(wrong[0])]} at coordinate {coordinate}: give finite numbers to start from."
        )


def _as_start(start: Any, own: Array) -> Array:
    try:
        return like(start.detach() if hasattr(start, "detach") else np.asarray(start, np.float64), own)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("start must be an array of real numbers.") from None


def _local_rows(points: Sequence[Array], network: Network) -> Array:
    """The starting points of the local nodes, (1, seeds, k, d)."""
    local = slice(network.local_nodes.start, network.local_nodes.stop)
    return stack([p[local] if p.ndim == 2 else stack([p] * len(network.local_nodes)) for p in points])[None]
