"""What is measured of a trained model: counts and rounded means of at least `min_count` rows, from which every result follows.

Single predictions never leave a site. It counts the scores of its rows in cells of a fixed grid, which are merged with their
neighbors until each holds enough rows; a cell has their number and the mean and deviation of their scores. With few inputs of
few values, exact ones would tell which rows these are, so both are rounded, and cells of log odds end at multiples of 1/4, of
more than two classes at whole numbers. Two models would still tell, so the results of the same rows leave a site once
(`data.ledger`). This is stored with the run as `evaluation.json`. `dnasa.trained.results` makes the results of a report from
it, without the data.
"""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt, model_validator

from dnasa.data import Dataset
from dnasa.data.summaries import Moments, Summary
from dnasa.files import read_json, refusing_damage

if TYPE_CHECKING:
    from dnasa.data.encoding import Encoding
    from dnasa.trained.model import TrainedModel

LAST = 8.0  # log odds, or in a regression errors in deviations of the target: larger ones count as this
PLACES, COARSE = 256, 4  # of the grid; cells of a site's log odds end at every fourth
WIDER = 4  # times so many, of more than two classes: each row is in the cells of every class
EDGES = np.linspace(-LAST, LAST, PLACES + 1)
REGRESSION_SUMS = ("squared_error", "absolute_error", "error", "target", "squared_target")
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Score = Annotated[float, Field(ge=-LAST, le=LAST)]
Reason = Literal["few", "tested"]  # why a site is left out: it has few test rows of a class, or an earlier run tested them
Cells = list[tuple[Annotated[int, Field(ge=1, le=PLACES)], Count, Score, Score]]  # end, rows, mean and deviation of each


class Part(BaseModel, extra="forbid"):
    """What a site, or whoever has the common test rows, measured there. Sums are over `rows`."""

    rows: Count
    scores: list[tuple[Cells, Cells]] = []  # of a class: the cells of the other rows, and of its own; the last of two, or each
    confusion: list[list[Count]] = []  # of more than two classes; no cell has too few rows (`without_few`)
    sums: dict[str, Number] = {}


class Evaluation(BaseModel, extra="forbid"):
    """The tests of a model: of the common test rows, and at each site; None where there are none, or at a lost site."""

    task: Literal["classification", "regression"]
    target: str
    names: Annotated[list[Any], Field(min_length=1)]  # of the classes; of a regression, of the target
    scale: Number = 1.0  # its deviation
    min_count: NonNegativeInt = 1
    training: list[Count] = []  # training rows of each class
    missing: dict[str, Count] = {}  # values of the training rows, without sites, whose cohort has them
    common: Part | None = None
    sites: list[Part | Reason | None] = []

    @property
    def parts(self) -> dict[int, Part]:
        """What the sites measured, by their numbers."""
        return {i: part for i, part in enumerate(self.sites) if isinstance(part, Part)}

    @model_validator(mode="after")
    def _fits(self) -> "Evaluation":
        self.names = [str(name).encode(errors="replace").decode() for name in self.names]
        k = len(self.names)
        wanted = set(REGRESSION_SUMS) if self.task == "regression" else set[str]()
        if len(self.training) not in (0, k):
            raise ValueError("its parts do not fit together")
        for part in filter(None, (self.common, *self.parts.values())):
            sizes = {*map(len, part.confusion), len(part.confusion)} - {0}
            ends = [[cell[0] for cell in cells] for pair in part.scores for cells in pair]
            fits = len(part.scores) == (k if k > 2 else 1) and not sizes - {k} and set(part.sums) == wanted and part.rows
            if not fits or any(sorted({*each}) != each for each in ends):
                raise ValueError("its parts do not fit together")
        return self


def evaluate(model: "TrainedModel", inputs: np.ndarray, labels: np.ndarray, min_count: int) -> Part | Literal["few"]:
    """The model on these rows, if there are enough, and enough of each class or none."""
    counts = np.bincount(labels.ravel()) if model.task == "classification" else np.zeros(0)
    if len(labels) < max(1, min_count) or ((counts > 0) & (counts < min_count)).any():
        return "few"  # any sum would tell of them
    measure = _regression if model.task == "regression" else _classification
    return measure(model, model.outputs(inputs), labels, min_count)


def _classification(model: "TrainedModel", outputs: np.ndarray, labels: np.ndarray, min_count: int) -> Part:
    k, p = len(model.classes), model.probabilities(outputs)
    counts = np.bincount(labels * k + outputs.argmax(1), minlength=k**2).reshape(k, k)
    with np.errstate(divide="ignore"):
        odds = np.log(p) - np.log1p(-p)
    return Part(
        rows=len(labels),
        scores=[_pair(odds[:, c], labels == c, min_count, 1 if k == 2 else WIDER) for c in ([1] if k == 2 else range(k))],
        confusion=[without_few(row, min_count).tolist() for row in counts] if k > 2 else [],
    )


