"""The only loop: gradients, exchange, rule, and now and then a look at how far we are."""

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa import metrics, rules
from dnasa.core import Array, InputError, Network, Rule, positive
from dnasa.records import Result

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
    network: Network | None = None,
    progress: bool | None = None,
) -> Result:
    """Minimise the average of the nodes' losses.

    `rule` is a name, several names, or a `Rule` of your own. Several rules, stepsizes (`eta`), schedules or seeds run side
    by side as one array. `evaluate` says when to measure: every so many steps, or at which steps (default: up to 50 times,
    fewer where evaluation would dominate).
    `start` overrides the problem's starting point: `(d,)`, or `(n, d)` for one per node. `rounds` exchanges per step.
    `network` replaces the simulated one. A progress bar is shown on a terminal unless `progress=False`.
    """
    steps = _whole("steps", steps)
    seeds = [_seed(s) for s in ([seed] if np.isscalar(seed) else list(seed))]  # type: ignore[arg-type]
    _check_nodes(problem, topology)
    network = network or _simulated(topology, rounds)
    first = _starting_points(problem, topology, seeds, start, network)
    plan = _plan(rule, eta, schedule, topology.nodes, steps, first)
    _check_weights(plan.rule, topology)
    looks = _looks(evaluate, steps, problem)

    x = _repeat(first, len(plan.variants))
    state = plan.rule.init(x)
    recorder = Recorder(problem, topology, network, plan, seeds, itemsize=_itemsize(x))
    with _bar(steps, progress) as bar, np.errstate(all="ignore"):  # a diverging run beside others is no surprise
        for t in range(steps + 1):
            if t in looks:
                bar.show(t, recorder.look(state, t))
            if t == steps or recorder.hopeless:
                break
            g = problem.gradient(state.x, network.here, seeds, t)
            recorder.watch(g, t)
            state = plan.rule.step(state, g, network.at(t), t)
            bar.advance(t + 1)
    return recorder.result(state.x, steps)


# ---------------------------------------------------------------- what is run


class Plan(NamedTuple):
    rule: Rule
    variants: list[rules.Variant]
    sends: int  # arrays in one message


def _plan(
    rule: str | Rule | Sequence[str],
    eta: float | Sequence[float] | None,
    schedule: str | Sequence[str] | None,
    nodes: int,
    steps: int,
    first: Array,
) -> Plan:
    if isinstance(rule, Rule):
        variants = [rules.Variant("custom", "custom")] * _sweep_size(rule, first)
        return Plan(rule, variants, _sends(rule, first))
    etas: list[float] = [] if eta is None else [eta] if np.isscalar(eta) else list(eta)  # type: ignore[arg-type, list-item]
    names = [rule] if isinstance(rule, str) else list(rule)
    variants = [variant for name in names for variant in rules.variants(name, etas, schedule)]
    if not variants:
        raise InputError(f"No rule given. Choose from: {', '.join(rules.RULES)}.")
    built = rules.build(variants, nodes, steps, first)
    sends = max(_sends(rules.build([variant], nodes, steps, first), first) for variant in variants)
    return Plan(built, variants, sends)


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


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise InputError(f"{name} must be a whole number, not {value}.")
    positive(name, value)
    return int(value)


def _seed(seed: Any) -> int:
    if int(seed) != seed or seed < 0:
        raise InputError(f"A seed must be a whole number from 0 on, not {seed}.")
    return int(seed)


def _check_nodes(problem: "Problem", topology: "Topology") -> None:
    if problem.nodes is not None and problem.nodes != topology.nodes:
        raise InputError(
            f"The problem has data for {problem.nodes} nodes, the topology has {topology.nodes}: give both the same number."
        )


def _check_weights(rule: Rule, topology: "Topology") -> None:
    if rule.smallest_eigenvalue > -1 and topology.smallest_eigenvalue <= rule.smallest_eigenvalue + 1e-9:
        raise InputError(
            f"This rule needs all eigenvalues of W above {rule.smallest_eigenvalue:.4g}; the smallest of this {topology.name} "
            f"is {topology.smallest_eigenvalue:.4g}. Use weights='lazy' (--weights lazy), or leave the rule out."
        )


