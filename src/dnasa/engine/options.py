"""The options of a run, as `dnasa.solve` documents them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dnasa.core import Network
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation, Metric
from dnasa.runs.progress import Progress

if TYPE_CHECKING:
    from dnasa.channels import Codec


class RunOptions(NamedTuple):
    evaluate: int | Sequence[int] | None
    metrics: Mapping[str, Metric]
    callback: Callable[[Evaluation], Any] | None
    stop: Mapping[str, float]
    patience: int | None
    node_weights: Sequence[float] | Literal["rows"] | None
    weight_decay: float
    rounds: int | str | None
    every: int
    message_dtype: str | None
    compress: "str | Codec | None"
    network: Network | None
    overlap: bool
    folder: str | Path | RunFolder | None
    checkpoint_every: int | None
    resume: bool
    progress: Progress
    trace: str | Path | None
    clock: Mapping[str, Any] | str | Path | None
    late: int | None
