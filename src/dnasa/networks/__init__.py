"""Who multiplies by W: one file an engine, each with `connect(topology, ...) -> Network`."""

import os
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
    topology: Any, engine: str | None = None, rounds: int = 1, timeout: float = 30.0, device: str = "cpu"
) -> Network:
    """The network of this run: simulated, or of the processes that mpirun or torchrun started."""
    engine = engine or detect()
    choose("engine", engine, dict.fromkeys(ENGINES))
    if not timeout > 0:
        raise InputError(f"The timeout must be a positive number of seconds, not {timeout}.")
    if engine == "mpi":
        from dnasa.networks import mpi

        return mpi.connect(topology, rounds, timeout)
    if engine == "torch":
        from dnasa.networks import torchdist

        return torchdist.connect(topology, rounds, timeout, device)
    from dnasa.networks import simulated

    return simulated.connect(topology, rounds)


def leave(engine: str, code: int) -> None:
    """End this process so that the others cannot wait for it."""
    if engine == "mpi":
        from dnasa.networks import mpi

        mpi.abort(code)
    os._exit(code)
