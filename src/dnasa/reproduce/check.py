"""`dnasa reproduce --check`: published numbers that a small computer can check, which `claims.toml` lists."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from dnasa.comparing import study, study_file
from dnasa.comparing.study_report import StudyReport
from dnasa.core import InputError
from dnasa.files import read_toml
from dnasa.problems.metrics import in_percent
from dnasa.reproduce import figure
from dnasa.reproduce.experiment import Runner, select
from dnasa.reproduce.network_tasks import Etas, Task, read
from dnasa.reproduce.report import Report

CLAIMS = Path(__file__).parent / "claims.toml"


class Claim(NamedTuple):
    """A published number and how to measure it.

    Attributes:
        text: What it says.
        page: The page of the documentation with the number.
        published: The number, as it is printed there.
        tolerance: How far the number found may be from it.
        reason: Why so far.
        short: The number of a shorter version, which is measured and compared instead.
        needs: The dataset that it needs.
        runs: The runs of an experiment whose mean it is.
        report: The cell of a table of a quick experiment that it is.
        study: The cell of a study whose mean it is.
    """

    text: str
    page: str
    published: float
    tolerance: float
    reason: str
    short: float | None = None
    needs: str | None = None
    runs: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None
    study: Mapping[str, Any] | None = None

    @property
    def expected(self) -> float:
        return self.published if self.short is None else self.short

    def measure(self) -> float:
        if self.runs is not None:
            return of_runs(**self.runs)
        return of_report(**self.report) if self.report is not None else of_study(**(self.study or {}))


class Checked(NamedTuple):
    claim: Claim
    found: float | None
    result: str  # "ok", "differs", or "skipped" and why


def claims() -> list[Claim]:
    return read_toml(CLAIMS, str, lambda given: [Claim(**entry) for entry in given["claim"]])


def check(every: list[Claim]) -> Iterator[Checked]:
    """Each claim with the number found; those whose data is not there are skipped."""
    for claim in every:
        reason = missing(claim.needs) if claim.needs else ""
        if reason:
            yield Checked(claim, None, f"skipped: {reason}")
        else:
            found = claim.measure()
            close = abs(found - claim.expected) <= claim.tolerance  # not if it is not a number
            yield Checked(claim, found, "ok" if close else "differs")


@cache
def missing(data: str) -> str:
    """Why the data cannot be read; empty if it can."""
    try:
        read(Task(data))
    except InputError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- three ways to measure


def of_runs(
    experiment: str,
    part: str,
    rule: str,
    metric: str,
    step: int | None = None,
    seeds: int | None = None,
    eta: float | None = None,
    schedule: str | None = None,
    labels: Mapping[str, Any] | None = None,
) -> float:
    """The mean over the seeds, at the last step or at `step`; these are runs of the full experiment."""
    history = _history(experiment, part, rule, seeds, eta, schedule, tuple((labels or {}).items()))
    rows = history[history.step == (history.step.max() if step is None else step)]
    return _in_units(metric, float(rows[metric].mean()))


@cache
def _history(
    experiment: str,
    part: str,
    rule: str,
    seeds: int | None,
    eta: float | None,
    schedule: str | None,
    labels: tuple[tuple[str, Any], ...],
) -> pd.DataFrame:
    (chosen,) = select(figure(experiment).parts(False), part)
    known = [runs for runs in chosen.runs if rule in runs.rules and runs.chosen_by is None]
    (runs,) = (runs for runs in known if labels == tuple((name, runs.labels[name]) for name, _ in labels))
    grid: Etas = {} if eta is None else {rule: (eta,)}
    runs = replace(runs, rules=(rule,), etas=grid, seeds=runs.seeds[:seeds])
    runs = runs if schedule is None else replace(runs, schedules=[schedule])
    runner = Runner(chosen.task, read(chosen.task) if chosen.task.data else None, "cpu", progress=False)
    return pd.concat(runner.run(runs, runs.table()))


def of_report(experiment: str, table: str, row: Mapping[str, Any], column: str) -> float:
    """A cell of a table of the quick experiment."""
    rows = _report(experiment).tables[table]
    (value,) = rows[(rows[list(row)] == pd.Series(dict(row))).all(axis=1)][column]
    return float(value)


@cache
def _report(experiment: str) -> Report:
    with TemporaryDirectory() as folder:
        return figure(experiment).run(quick=True, progress=False, folder=folder)


def of_study(name: str, cell: str, rule: str) -> float:
    """The mean of a rule in a cell of a study that comes with dnasa, with all its stepsizes and seeds."""
    chosen = study_file.read(study_file.find(name))
    cells = [
        found._replace(settings=found.settings | {"rules": [rule]}) for found in chosen.cells if found.title == cell
    ]
    chosen = chosen._replace(cells=cells)
    with TemporaryDirectory() as folder:
        found = StudyReport(chosen, *study.run(chosen, Path(folder), False, lambda line: None)).numbers().iloc[0]
    return _in_units(found.metric, float(found["mean"]))


def _in_units(metric: str, value: float) -> float:
    """The value as pages print it: accuracies in percent."""
    return 100 * value if in_percent(metric) else value
