"""Figures 5 and 6: each method at its best stepsize; loss, accuracy and stationarity against epochs and seconds."""

from typing import Any

import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.drawing import FIRST, focus, line_styles
from dnasa.comparing.plots import LABELS, title
from dnasa.reproduce import fig3
from dnasa.reproduce.experiment import Experiment, Found, Part, RunSpec, evaluation_steps
from dnasa.reproduce.network_tasks import Task
from dnasa.reproduce.report import Report, draw_lines

METRICS = ("train_loss", "test_loss", "test_accuracy", "stationarity")
EVALUATIONS = 25
QUICK_ROWS = 4000


def curves(name: str, data: str) -> Experiment:
    """The experiment that tunes each method on two seeds, then runs it at its best stepsize for other seeds."""

    def parts(quick: bool) -> list[Part]:
        graph, steps = topology.paper_random(), (fig3.QUICK if quick else fig3.STEPS)[data]
        seeds, evaluations = (2, 4) if quick else (fig3.SEEDS, EVALUATIONS)
        tried = fig3.search(graph, steps // 2 if quick else steps, 1 if quick else 2)
        options: Any = {"evaluate": evaluation_steps(steps, evaluations), "loss_scale": "1/n", "train_metrics": True}
        runs = RunSpec(steps, fig3.RULES, seeds=range(100, 100 + seeds), graph=graph, tuned_on=tried, **options)
        return [Part(data, [runs], Task(data, rows=QUICK_ROWS if quick else None))]

    def report(found: Found) -> Report:
        history = found.table
        caption = f"{data}: best stepsizes, 8 nodes, random graph, {found.last_step:,} steps, {found.seeds}"
        out = Report(name, caption, found.quick)
        out.tables[f"{name}-final"] = final(history)
        out.data[f"{name}-history"] = history
        out.findings = [f"Final test accuracy: {fig3.sentence(tuning.grid(history, 'test_accuracy'))}"]
        draw(out, name, history, "epochs", f"{data}: each method at its best stepsize, mean and range")
        draw(out, f"{name}-seconds", history, "seconds", f"{data}: seconds of training, {found.seeds} side by side")
        return out

    return Experiment(name, parts, report)


def final(history: pd.DataFrame) -> pd.DataFrame:
    last = history[history.step == history.step.max()]
    rows = []
    for rule, same in last.groupby("rule", sort=False):
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(same.eta.iloc[0])}
        row |= {LABELS[metric]: same[metric].mean() for metric in METRICS}
        rows.append(row | {"spread of accuracy": same.test_accuracy.std(), "seconds": same.seconds.mean()})
    return pd.DataFrame(rows)


def draw(out: Report, name: str, history: pd.DataFrame, against: str, caption: str) -> None:
    styles = line_styles(history[["rule"]])
    later = history[history.step >= FIRST * history.step.max()]

    def label(rule: str, eta: float) -> str:
        return f"{title(rule)}, {tuning.eta_label(eta)}"

    def style(rule: str, eta: float) -> dict[str, Any]:
        return styles[(rule,)]

    with out.draw(name, len(METRICS), caption) as axes:
        for axis, metric in zip(axes, METRICS, strict=True):
            draw_lines(axis, history, metric, ["rule", "eta"], label, style, x=against)
            if axis.get_yscale() == "linear":
                focus(axis, later[metric].to_numpy())


EXPERIMENT = curves("fig5", "mnist")
