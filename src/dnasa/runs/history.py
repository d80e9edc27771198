"""The history of a run: a row of metrics per evaluation and run, and which runs have diverged."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnasa.arrays import concatenate, to_numpy
from dnasa.core import COLUMNS, Array, InputError, Network, Rule, user_code
from dnasa.prox import checked
from dnasa.rules.registry import Variant, VariantGroup
from dnasa.runs import metrics
from dnasa.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.problems.problem import Problem

EXPLODED = 1e6  # times the loss at the start, or 1 if that is larger: a run that ends there has diverged
KEPT = {*COLUMNS} - {"consensus"}  # what the rows of a diverged run have
MOST_PENDING = 1000  # checks left on a GPU: reading them takes little time, each of them some memory
LOSSES = ("train_loss", "test_loss", "grad_norm")  # the first that is measured tells whether a run has exploded
Metric = Callable[[Array], float]  # of the mean answer of a run, (d,)


class Evaluation(NamedTuple):
    """What a callback is given: the step, a row of metrics for each run, and the mean answers `(runs, d)`."""

    step: int
    rows: list[dict[str, Any]]
    mean: Array

    def __repr__(self) -> str:
        return f"Evaluation at step {self.step} of {len(self.rows)} runs, means of shape {tuple(self.mean.shape)}"


class Recorder:
    """Collects the history of all runs, and when and at which node each of them diverged."""

    def __init__(
        self,
        problem: "Problem",
        network: Network,
        groups: Sequence[VariantGroup],
        seeds: Sequence[int],
        own_metrics: Mapping[str, Metric],
        node_weights: np.ndarray | None,
        epoch: float | None,
    ):
        self.problem, self.network, self.groups, self.seeds = problem, network, groups, seeds
        self.own_metrics, self.node_weights, self.epoch = own_metrics, node_weights, epoch
        self.variants: list[Variant] = [variant for group in groups for variant in group.variants]
        self.periods = [(0, network.nodes)]  # (step, number of nodes from there on)
        self.lost: list[dict[str, Any]] = []
        self.diverged = np.full((len(self.variants), len(seeds)), -1)  # the step
        self.diverged_node = self.diverged.copy()
        self.agreed = self.diverged.copy()  # what all processes know of `diverged`
        self.all_diverged = False
        self.rows: list[dict[str, Any]] = []
        self.statistics: Array | None = None  # of the last evaluation
        self.pending: list[tuple[int, Array]] = []  # checks whose results are still on a GPU
        self.started = time.perf_counter()
        self.eval_seconds = 0.0

    # ------------------------------------------------------------ divergence

    def check_gradient(self, g: Array, t: int) -> None:
        """A run whose gradient is not finite has diverged; results on a GPU are read later, many at once."""
        if getattr(g, "is_cuda", False):
            self.pending.append((t, g.isfinite().all(-1)))
            if len(self.pending) == MOST_PENDING:
                self._read_pending()
        elif not isfinite(g.sum()):  # which may also have overflowed
            finite = np.isfinite(g) if isinstance(g, np.ndarray) else g.isfinite()
            self._mark(to_numpy(finite.all(-1)), t)

    def _mark(self, finite: np.ndarray, t: int) -> None:
        """`finite` is of every run and local node, (variants, seeds, k)."""
        bad = ~finite.all(-1) & (self.diverged < 0)
        if bad.any():
            self.diverged[bad] = t
            self.diverged_node[bad] = np.asarray(self.network.local_nodes)[finite[bad].argmin(-1)]
            self._update_all_diverged()

    def _update_all_diverged(self) -> None:
        """Real processes must stop together, so there only what all of them know counts."""
        self.all_diverged = bool(((self.diverged if self.network.simulated else self.agreed) >= 0).all())

    def _read_pending(self) -> None:
        for t, finite in self.pending:
            self._mark(to_numpy(finite), t)
        self.pending.clear()

    def _agree(self) -> None:
        """The first step and node at which any process saw a run diverge."""
        changed = np.full((1, 1), float((self.diverged != self.agreed).any()))
        if self.network.mean(changed)[0] > 0:
            texts = self.network.allgather_text(json.dumps([self.diverged.tolist(), self.diverged_node.tolist()]))
            for steps, nodes in (np.array(json.loads(text)) for text in texts):
                earlier = (steps >= 0) & ((self.diverged < 0) | (steps < self.diverged))
                self.diverged[earlier], self.diverged_node[earlier] = steps[earlier], nodes[earlier]
            self.agreed = self.diverged.copy()
        self._update_all_diverged()

    def _mark_exploded(self) -> None:
        """At the end: a run whose loss is finite but absurd from some evaluation to the last has diverged there.

        With diminishing stepsizes a loss may rise that far and fall again, so an absurd loss before the end decides nothing.
        """
        for run in range(self.diverged.size):
            rows = self.rows[run :: self.diverged.size]
            metric = next((name for name in LOSSES if rows and name in rows[0]), None)
            if metric is None or rows[0]["step"] != 0:
                continue
            limit = EXPLODED * max(1.0, abs(rows[0][metric]))
            for row in reversed(rows):
                if not row[metric] > limit:
                    break
                self.diverged[divmod(run, len(self.seeds))] = row["step"]
                row |= dict.fromkeys(row.keys() - KEPT, np.nan)
        self.agreed = self.diverged.copy()
        self._update_all_diverged()

    # ------------------------------------------------------------ evaluation

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
        self._read_pending()
        began = time.perf_counter()
        training = began - self.started - self.eval_seconds if t else 0.0
        answers = self.answers(snapshots)
        mean = self.network.mean(answers)
        row = self._measure(answers, mean, self._estimates(snapshots))
        unchecked = {"tracking", *self.own_metrics}  # these may be undefined in a run that has not diverged
        finite = np.isfinite(np.stack([v for name, v in row.items() if name not in unchecked])).all(0)
        self.diverged[~finite & (self.diverged < 0)] = t
        self._agree()
        self.discard(t)
        rows = self._rows(row, snapshots, t, training)
        self.rows += rows
        self.eval_seconds += time.perf_counter() - began
        return Evaluation(t, rows, mean.reshape(-1, mean.shape[-1]))

    def _measure(self, answers: Array, mean: Array, estimate: Array | None) -> dict[str, np.ndarray]:
        nodes = self.network.local_nodes
        options: dict[str, Any] = {"seeds": self.seeds} if self.problem.by_seed else {}
        statistics = self.problem.statistics(mean, nodes, **options)
        if self.node_weights is not None:
            options["weights"] = self.local_weights()
        if statistics is not None:
            self.statistics = options["statistics"] = self.network.mean(statistics[..., None, :])
        local = self.problem.evaluate(mean, nodes, **options)
        for name in set(local).intersection(COLUMNS):
            raise InputError(f"The problem measures '{name}', a column of every history: give its metric another name.")
        evaluated = {
            name: self.network.mean(value[..., None, :] if name == "gradient" else value[..., None, None])
            for name, value in local.items()
        }
        evaluated = {name: value if name == "gradient" else value[..., 0] for name, value in evaluated.items()}
        problem = self.problem
        prox = None if problem.prox is None else checked(problem.prox)
        row = metrics.measure(answers, mean, evaluated, self.network, estimate, problem.loss_scale, prox)
        row = problem.derived(row)
        return row | {name: _of_each_run(name, metric, mean) for name, metric in self.own_metrics.items()}

    def local_weights(self) -> np.ndarray:
        """n p_i of the local nodes, among the nodes that are still there."""
        weights = np.asarray(self.node_weights, dtype=np.float64)
        left = weights[..., list(self.network.node_ids)]
        return weights[..., list(self.network.local_nodes)] * left.shape[-1] / left.sum(-1, keepdims=True)

    def _rows(
        self, row: dict[str, np.ndarray], snapshots: Sequence[Any], t: int, seconds: float
    ) -> list[dict[str, Any]]:
        sent = [s.sent for group, s in zip(self.groups, snapshots, strict=True) for _ in group.variants]
        rows = []
        for v, variant in enumerate(self.variants):
            for s, seed in enumerate(self.seeds):
                lost = self.diverged[v, s] >= 0
                values = {name: np.nan if lost else float(value[v, s]) for name, value in row.items()}
                counts = self._samples(t) | {"messages": sent[v].messages, "bytes": round(sent[v].bytes)}
                label = {"run": v * len(self.seeds) + s, **variant.label(), "seed": seed, "step": t}
                rows.append(label | {"nodes": self.network.nodes} | values | counts | {"seconds": seconds})
        return rows

    def _samples(self, t: int) -> dict[str, Any]:
        ends = [begin for begin, _ in self.periods[1:]] + [t]
        samples = (
            sum((end - begin) * n for (begin, n), end in zip(self.periods, ends, strict=True)) * self.problem.batch
        )
        return {"samples": samples} | ({"epochs": t * self.problem.batch / self.epoch} if self.epoch else {})

    def discard(self, t: int) -> None:
        """Drop the rows of an evaluation that is made again."""
        while self.rows and self.rows[-1]["step"] == t:
            self.rows.pop()

    def continue_without(self, network: Network, lost: Sequence[int], t: int) -> None:
        self.network = network
        self.periods.append((t, network.nodes))
        if lost:
            self.lost.append({"step": t, "nodes": list(lost)})
        self._update_all_diverged()

    def frame(self, last: bool = False) -> "pd.DataFrame":
        """All rows, or those of the last evaluation."""
        import pandas as pd

        table = pd.DataFrame(self.rows if not last else self.rows[-self.diverged.size :])
        has_eta = any(variant.eta is not None for variant in self.variants)
        return table if has_eta else table.drop(columns="eta", errors="ignore")

    # ------------------------------------------------------------ for checkpoints and results

    def notes(self) -> dict[str, Any]:
        self._read_pending()
        return {
            "diverged": self.diverged.tolist(),
            "diverged_node": self.diverged_node.tolist(),
            "agreed": self.agreed.tolist(),
            "seconds": time.perf_counter() - self.started - self.eval_seconds,
            "periods": self.periods,
            "lost": self.lost,
        }

    def restore(self, notes: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        shape = self.diverged.shape
        self.diverged, self.diverged_node, self.agreed = (
            np.array(notes[name], dtype=int).reshape(shape) for name in ("diverged", "diverged_node", "agreed")
        )
        self._update_all_diverged()
        self.started, self.eval_seconds = time.perf_counter() - float(notes["seconds"]), 0.0
        self.periods, self.lost = [(int(begin), int(n)) for begin, n in notes["periods"]], list(notes["lost"])

    def result(self, x: Array, steps: int, topology: str, timing: dict[str, float]) -> Result:
        import pandas as pd

        self._read_pending()
        self._mark_exploded()
        runs = pd.DataFrame([variant.label() | {"seed": seed} for variant in self.variants for seed in self.seeds])
        for name, values in (("diverged", self.diverged), ("diverged_node", self.diverged_node)):
            runs[name] = pd.array([int(t) if t >= 0 else pd.NA for t in values.ravel()], dtype="Int64")
        settings = {"nodes": self.periods[0][1], "topology": topology, "steps": steps, "timing": timing}
        if self.lost:
            settings["lost"] = self.lost
        flat, statistics = x.reshape(-1, *x.shape[-2:]), self.statistics
        statistics = statistics if statistics is None else statistics.reshape(-1, statistics.shape[-1])
        one = 0 if len(flat) == 1 else slice(None)
        its = None if statistics is None else statistics[one]
        return Result(flat[one], self.frame(), runs, settings, self.network.rank, its)


def _answer(rule: Rule, state: Any) -> Array:
    answer = rule.result(state)
    if getattr(answer, "shape", None) != state.x.shape:
        raise InputError(f"A rule's answer must have the shape of x, {tuple(state.x.shape)}.")
    return answer


def _of_each_run(name: str, metric: Metric, mean: Array) -> np.ndarray:
    try:
        with user_code(lambda: f"The metric '{name}'"):
            values = [[metric(point) for point in variant] for variant in mean]
        return np.array([[float(value) for value in of_variant] for of_variant in values])
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The metric '{name}' must return one number for a point of shape (d,): {error}.") from error
