"""Beyond the paper: AdaNASA and D-NASA with nothing tuned against tuned methods, on networks that people train.

Every stepsize is chosen on validation rows, a tenth of the training rows on which nobody trains; results are those on the
test rows. Results are saved in parts, one for each task, graph and partition, and one for the central reference. Each part
runs one seed after the other, so that all rules can be compared when the first is complete.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dnasa import topology
from dnasa.comparing import drawing, tuning
from dnasa.comparing.plots import title
from dnasa.reproduce import central
from dnasa.reproduce.choosing import averages, chosen_first, edges, name_of
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, tuning_first
from dnasa.reproduce.network_tasks import (
    CENTRAL,
    NODES,
    PRODIGY,
    QUICK,
    SCHEDULE_FREE,
    TASKS,
    WITHOUT_DATA,
    Measure,
    Task,
)
from dnasa.reproduce.report import Report

GRAPHS = ("ring", "exponential")
DIVISIONS = ("iid", "heterogeneous")
UNTUNED = ("adanasa", "dnasa")
TUNED = ("dsgd", "dmsgd", "dadam", "dsgt")
OTHERS = ("gt_adam", "gt_nsgdm", "qg_dsgdm", "mt", "kgt", "demuon")  # on the ring of large tasks
LAZY = ("edm",)  # on the lazy ring: the usual weights are too large for it
SEEDS = 3


def parts(quick: bool) -> list[Part]:
    tasks, graphs, seeds = (QUICK, GRAPHS[:1], 1) if quick else (TASKS, GRAPHS, SEEDS)
    every = tasks | WITHOUT_DATA
    return [part for name, task in every.items() for part in parts_of(name, task, graphs, seeds)]


def parts_of(name: str, task: Task, graphs: tuple[str, ...], seeds: int) -> Iterator[Part]:
    def part(end: str, rules: tuple[str, ...], **place: Any) -> Part:
        every = [RunSpec(task.steps, [rule], task.etas, range(seeds), validation=True, **place) for rule in rules]
        return Part(f"{name}/{end}", tuning_first(every, task), task, fallback=name in WITHOUT_DATA)

    joint: Any = {"graph": topology.complete(1), "partition": "iid", "batch": NODES * task.batch}
    joint["rule_makers"] = central.rule_makers(task.steps)
    yield part(CENTRAL, (CENTRAL,), **joint)
    for graph in graphs:
        for division in DIVISIONS:
            place = topology.make(graph, NODES)
            yield part(f"{graph}/{division}", UNTUNED + TUNED, graph=place, partition=task.how(division))
    if SCHEDULE_FREE in task.etas:
        yield part(f"others/{CENTRAL}", (SCHEDULE_FREE, PRODIGY), **joint)
    if OTHERS[0] in task.etas:
        for division in DIVISIONS:
            yield part(f"others/{division}", OTHERS, graph=topology.ring(NODES), partition=task.how(division))
            yield part(f"lazy/{division}", LAZY, graph=topology.ring(NODES, "lazy"), partition=task.how(division))


# ---------------------------------------------------------------- report


def report(found: Found) -> Report:
    out = Report("networks", f"{NODES} nodes, stepsizes chosen on validation rows", found.quick)
    for name in dict.fromkeys(part.partition("/")[0] for part in found.parts):
        rows = {part.partition("/")[2]: some for part, some in found.rows.items() if part.startswith(f"{name}/")}
        task = next(part.task for part in found.parts.values() if part.name.startswith(f"{name}/"))
        graphs = {part: compared(part, rows) for part in rows if part.partition("/")[0] in GRAPHS}
        best = {part: chosen_first(some, task) for part, some in graphs.items()}
        if best:
            summaries = {part.replace("/", ", "): summary(some, task.measure) for part, some in best.items()}
            out.tables[f"networks-{name}"] = pd.concat(summaries, names=["part", None]).reset_index("part")
            draw(out, name, task, graphs, best)
        out.findings += [f"{name}/{part}: {finding(some, task.measure)}" for part, some in best.items()]
    return out


def compared(part: str, rows: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The rows of a graph and partition, with the central references and, on the ring, the other methods."""
    graph, division = part.split("/")
    with_it = [CENTRAL, f"others/{CENTRAL}"] + [f"others/{division}", f"lazy/{division}"] * (graph == "ring")
    return pd.concat([rows[part], *(rows[name] for name in with_it if name in rows)])


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
    tuned = best[best.index.isin(TUNED + OTHERS + LAZY)]
    winner = str((measure.scale * tuned.test).idxmax())
    gain = measure.gain(ours, tuned.test[winner])
    verdict = "within" if gain >= -measure.target else "NOT within"
    others = [rule for rule in ("dnasa", CENTRAL, SCHEDULE_FREE, PRODIGY) if rule in best.index]
    compared = [f"{better(best, rule, measure)} {name_of(rule)} ({measure.text(best.test[rule])})" for rule in others]
    return (
        f"AdaNASA {measure.text(ours)} with nothing tuned, {better(best, winner, measure)} the best tuned decentralized "
        f"method, {title(winner)} ({measure.text(tuned.test[winner])} at eta = {tuned.eta[winner]:g}): {verdict} the target "
        f"of {measure.amount(measure.target)}. It is {listed(compared)}.{edges(best)}"
    )


def listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def better(best: pd.DataFrame, rule: str, measure: Measure) -> str:
    """How much better or worse AdaNASA is, in words."""
    gain = measure.gain(best.test["adanasa"], best.test[rule])
    if not np.isfinite(gain):
        return "better than"
    return f"{measure.amount(gain)} {'better' if gain >= 0 else 'worse'} than"


def draw(out: Report, name: str, task: Task, rows: dict[str, pd.DataFrame], best: dict[str, pd.DataFrame]) -> None:
    """The test result against the stepsize, a panel for each graph and partition."""
    caption = f"{name}: {task.measure.label} after {task.steps:,} steps"
    with out.draw(f"networks-{name}", len(rows), caption) as axes:
        for axis, (part, some) in zip(axes, rows.items(), strict=True):
            drawn = some[some.rule.isin(UNTUNED + TUNED)]
            drawing.draw_stepsizes(axis, averages(drawn, task.measure), task.measure.column)
            if CENTRAL in best[part].index:
                axis.axhline(best[part].test[CENTRAL], linestyle=":", color="black", label="central AdamW, tuned")
            graph, division = part.split("/")
            axis.set_title(f"{graph}, {task.how(division)}")


COLUMNS = ("rule", "eta", "seed", "steps", "validation", "test")
EXPERIMENT = Experiment("networks", parts, report, COLUMNS, selectable=True)
