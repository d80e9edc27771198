"""CPU seconds of the figures and tables of a large comparison: python -m benchmarks.comparing [RUNS EVALUATIONS]."""

import sys
import tempfile
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dnasa.comparing import plots
from dnasa.comparing.comparison import Comparison
from dnasa.comparing.statistics import final
from dnasa.comparing.tuning import Selection, chosen
from dnasa.rules.registry import variants
from dnasa.runs.result import Result, html_table

RULES = ("dsgd", "dsgd:constant", "d2", "dsgt", "dsgt:cosine", "dasagt", "dmsgd", "dadam", "adanasa", "dnasa")
SEEDS = 5


def make_history(runs: int, evaluations: int) -> pd.DataFrame:
    """Curves of this many runs, all with five seeds and some diverged."""
    each = ceil((runs / SEEDS - 2) / (len(RULES) - 2))  # two of the rules need no stepsize
    lines = [variant for rule in RULES for variant in variants(rule, list(np.geomspace(1e-3, 10, each)))]
    rng = np.random.default_rng(0)
    frames = []
    for number, (variant, seed) in enumerate((variant, seed) for variant in lines for seed in range(SEEDS)):
        step = 10 * np.arange(evaluations)
        loss = np.exp(-(variant.eta or 1.0) * step / 1000) + 0.01 * rng.random(evaluations)
        loss[evaluations // 2 :] = np.nan if (variant.eta or 0) > 9 and seed == 0 else loss[evaluations // 2 :]
        metrics = {"test_loss": loss, "test_accuracy": 1 - loss / 2, "validation_accuracy": 1 - loss / 2}
        counts = {"consensus": loss, "grad_norm": loss, "bytes": 8 * step, "seconds": step / 100}
        labels = {"run": number, "rule": variant.rule, "schedule": variant.schedule, "eta": variant.eta or np.nan}
        frames.append(pd.DataFrame(labels | {"seed": seed, "step": step, "nodes": 8} | metrics | counts))
    return pd.concat(frames, ignore_index=True)


def timed(name: str, function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    seconds = time.process_time() - began
    print(f"{name:36} {seconds:6.2f} s", flush=True)
    return seconds


def main(runs: int = 1000, evaluations: int = 200) -> None:
    history = make_history(runs, evaluations)
    print(f"{history.run.nunique():,} runs of {evaluations} evaluations, {len(history):,} rows")
    selection = Selection("validation_accuracy", tuple(range(SEEDS)), tuple(range(SEEDS)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def chosen_runs() -> pd.DataFrame:
            return chosen(final(history), selection)

        found = Comparison(history, "test_accuracy", selection, chosen_runs(), ("steps", "bytes"))
        last = history.drop_duplicates("run", keep="last")
        settings: dict[str, Any] = {"timing": {}}
        result = Result(
            np.zeros((history.run.nunique(), 1, 1)), history, last[["rule", "schedule", "eta", "seed"]], settings
        )
        total = timed("choice of the stepsizes", chosen_runs)
        total += timed("table, LaTeX and HTML", lambda: (found.latex(), found._repr_html_()))
        total += timed("curves of the chosen, PDF", lambda: plots.save_figure(found.draw_curves(), folder / "a.pdf"))
        total += timed("stepsizes, PDF", lambda: plots.save_figure(found.draw_stepsizes(), folder / "b.pdf"))
        total += timed("CSV of both", lambda: (found.curves().to_csv(), found.stepsizes().to_csv()))
        total += timed(
            "history of every run, PNG", lambda: plots.save_figure(plots.draw_history(history), folder / "c.png")
        )
        total += timed("Result in a notebook", lambda: (result._repr_html_(), html_table(history)))
        timed("Result.save", lambda: result.save(folder / "run"))
        timed("Result.load", lambda: Result.load(folder / "run"))
    print(f"{'figures and tables together':36} {total:6.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
