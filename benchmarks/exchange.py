"""Communication of one D-NASA step over MPI against a bare exchange of the same bytes.

    mpirun -n 8 --oversubscribe python -m benchmarks.exchange

Ring of as many nodes as processes, the a9a network (8,066 float32 parameters), three arrays a message. The two are timed in
turns. With `--step`, also whole D-NASA steps on the a9a network and LeNet: gradient, exchange and update.
"""

import resource
import sys
import time

import numpy as np
from mpi4py import MPI

from dnasa import topology
from dnasa.networks import exchange, mpi

ARRAYS, DIM, ROUNDS = 3, 8066, 300


def bare(comm: MPI.Comm, peers: list[int], arrays: list[np.ndarray] | None = None):
    """What nobody can avoid: one buffer to and from each neighbour, receives first; packed from the arrays, if given."""
    out = np.ones((ARRAYS, 1, DIM), np.float32)
    into = [np.empty_like(out) for _ in peers]

    def exchange() -> None:
        requests = [comm.Irecv(buffer, peer, 1) for buffer, peer in zip(into, peers, strict=True)]
        if arrays:
            np.stack(arrays, out=out)
        requests += [comm.Isend(out, peer, 1) for peer in peers]
        MPI.Request.Waitall(requests)

    return exchange


def in_turns(comm: MPI.Comm, *steps, rounds: int = ROUNDS) -> list[float]:
    """Seconds per call of each, the slowest process counting; blocks of 20 in turns."""
    times = np.zeros((rounds // 20, len(steps)))
    for i in range(len(times)):
        for j, step in enumerate(steps):
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(20):
                step()
            times[i, j] = (time.perf_counter() - began) / 20
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return list(np.median(times, axis=0))


def whole_step(network, shape: tuple[int, ...], classes: int):
    import torch

    from dnasa import rules
    from dnasa.data import from_arrays
    from dnasa.experiments.tasks import classification

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4000, *shape)).astype(np.float32)
    problem = classification(from_arrays(x, np.arange(4000) % classes), network.nodes)
    start = problem.start(0).expand(1, 1, len(network.here), -1).contiguous()
    rule = rules.build(rules.variants("dnasa"), network.nodes, 1000, start)
    held = {"state": rule.init(start), "t": 1}

    def step() -> None:
        t, state = held["t"], held["state"]
        g = problem.gradient(state.x, network.here, [0], t)
        held.update(state=rule.step(state, g, network.at(t), t), t=t + 1)

    return step


def main() -> None:
    comm = MPI.COMM_WORLD
    nodes = 8
    graph = topology.ring(nodes)
    carrier = exchange.Exchange(graph, mpi.Transport(comm, 30.0, exchange.blocks(nodes, comm.size)))
    network = carrier.network()
    lines = [f"{comm.size} processes, {nodes} nodes"]
    if comm.size == nodes:
        arrays = [np.ones((1, DIM), np.float32) for _ in range(ARRAYS)]

        def communication() -> None:
            _, pending = carrier.send(arrays, carrier.plan(0))
            carrier.transport.finish(pending)

        peers = graph.neighbours(comm.rank)
        floor, packed, ours, mixed = in_turns(
            comm, bare(comm, peers), bare(comm, peers, arrays), communication, lambda: network.mix(*arrays)
        )
        lines.append(f"bare exchange of one packed buffer {1e3 * floor:.3f} ms, of three arrays {1e3 * packed:.3f} ms")
        lines.append(f"D-NASA's {1e3 * ours:.3f} ms: {ours / floor:.2f} and {ours / packed:.2f} times")
        lines.append(f"with the weighted sums, as the rule sees it: {1e3 * mixed:.3f} ms: {mixed / floor:.2f} times")
    if "--step" in sys.argv:
        (small,) = in_turns(comm, whole_step(network, (123,), 2), rounds=200)
        (large,) = in_turns(comm, whole_step(network, (1, 28, 28), 10), rounds=40)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        lines.append(
            f"whole D-NASA step: a9a network {1e3 * small:.2f} ms, LeNet {1e3 * large:.1f} ms; {memory:.0f} MB a process"
        )
    if comm.rank == 0:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
