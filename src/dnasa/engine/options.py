"""The options of a run, as `dnasa.solve` documents them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dnasa.runs.folder import RunFolder
from dnasa.runs.progress import Progress
from dnasa.runs.record import Record


class RunOptions(NamedTuple):
    evaluate: int | Sequence[int] | None = None
    node_weights: Sequence[float] | Literal["rows"] | None = None
    weight_decay: float = 0.0
    folder: str | Path | RunFolder | None = None
    resume: bool = False
    progress: Progress = None
    record: Record = Record()
