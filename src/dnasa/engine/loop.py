"""`solve`: check the arguments, then run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from dnasa.communication import Network
from dnasa.core import Array, Rule, Schedule
from dnasa.engine.plan import RunOptions, make_plan
from dnasa.engine.run import LateRun, Run
from dnasa.problems.problem import Problem, check_problem
from dnasa.rules.registry import Variant
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Record
from dnasa.runs.progress import Progress
from dnasa.runs.result import Result
from dnasa.topology import Topology

RECORD = Record()


def solve(
    problem: Problem,
    network: Network | Topology | str,
    rule: str | Rule | Variant | Sequence[str | Rule | Variant] | None = None,
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
        rule: A name, a name with its schedule ("dsgd:constant"), a `Rule`, or several of them. By default adgt if the gradients
            at the start are the same in three steps, to the bit: then they are full. Otherwise, and where adgt does not work
            (directed graphs, compressed or late messages, weight decay), dnasa.
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
        record: When to stop, and how often to write checkpoints.
    """
    options = RunOptions(evaluate, node_weights, weight_decay, folder, resume, progress, record)
    check_problem(problem)
    plan = make_plan(problem, network, rule, steps, eta, seed, start, options)
    kind = Run if plan.network.settings.late is None else LateRun
    return kind(problem, plan, options).run()


def check(
    problem: Problem, network: Network, rule: str, *, steps: int, eta: float | None, seed: Sequence[int], **options: Any
) -> None:
    """Raise the errors that `solve` raises before the first step."""
    check_problem(problem)
    make_plan(problem, network, rule, steps, eta, seed, None, RunOptions(**options))
