"""The history of a run: a row of metrics per evaluation and run, and which runs have diverged."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.arrays import concatenate
from dnasa.checks import UserCode
from dnasa.communication import Network
from dnasa.core import Array, InputError, Rule
from dnasa.problems.prox import checked
from dnasa.rules.registry import Variant, VariantGroup
from dnasa.runs import metrics
from dnasa.runs.divergence import Divergence
from dnasa.runs.early_stopping import EarlyStopping
from dnasa.runs.names import COLUMNS
from dnasa.runs.result import Result
from dnasa.runs.snapshots import Restored

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.problems.problem import Problem


class Evaluation(NamedTuple):
    """What a callback is given: the step, a row of metrics for each run, and the mean answers `(runs, d)`."""

    step: int
    rows: list[dict[str, Any]]
    mean: Array


@dataclass(frozen=True)
class Record:
    """When `solve` stops, and how often it writes checkpoints.

    Attributes:
        callback: Called with an `Evaluation` at every evaluation, in the first process. The run stops when it returns true.
        patience: Stop early: a run stops when its loss on the validation rows was more than 1 % above the smallest for so many
            evaluations. What is evaluated is then the average of the evaluated answers, and the result is the last before them.
        average: The same average is evaluated and is the result, without stopping and without validation rows.
        checkpoint_every: The number of steps between checkpoints.

    Example:
        ```python
        small = lambda evaluation: evaluation.rows[0]["grad_norm"] < 1e-3
        dnasa.solve(problem, graph, steps=1000, record=dnasa.Record(callback=small))
        ```
    """

    callback: Callable[[Evaluation], Any] | None = None
    patience: int | None = None
    average: bool = False
    checkpoint_every: int | None = None

    @property
    def averages(self) -> bool:
        return self.average or self.patience is not None


class Recorder:
    """Collects the history of all runs, and when and at which node each of them diverged."""

    def __init__(
        self,
        problem: "Problem",
        network: Network,
        groups: Sequence[VariantGroup],
        seeds: Sequence[int],
        node_weights: np.ndarray | None,
        epoch: float | None,
        record: Record,
    ):
        self.problem = problem
        self.network = network
        self.groups = groups
        self.seeds = seeds
        self.node_weights = node_weights
        self.epoch = epoch
        self.variants: list[Variant] = [variant for group in groups for variant in group.variants]
        self.periods = [(0, network.nodes)]  # (step, number of nodes from there on)
        self.lost: list[dict[str, Any]] = []
        self.divergence = Divergence(network, len(self.variants), len(seeds))
        self.rows: list[dict[str, Any]] = []
        runs = len(self.variants) * len(seeds)
        self.early_stopping = EarlyStopping(record.patience, runs) if record.averages else None
        self.statistics: Array | None = None  # of the last evaluation
        self.started = time.perf_counter()
        self.eval_seconds = 0.0

    def answers(self, snapshots: Sequence[Any]) -> Array:
        """What the user gets of every run and local node, (variants, seeds, k, d)."""
        return concatenate([_answer(group.rule, s.state) for group, s in zip(self.groups, snapshots, strict=True)])

    def _estimates(self, snapshots: Sequence[Any]) -> Array | None:
        """The rules' estimates of the full gradient, not a number for rules that have none."""
        each = [group.rule.gradient_estimate(s.state) for group, s in zip(self.groups, snapshots, strict=True)]
        if all(estimate is None for estimate in each):
            return None
        filled = (s.state.x * np.nan if e is None else e for e, s in zip(each, snapshots, strict=True))
        return concatenate(list(filled))

    def evaluate(self, snapshots: Sequence[Any], t: int) -> Evaluation:
        """Measure all runs and append a row for each."""
        self.divergence.read_pending()
        began = time.perf_counter()
        training = began - self.started - self.eval_seconds if t else 0.0
        answers = self.answers(snapshots)
        if self.early_stopping is not None:
            answers = self.early_stopping.averaged(answers, t)
        mean = self.network.mean(answers)
        row = self._measure(answers, mean, self._estimates(snapshots))
        checked = [values for name, values in row.items() if name != "tracking"]  # which not all rules have
        self.divergence.check_metrics(checked, t)
        self.discard(t)
        rows = self._rows(row, snapshots, t, training)
        if self.early_stopping is not None:
            self._keep_best(self.early_stopping, rows, answers)
        self.rows += rows
        self.eval_seconds += time.perf_counter() - began
        return Evaluation(t, rows, mean.reshape(-1, mean.shape[-1]))

    def _keep_best(self, early_stopping: EarlyStopping, rows: list[dict[str, Any]], answers: Array) -> None:
        """The first process decides for all which runs have improved."""
        flags = early_stopping.improved(rows)
        if not self.network.simulated:
            count = len(rows)
            flags = self.network.processes.allgather_json(flags, lambda given: np.array(given, int).reshape(count).tolist())[0]
        for row, flag in zip(rows, flags, strict=True):
            row["improved"] = flag
        early_stopping.update(rows, answers)

    def final_answers(self, snapshots: Sequence[Any]) -> Array:
        """The answers at the end, or the best ones."""
        if self.early_stopping is None or self.early_stopping.best is None:
            return self.answers(snapshots)
        best = self.early_stopping.best
        self._update_statistics(self.network.mean(best))
        return best

    def _measure(self, answers: Array, mean: Array, estimate: Array | None) -> dict[str, np.ndarray]:
        options, problem = self._seeds(), self.problem
        self._update_statistics(mean)
        if self.node_weights is not None:
            options["weights"] = self.local_weights()
        if self.statistics is not None:
            options["statistics"] = self.statistics
        with UserCode(lambda: "The problem's evaluate(mean, nodes, weights=None)"):
            local = problem.evaluate(mean, self.network.local_nodes, **options)
        _check_evaluated(local, mean)
        if problem.own_tests and (self.network.processes.names or problem.privacy is not None):
            local = {name: a for name, a in local.items() if not name.startswith("test_")}  # of many models, they tell of rows
        for name in set(local).intersection(COLUMNS):
            raise InputError(f"The problem measures '{name}', a column of every history: give its metric another name.")
        numbers = {name: a[..., None, None] for name, a in local.items() if name != "gradient"}
        means = self.network.mean(concatenate([*numbers.values()], axis=-1)) if numbers else mean  # in one exchange
        evaluated = {name: means[..., i] for i, name in enumerate(numbers)}
        if "gradient" in local:
            evaluated["gradient"] = self.network.mean(local["gradient"][..., None, :])
        prox = None if problem.prox is None else checked(problem.prox)
        row = metrics.measure(answers, mean, evaluated, self.network, estimate, problem.loss_scale, prox)
        return problem.derived(row)

    def _seeds(self) -> dict[str, Any]:
        return {"seeds": self.seeds} if self.problem.by_seed else {}

    def _update_statistics(self, mean: Array) -> None:
        with UserCode(lambda: "The problem's statistics(mean, nodes)"):
            statistics = self.problem.statistics(mean, self.network.local_nodes, **self._seeds())
        if statistics is not None:
            self.statistics = self.network.mean(statistics[..., None, :])

    def local_weights(self) -> np.ndarray:
        """n p_i of the local nodes, among the nodes that are still there."""
        weights = np.asarray(self.node_weights, dtype=np.float64)
        left = weights[..., list(self.network.processes.node_ids)]
        return weights[..., list(self.network.local_nodes)] * left.shape[-1] / left.sum(-1, keepdims=True)

    def _rows(self, row: dict[str, np.ndarray], snapshots: Sequence[Any], t: int, seconds: float) -> list[dict[str, Any]]:
        sent = [s.sent for group, s in zip(self.groups, snapshots, strict=True) for _ in group.variants]
        rows = []
        for v, variant in enumerate(self.variants):
            for s, seed in enumerate(self.seeds):
                diverged = self.divergence.steps[v, s] >= 0
                values = {name: np.nan if diverged else float(value[v, s]) for name, value in row.items()}
                counts = self._samples(t) | {"messages": sent[v].messages, "bytes": round(sent[v].bytes)}
                if self.network.settings.clock is not None:
                    counts["clock_seconds"] = float(np.max(sent[v].times))
                label = {"run": v * len(self.seeds) + s, **variant.label(), "seed": seed, "step": t}
                rows.append(label | {"nodes": self.network.nodes} | values | counts | {"seconds": seconds})
        return rows

    def _samples(self, t: int) -> dict[str, Any]:
        ends = [begin for begin, _ in self.periods[1:]] + [t]
        samples = sum((end - begin) * n for (begin, n), end in zip(self.periods, ends, strict=True)) * self.problem.batch
        return {"samples": samples} | ({"epochs": t * self.problem.batch / self.epoch} if self.epoch else {})

    def discard(self, t: int) -> None:
        """Drop the rows of an evaluation that is made again."""
        while self.rows and self.rows[-1]["step"] == t:
            self.rows.pop()

    def continue_with(self, network: Network, lost: Sequence[int], t: int) -> None:
        """Continue with the processes that are there now."""
        self.network = network
        if lost:
            self.lost.append({"step": t, "nodes": list(lost)})
        self.divergence.continue_with(network)
        self.change_nodes(t, network.nodes)

    def change_nodes(self, t: int, nodes: int) -> None:
        """Count samples of this number of nodes from now on; early stopping starts again, since the validation rows change."""
        self.periods.append((t, nodes))
        if self.early_stopping is not None:
            self.early_stopping = EarlyStopping(self.early_stopping.patience, self.early_stopping.runs)

    def frame(self, last: bool = False) -> "pd.DataFrame":
        """All rows, or those of the last evaluation."""
        import pandas as pd

        table = pd.DataFrame(self.rows if not last else self.rows[-len(self.variants) * len(self.seeds) :])
        has_eta = any(variant.eta is not None for variant in self.variants)
        return table if has_eta else table.drop(columns="eta", errors="ignore")

    def notes(self) -> dict[str, Any]:
        return self.divergence.notes() | {
            "seconds": time.perf_counter() - self.started - self.eval_seconds,
            "periods": self.periods,
            "lost": self.lost,
        }

    def restore(self, notes: dict[str, Any], rows: list[dict[str, Any]], saved: Restored) -> None:
        """Continue after the checkpoint with these notes and arrays; `rows` is the history up to it."""
        self.rows = rows
        self.divergence.restore(notes)
        self.started = time.perf_counter() - float(notes["seconds"])
        self.eval_seconds = 0.0
        self.periods = [(int(begin), int(n)) for begin, n in notes["periods"]]
        self.lost = list(notes["lost"])
        if self.early_stopping is not None:
            since = [row for row in rows if row["step"] >= self.periods[-1][0]]  # since nodes were last lost
            self.early_stopping.restore(since, saved.kept("average"), saved.kept("best"))

    def result(self, x: Array, steps: int, topology: str, timing: dict[str, float]) -> Result:
        import pandas as pd

        self.divergence.read_pending()
        self.divergence.mark_exploded(self.rows)
        runs = pd.DataFrame([variant.label() | {"seed": seed} for variant in self.variants for seed in self.seeds])
        for name, values in (("diverged", self.divergence.steps), ("diverged_node", self.divergence.nodes)):
            runs[name] = pd.array([int(t) if t >= 0 else pd.NA for t in values.ravel()], dtype="Int64")
        settings = {"nodes": self.periods[0][1], "topology": topology, "steps": steps, "timing": timing}
        if self.problem.baseline is not None:
            settings["baseline"] = self.problem.baseline
        if self.network.processes.names:
            settings["site"] = self.network.processes.name_of(self.network.rank)
        if self.lost:
            settings["lost"] = self.lost
        statistics = None if self.statistics is None else _by_run(self.statistics, 1)
        rank, writes = self.network.rank, self.network.processes.writes
        return Result(_by_run(x, 2), self.frame(), runs, settings, rank, statistics, writes, self.network)


def _answer(rule: Rule, state: Any) -> Array:
    answer = rule.result(state)
    if getattr(answer, "shape", None) != state.x.shape:
        raise InputError(f"A rule's answer must have the shape of x, {tuple(state.x.shape)}.")
    return answer


def _check_evaluated(local: Any, mean: Array) -> None:
    if not isinstance(local, Mapping):
        raise InputError(f"The problem's evaluate must return a dictionary of arrays, not {type(local).__name__}.")
    for name, value in local.items():
        wanted = tuple(mean.shape if name == "gradient" else mean.shape[:-1])
        if tuple(getattr(value, "shape", ())) != wanted:
            raise InputError(f"'{name}' of the problem's evaluate must be an array of shape {wanted}.")


def _by_run(a: Array, axes: int) -> Array:
    """Join the axes of variants and seeds before the last `axes` to one, which a single run does not have."""
    flat = a.reshape(-1, *a.shape[-axes:])
    return flat[0] if len(flat) == 1 else flat
