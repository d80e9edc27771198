"""The options of a run, as `dnasa.solve` documents them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dnasa.core import Network
from dnasa.runs.folder import RunFolder
from dnasa.runs.history import Evaluation, Metric
from dnasa.runs.progress import Progress

if TYPE_CHECKING:
    from dnasa.channels import Codec

NONE: Mapping[str, Any] = MappingProxyType({})


class RunOptions(NamedTuple):
    evaluate: int | Sequence[int] | None = None
    metrics: Mapping[str, Metric] = NONE
    callback: Callable[[Evaluation], Any] | None = None
    stop: Mapping[str, float] = NONE
    patience: int | None = None
    node_weights: Sequence[float] | Literal["rows"] | None = None
    weight_decay: float = 0.0
    rounds: int | str | None = None
    every: int = 1
    message_dtype: str | None = None
    compress: "str | Codec | None" = None
    network: Network | None = None
    overlap: bool = False
    folder: str | Path | RunFolder | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    progress: Progress = None
    trace: str | Path | None = None
    clock: Mapping[str, Any] | str | Path | None = None
    late: int | None = None
