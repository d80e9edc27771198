"""The engines that exchange messages, one file each, with `connect(topology, ...) -> Network`."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.checks import choose
from dnasa.core import Channel, InputError, Network
from dnasa.extras import needed_by

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from dnasa.channels import Codec
    from dnasa.networks.processes import Traffic
    from dnasa.topology import Topology

__all__ = ["ENGINES", "can_survive", "connect", "detect"]

ENGINES = ("simulated", "mpi", "torch", "sites")
"""Exchanges between nodes: in this process, over MPI, over torch.distributed, or between sites over TLS."""
LONGEST_TIMEOUT = 10_000_000
MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def detect() -> str:
    """How this process was started: by mpirun, by torchrun or a framework that uses torch.distributed, or by itself."""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
    if torchrun or _torch_started():
        return "torch"
    return "mpi" if any(name in os.environ for name in MPI_RANK) else "simulated"


def _torch_started() -> bool:
    """Lightning, for one, starts processes and their group without the variables of torchrun."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def can_survive() -> bool:
    """Whether MPI lets the others continue when a process dies: mpirun --with-ft ulfm says so."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 (Open MPI's own name)


def prepare_to_survive(timeout: float) -> None:
    """Open MPI's failure detector is set up when MPI starts, which importing mpi4py.MPI does."""
    if not can_survive():
        raise InputError("To survive lost processes, MPI must let them: start with mpirun --with-ft ulfm.")
    detector = "OMPI_MCA_mpi_ft_detector"
    settings = {detector: "true", f"{detector}_timeout": f"{timeout:g}", f"{detector}_period": f"{timeout / 10:g}"}
    if "mpi4py.MPI" in sys.modules and not settings.items() <= os.environ.items():
        raise InputError(
            "MPI has started without a failure detector for this timeout: call dnasa.connect(survive=True) before "
            "mpi4py.MPI is imported, and with the same timeout each time."
        )
    os.environ.update(settings)


def launched_rank() -> int:
    """This process's number as its launcher gave it; 0 when there is none."""
    names = ("RANK",) if detect() == "torch" else MPI_RANK
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def connect(
    topology: "Topology | str | None" = None,
    engine: str | None = None,
    rounds: int | str | None = None,
    timeout: float = 30.0,
    device: str | None = None,
    message_dtype: str | None = None,
    channel: Channel | None = None,
    survive: bool = False,
    compress: "str | Codec | None" = None,
    site: "ProcessGroup | None" = None,
    sites: str | Path | None = None,
    every: int = 1,
    traffic: "Traffic | None" = None,
    late: int | None = None,
    overlap: bool = False,
    clock: Mapping[str, Any] | str | Path | None = None,
) -> Network:
    """The network of this run: simulated, or of the processes that mpirun or torchrun started.

    Messages travel as they are unless one of `message_dtype`, `compress` and `channel` is given.

    Args:
        topology: A graph, or the name of one with a node for every process: alone, that is a network of one node. By default
            "exact", or "ring" where the channel needs a fixed graph.
        engine: "simulated", "mpi" or "torch"; by default as this process was started (`detect`).
        rounds: Mixing rounds per exchange, or "exact": as many as an exact average needs. On a fixed graph, k of them
            apply the best polynomial of degree k to W; on a changing one, they use k successive graphs; with a channel or on
            a directed graph, W^k. By default 2 on the graph "exact", otherwise 1.
        timeout: Seconds after which a silent process counts as lost. A thread of each reports that it is there, so slow
            processes are waited for.
        device: Where the arrays will be, "cpu" or "cuda"; by default on GPUs if every process has one.
        message_dtype: "bfloat16" or "float16": messages in 16 bits.
        channel: A channel from `dnasa.channels`, or your own.
        survive: Whether a run over MPI continues without lost processes; needs mpirun --with-ft ulfm. Sites always do.
        compress: Compresses messages: such as "moniqua:8" or "topk:0.01", or a `Codec`.
        site: The process group of torch.distributed whose processes hold one node together: the nodes are then the sites.
        sites: A file that lists the sites: machines of different owners, each with one node, joined by TLS. The run begins
            when all are there. It continues without those that are lost, and with those that come back.
        every: Exchange only at every N-th step. In the others each node moves by itself, along what it last learned of the
            average gradient.
        traffic: Counts what this site sends, from the first byte; by default a new one.
        late: Nodes do not wait for each other, at the speeds of `clock` or as real sites: an exchange with a neighbour may last
            for this many further steps. A run's `steps` is then the mean of the nodes' steps. Sites evaluate the start and the
            end.
        overlap: Exchange while gradients are computed, for rules with early messages. The iterates are the same.
        clock: Predicts the seconds of a simulated run on these links, as `clock_seconds` in the history: a TOML file, or a
            dictionary such as `{"compute": 0.05, "bandwidth": 20, "latency": 30}` (seconds, Mbit/s, ms).

    Example:
        ```python
        network = dnasa.connect(dnasa.topology.ring(8), compress="moniqua:8")
        ```
    """
    engine = engine or ("sites" if sites else detect())
    choose("engine", engine, dict.fromkeys(ENGINES))
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise InputError(
            f"The timeout must be a number of seconds above 0, at most {LONGEST_TIMEOUT:,}, not {timeout}."
        )
    if sites is not None and engine != "sites":
        raise InputError(f"Sites exchange over TLS, without {engine}: leave out the engine (--engine), or the sites.")
    if sites is None and engine == "sites":
        raise InputError("The engine sites needs a file that lists them: sites='sites.toml' (--sites).")
    if site is not None and engine != "torch":
        raise InputError("A site is a process group of torch.distributed: start the processes with torchrun.")
    if survive and engine not in ("mpi", "sites"):
        raise InputError(
            "To survive lost processes, start them with mpirun --with-ft ulfm, or connect them as sites: "
            "dnasa.connect(graph, sites='sites.toml')."
        )
    channel = choose_channel(message_dtype, channel, compress)
    network = _connected(topology, engine, rounds, timeout, device, channel, survive, site, sites, every, traffic)
    return with_timing(network, late, overlap, clock)


