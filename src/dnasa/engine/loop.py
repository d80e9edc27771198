"""The only loop: gradients, exchange, rule, and now and then a look at how far we are."""

import json
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa import metrics, rules
from dnasa.core import Array, InputError, Network, ProcessLost, Rule, like, stack, whole
from dnasa.keeping import Keeper, track_afresh
from dnasa.progress import progress_bar
from dnasa.recording import Recorder
from dnasa.records import Result, RunFolder
from dnasa.stepping import stepping
from dnasa.timing import Timeline, now, write_trace

if TYPE_CHECKING:
    from dnasa.problems import Problem
    from dnasa.topology import Topology


def solve(
    problem: "Problem",
    topology: "Topology",
    rule: str | Rule | Sequence[str] = "dnasa",
    *,
    steps: int,
    eta: float | Sequence[float] | None = None,
    schedule: str | Sequence[str] | None = None,
    seed: int | Sequence[int] = 0,
    evaluate: int | Sequence[int] | None = None,
    start: Array | None = None,
    rounds: int = 1,
    wire: str | None = None,
    network: Network | None = None,
    overlap: bool = False,
    folder: str | Path | RunFolder | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
    trace: str | Path | None = None,
) -> Result:
    """Minimise the average of the nodes' losses.

    `rule` is a name, several names, or a `Rule` of your own. Several rules, stepsizes (`eta`), schedules or seeds run side
    by side as one array. `evaluate` says when to measure: every so many steps, or at which steps (default: up to 50 times,
    fewer where evaluation would dominate).
    `start` overrides the problem's starting point: `(d,)`, or `(n, d)` for one per node. `rounds` exchanges per step, with
    numbers sent in 16 bits by `wire="bfloat16"` or "float16".
    `network` replaces the simulated one: every process calls `solve` alike, and all get all nodes' iterates back. `overlap`
    hides the exchanges of D-NASA and D-ASAGT behind the gradients, with the same iterates. A progress bar is
    shown on a terminal unless `progress=False`. `trace` writes a timeline of the first steps for Chrome or Perfetto.

    `folder` keeps the run on disk as it happens, with a checkpoint every so many steps (`checkpoint_every`); the same call
    with `resume=True` continues it exactly where the newest one was made.
    """
    steps = whole("steps", steps)
    seeds = [whole("A seed", s, low=0) for s in _listed(seed)]
    if not seeds:
        raise InputError("No seed given: give one, or several as a list.")
    from dnasa.topology import check_weights

    _check_nodes(problem, topology)
    network = network or _simulated(topology, rounds, wire)
    points = _points(problem, topology, seeds, start)
    first = _rows(points, network)
    plan = _plan(rule, eta, schedule, topology.nodes, steps, first, 2 if network.wire else first.dtype.itemsize)
    check_weights(plan.rule, topology, network.rounds)
    looks = _looks(evaluate, steps, problem)
    if checkpoint_every is not None:
        whole("checkpoint_every", checkpoint_every)
        if folder is None:
            raise InputError("Checkpoints need a folder: give folder (--out).")
    if overlap and network.survivors is not None:
        raise InputError("Hidden exchanges cannot survive the loss of a process: leave out --overlap or --survive.")
    settings = _settings(network, problem, topology, plan, steps, seeds, looks, points[0])
    if len(network.here) < network.nodes:
        from dnasa.networks.exchange import agree

        agree(network, settings)

    run = Run(problem, topology, network, plan, seeds, steps, looks, overlap, trace is not None)
    x = _repeat(first, len(plan.variants))
    with (
        Keeper(_folder(folder, resume), checkpoint_every, settings, steps, network) as keeper,
        progress_bar(steps, False if network.rank else progress) as bar,
        np.errstate(all="ignore"),
    ):
        x = run.go(plan.rule.init(x), keeper, bar)
    if trace is not None:
        run.write_trace(trace)
    result = run.recorder.result(x, steps, run.timeline.summary(steps, run.network.traffic))
    if keeper.folder is not None and run.network.rank == 0:
        result.save(keeper.folder.path)
    keeper.end("diverged" if run.recorder.hopeless else "done", run.t)
    return result


