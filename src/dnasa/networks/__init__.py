"""Who multiplies by W: one file an engine, each with `connect(topology, ...) -> Network`."""

import os
import sys
from collections.abc import Callable
from typing import Any

from dnasa.core import InputError, Network, choose

ENGINES = ("simulated", "mpi", "torch")
MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def detect() -> str:
    """How this process was started: by mpirun, by torchrun, or by itself."""
    if "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return "torch"
    return "mpi" if any(name in os.environ for name in MPI_RANK) else "simulated"


def may_survive() -> bool:
    """Whether MPI lets the others go on when a process dies: mpirun --with-ft ulfm says so."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 (Open MPI's own name)


def launched_rank() -> int:
    """This process' number as its launcher gave it; 0 when there is none."""
    names = ("RANK",) if detect() == "torch" else MPI_RANK
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def connect(
    topology: Any = "ring",
    engine: str | None = None,
    rounds: int = 1,
    timeout: float = 30.0,
    device: str | None = None,
    wire: str | None = None,
    survive: bool = False,
) -> Network:
    """The network of this run: simulated, or of the processes that mpirun or torchrun started.

    `topology` is a graph, or the name of one with a node for every process: alone, that is a network of one node.
    `wire="bfloat16"` sends numbers in 16 bits. `device` is where the arrays will be: by default on GPUs if there is one
    each. With `survive` (MPI), a run goes on without processes that die.
    """
    engine = engine or detect()
    choose("engine", engine, dict.fromkeys(ENGINES))
    if not timeout > 0:
        raise InputError(f"The timeout must be a positive number of seconds, not {timeout}.")
    if engine == "mpi":
        from dnasa.networks import mpi

        network = mpi.connect(_graph(topology, mpi.processes), rounds, timeout, wire, survive)
        _end_together(engine)
        return network
    if survive:
        raise InputError(
            "Only MPI can go on without lost processes; with torchrun, use --max-restarts and checkpoints."
        )
    if engine == "torch":
        from dnasa.networks import torchdist

        graph = _graph(topology, lambda: torchdist.processes(timeout, device))
        network = torchdist.connect(graph, rounds, timeout, device, wire)
        _end_together(engine)
        return network
    from dnasa.networks import simulated

    return simulated.connect(_graph(topology, lambda: 1), rounds, wire)


def _end_together(engine: str) -> None:
    """A process that fails with an exception must not keep the others waiting."""
    report = sys.excepthook
    if getattr(report, "ends_all", False):
        return

    def last_words(*error: Any) -> None:
        report(*error)
        leave(engine, 1)

    last_words.ends_all = True  # type: ignore[attr-defined]
    sys.excepthook = last_words


def _graph(topology: Any, processes: Callable[[], int]) -> Any:
    if not isinstance(topology, str):
        return topology
    from dnasa.topology import make

    return make(topology, processes())


def leave(engine: str, code: int) -> None:
    """End this process so that the others cannot wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if engine == "mpi":
        from dnasa.networks import mpi

        mpi.abort(code)
    os._exit(code)
