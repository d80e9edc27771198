"""Who multiplies by W: one file an engine, each with `connect(topology, ...) -> Network`."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from dnasa.core import InputError, Network, choose

ENGINES = ("simulated", "mpi", "torch")
MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def detect() -> str:
    """How this process was started: by mpirun, by torchrun, or by itself."""
    if "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return "torch"
    return "mpi" if any(name in os.environ for name in MPI_RANK) else "simulated"


def launched_rank() -> int:
    """This process' number as its launcher gave it; 0 when there is none."""
    return int(next((os.environ[name] for name in (*MPI_RANK, "RANK") if name in os.environ), 0))


def connect(
    topology: Any = "ring",
    engine: str | None = None,
    rounds: int = 1,
    timeout: float = 30.0,
    device: str | None = None,
    wire: str | None = None,
) -> Network:
    """The network of this run: simulated, or of the processes that mpirun or torchrun started.

    `topology` is a graph, or the name of one with a node for every process: alone, that is a network of one node.
    `wire="bfloat16"` sends numbers in 16 bits. `device` is where the arrays will be: by default on GPUs if there is one each.
    """
    engine = engine or detect()
    choose("engine", engine, dict.fromkeys(ENGINES))
    if not timeout > 0:
        raise InputError(f"The timeout must be a positive number of seconds, not {timeout}.")
    if engine != "simulated":
        sys.excepthook = partial(_last_words, engine, sys.excepthook)
    if engine == "mpi":
        from dnasa.networks import mpi

        return mpi.connect(_graph(topology, mpi.processes), rounds, timeout, wire)
    if engine == "torch":
        from dnasa.networks import torchdist

        graph = _graph(topology, lambda: torchdist.processes(timeout, device))
        return torchdist.connect(graph, rounds, timeout, device, wire)
    from dnasa.networks import simulated

    return simulated.connect(_graph(topology, lambda: 1), rounds, wire)


def _last_words(engine: str, report: Any, *error: Any) -> None:
    """A process that fails must not keep the others waiting."""
    report(*error)
    leave(engine, 1)


def _graph(topology: Any, processes: Callable[[], int]) -> Any:
    if not isinstance(topology, str):
        return topology
    from dnasa.topology import make

    return make(topology, processes())


def leave(engine: str, code: int) -> None:
    """End this process so that the others cannot wait for it."""
    if engine == "mpi":
        from dnasa.networks import mpi

        mpi.abort(code)
    sys.stdout.flush()
    os._exit(code)