def without_few(counts: np.ndarray, min_count: int) -> np.ndarray:
    """Counts below the minimum become 0 or, the larger ones, the minimum; the largest of all keeps the sum as it was."""
    few = np.where(counts < min_count, counts, 0)
    rounded = counts - few
    rounded[np.argsort(-few, kind="stable")[: (few.sum() + min_count // 2) // max(1, min_count)]] = min_count
    rounded[(top := counts.argmax())] += counts.sum() - rounded.sum()
    return rounded if rounded[top] >= min_count else np.where(np.arange(len(counts)) == top, counts.sum(), 0)


def _pair(scores: np.ndarray, is_class: np.ndarray, min_count: int, wider: int = 1) -> tuple[Cells, Cells]:
    """The cells of the other rows and of those of a class."""
    places = COARSE * wider if min_count > 1 else 1
    return cells(scores[~is_class], min_count, places), cells(scores[is_class], min_count, places)


def cells(scores: np.ndarray, min_count: int, places: int) -> Cells:
    """Count scores on a grid of so many places each, in cells of at least `min_count`."""
    scores = np.sort(np.clip(scores, -LAST, LAST))
    ends = (np.searchsorted(EDGES[1:-1], scores, side="right") // places + 1) * places
    cuts, first = [], 0
    for last in np.flatnonzero(np.diff(ends, append=PLACES + 1)) + 1:  # where another place begins
        if last - first >= min_count:
            first = int(last)
            cuts.append(first)
    if not cuts:
        return []
    cuts[-1] = len(scores)  # the rows that are left belong to the last cell
    least = (EDGES[places] - EDGES[0]) / 2 if min_count > 1 else 0.0
    return [
        (PLACES if b == len(scores) else int(ends[b - 1]), b - a, *_rounded(scores[a:b], least))
        for a, b in zip([0, *cuts], cuts, strict=False)
    ]


def _rounded(scores: np.ndarray, least: float) -> tuple[float, float]:
    """Their mean, to half of their deviation, and that, to a power of 2; neither more exact than `least`."""
    mean, deviation = scores.mean(), scores.std()
    if least:
        deviation = 2.0 ** np.round(np.log2(max(deviation, least)))
        unit = max(deviation / 2, least)
        mean = np.clip(np.round(mean / unit) * unit, -LAST, LAST)
    return float(mean), float(deviation)


def _regression(model: "TrainedModel", outputs: np.ndarray, labels: np.ndarray, min_count: int) -> Part:
    errors, labels = (labels - outputs).astype(np.float64), labels.astype(np.float64)
    parts = map(Moments.of, (errors**2, np.abs(errors), errors, labels, labels**2))
    shown = [part.rounded(min_count, binary=False) if min_count > 1 else part for part in parts]
    sums = {name: part.mean * part.n for name, part in zip(REGRESSION_SUMS, shown, strict=True)}
    return Part(rows=len(labels), scores=[([], cells(errors.ravel(), min_count, 1))], sums=sums)


def _missing(encoding: "Encoding", inputs: np.ndarray) -> dict[str, int]:
    """How many values each column lacks."""
    named = [feature.name for feature in encoding.features if any(name.endswith(" missing") for name in feature.inputs)]
    places = [encoding.inputs.index(f"{name} missing") for name in named]
    present = encoding.scaled(np.zeros((1, *encoding.shape)))[0]  # a flag is larger by 1 / its deviation, at least 2
    return {name: int((inputs[:, place] > present[place] + 1).sum()) for name, place in zip(named, places, strict=True)}


def merged(parts: Sequence[Evaluation]) -> list[Part | Reason | None]:
    """What each site measured, or why it did not; the processes have different ones."""
    return [next(filter(None, of_site), None) for of_site in zip(*(part.sites for part in parts), strict=True)]


def like(local: Evaluation, received: Any) -> Evaluation:
    """Another process's evaluation; an error if it is not one of this model."""
    other = Evaluation.model_validate(received)
    if len(other.sites) != len(local.sites) or other.names != local.names or other.task != local.task:
        raise ValueError("the evaluation of another model")
    return other


def begun(model: "TrainedModel", rows: Dataset) -> Evaluation:
    """An evaluation of this model that has no results yet."""
    target, scale, names = model.encoding.target, model.encoding.target_scale, model.classes.tolist()
    about: dict[str, Any] = {"task": model.task, "target": target, "names": names or [target]}
    if rows.sites:
        total = reduce(Summary.merged, rows.sites)
        about |= {
            "min_count": rows.sites[0].min_count,
            "training": [total.target.rows_of_classes.get(name, 0) for name in names],
        }
    else:
        of_classes = np.bincount(rows.labels.ravel(), minlength=len(names)).tolist() if names else []
        about |= {"training": of_classes, "missing": _missing(model.encoding, rows.inputs)}
    return Evaluation(**about, scale=1.0 if scale is None else float(scale[0]))


def read(folder: Path) -> Evaluation | None:
    """What was stored with the run, checked; None where nothing was."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    stored = read_json(path, "evaluation.json")
    with refusing_damage(path):
        return Evaluation.model_validate(stored)
