"""`solve`: gradients, exchange, rule, and at some steps an evaluation."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dnasa.arrays import like
from dnasa.checks import name_user_code, nodes_text
from dnasa.communication import Network
from dnasa.core import Array, InputError, Interrupted, Rule, RunError, Schedule
from dnasa.engine.late import Late, OwnNode
from dnasa.engine.plan import Plan, RunOptions, make_plan, run_settings
from dnasa.engine.recovery import Position, changes, positions_of, received_state, reconnect, surviving, warn_of_changes
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper, check_state, explained
from dnasa.problems.metrics import larger_is_better
from dnasa.problems.problem import check_problem
from dnasa.rules.registry import Variant
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation, Record, Recorder
from dnasa.runs.progress import Progress, make_progress
from dnasa.runs.result import Result
from dnasa.runs.session import Session
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline, now

if TYPE_CHECKING:
    from dnasa.problems.problem import Problem
    from dnasa.topology import Topology

RECORD = Record()
WORSE = 0.02  # less accuracy or R^2 than at the start, or so much more loss, in relation to it


def solve(
    problem: "Problem",
    network: "Network | Topology | str",
    rule: str | Rule | Variant | Sequence[str | Rule | Variant] = "dnasa",
    *,
    steps: int,
    eta: float | Schedule | Sequence[float | Schedule] | None = None,
    seed: int | Sequence[int] = 0,
    start: Array | None = None,
    evaluate: int | Sequence[int] | None = None,
    node_weights: Sequence[float] | Literal["rows"] | None = None,
    weight_decay: float = 0.0,
    folder: str | Path | RunFolder | None = None,
    resume: bool = False,
    progress: Progress = None,
    record: Record = RECORD,
) -> Result:
    """Minimize the weighted average of the nodes' losses.

    Several rules, stepsizes or seeds run side by side as one array. What a number `eta` means depends on the schedule;
    docs/methods.md has the formulas, under Schedules.

    Args:
        problem: What to minimize, from `dnasa.problems` or a class of your own.
        network: The network from `dnasa.connect`: every process calls `solve` with the same arguments and gets all iterates. A
            graph, or the name of one if the problem has a number of nodes, is simulated.
        rule: A name, a name with its schedule ("dsgd:constant"), a `Rule`, or several of them.
        steps: The number of steps T.
        eta: The stepsize of rules that need one: a number, a function of t, or several of them.
        seed: The seed of the samples and the starting point, or several.
        start: Replaces the problem's starting point: `(d,)`, or `(n, d)` with a row for each node.
        evaluate: The number of steps between evaluations, or the steps to evaluate at. By default up to 50 evaluations, fewer
            where they would take longer than the training.
        node_weights: How much each node counts, p_i up to a common factor, or "rows": in proportion to its rows.
        weight_decay: Decoupled weight decay, as in AdamW: in each step x shrinks by the stepsize times this number.
        folder: Write the run to this folder as it happens.
        resume: Continue the run in `folder` from its newest checkpoint, exactly.
        progress: True for a bar, "json" for a line per evaluation and run, False for nothing. By default a bar on a terminal,
            elsewhere a line each minute on standard error.
        record: What to measure, when to stop early, and how often to write checkpoints.
    """
    options = RunOptions(evaluate, node_weights, weight_decay, folder, resume, progress, record)
    check_problem(problem)
    plan = make_plan(problem, network, rule, steps, eta, seed, start, options)
    if plan.network.settings.late is None:
        return Run(problem, plan, options).run()
    late = LateRun if plan.network.simulated else SiteRun
    return late(problem, plan, options).run()


def check(
    problem: "Problem",
    network: Network,
    rule: str,
    *,
    steps: int,
    eta: float | None,
    seed: Sequence[int],
    **options: Any,
) -> None:
    """Raise the errors that `solve` raises before the first step."""
    check_problem(problem)
    make_plan(problem, network, rule, steps, eta, seed, None, RunOptions(**options))


class Run:
    """The loop: evaluate, checkpoint, gradient, step; and again with fewer nodes when processes are lost."""

    def __init__(self, problem: "Problem", plan: Plan, options: RunOptions):
        self.problem, self.plan, self.options = problem, plan, options
        self.network, self.record = plan.network, options.record
        self.t = self.first = 0
        self.warned = not plan.network.processes.writes or self.record.patience is not None
        self.timeline = Timeline()
        weights, patience = plan.node_weights, self.record.patience
        self.recorder = Recorder(
            problem, plan.network, plan.groups, plan.seeds, self.record.metrics, weights, plan.epoch, patience
        )
        self.scale = self._gradient_scale()

    def run(self) -> Result:
        plan, options, writes = self.plan, self.options, self.network.processes.writes
        self.settings = run_settings(self.problem, plan, options)
        with (
            make_progress(plan.steps, self.problem.batch, options.progress if writes else False) as self.bar,
            Session(self._folder(), self.record.checkpoint_every, self.settings, plan.steps, self.network) as self.session,
            np.errstate(all="ignore"),
            self._telling_others(),
        ):
            answers = self._train()
            timing = self.timeline.summary(self.t - self.first, self.network.processes.traffic)
            result = self.recorder.result(answers, plan.steps, plan.topology.name, timing)
            if self.session.folder is not None and self.network.processes.writes:
                result.save(self.session.folder.path)
        self.session.end("diverged" if self.recorder.all_diverged else "done", self.t)
        return result

    @contextmanager
    def _telling_others(self) -> Iterator[None]:
        """Report an error to the other processes, so that they do not wait if the user catches it."""
        try:
            yield
        except RunError:
            raise
        except Exception as error:
            self.network.processes.membership.fail(f"Rank {self.network.rank} stopped at step {self.t}: {error}")
            raise

    def _folder(self) -> RunFolder | None:
        folder = self.options.folder
        if isinstance(folder, (str, Path)):
            folder = RunFolder(folder, resume=self.options.resume)
        if folder is not None and not folder.resume:
            counts: list[Any] = [self.problem.rows(node) for node in self.network.local_nodes]
            known = None not in counts  # otherwise the data is unlimited
            extent = {"total": sum(counts), "smallest": min(counts), "largest": max(counts)} if known else None
            folder.config["rows"] = extent
        return folder

    def _train(self) -> Array:
        """Train from the start, or from a checkpoint, to the end; returns all nodes' answers."""
        membership = self.network.processes.membership
        initial = [
            Snapshot(check_state(group.rule.init(x), x), {}, Sent())
            for group, x in zip(self.plan.groups, self.plan.x, strict=True)
        ]
        if membership.join is None:
            self.t, self.snapshots = self.session.restore(self.plan.groups, initial, self.recorder)
        else:
            self._meet(membership.join, initial, new=True)
        self.first = self.t
        self.network.processes.membership.admit()

        def work() -> Array:
            with closing(self._stepper()) as self.stepper:
                try:
                    self._loop()
                except Exception as raised:
                    error = explained(raised)
                    if isinstance(error, InputError):
                        raise InputError(f"At step {self.t}: {error}") from error.__cause__ or error
                    raise
                self.snapshots = self.stepper.snapshots
                return self.network.processes.gather(self.recorder.final_answers(self.snapshots))

        answers = surviving(self, work, self._continue)
        for group, snapshot in zip(self.plan.groups, self.snapshots, strict=True):
            if self.network.nodes > 1 and snapshot.sent.messages == 0 and self.t > 0:
                name = group.variants[0].rule
                warnings.warn(f"Rule '{name}' sent no message in {self.t} steps: the nodes trained alone.", stacklevel=5)
        return answers

    def _stepper(self) -> Stepper:
        rules, sizes = [group.rule for group in self.plan.groups], [group.size for group in self.plan.groups]
        overlap = self.plan.network.settings.overlap
        return make_stepper(rules, sizes, self.network, self.snapshots, self.timeline, overlap, self.t)

    def _loop(self) -> None:
        recorder, session = self.recorder, self.session
        stopped = False
        while True:
            t = self.t
            evaluated = (t in self.plan.eval_steps or recorder.all_diverged) and t != session.resumed_at
            if evaluated:
                stopped = self._evaluate(t, self.stepper.snapshots)
            if t == self.plan.steps or recorder.all_diverged or stopped:
                return
            if t > 0:
                self._checkpoint(t, evaluated)
            self._step(t)
            self.t += 1
            self.bar.advance(self.t)
            session.step(self.t)

    def _checkpoint(self, t: int, evaluated: bool) -> None:
        self.session.maybe_checkpoint(t, lambda: self.stepper.snapshots, self.recorder, evaluated)

    def _step(self, t: int) -> None:
        began = now()
        gradients = tuple([self._gradient(point, self.network.local_nodes, t) for point in self.stepper.points(t)])
        self.recorder.divergence.check_gradient(gradients[0], t)
        began = self.timeline.add("gradient", began)
        self.stepper.step(gradients, t)
        self.timeline.add("rule", began)

    def _gradient(self, point: Array, nodes: range, t: int) -> Array:
        try:
            g = self.problem.gradient(point, nodes, self.plan.seeds, t)
        except Exception as error:
            name_user_code(error, lambda: f"The problem's gradient(x, nodes, seeds, t) of {nodes_text(nodes)}")
            raise
        if type(g) is not type(point) or g.shape != point.shape or g.dtype != point.dtype:
            g = as_gradient(g, point)
        if self.scale is None:
            return g
        first = nodes.start - self.network.local_nodes.start
        return g * self.scale[..., first : first + len(nodes), :]

    def _gradient_scale(self) -> Array | None:
        """n p_i for every local node, where nodes count differently."""
        if self.plan.node_weights is None:
            return None
        return like(self.recorder.local_weights()[..., None], self.plan.x[0])

    def _evaluate(self, t: int, snapshots: list[Snapshot]) -> bool:
        """Measure and record; returns whether the run is to stop here."""
        began = now()
        evaluation = self.recorder.evaluate(snapshots, t)
        self.bar.show(t, evaluation.rows)
        self.session.record(self.recorder, t)
        self.timeline.add("evaluation", began)
        if not self.warned:
            self._warn_if_worse(evaluation.rows)
        return self._stops(evaluation)

    def _warn_if_worse(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Warn where a run from the user's weights, or at its end from a model that had learned, is worse than its start."""
        starts, t = self.recorder.rows[: len(rows)], rows[0]["step"]
        metric = next((name for name in ("test_accuracy", "test_r2", "test_loss") if name in rows[0]), None)
        if metric is None or starts[0]["step"] > 0:
            return
        baseline = self.problem.baseline if t == self.plan.steps and metric == "test_accuracy" else None
        learned = baseline is not None and min(start[metric] for start in starts) > baseline + WORSE
        sign = 1 if larger_is_better(metric) else -1
        for start, row in zip(starts, rows, strict=True) if self.plan.trained or learned else ():
            old, new = start[metric], row[metric]
            if sign * (old - new) > WORSE * (1 if sign > 0 else abs(old)) and not self.warned:
                self.warned = True
                what = f"{row['rule']}: the {metric.replace('_', ' ')} is {new:.4g} at step {t}, {old:.4g} at the start."
                warnings.warn(f"{what} Try a smaller stepsize or early stopping, which keeps the best model.", stacklevel=6)

    def _stops(self, evaluation: Evaluation) -> bool:
        """Whether to stop; the first process decides for all."""
        callback, early_stopping = self.record.callback, self.recorder.early_stopping
        if early_stopping is not None and early_stopping.stops:
            self.session.log(f"Stopped early at step {evaluation.step}: the validation loss no longer improves.")
            return True
        if callback is None:
            return False
        stops = self.network.rank == 0 and bool(callback(evaluation))
        if not self.network.simulated:
            stops = self.network.processes.allgather_text("stop" if stops else "")[0] == "stop"
        if stops:
            self.session.log(f"Stopped at step {evaluation.step} by the callback.")
        return stops

    def _continue(self) -> None:
        complete = [self.stepper.complete] if self.plan.network.settings.overlap else self.stepper.snapshots
        self._meet(self.network.processes.membership.survivors, complete)  # type: ignore[arg-type]

    def _meet(self, connect: Callable[[], Network], complete: list[Snapshot], new: bool = False) -> None:
        """Continue with the processes that are there, at the latest step that any of them has reached; restart the rules."""

        def agree(network: Network) -> tuple[list[Position], list[Any]]:
            own = Position(0, self.t, new or network.processes.membership.returned, self.settings)
            positions = positions_of(network, own)
            return positions, [received_state(network, positions, snapshot.state) for snapshot in complete]

        before = self.network
        self.network, (positions, states) = reconnect(connect, agree)
        self.t = max(position.step for position in positions if not position.new)
        self.network.processes.membership.admit()
        lost, joined = changes(before, self.network, positions)
        if self.network.processes.writes:
            warn_of_changes(self.network, lost, joined, self.t)
        self.recorder.continue_with(self.network, lost, self.t)
        self.session.continue_with(self.network, self.recorder, lost, joined, self.t)
        self.problem.continue_without(sorted(set(range(self.plan.topology.nodes)) - set(self.network.processes.node_ids)))
        self.scale = self._gradient_scale()
        self.snapshots = [
            snapshot._replace(state=state).restarted(group.rule)
            for group, snapshot, state in zip(self.plan.groups, complete, states, strict=True)
        ]


class LateRun(Run):
    """A run whose nodes do not wait for each other. A step is as many steps of nodes as there are nodes."""

    def _stepper(self) -> Any:
        late: Any = self.plan.network.settings.late  # networks of survivors do not have it
        return Late(self.plan.groups[0].rule, self.network, self.snapshots[0], late, self.plan.steps, self._of_node)

    def _step(self, t: int) -> None:
        stepper: Any = self.stepper
        began = now()
        stepper.advance()
        self.timeline.add("rule", began)

    def _of_node(self, point: Array, node: int, step: int) -> Array:
        began = now()
        nodes = range(node, node + 1)
        g = self._gradient(point, nodes, step)
        self.recorder.divergence.check_gradient(g, self.t, nodes)
        self.timeline.exchanged(began, "gradient")
        return g

    def _checkpoint(self, t: int, evaluated: bool) -> None:
        if self.session.stop_requested:
            self.session.end("interrupted", t)
            raise Interrupted(f"Interrupted at step {t}. A run with late cannot be resumed: messages are under way.")


class SiteRun(LateRun):
    """A run whose sites do not wait for each other. They meet at the start, at the end, and when one leaves or joins."""

    own_steps = 0

    def _stepper(self) -> Any:
        late: Any = self.plan.network.settings.late
        rule, steps = self.plan.groups[0].rule, self.plan.steps
        return OwnNode(rule, self.network, self.snapshots[0], late, steps, self.t, self.own_steps)

    def _loop(self) -> None:
        stepper: Any = self.stepper
        if self.t == 0:
            self._evaluate(0, self.snapshots)
        if self.t < self.plan.steps:
            began = now()
            try:
                stepper.run(self._of_own_node)
            finally:
                self.timeline.add("rule", began)
            self.t = self.plan.steps
        messages, size = self.network.mean(np.array([[stepper.sent.messages, stepper.sent.bytes]])) * self.network.nodes
        self._evaluate(self.t, [stepper.snapshots[0]._replace(sent=Sent(round(messages), size))])

    def _of_own_node(self, point: Array, step: int) -> Array:
        stepper: Any = self.stepper
        self.t, self.own_steps = stepper.node.t, step + 1
        self._checkpoint(self.t, evaluated=False)
        self.bar.advance(self.t)
        self.session.step(self.t)
        return self._of_node(point, self.network.local_nodes[0], step)


def as_gradient(g: Any, point: Array) -> Array:
    """Convert a gradient to the library and dtype of the point; it must be real and have its shape."""
    if getattr(g, "shape", None) != point.shape or "complex" in str(g.dtype):
        kind = f"shape {tuple(g.shape)} and dtype {g.dtype}" if hasattr(g, "shape") else f"type {type(g).__name__}"
        raise InputError(
            f"The problem's gradient has {kind} at points of shape {tuple(point.shape)}: return real numbers of that shape."
        )
    return like(g, point)
