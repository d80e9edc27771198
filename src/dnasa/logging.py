"""Metrics to TensorBoard, Weights & Biases and MLflow: callbacks of `solve`, and `log` for your own training loops."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dnasa.core import COLUMNS, InputError

if TYPE_CHECKING:
    from dnasa.runs.history import Evaluation
    from dnasa.runs.own_files import OwnFiles

__all__ = ["Log", "Writer", "mlflow", "tensorboard", "wandb"]

LOGGED = ("consensus", "samples", "epochs", "messages", "bytes", "clock_seconds", "seconds")  # columns of histories


class Writer(Protocol):
    """One run of a tracking tool."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the values of a step.

        Args:
            metrics: Finite values by name.
            step: The step they belong to.
        """

    def close(self) -> None:
        """End the run."""


class Log:
    """Logs every evaluation of `solve(..., record=Record(callback=log))`; in a loop of your own, call `log.log`.

    Each run becomes a run of the tool.

    Args:
        start: Starts a run of the tool, by its name.
    """

    def __init__(self, start: Callable[[str], Writer]):
        self._start = start
        self._writers: dict[str, Writer] = {}

    def __call__(self, evaluation: "Evaluation") -> None:
        for row in evaluation.rows:
            self.log(_metrics(row), evaluation.step, _name(row))

    def log(self, metrics: Mapping[str, float], step: int, run: str = "run") -> None:
        """Log the values of a step; those that are not finite are left out.

        Args:
            metrics: Values by name.
            step: The step they belong to.
            run: The name of the run. Processes that log side by side give names of their own, such as f"rank {network.rank}".
        """
        if run not in self._writers:
            self._writers[run] = self._start(run)
        finite = {name: float(value) for name, value in metrics.items() if isfinite(value)}
        if finite:
            self._writers[run].write(finite, step)

    def close(self) -> None:
        """End all runs; leaving a `with` block does it too."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def tensorboard(folder: str | Path, own: "OwnFiles | None" = None) -> Log:
    """Event files for `tensorboard --logdir FOLDER`, a subfolder for each run.

    Args:
        folder: Where to write them.
        own: The files of the run folder it is in.

    Examples:
        ```python
        with dnasa.logging.tensorboard("logs") as log:
            dnasa.solve(problem, graph, "dnasa", steps=1000, record=dnasa.Record(callback=log))
        ```
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _missing("TensorBoard", "tensorboard") from None

    def start(run: str) -> Writer:
        path = Path(folder) / re.sub(r"[^\w.=,-]+", "-", run)
        with own.recording(f"{path.parent.name}/{path.name}") if own else nullcontext():
            return _TensorBoard(SummaryWriter(str(path)))

    return Log(start)


def wandb(project: str, **options: Any) -> Log:
    """Weights & Biases.

    Args:
        project: The name of the project.
        **options: Those of `wandb.init`, such as mode="offline".
    """
    try:
        import wandb as package
    except ImportError:
        raise _missing("Weights & Biases", "wandb") from None
    return Log(lambda run: _WandB(package.init(project=project, name=run, reinit="create_new", **options)))


def mlflow(experiment: str, tracking_uri: str | None = None) -> Log:
    """MLflow.

    Args:
        experiment: The name of the experiment; it is created if necessary.
        tracking_uri: Where to log; by default what MLflow's own settings say.
    """
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise _missing("MLflow", "mlflow") from None
    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    number = client.create_experiment(experiment) if found is None else found.experiment_id
    return Log(lambda run: _MLflow(client, client.create_run(number, run_name=run).info.run_id))


class _TensorBoard:
    def __init__(self, writer: Any):
        self.writer = writer

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class _WandB:
    def __init__(self, run: Any):
        self.run = run

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step, commit=True)  # else it would wait for the next step

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    def __init__(self, client: Any, run: str):
        self.client, self.run = client, run

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.run, [Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run)


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in row.items()
        if (name in LOGGED or name not in COLUMNS) and isinstance(value, int | float)
    }


def _name(row: Mapping[str, Any]) -> str:
    """Unique: two runs may have the same rule, stepsize and seed."""
    eta = row.get("eta")
    parts = [str(row["run"]), row["rule"], row.get("schedule"), None if eta is None else f"eta={eta:.3g}"]
    return " ".join(str(part) for part in (*parts, f"seed={row['seed']}") if part)


def _missing(tool: str, extra: str) -> InputError:
    return InputError(f"{tool} is not installed: `pip install 'dnasa[{extra}]'`.")