def _looks(evaluate: int | Sequence[int] | None, steps: int, problem: "Problem") -> set[int]:
    """By default 50, or fewer (down to 5) where full passes over the data would cost more than half of the training."""
    if evaluate is None:
        passes = steps * problem.batch / problem.epoch if problem.epoch else np.inf
        count = int(max(5, min(50, passes / 2)))
        return {round(i * steps / count) for i in range(count + 1)}
    if np.isscalar(evaluate):
        return {*range(0, steps, _whole("evaluate", evaluate)), steps}
    chosen: Iterable[int] = evaluate  # type: ignore[assignment]
    looks = {int(t) for t in chosen}
    if not looks or min(looks) < 0 or max(looks) > steps:
        raise InputError(f"Evaluation steps must lie between 0 and {steps}.")
    return looks


# ---------------------------------------------------------------- arrays


def _starting_points(
    problem: "Problem", topology: "Topology", seeds: Sequence[int], start: Array | None, network: Network
) -> Array:
    """(1, seeds, k, d)"""
    own = [problem.start(s) for s in seeds]
    points = own if start is None else [start * (1 + 0 * own[0][:1])] * len(seeds)
    if points[0].shape not in {own[0].shape, (topology.nodes, *own[0].shape)}:
        raise InputError(
            f"start has shape {tuple(points[0].shape)}; it must be {tuple(own[0].shape)} or one row per node, "
            f"{(topology.nodes, *own[0].shape)}."
        )
    here, dim = slice(network.here.start, network.here.stop), own[0].shape[0]
    rows = [p[here] if p.ndim == 2 else _broadcast(p, (len(network.here), dim)) for p in points]
    return _stack(rows)[None]


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


def _itemsize(x: Array) -> int:
    return x.dtype.itemsize


def _simulated(topology: "Topology", rounds: int) -> Network:
    from dnasa.networks.simulated import connect

    return connect(topology, rounds)


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
        self.rows: list[dict[str, Any]] = []
        self.unseen: list[tuple[int, Array]] = []
        self.dim = 0
        self.started = time.perf_counter()
        self.looking = 0.0

    @property
    def hopeless(self) -> bool:
        """Every run has diverged."""
        return bool((self.diverged >= 0).all())

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

    def look(self, state: Any, t: int) -> float:
        """Measure all runs; returns the best current loss for the progress bar."""
        self._see()
        began = time.perf_counter()
        training = began - self.started - self.looking
        self.dim = state.x.shape[-1]
        row = self._measure(state)
        self._mark(np.isfinite(np.stack(list(row.values()))).all(0), t)
        common = self._counts(t) | {"seconds": training}
        for v, variant in enumerate(self.plan.variants):
            for s, seed in enumerate(self.seeds):
                lost = self.diverged[v, s] >= 0
                values = {name: np.nan if lost else float(value[v, s]) for name, value in row.items()}
                self.rows.append(
                    {"run": v * len(self.seeds) + s, **variant._asdict(), "seed": seed, "step": t, **values, **common}
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
        return metrics.measure(state, mean, evaluated, self.network)

    def _counts(self, t: int) -> dict[str, Any]:
        counts: dict[str, Any] = {"samples": t * self.problem.batch * self.topology.nodes}
        if self.problem.epoch:
            counts["epochs"] = t * self.problem.batch / self.problem.epoch
        messages = t * self.topology.messages
        return counts | {"messages": messages, "bytes": messages * self.plan.sends * self.dim * self.itemsize}

    def result(self, x: Array, steps: int) -> Result:
        import pandas as pd

        self._see()
        table = pd.DataFrame(self.rows)
        history = table.drop(columns=[c for c in ("eta",) if table[c].isna().all()])
        runs = pd.DataFrame(
            [variant._asdict() | {"seed": seed} for variant in self.plan.variants for seed in self.seeds]
        )
        runs["diverged"] = pd.array([int(t) if t >= 0 else pd.NA for t in self.diverged.ravel()], dtype="Int64")
        settings = {"nodes": self.topology.nodes, "topology": self.topology.name, "steps": steps}
        flat = x.reshape(-1, *x.shape[-2:])
        return Result(flat[0] if len(flat) == 1 else flat, history, runs, settings)


# ---------------------------------------------------------------- the progress bar


class Bar:
    """Steps, steps per second and the current loss on a terminal; redrawn a few times a second."""

    def __init__(self, steps: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:,.0f} steps/s  loss {task.fields[loss]:.4g}"),
            TimeRemainingColumn(),
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
