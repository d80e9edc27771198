"""The only loop: gradients, exchange, rule, and now and then a look at how far we are."""

import json
import time
import zlib
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa import metrics, rules
from dnasa.core import Array, InputError, Network, Rule, whole
from dnasa.records import Result
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
    """
    steps = whole("steps", steps)
    seeds = [whole("A seed", s, low=0) for s in _listed(seed)]
    if not seeds:
        raise InputError("No seed given: give one, or several as a list.")
    from dnasa.topology import check_weights

    _check_nodes(problem, topology)
    network = network or _simulated(topology, rounds, wire)
    first = _starting_points(problem, topology, seeds, start, network)
    plan = _plan(rule, eta, schedule, topology.nodes, steps, first)
    check_weights(plan.rule, topology, network.rounds)
    looks = _looks(evaluate, steps, problem)
    _agree(network, problem, topology, plan, steps, seeds, looks, first)

    x = _repeat(first, len(plan.variants))
    timeline = Timeline(network.rank, trace is not None)
    recorder = Recorder(problem, topology, network, plan, seeds, itemsize=2 if network.wire else x.dtype.itemsize)
    run = stepping(plan.rule, network, plan.rule.init(x), timeline, overlap)
    with _bar(steps, False if network.rank else progress) as bar, np.errstate(all="ignore"), closing(run):
        for t in range(steps + 1):
            if t in looks or recorder.hopeless:
                began = now()
                bar.show(t, recorder.look(run.state, t))
                timeline.add("evaluation", began, t)
            if t == steps or recorder.hopeless:
                break
            began = now()
            g = problem.gradient(run.x, network.here, seeds, t)
            recorder.watch(g, t)
            began = timeline.add("gradient", began, t)
            run.step(g, t)
            timeline.add("rule", began, t)
            bar.advance(t + 1)
    if trace is not None:
        parts = network.share(json.dumps(timeline.events))
        if network.rank == 0:
            write_trace(trace, parts)
    return recorder.result(network.gather(run.x), steps, timeline.summary(steps, network.traffic))


# ---------------------------------------------------------------- what is run


class Plan(NamedTuple):
    rule: Rule
    variants: list[rules.Variant]
    sends: list[int]  # arrays in one message of each variant


def _plan(
    rule: str | Rule | Sequence[str],
    eta: float | Sequence[float] | None,
    schedule: str | Sequence[str] | None,
    nodes: int,
    steps: int,
    first: Array,
) -> Plan:
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        variants = [rules.Variant("custom", f"variant {i}") for i in range(_sweep_size(rule, first))]
        return Plan(rule, variants, [_sends(rule, first)] * len(variants))
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
    return Plan(built, variants, [sends[variant.rule] for variant in variants])


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


def _agree(
    network: Network,
    problem: "Problem",
    topology: "Topology",
    plan: Plan,
    steps: int,
    seeds: list[int],
    looks: set[int],
    first: Array,
) -> None:
    """Real processes make sure that they are about to do the same."""
    if len(network.here) == network.nodes:
        return
    from dnasa.networks.exchange import agree

    weights = topology.sparse
    settings = {
        "the number of nodes": topology.nodes,
        "the topology": f"{topology.name} {zlib.crc32(weights.indices.tobytes() + weights.data.tobytes()):08x}",
        "steps": steps,
        "seed": seeds,
        "the rule": [list(variant) for variant in plan.variants],
        "the batch": problem.batch,
        "the data": getattr(problem, "fingerprint", type(problem).__name__),
        "the number of parameters": int(first.shape[-1]),
        "dtype": str(first.dtype),
        "the wire format": network.wire,
        "the evaluation steps": f"{len(looks)} up to {max(looks)}",
    }
    agree(network, settings)


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


def _starting_points(
    problem: "Problem", topology: "Topology", seeds: Sequence[int], start: Array | None, network: Network
) -> Array:
    """(1, seeds, k, d)"""
    own = [problem.start(s) for s in seeds]
    points = own if start is None else [_like(start, own[0])] * len(seeds)
    if points[0].shape not in {own[0].shape, (topology.nodes, *own[0].shape)}:
        raise InputError(
            f"start has shape {tuple(points[0].shape)}; it must be {tuple(own[0].shape)} or one row per node, "
            f"{(topology.nodes, *own[0].shape)}."
        )
    here, dim = slice(network.here.start, network.here.stop), own[0].shape[0]
    rows = [p[here] if p.ndim == 2 else _broadcast(p, (len(network.here), dim)) for p in points]
    return _stack(rows)[None]


def _like(a: Array, other: Array) -> Array:
    """In the library, dtype and device of the other."""
    if isinstance(other, np.ndarray):
        return np.asarray(metrics.to_numpy(a) if hasattr(a, "detach") else a, other.dtype)
    import torch

    return torch.as_tensor(a, dtype=other.dtype, device=other.device)


def _broadcast(a: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(a, shape) if isinstance(a, np.ndarray) else a.expand(shape)


def _stack(arrays: Sequence[Array]) -> Array:
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))


def _repeat(first: Array, variants: int) -> Array:
    if isinstance(first, np.ndarray):
        return np.repeat(first, variants, axis=0)
    return first.repeat(variants, 1, 1, 1)


def _simulated(topology: "Topology", rounds: int, wire: str | None) -> Network:
    from dnasa.networks.simulated import connect

    return connect(topology, rounds, wire)


# ---------------------------------------------------------------- what is recorded


class Recorder:
    """Collects the history of all runs, and when each of them diverged."""

    def __init__(
        self,
        problem: "Problem",
        topology: "Topology",
        network: Network,
        plan: Plan,
        seeds: Sequence[int],
        itemsize: int,
    ):
        self.problem, self.topology, self.network, self.plan, self.seeds = problem, topology, network, plan, seeds
        self.itemsize = itemsize
        self.diverged = np.full((len(plan.variants), len(seeds)), -1)
        self.seen = self.diverged.copy()
        self.rows: list[dict[str, Any]] = []
        self.unseen: list[tuple[int, Array]] = []
        self.dim = 0
        self.started = time.perf_counter()
        self.looking = 0.0

    @property
    def hopeless(self) -> bool:
        """Every run has diverged; real processes must stop together, so there only what an evaluation saw counts."""
        known = self.diverged if len(self.network.here) == self.network.nodes else self.seen
        return bool((known >= 0).all())

    def watch(self, g: Array, t: int) -> None:
        """A gradient that is no number means that the run is lost from here on; on a GPU, found out at the next look."""
        total = g.sum((-2, -1))
        if getattr(total, "is_cuda", False):
            self.unseen.append((t, total))
        else:
            self._mark(np.isfinite(metrics.to_numpy(total)), t)

    def _mark(self, finite: np.ndarray, t: int) -> None:
        if not finite.all():
            self.diverged[(~finite) & (self.diverged < 0)] = t

    def _see(self) -> None:
        if self.unseen:
            import torch

            totals = metrics.to_numpy(torch.stack([total for _, total in self.unseen]))
            for (t, _), total in zip(self.unseen, totals, strict=True):
                self._mark(np.isfinite(total), t)
            self.unseen.clear()

    def _learn_from_others(self, t: int) -> None:
        lost = np.ascontiguousarray((self.diverged >= 0).astype(np.float64))[..., None, None]
        self._mark(metrics.to_numpy(self.network.mean(lost))[..., 0] == 0, t)
        self.seen = self.diverged.copy()

    def look(self, state: Any, t: int) -> float:
        """Measure all runs; returns the best current loss for the progress bar."""
        self._see()
        began = time.perf_counter()
        training = began - self.started - self.looking
        self.dim = state.x.shape[-1]
        row = self._measure(state)
        self._mark(np.isfinite(np.stack([value for name, value in row.items() if name != "tracking"])).all(0), t)
        self._learn_from_others(t)
        for v, variant in enumerate(self.plan.variants):
            for s, seed in enumerate(self.seeds):
                lost = self.diverged[v, s] >= 0
                values = {name: np.nan if lost else float(value[v, s]) for name, value in row.items()}
                self.rows.append(
                    {
                        "run": v * len(self.seeds) + s,
                        **variant._asdict(),
                        "seed": seed,
                        "step": t,
                        **values,
                        **self._counts(t, v),
                        "seconds": training,
                    }
                )
        self.looking += time.perf_counter() - began
        losses = row.get("train_loss", row.get("test_loss", row["consensus"]))[self.diverged < 0]
        return float(losses.min()) if losses.size else float("nan")

    def _measure(self, state: Any) -> dict[str, np.ndarray]:
        mean = self.network.mean(state.x)
        local = self.problem.evaluate(mean, self.network.here)
        evaluated = {
            name: self.network.mean(value[..., None, :] if name == "gradient" else value[..., None, None])
            for name, value in local.items()
        }
        evaluated = {name: value if name == "gradient" else value[..., 0] for name, value in evaluated.items()}
        return metrics.measure(state, mean, evaluated, self.network, getattr(self.problem, "loss_scale", 1.0))

    def _counts(self, t: int, variant: int) -> dict[str, Any]:
        counts: dict[str, Any] = {"samples": t * self.problem.batch * self.topology.nodes}
        if self.problem.epoch:
            counts["epochs"] = t * self.problem.batch / self.problem.epoch
        messages = t * self.topology.messages * self.network.rounds
        size = self.plan.sends[variant] * self.dim * self.itemsize
        return counts | {"messages": messages, "bytes": messages * size}

    def result(self, x: Array, steps: int, timing: dict[str, float]) -> Result:
        import pandas as pd

        self._see()
        table = pd.DataFrame(self.rows)
        history = table.drop(columns=[c for c in ("eta",) if table[c].isna().all()])
        runs = pd.DataFrame(
            [variant._asdict() | {"seed": seed} for variant in self.plan.variants for seed in self.seeds]
        )
        runs["diverged"] = pd.array([int(t) if t >= 0 else pd.NA for t in self.diverged.ravel()], dtype="Int64")
        settings = {"nodes": self.topology.nodes, "topology": self.topology.name, "steps": steps, "timing": timing}
        flat = x.reshape(-1, *x.shape[-2:])
        return Result(flat[0] if len(flat) == 1 else flat, history, runs, settings)


# ---------------------------------------------------------------- the progress bar


class Bar:
    """Steps, steps per second and the current loss on a terminal; redrawn a few times a second."""

    def __init__(self, steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:,.0f} steps/s  loss {task.fields[loss]:.4g}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.progress.add_task("", total=steps, speed=0.0, loss=float("nan"))
        self.begun = self.drawn = time.perf_counter()

    def __enter__(self) -> "Bar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, t: int, loss: float) -> None:
        self.progress.update(self.task, completed=t, loss=loss)

    def advance(self, t: int) -> None:
        now = time.perf_counter()
        if now - self.drawn > 0.1:
            self.drawn = now
            self.progress.update(self.task, completed=t, speed=t / (now - self.begun))


class Quiet:
    """No terminal, no bar."""

    def show(self, t: int, loss: float) -> None: ...

    def advance(self, t: int) -> None: ...


def _bar(steps: int, progress: bool | None) -> Any:
    import sys

    if progress is False or (progress is None and not sys.stderr.isatty()):
        return nullcontext(Quiet())
    return Bar(steps)