class Run:
    """The loop: look, keep, gradient, step; and again with fewer when processes are lost."""

    def __init__(
        self,
        problem: "Problem",
        topology: "Topology",
        network: Network,
        plan: "Plan",
        seeds: list[int],
        steps: int,
        looks: set[int],
        overlap: bool,
        traced: bool,
    ):
        self.problem, self.network, self.plan = problem, network, plan
        self.seeds, self.steps, self.looks, self.overlap = seeds, steps, looks, overlap
        self.t = 0
        self.timeline = Timeline(network.rank, traced)
        self.recorder = Recorder(problem, topology, network, plan.variants, seeds, plan.sizes)

    def go(self, state: Any, keeper: Keeper, bar: Any) -> Array:
        """From the start, or where the run was left, to the end; returns all nodes' iterates."""
        self.t, state = keeper.restore(state, self.recorder)
        lost = False
        while True:
            try:
                if lost:
                    state, lost = self._continue_without_the_lost(state, keeper), False
                with closing(
                    stepping(self.plan.rule, self.network, state, self.timeline, self.overlap, self.t)
                ) as stepper:
                    self._loop(stepper, state, keeper, bar)
                    return self.network.gather(stepper.x)
            except ProcessLost:
                if self.network.survivors is None:
                    raise
                if not lost:
                    state, lost = stepper.state, True

    def _loop(self, stepper: Any, start: Any, keeper: Keeper, bar: Any) -> None:
        """The starting point is looked at when the first step has shown that all is well: a look may take long."""
        timeline, recorder = self.timeline, self.recorder
        while True:
            t = self.t
            looked = (t in self.looks or recorder.hopeless) and t != keeper.resumed
            if looked and t > 0:
                self._look(stepper.state, t, keeper, bar)
            if t == self.steps or recorder.hopeless:
                return
            if t > 0:
                keeper.keep(t, stepper, recorder, looked)
            began = now()
            g = self.problem.gradient(stepper.x, self.network.here, self.seeds, t)
            recorder.watch(g, t)
            began = timeline.add("gradient", began, t)
            stepper.step(g, t)
            timeline.add("rule", began, t)
            self.t += 1
            bar.advance(self.t)
            if looked and t == 0:
                stepper.finish()
                self._look(start, 0, keeper, bar)

    def _look(self, state: Any, t: int, keeper: Keeper, bar: Any) -> None:
        began = now()
        bar.show(t, self.recorder.look(state, t))
        keeper.record(self.recorder)
        self.timeline.add("evaluation", began, t)

    def _continue_without_the_lost(self, state: Any, keeper: Keeper) -> Any:
        """Those who are left agree on who they are and on the latest step anyone has reached, and track afresh from there."""
        self.network = self.network.survivors()  # type: ignore[misc]
        gone = sorted(set(self.recorder.network.members) - set(self.network.members))
        self.t = max(int(text) for text in self.network.share(str(self.t)))
        self.recorder.continue_without(self.network, self.network.topology, gone, self.t)
        keeper.continue_without(self.network, self.recorder, gone, self.t)
        if hasattr(self.problem, "continue_without"):
            self.problem.continue_without(gone)
        return track_afresh(state)

    def write_trace(self, path: str | Path) -> None:
        parts = self.network.share(json.dumps(self.timeline.events))
        if self.network.rank == 0:
            write_trace(path, parts)


def _folder(folder: str | Path | RunFolder | None, resume: bool) -> RunFolder | None:
    return folder if folder is None or isinstance(folder, RunFolder) else RunFolder(folder, resume=resume)


# ---------------------------------------------------------------- what is run


class Plan(NamedTuple):
    rule: Rule
    variants: list[rules.Variant]
    sends: list[int]  # arrays in one message of each variant
    size: int  # bytes of one array of one node

    @property
    def sizes(self) -> list[int]:
        """Bytes of one node's row in a message of each variant."""
        return [count * self.size for count in self.sends]


def _plan(
    rule: str | Rule | Sequence[str],
    eta: float | Sequence[float] | None,
    schedule: str | Sequence[str] | None,
    nodes: int,
    steps: int,
    first: Array,
    itemsize: int,
) -> Plan:
    size = itemsize * first.shape[-1]
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        variants = [rules.Variant("custom", f"variant {i}") for i in range(_sweep_size(rule, first))]
        return Plan(rule, variants, [_sends(rule, first)] * len(variants), size)
    etas = [] if eta is None else _listed(eta)
    names = [rule] if isinstance(rule, str) else list(rule)
    if etas and names and all(name in rules.RULES and not rules.RULES[name].needs_eta for name in names):
        raise InputError(f"Rule '{names[0]}' takes no stepsize: leave eta out.")
    variants = [variant for name in names for variant in rules.variants(name, etas, schedule)]
    if not variants:
        raise InputError(f"No rule given. Choose from: {', '.join(rules.RULES)}.")
    built = rules.build(variants, nodes, steps, first)
    sends = {
        v.rule: _sends(rules.build([v], nodes, steps, first), first) for v in {v.rule: v for v in variants}.values()
    }
    return Plan(built, variants, [sends[variant.rule] for variant in variants], size)


