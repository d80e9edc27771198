"""Beyond the paper: AdaNASA and D-NASA with nothing tuned against tuned methods, on networks that people train.

Every stepsize is chosen on validation rows, a tenth of the training rows on which nobody trains; results are those on the
test rows. Results are saved in parts, one for each task, graph and partition, and one for the central reference. Each part
runs one seed after the other, so that all rules can be compared when the first is complete.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.core import Layout, Rule, Schedule
from dnasa.plots import title
from dnasa.reproduce.choosing import averages, chosen, edges, name_of
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec
from dnasa.reproduce.network_tasks import CENTRAL, NODES, QUICK, TASKS, WITHOUT_DATA, Measure, Task
from dnasa.reproduce.report import Report
from dnasa.rules import schedules
from dnasa.rules.dadam import dadam
from dnasa.rules.weight_decay import with_weight_decay

GRAPHS = ("ring", "exponential")
DIVISIONS = ("iid", "heterogeneous")
UNTUNED = ("adanasa", "dnasa")
TUNED = ("dsgd", "dmsgd", "dadam", "dsgt")
SEEDS = 3
WEIGHT_DECAY = 0.01  # torch's default


def parts(quick: bool) -> list[Part]:
    tasks, graphs, seeds = (QUICK, GRAPHS[:1], 1) if quick else (TASKS, GRAPHS, SEEDS)
    every = tasks | WITHOUT_DATA
    return [part for name, task in every.items() for part in parts_of(name, task, graphs, seeds)]


def parts_of(name: str, task: Task, graphs: tuple[str, ...], seeds: int) -> Iterator[Part]:
    def part(end: str, rules: tuple[str, ...], partition: str, graph: topology.Topology, **options: object) -> Part:
        runs = [
            RunSpec(task.steps, [rule], task.etas, [seed], {}, graph, partition, validation=True, **options)  # type: ignore[arg-type]
            for seed in range(seeds)
            for rule in rules
        ]
        return Part(f"{name}/{end}", runs, task, fallback=name in WITHOUT_DATA)

    def central(eta: float, layout: Layout) -> Rule:
        return adamw(schedules.cosine(eta, task.steps))

    joint = {"batch": NODES * task.batch, "rule_makers": {CENTRAL: central}}
    yield part(CENTRAL, (CENTRAL,), "iid", topology.complete(1), **joint)
    for graph in graphs:
        for division in DIVISIONS:
            yield part(f"{graph}/{division}", UNTUNED + TUNED, task.how(division), topology.make(graph, NODES))


def adamw(eta: Schedule) -> Rule:
    """torch's AdamW: x <- (1 - eta decay) x - eta m' / (sqrt(v') + eps); Loshchilov and Hutter, 2019."""
    return with_weight_decay(dadam(eta), schedules.constant(WEIGHT_DECAY))


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("networks", f"{NODES} nodes, stepsizes chosen on validation rows", found.quick)
    for name in dict.fromkeys(part.partition("/")[0] for part in found.parts):
        same = {part: rows for part, rows in found.rows.items() if part.startswith(f"{name}/")}
        task, central = found.parts[next(iter(same))].task, same.pop(f"{name}/{CENTRAL}", None)
        means = {part: averages(pd.concat([rows, central]), task.measure) for part, rows in same.items()}
        best = {part: chosen(table, task.measure) for part, table in means.items()}
        if best:
            summaries = {", ".join(part.split("/")[1:]): summary(rows, task.measure) for part, rows in best.items()}
            out.tables[f"networks-{name}"] = pd.concat(summaries, names=["part", None]).reset_index("part")
            draw(out, name, task, means, best)
        out.findings += [f"{part}: {finding(rows, task.measure)}" for part, rows in best.items()]
    return out


def summary(best: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The printed table: one row for each rule."""
    unit = f" ({measure.unit})" if measure.unit else ""
    return pd.DataFrame(
        {
            "rule": [name_of(rule) for rule in best.index],
            "best eta": [f"{tuning.eta_text(row.eta)}{' (edge)' if row.edge else ''}" for row in best.itertuples()],
            measure.label: best.test.map(measure.text).to_numpy(),
            f"spread{unit}": (abs(measure.scale) * best.spread).to_numpy(),
            "seeds": best.runs.to_numpy(),
            f"gain over AdaNASA{unit}": measure.gain(best.test, best.test["adanasa"]).map(measure.signed).to_numpy(),
        }
    )


def finding(best: pd.DataFrame, measure: Measure) -> str:
    """Whether AdaNASA is within the target of the best tuned method, how it compares with D-NASA and central AdamW, and
    which stepsizes lie at an edge of their grid."""
    ours = best.test["adanasa"]
    if not np.isfinite(ours):
        return "AdaNASA diverged."
    tuned = best[best.index.isin(TUNED)]
    winner = str((measure.scale * tuned.test).idxmax())
    gain = measure.gain(ours, tuned.test[winner])
    verdict = "within" if gain >= -measure.target else "NOT within"
    others = [rule for rule in ("dnasa", CENTRAL) if rule in best.index]
    compared = [f"{better(best, rule, measure)} {name_of(rule)} ({measure.text(best.test[rule])})" for rule in others]
    return (
        f"AdaNASA {measure.text(ours)} with nothing tuned, {better(best, winner, measure)} the best tuned decentralized "
        f"method, {title(winner)} ({measure.text(tuned.test[winner])} at eta = {tuned.eta[winner]:g}): {verdict} the target "
        f"of {measure.amount(measure.target)}. It is {' and '.join(compared)}.{edges(best)}"
    )


def better(best: pd.DataFrame, rule: str, measure: Measure) -> str:
    """How much better or worse AdaNASA is, in words."""
    gain = measure.gain(best.test["adanasa"], best.test[rule])
    if not np.isfinite(gain):
        return "better than"
    return f"{measure.amount(gain)} {'better' if gain >= 0 else 'worse'} than"


def draw(out: Report, name: str, task: Task, means: dict[str, pd.DataFrame], best: dict[str, pd.DataFrame]) -> None:
    """The test result against the stepsize, a panel for each graph and partition."""
    caption = f"{name}: {task.measure.label} after {task.steps:,} steps"
    with out.draw(f"networks-{name}", len(means), caption) as axes:
        for axis, (part, table) in zip(axes, means.items(), strict=True):
            drawing.draw_stepsizes(axis, table[table.rule != CENTRAL], task.measure.column)
            if CENTRAL in best[part].index:
                axis.axhline(best[part].test[CENTRAL], linestyle=":", color="black", label="central AdamW, tuned")
            _, graph, division = part.split("/")
            axis.set_title(f"{graph}, {task.how(division)}")


COLUMNS = ("rule", "eta", "seed", "steps", "validation", "test")
EXPERIMENT = Experiment("networks", parts, report, COLUMNS, selectable=True)