def with_timing(
    network: Network,
    late: int | None = None,
    overlap: bool = False,
    clock: Mapping[str, Any] | str | Path | None = None,
) -> Network:
    """The network with the rest of its settings: whether nodes wait, and how long messages take."""
    network = replace(network, settings=replace(network.settings, late=late, overlap=overlap))
    if clock is None:
        return network
    from dnasa.networks.clock import with_clock

    return with_clock(network, clock)


def _connected(
    topology: Any,
    engine: str,
    rounds: int | str | None,
    timeout: float,
    device: str | None,
    channel: Channel | None,
    survive: bool,
    site: Any,
    sites: Any,
    every: int,
    traffic: "Traffic | None",
) -> Network:
    if engine == "simulated":
        from dnasa.networks import simulated

        return simulated.connect(_graph(topology, lambda: 1, channel), rounds, channel, every)
    if engine == "mpi":
        if survive:
            prepare_to_survive(timeout)
        from dnasa.networks import mpi

        _exit_together(engine)
        return mpi.connect(_graph(topology, mpi.world_size, channel), rounds, timeout, channel, survive, every)
    if engine == "torch":
        network = _over_torch(topology, rounds, timeout, device, channel, site, every)
    else:
        network = _between_sites(topology, sites, rounds, timeout, channel, every, traffic)
    _exit_together(engine)  # after torch has set its own excepthook
    return network


def _over_torch(
    topology: Any,
    rounds: int | str | None,
    timeout: float,
    device: str | None,
    channel: Channel | None,
    site: Any,
    every: int,
) -> Network:
    with needed_by("The engine torch"):
        from dnasa.networks import groups, torchdist
    if site is not None:
        members = groups.find_groups(site, timeout)
        return groups.connect(_graph(topology, lambda: len(members), channel), members, timeout, rounds, channel, every)
    graph = _graph(topology, lambda: torchdist.world_size(timeout, device), channel)
    return torchdist.connect(graph, rounds, timeout, device, channel, every)


def _between_sites(
    topology: Any,
    file: Any,
    rounds: int | str | None,
    timeout: float,
    channel: Channel | None,
    every: int,
    traffic: "Traffic | None",
) -> Network:
    from dnasa.networks import sites
    from dnasa.sites.file import read_sites

    given = read_sites(file)
    graph = _graph(topology, lambda: len(given.sites), channel)
    return sites.connect(graph, given, rounds, timeout, channel, every, traffic)


def choose_channel(
    message_dtype: str | None, channel: Channel | None, compress: "str | Codec | None"
) -> Channel | None:
    if sum(given is not None for given in (message_dtype, channel, compress)) > 1:
        raise InputError("A message dtype, compression and a channel cannot be combined: give one of them.")
    from dnasa.channels import cast, compression

    if compress is not None:
        return compression(compress)
    return channel if message_dtype is None else cast(message_dtype)


def _exit_together(engine: str) -> None:
    """A process that fails with an exception must not leave the others waiting."""
    report = sys.excepthook
    if getattr(report, "ends_all", False):
        return

    def report_and_exit(*error: Any) -> None:
        report(*error)
        terminate(engine, 1)

    report_and_exit.ends_all = True  # type: ignore[attr-defined]
    sys.excepthook = report_and_exit


def _graph(topology: Any, processes: Callable[[], int], channel: Channel | None) -> Any:
    if topology is not None and not isinstance(topology, str):
        return topology
    from dnasa.topology import default, make

    return make(topology, processes()) if topology else default(processes(), channel=channel)


def terminate(engine: str, code: int) -> None:
    """End this process so that the others do not wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if engine == "mpi":
        from dnasa.networks import mpi

        mpi.abort(code)
    os._exit(code)
