"""A run: the loop over its steps, and how it continues when processes are lost or join."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dnasa.arrays import concatenate, copied, like
from dnasa.checks import name_user_code, nodes_text, warn
from dnasa.communication import Network
from dnasa.core import Array, InputError, Interrupted, ProcessLost, RunError, State
from dnasa.engine.budget import make_noise
from dnasa.engine.late import Late
from dnasa.engine.plan import Plan, RunOptions, run_settings
from dnasa.engine.recovery import Position, changes, positions_of, received_state, reconnect, surviving, warn_of_changes
from dnasa.engine.rule_checks import check_rule
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper, first_snapshot
from dnasa.problems.problem import Problem, as_array_like
from dnasa.rules.registry import VariantGroup
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation, Recorder
from dnasa.runs.metrics import squared_length
from dnasa.runs.progress import make_progress
from dnasa.runs.result import Result
from dnasa.runs.session import Session
from dnasa.runs.snapshots import Snapshot
from dnasa.runs.timing import Timeline, now
from dnasa.runs.worsening import Worsening

MOVING = 0.05  # of the distance from the start: with more in its second half, a run of full gradients is warned about
UNEVEN = 100  # times as many rows as another node has, for a warning
AnyStepper = TypeVar("AnyStepper", bound=Stepper)


def _first_snapshot(group: VariantGroup, x: Array) -> Snapshot:
    """The checked state of a rule at the start; errors name the rule."""
    try:
        snapshot = first_snapshot(group.rule, x)
        check_rule(group.rule, snapshot.state)
    except InputError as error:
        raise InputError(f"{group.variants[0].rule}: {error}") from error
    return snapshot


class Run:
    """A run whose nodes step together: evaluate, checkpoint, gradient, step; with fewer nodes after processes are lost."""

    def __init__(self, problem: Problem, plan: Plan, options: RunOptions):
        self.problem, self.plan, self.record = problem, plan, options.record
        self.network = plan.network  # of the processes that are left
        self.t = 0  # the steps taken
        self.halfway: Array | None = None  # the iterates there, of a run with full gradients
        self.last_step = min(plan.steps, plan.network.processes.last_step or plan.steps)
        self.snapshots = [_first_snapshot(group, x) for group, x in zip(plan.groups, plan.x, strict=True)]
        self.timeline = Timeline()
        self.recorder = Recorder(problem, plan.network, plan.groups, plan.seeds, plan.node_weights, plan.epoch, options.record)
        self.scale = self._gradient_scale()
        self.worsening = Worsening(plan.start_given, problem.baseline, plan.steps)
        self.settings = run_settings(problem, plan, options)
        writes = plan.network.processes.writes
        self.bar = make_progress(plan.steps, problem.batch, options.progress if writes else False)
        folder = run_folder(problem, plan.network, options)
        settings = self.settings | ({"own_data": plan.own_data} if plan.own_data else {})
        self.session = Session(folder, options.record.checkpoint_every, settings, plan.steps, plan.network)
        if plan.budget is not None:
            problem.private_noise = make_noise(plan.budget, plan.network, folder)

    def run(self) -> Result:
        """Train from the start, or from a checkpoint, to the end."""
        with self.bar, self.session, np.errstate(all="ignore"), self._telling_others():
            self._restore_or_join()
            self._warn_of_uneven_nodes()
            self._warn_of_noise()
            first = self.t
            answers = surviving(self, self._all_answers, self._continue)
            self._warn_of_silent_rules()
            self._warn_of_moving_iterates()
            timing = self.timeline.summary(self.t - first, self.network.processes.traffic)
            result = self.recorder.result(answers, self.plan.steps, self.plan.topology.name, timing)
            if self.plan.budget is not None:
                result.settings["privacy"] = str(self.plan.budget)
            if self.session.writer is not None:
                result.save(self.session.writer.path)
        self.session.end("diverged" if self.recorder.divergence.all_runs else "done", self.t)
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

    def _restore_or_join(self) -> None:
        join = self.network.processes.membership.join
        if join is None:
            self.t, self.snapshots = self.session.restore(self.plan.groups, self.snapshots, self.recorder)
        else:
            self.session.recall(self.recorder)
            self._meet(join, new=True)
        self.network.processes.membership.admit()

    def _warn_of_uneven_nodes(self) -> None:
        rows = self.plan.rows
        if rows is None or self.plan.node_weights is not None or self.t > 0 or not self.network.processes.writes:
            return
        if rows.max() > UNEVEN * max(1, rows.min()):
            warn(
                f"Nodes have {rows.min():,} to {rows.max():,} rows and count the same: weight them by their rows "
                "(node_weights='rows', --weights-by rows), or divide them more evenly (iid, or dirichlet with a larger alpha)."
            )

    def _warn_of_noise(self) -> None:
        if self.plan.unsuited and self.t == 0 and self.network.processes.writes:
            warn("AdGT needs full gradients and these have noise: x may hardly move. Try dnasa.")

    def _warn_of_silent_rules(self) -> None:
        for group, snapshot in zip(self.plan.groups, self.snapshots, strict=True):
            if self.network.nodes > 1 and snapshot.sent.messages == 0 and self.t > 0:
                name = group.variants[0].rule
                warn(f"Rule '{name}' sent no message in {self.t} steps: the nodes trained alone.")

    def _warn_of_moving_iterates(self) -> None:
        if self.halfway is None or self.t < self.plan.steps:
            return
        end = self.snapshots[0].state.x
        late, all_the_way = (squared_length(self.network.mean(end - x)) ** 0.5 for x in (self.halfway, self.plan.x[0]))
        share = float((late / np.maximum(all_the_way, 1e-300)).max())
        if share > MOVING and self.network.processes.writes:
            warn(
                f"The second half of the {self.t} steps still moved x by {share:.2g} of its distance from the start: the "
                "minimum is not reached. Take more steps, or scale the parameters alike."
            )

    # ------------------------------------------------------------ steps

    def _all_answers(self) -> Array:
        """Take all steps that are left. Returns the answers of all nodes, or for each the mean where they are private."""
        self._take_steps()
        answers = self.recorder.final_answers(self.snapshots)
        if self.network.private and not self.network.simulated:  # nobody gets the answer of another node
            return concatenate([self.network.mean(answers)[..., None, :]] * self.network.nodes, -2)
        return self.network.processes.gather(answers)

    def _take_steps(self) -> None:
        with self._using(self._make_stepper()) as stepper:
            while True:
                t = self.t
                evaluated = (t in self.plan.eval_steps or self.recorder.divergence.all_runs) and t != self.session.resumed_at
                stopped = evaluated and self._evaluate(t, stepper.snapshots)
                if t == self.last_step or self.recorder.divergence.all_runs or stopped:
                    return
                if t > 0:
                    self._checkpoint(stepper, evaluated)
                if self.plan.full_gradients and t == self.plan.steps // 2:
                    self.halfway = copied(stepper.snapshots[0].state.x)
                self._step(stepper)
                self.t = t + 1
                self.bar.advance(self.t)

    def _make_stepper(self) -> Stepper:
        rules, sizes = [group.rule for group in self.plan.groups], [group.size for group in self.plan.groups]
        overlap = self.plan.network.settings.overlap
        return make_stepper(rules, sizes, self.network, self.snapshots, self.timeline, overlap, self.t)

    @contextmanager
    def _using(self, stepper: AnyStepper) -> Iterator[AnyStepper]:
        """Keep the states that the stepper leaves, also if processes are lost; a user's mistake is named with the step."""
        with closing(stepper):
            try:
                yield stepper
                self.snapshots = stepper.snapshots
            except ProcessLost:
                self.snapshots = stepper.last_complete()
                raise
            except InputError as error:
                raise InputError(f"At step {self.t}: {error}") from error.__cause__ or error

    def _checkpoint(self, stepper: Stepper, evaluated: bool) -> None:
        """Write a checkpoint if one is due; raise `Interrupted` if a stop was requested."""
        self.session.maybe_checkpoint(self.t, lambda: stepper.snapshots, self.recorder, evaluated)

    def _step(self, stepper: Stepper) -> None:
        began = now()
        gradients = tuple([self._gradient(point, self.network.local_nodes, self.t) for point in stepper.points(self.t)])
        if gradients:
            self.recorder.divergence.check_gradient(gradients[0], self.t)
        began = self.timeline.add("gradient", began)
        stepper.step(gradients, self.t)
        self.timeline.add("rule", began)

    # ------------------------------------------------------------ gradients

    def _gradient(self, point: Array, nodes: range, t: int) -> Array:
        try:
            g = self.problem.gradient(point, nodes, self.plan.seeds, t)
        except Exception as error:
            name_user_code(error, lambda: f"The problem's gradient(x, nodes, seeds, t) of {nodes_text(nodes)}")
            raise
        g = as_array_like(g, point, "problem's gradient")
        if self.scale is None:
            return g
        first = nodes.start - self.network.local_nodes.start
        return g * self.scale[..., first : first + len(nodes), :]

    def _gradient_scale(self) -> Array | None:
        """n p_i for every local node, where nodes count differently."""
        if self.plan.node_weights is None:
            return None
        return like(self.recorder.local_weights()[..., None], self.plan.x[0])

    # ------------------------------------------------------------ evaluations

    def _evaluate(self, t: int, snapshots: list[Snapshot]) -> bool:
        """Measure and record. Returns whether the run is to stop here."""
        began = now()
        evaluation = self.recorder.evaluate(snapshots, t)
        self.bar.show(t, evaluation.rows)
        self.session.record(self.recorder, t)
        self.timeline.add("evaluation", began)
        if self.network.processes.writes and not self.record.averages:  # early stopping keeps the best model
            self.worsening.check(self.recorder.rows[: len(evaluation.rows)], evaluation.rows)
        return self._stops(evaluation)

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

    # ------------------------------------------------------------ processes that are lost or join

    def _continue(self) -> None:
        if not self.session.stop_requested:
            with suppress(Interrupted):
                return self._meet(self.network.processes.membership.survivors)  # type: ignore[arg-type]
        self.session.leave(self.t)

    def _meet(self, connect: Callable[[], Network], new: bool = False) -> None:
        """Continue with the processes that are there, at the latest step that any of them has reached; restart the rules."""

        def agree(network: Network) -> tuple[list[Position], list[State]]:
            own = Position(0, self.t, new or network.processes.membership.returned, self.settings)
            positions = positions_of(network, own)
            groups = zip(self.plan.groups, self.snapshots, strict=True)
            return positions, [received_state(network, positions, group.rule, each.state) for group, each in groups]

        before = self.network
        self.network, (positions, states) = reconnect(connect, agree)
        self.t = max(position.step for position in positions if not position.new)
        self.network.processes.membership.admit()
        lost, joined = changes(before, self.network, positions)
        if (lost or joined) and self.plan.budget is not None and self.plan.budget.shared:
            raise RunError("Sites that share the noise of differential privacy need each other: resume when all are there.")
        if self.network.processes.writes:
            warn_of_changes(self.network, lost, joined, self.t)
        self.recorder.continue_with(self.network, lost, self.t)
        self.session.continue_with(self.network, self.recorder, lost, joined, self.t)
        self.problem.continue_without(sorted(set(range(self.plan.topology.nodes)) - set(self.network.processes.node_ids)))
        self.scale = self._gradient_scale()
        self.snapshots = [
            snapshot._replace(state=state).restarted(group.rule)
            for group, snapshot, state in zip(self.plan.groups, self.snapshots, states, strict=True)
        ]


