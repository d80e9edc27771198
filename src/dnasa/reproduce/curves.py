"""Figures 5 and 6: each method at its best stepsize; loss, accuracy and stationarity against epochs and seconds."""

from typing import Any

import pandas as pd

from dnasa import topology
from dnasa.comparing import tuning
from dnasa.comparing.drawing import FIRST, focus, line_styles
from dnasa.comparing.plots import LABELS, title
from dnasa.comparing.statistics import final
from dnasa.core import InputError
from dnasa.reproduce.report import Report, draw_lines
from dnasa.reproduce.runs import evaluation_steps, missing, run
from dnasa.reproduce.stepsizes import QUICK_STEPS, SEEDS, STEPS, search, sentence

METRICS = ("train_loss", "test_loss", "test_accuracy", "stationarity")
EVALUATIONS = 25
QUICK_ROWS = 4000


def fig5(quick: bool = False, **options: Any) -> Report:
    """MNIST on the paper's random graph."""
    return curves("fig5", "mnist", quick, **options)


def fig6(quick: bool = False, **options: Any) -> Report:
    """a9a on the paper's random graph."""
    return curves("fig6", "a9a", quick, **options)


def curves(name: str, data: str, quick: bool, **options: Any) -> Report:
    """Tune each method on two seeds, then run it at its best stepsize for other seeds."""
    if reason := missing(data):
        raise InputError(reason)
    graph, steps = topology.paper_random(), (QUICK_STEPS if quick else STEPS)[data]
    seeds, evaluations = (2, 4) if quick else (SEEDS, EVALUATIONS)
    options |= {"rows": QUICK_ROWS if quick else None}
    tried = search(data, graph, steps=steps // 2 if quick else steps, seeds=range(1 if quick else 2), **options)
    best = tuning.best(tuning.grid(final(tried), "test_accuracy"), "test_accuracy").eta
    options |= {"evaluate": evaluation_steps(steps, evaluations), "loss_scale": "1/n", "train_metrics": True}
    histories = [
        run(data, graph, [str(rule)], steps, range(100, 100 + seeds), [] if pd.isna(eta) else [eta], **options)
        for rule, eta in best.items()
    ]
    history = pd.concat(histories, ignore_index=True)
    caption = f"{data}: best stepsizes, 8 nodes, random graph, {steps:,} steps, {seeds} seeds"
    out = Report(name, caption, quick)
    out.tables[f"{name}-final"] = results(history)
    out.data[f"{name}-history"] = history
    out.findings = [f"Final test accuracy: {sentence(tuning.grid(final(history), 'test_accuracy'))}"]
    draw(out, name, history, "epochs", f"{data}: each method at its best stepsize, mean and range")
    draw(out, f"{name}-seconds", history, "seconds", f"{data}: seconds of training, {seeds} seeds side by side")
    return out


def results(history: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for rule, same in final(history).groupby("rule", sort=False):
        row = {"rule": title(str(rule)), "best eta": tuning.eta_text(same.eta.iloc[0])}
        row |= {LABELS[metric]: same[metric].mean() for metric in METRICS}
        rows.append(row | {"spread of accuracy": same.test_accuracy.std(), "seconds": same.seconds.mean()})
    return pd.DataFrame(rows)


def draw(out: Report, name: str, history: pd.DataFrame, against: str, caption: str) -> None:
    styles = line_styles(history[["rule"]])
    later = history[history.step >= FIRST * history.step.max()]

    def label(rule: str, eta: float) -> str:
        return title(rule) if pd.isna(eta) else rf"{title(rule)}, $\eta$ = {eta:.3g}"

    with out.draw(name, len(METRICS), caption) as axes:
        for axis, metric in zip(axes, METRICS, strict=True):
            draw_lines(axis, history, metric, ["rule", "eta"], label, lambda rule, _: styles[(rule,)], x=against)
            if axis.get_yscale() == "linear":
                focus(axis, later[metric].to_numpy())