def _dry_step(rule: Rule, first: Array) -> tuple[Any, int]:
    """One step on a single number shows a rule's leading axes and how many arrays it sends."""
    sent = []

    def mix(*arrays: Array) -> tuple[Array, ...]:
        sent.append(len(arrays))
        return arrays

    x = first[:1, :1, :1, :1] * 0
    return rule.step(rule.init(x), x, mix, 1).x, sum(sent)


def _sweep_size(rule: Rule, first: Array) -> int:
    shape = tuple(_dry_step(rule, first)[0].shape)
    if len(shape) != 4 or shape[1:] != (1, 1, 1):
        raise InputError(
            f"The schedules of this rule give iterates of shape {shape} for one number; "
            "a sweep's schedule must return shape (variants, 1, 1, 1)."
        )
    return shape[0]


def _sends(rule: Rule, first: Array) -> int:
    return _dry_step(rule, first)[1]


# ---------------------------------------------------------------- checks


def _settings(
    network: Network,
    problem: "Problem",
    topology: "Topology",
    plan: Plan,
    steps: int,
    seeds: list[int],
    looks: set[int],
    start: Array,
) -> dict[str, Any]:
    """What makes this run this run: real processes must agree on it, and a resumed run must be it."""
    weights = topology.sparse
    return {
        "the number of nodes": topology.nodes,
        "the topology": f"{topology.name} {zlib.crc32(weights.indices.tobytes() + weights.data.tobytes()):08x}",
        "steps": steps,
        "seed": seeds,
        "the rule": [list(variant) for variant in plan.variants],
        "the batch": problem.batch,
        "the data": getattr(problem, "fingerprint", type(problem).__name__),
        "the number of parameters": int(start.shape[-1]),
        "dtype": str(start.dtype).removeprefix("torch."),
        "rounds": network.rounds,
        "the wire format": network.wire,
        "the evaluation steps": f"{len(looks)} up to {max(looks)}, {zlib.crc32(str(sorted(looks)).encode()):08x}",
        "the loss scale": getattr(problem, "loss_scale", 1.0),
        "the faults": getattr(network.memory, "settings", None),
        "the starting point": f"{zlib.crc32(np.ascontiguousarray(metrics.to_numpy(start)).tobytes()):08x}",
    }


def _listed(value: Any) -> list[Any]:
    """One thing or several, as a list."""
    return [value] if value is None or isinstance(value, str) or np.ndim(value) == 0 else list(value)


def _check_nodes(problem: "Problem", topology: "Topology") -> None:
    if problem.nodes is not None and problem.nodes != topology.nodes:
        raise InputError(
            f"The problem has data for {problem.nodes} nodes, the topology has {topology.nodes}: give both the same number."
        )


def _looks(evaluate: int | Sequence[int] | None, steps: int, problem: "Problem") -> set[int]:
    """By default 50, or fewer (down to 5) where full passes over the data would cost more than half of the training."""
    if evaluate is None:
        passes = steps * problem.batch / problem.epoch if problem.epoch else np.inf
        count = int(max(5, min(50, passes / 2)))
        return {round(i * steps / count) for i in range(count + 1)}
    if np.isscalar(evaluate):
        return {*range(0, steps, whole("evaluate", evaluate)), steps}
    looks = {whole("An evaluation step", t, low=0) for t in _listed(evaluate)}
    if not looks or max(looks) > steps:
        raise InputError(f"Evaluation steps must lie between 0 and {steps}.")
    return looks


# ---------------------------------------------------------------- arrays


def _points(problem: "Problem", topology: "Topology", seeds: Sequence[int], start: Array | None) -> list[Array]:
    """Where each seed begins: `(d,)`, or `(n, d)` for a start of one's own per node."""
    own = [problem.start(s) for s in seeds]
    points = own if start is None else [like(start, own[0])] * len(seeds)
    if points[0].shape not in {own[0].shape, (topology.nodes, *own[0].shape)}:
        raise InputError(
            f"start has shape {tuple(points[0].shape)}; it must be {tuple(own[0].shape)} or one row per node, "
            f"{(topology.nodes, *own[0].shape)}."
        )
    return points


def _rows(points: Sequence[Array], network: Network) -> Array:
    """Of the nodes held here: (1, seeds, k, d)."""
    here, dim = slice(network.here.start, network.here.stop), points[0].shape[-1]
    return stack([p[here] if p.ndim == 2 else _broadcast(p, (len(network.here), dim)) for p in points])[None]


def _broadcast(a: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(a, shape) if isinstance(a, np.ndarray) else a.expand(shape)


def _repeat(first: Array, variants: int) -> Array:
    if isinstance(first, np.ndarray):
        return np.repeat(first, variants, axis=0)
    return first.repeat(variants, 1, 1, 1)


def _simulated(topology: "Topology", rounds: int, wire: str | None) -> Network:
    from dnasa.networks.simulated import connect

    return connect(topology, rounds, wire)