class LateRun(Run):
    """A simulated run whose nodes do not wait for each other. A step is as many steps of nodes as there are nodes."""

    def _make_stepper(self) -> Stepper:
        rule, late = self.plan.groups[0].rule, self.network.settings.late or 0
        return Late(rule, self.network, self.snapshots[0], late, self.plan.steps, self._gradient_of_node)

    def _gradient_of_node(self, point: Array, node: int, step: int) -> Array:
        began = now()
        nodes = range(node, node + 1)
        g = self._gradient(point, nodes, step)
        self.recorder.divergence.check_gradient(g, self.t, nodes)
        self.timeline.exchanged(began, "gradient")
        return g

    def _checkpoint(self, stepper: Stepper, evaluated: bool) -> None:
        if self.session.stop_requested:
            self.session.end("interrupted", self.t)
            raise Interrupted(f"Interrupted at step {self.t}. A run with late cannot be resumed: messages are under way.")


def run_folder(problem: Problem, network: Network, options: RunOptions) -> RunFolder | None:
    """The folder to write the run to; the config of a new run has the numbers of rows of this process's nodes."""
    folder = options.folder
    if isinstance(folder, (str, Path)):
        folder = RunFolder(folder, resume=options.resume)
    if folder is not None and not folder.resume:
        counts: list[Any] = [problem.rows(node) for node in network.local_nodes]
        folder.config["rows"] = None
        if None not in counts:  # otherwise the data is unlimited
            folder.config["rows"] = {"total": sum(counts), "smallest": min(counts), "largest": max(counts)}
    return folder
