"""The engines that exchange messages, one file each, with `connect(topology, ...) -> Network`."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dnasa.checks import choose, warn
from dnasa.communication import Channel, Network
from dnasa.core import InputError
from dnasa.extras import needed_by

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from dnasa.channels import Codec
    from dnasa.networks.processes import Traffic
    from dnasa.networks.transport import Transport
    from dnasa.topology import Topology

__all__ = ["ENGINES", "connect", "detect"]

ENGINES = ("simulated", "mpi", "torch", "sites")
"""Exchanges between nodes: in this process, over MPI, over torch.distributed, or between sites over TLS."""
LONGEST_TIMEOUT = 10_000_000
SILENCE = 30.0  # seconds after which a site counts as lost
MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def detect() -> str:
    """How this process was started: by mpirun, by torchrun or a framework that uses torch.distributed, or by itself."""
    distributed = sys.modules.get("torch.distributed")
    started = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if started or "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return "torch"
    return "mpi" if any(name in os.environ for name in MPI_RANK) else "simulated"


def launched_rank() -> int:
    """This process's number as its launcher gave it; 0 when there is none."""
    names = ("RANK",) if detect() == "torch" else MPI_RANK
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def connect(
    topology: "Topology | str | None" = None,
    engine: str | None = None,
    rounds: int | str | None = None,
    timeout: float | None = None,
    device: str | None = None,
    message_dtype: str | None = None,
    channel: Channel | None = None,
    compress: "str | Codec | None" = None,
    site: "ProcessGroup | None" = None,
    sites: str | Path | None = None,
    wait_for: int | None = None,
    every: int = 1,
    traffic: "Traffic | None" = None,
    late: int | None = None,
    overlap: bool = False,
    clock: Mapping[str, Any] | str | Path | None = None,
    private: bool = False,
) -> Network:
    """The network of this run: simulated, or of the processes that mpirun or torchrun started.

    Messages travel as they are unless one of `message_dtype`, `compress`, `channel` and `private` is given.

    Args:
        topology: A graph, or the name of one with a node for every process that was started. By default "exact", or "ring"
            where the channel needs a fixed graph; a process alone is then a network of one node.
        engine: "simulated", "mpi" or "torch"; by default as this process was started (`detect`).
        rounds: Mixing rounds per exchange, or "exact": as many as an exact average needs. On a fixed graph, k of them
            apply the best polynomial of degree k to W; on a changing one, they use k successive graphs; with a channel or on
            a directed graph, W^k. By default 2 on the graph "exact", otherwise 1.
        timeout: Seconds after which a silent site counts as lost, by default 30; a thread of each reports that it is there, so
            slow ones are waited for. Over torch.distributed, the timeout of its messages, by default torch's own.
        device: Where the arrays will be, "cpu" or "cuda"; by default on GPUs if every process has one.
        message_dtype: "bfloat16" or "float16", messages in 16 bits: the same as `compress`.
        channel: A channel from `dnasa.channels`, or your own.
        compress: Compresses messages: such as "bfloat16", "moniqua:8" or "topk:0.01", or a `Codec`.
        site: The process group of torch.distributed whose processes hold one node together: the nodes are then the sites.
        sites: A file that lists the sites: machines of different owners, each with one node, joined by TLS. The run begins
            when all are there. It continues without those that are lost, and with those that come back.
        wait_for: The run across sites begins once this many are there, a majority; the others join later. By default all.
            For the optimizer only: `solve` and tables need all sites at the start.
        every: Exchange only at every N-th step. In the others each node moves by itself, along what it last learned of the
            average gradient.
        traffic: Counts what this site sends, from the first byte; by default a new one.
        late: Simulated nodes do not wait for each other, at the speeds of `clock`: an exchange with a neighbor may last for
            this many further steps. A run's `steps` is then the mean of the nodes' steps.
        overlap: Exchange while gradients are computed, for rules with early messages. The iterates are the same.
        clock: Predicts the seconds of a simulated run on these links, as `clock_seconds` in the history: a TOML file, or a
            dictionary such as `{"compute": 0.05, "bandwidth": 20, "latency": 30}` (seconds, Mbit/s, ms).
        private: Secure summation: no node sees the numbers of another, only sums over all (docs/privacy.md).

    Example:
        ```python
        network = dnasa.connect(dnasa.topology.ring(8), compress="moniqua:8")
        ```
    """
    engine = engine or ("sites" if sites else detect())
    choose("engine", engine, dict.fromkeys(ENGINES))
    if timeout is not None and not 0 < timeout <= LONGEST_TIMEOUT:
        raise InputError(f"The timeout must be seconds above 0, at most {LONGEST_TIMEOUT:,}, not {timeout}.")
    if (sites is None) == (engine == "sites"):
        raise InputError("A file that lists the sites (--sites) goes with the engine sites, and with no other (--engine).")
    if wait_for is not None and engine != "sites":
        raise InputError("wait_for is for sites: leave it out.")
    if site is not None and engine != "torch":
        raise InputError("A site is a process group of torch.distributed: start the processes with torchrun.")
    if sum(how is not None for how in (message_dtype, channel, compress, private or None)) > 1:
        raise InputError("A message dtype, compression, a channel and private cannot be combined: give one of them.")
    if private:
        channel = private_channel()
    if channel is not None and channel.private and (site is not None or late is not None):
        raise InputError("A private run has one process for each node, and nodes wait for each other: leave out site and late.")
    if message_dtype is not None:
        compress = choose("message dtype", message_dtype, {name: name for name in ("bfloat16", "float16")})
    if compress is not None:
        from dnasa.channels import compression

        channel = compression(compress)

    def graph(nodes: int) -> Any:
        from dnasa.topology.graphs import default_name, make

        if topology is None:
            name, weights = default_name(nodes, channel=channel)
            return make(name, nodes, weights)
        if isinstance(topology, str) and engine == "simulated":
            warn(
                f"The graph '{topology:.40}' has a node for each process, and this one is alone: give its size, such as "
                "topology.ring(8), or start several processes with torchrun or mpirun."
            )
        return make(topology, nodes) if isinstance(topology, str) else topology

    if engine == "simulated":
        from dnasa.networks import simulated

        network = simulated.connect(graph(1), rounds, channel, every)
    elif engine == "sites":
        from dnasa.networks import sites as engine_of_sites
        from dnasa.sites.file import read_sites

        listed = read_sites(sites)  # type: ignore[arg-type]
        graph_of_sites, silence = graph(len(listed.sites)), timeout or SILENCE
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave_at_signal)
        network = engine_of_sites.connect(graph_of_sites, listed, rounds, silence, channel, every, traffic, wait_for)
    else:
        from dnasa.networks import processes

        count, transport = _launched(engine, timeout, device, site)
        whole_graph = graph(count)
        network = processes.connect(whole_graph, transport(whole_graph.nodes), rounds, channel, every)
    if engine != "simulated":
        _exit_together(engine)  # after torch has set its own excepthook
    return with_timing(network, late, overlap, clock)


