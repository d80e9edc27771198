"""Communication of one D-NASA step over MPI against a bare exchange of the same bytes.

    mpirun -n 8 --oversubscribe python -m benchmarks.exchange

Ring of as many nodes as processes, the a9a network (8,066 float32 parameters), three arrays a message; measurements are
interleaved. With `--step`, also whole D-NASA steps on the a9a network and LeNet: gradient, exchange and update.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from mpi4py import MPI

from benchmarks.steppers import dnasa_stepper
from dnasa import topology
from dnasa.communication import Network
from dnasa.core import Messages
from dnasa.data import from_arrays, partition
from dnasa.networks import connect
from dnasa.networks.buffers import Buffers
from dnasa.networks.processes import Multiplier
from dnasa.tasks.tasks import on_shards

NODES, ARRAYS, DIM, ROUNDS, BLOCK = 8, 3, 8066, 300, 20

Work = Callable[[], object]


def bare(comm: MPI.Comm, peers: Sequence[int], arrays: Messages = ()) -> Work:
    """The lower bound: one buffer to and from each neighbour, receives first; packed from the arrays, if given."""
    out = np.ones((ARRAYS, 1, DIM), np.float32)
    into = [np.empty_like(out) for _ in peers]

    def exchange() -> None:
        requests = [comm.Irecv(buffer, peer, 1) for buffer, peer in zip(into, peers, strict=True)]
        if arrays:
            np.stack(arrays, out=out)
        requests += [comm.Isend(out, peer, 1) for peer in peers]
        MPI.Request.Waitall(requests)

    return exchange


def communication(multiplier: Multiplier, arrays: Messages) -> Work:
    """The messages of one exchange, packed and sent, without the weighted sums."""
    transport = multiplier.transport
    buffers = Buffers(arrays, multiplier.routes, transport.carries_cuda)

    def send_and_receive() -> None:
        buffers.fill(arrays)
        transport.finish(transport.start(buffers.receives, buffers.sends))

    return send_and_receive


def interleaved(comm: MPI.Comm, *works: Work, rounds: int = ROUNDS) -> list[float]:
    """Median seconds per call of each, of the slowest process; blocks of calls are interleaved."""
    times = np.zeros((rounds // BLOCK, len(works)))
    for i in range(len(times)):
        for j, work in enumerate(works):
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(BLOCK):
                work()
            times[i, j] = (time.perf_counter() - began) / BLOCK
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return np.median(times, axis=0).tolist()


def whole_step(network: Network, shape: tuple[int, ...], classes: int) -> Work:
    torch.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal((4000, *shape)).astype(np.float32)
    rows = from_arrays(x, np.arange(4000) % classes)
    problem = on_shards(rows, partition("iid", rows.labels, network.nodes))
    start = problem.start(0).expand(1, 1, len(network.local_nodes), -1).contiguous()
    stepper, steps = dnasa_stepper(network, start), count(1)

    def step() -> None:
        t = next(steps)
        stepper.step((problem.gradient(stepper.x, network.local_nodes, [0], t),), t)

    return step


def exchanges(comm: MPI.Comm, network: Network) -> list[str]:
    arrays = tuple(np.ones((1, DIM), np.float32) for _ in range(ARRAYS))
    peers, multiplier = network.topology.neighbours(comm.rank), network.at(0)  # type: ignore[misc]
    assert isinstance(multiplier, Multiplier)
    works = (
        bare(comm, peers),
        bare(comm, peers, arrays),
        communication(multiplier, arrays),
        lambda: network.multiply(arrays, 0),
    )
    floor, packed, ours, weighted = interleaved(comm, *works)
    return [
        f"bare exchange of one packed buffer {1e3 * floor:.3f} ms, of three arrays {1e3 * packed:.3f} ms",
        f"D-NASA's {1e3 * ours:.3f} ms: {ours / floor:.2f} and {ours / packed:.2f} times",
        f"with the weighted sums: {1e3 * weighted:.3f} ms: {weighted / floor:.2f} times",
    ]


def whole_steps(comm: MPI.Comm, network: Network) -> str:
    (small,) = interleaved(comm, whole_step(network, (123,), 2), rounds=200)
    (large,) = interleaved(comm, whole_step(network, (1, 28, 28), 10), rounds=40)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return f"whole D-NASA step: a9a network {1e3 * small:.2f} ms, LeNet {1e3 * large:.1f} ms; {memory:.0f} MB a process"


def main() -> None:
    comm = MPI.COMM_WORLD
    network = connect(topology.ring(NODES), "mpi")
    lines = [f"{comm.size} processes, {NODES} nodes"]
    if comm.size == NODES:
        lines += exchanges(comm, network)
    if "--step" in sys.argv:
        lines.append(whole_steps(comm, network))
    if comm.rank == 0:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