def private_channel(wide: bool = False) -> Channel:
    with needed_by("private"):
        from dnasa.channels.secure_sum import secure_sum
    return secure_sum(wide)


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
    from dnasa.clock import with_clock

    return with_clock(network, clock)


def _launched(
    engine: str, timeout: float | None, device: str | None, site: "ProcessGroup | None"
) -> "tuple[int, Callable[[int], Transport]]":
    """The number of processes, or of groups of them that hold one node together; and what makes the transport for n nodes."""
    from dnasa.networks.processes import blocks

    if engine == "mpi":
        from dnasa.networks import mpi

        _exit_together(engine)
        return mpi.world_size(), lambda nodes: mpi.MPITransport(blocks(nodes, mpi.world_size()))
    with needed_by("The engine torch"):
        from dnasa.networks import groups, torchdist
    if site is not None:
        members = groups.find_groups(site)
        return len(members), lambda nodes: groups.GroupTransport(members, blocks(nodes, len(members)))
    count = torchdist.world_size(timeout, device)
    return count, lambda nodes: torchdist.TorchTransport(blocks(nodes, count))


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


def terminate(engine: str, code: int) -> None:
    """End this process so that the others do not wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if engine == "mpi":
        from dnasa.networks import mpi

        mpi.abort(code)
    if engine == "sites":
        from dnasa.networks.sites import leave_all

        leave_all()
    os._exit(code)


def leave_at_signal(number: int, frame: FrameType | None) -> None:
    """Say goodbye to the other sites at a SIGTERM, which would end this process without a word."""
    terminate("sites", 128 + number)
