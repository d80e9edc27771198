"""Packing, unpacking and mixing 10 million float32 numbers against a copy of them, and exchanges of them in 4 and 8 bits.

    OMP_NUM_THREADS=1 python -m benchmarks.codecs
    OMP_NUM_THREADS=1 mpirun -n 2 python -m benchmarks.codecs mpi

The goal for a codec is twice the copy. An exchange is that of two nodes, with the channel's memory: both in one process, or
one in each of two.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
import torch

from dnasa import topology
from dnasa.arrays import compiled
from dnasa.channels import compression, exchange, modular
from dnasa.communication import Network
from dnasa.networks import connect, simulated

DIM = 10_000_000
GRAPH = topology.ring(2)


def least(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds of each, interleaved: other work on the machine only adds to them."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in taken.items()}


def packing(dim: int = DIM, rounds: int = 60) -> dict[str, float]:
    torch.set_num_threads(compiled.threads(dim))
    numbers = torch.randn(1, dim)
    out, works = torch.zeros_like(numbers), dict[str, Callable[[], object]]()
    works["copy"] = lambda: out.copy_(numbers)
    for bits in (4, 8):
        works |= modular_works(numbers, out, bits)
    return least(works, rounds)


def modular_works(numbers: torch.Tensor, out: torch.Tensor, bits: int) -> dict[str, Callable[[], object]]:
    """Moniqua's payload, and the mix with that of one neighbour."""
    grid, dim = modular.Grid(bits, 0.3, 1.4), numbers.shape[-1]
    seen = torch.full((1, modular.block_count(dim)), 0.1)
    own, theirs = (modular.encode(grid, a, seen) for a in (numbers, numbers + 0.01 * torch.randn(1, dim)))
    x, largest, payload, neighbours = (a.numpy() for a in (numbers, seen, own, theirs))
    weights, mixed, after = np.full(1, 0.5, np.float32), out.numpy(), largest.copy()
    return {
        f"moniqua:{bits}, pack": partial(compiled.encode_residues, x, largest, payload, 1, dim, *grid, False),
        f"moniqua:{bits}, mix": lambda: compiled.mix_residues(
            x, payload, neighbours, weights, mixed, after, 1, 1, dim, *grid, False
        ),
    }


def exchanges(connect: Callable[..., Network], dim: int = DIM, rounds: int = 5) -> dict[str, float]:
    """Seconds of a copy of a process's rows and of an exchange, plain and compressed."""
    works: dict[str, Callable[[], object]] = {}
    for name in (None, "moniqua:8", "moniqua:4"):
        network = connect(GRAPH, channel=None if name is None else compression(name))
        y = np.random.default_rng(0).standard_normal((len(network.local_nodes), dim), np.float32)
        if name is None:
            works["copy"] = partial(np.copyto, y.copy(), y)
        works[f"exchange, {name or 'plain'}"] = carried(network, y)
        if name is not None:
            works[f"exchange, {name} without the extension"] = without_extension(works[f"exchange, {name}"])
    return least(works, rounds)


def carried(network: Network, y: np.ndarray) -> Callable[[], object]:
    """An exchange of y, with what the channel remembers from the one before."""
    memory: list[tuple[object, ...]] = [()]

    def work() -> None:
        _, memory[0] = exchange(network, memory[0], (y,), 0)

    return work


def without_extension(work: Callable[[], object]) -> Callable[[], object]:
    def plain() -> None:
        with patch.object(modular, "compiled", None):
            work()

    return plain


def show(title: str, taken: dict[str, float]) -> None:
    print(title)
    for name, seconds in taken.items():
        print(f"  {name:40} {1e3 * seconds:8.3f} ms  {seconds / taken['copy']:6.2f} times the copy")


def main(engine: str = "one process") -> None:
    if engine == "mpi":
        network, taken = connect(GRAPH, "mpi"), exchanges(partial(connect, engine="mpi"))
        if network.rank == 0:
            show("two processes with a node each, MPI", taken)
        return
    show(f"{DIM:,} numbers, {compiled.threads(DIM)} threads", packing())
    show("two nodes in one process", exchanges(simulated.connect))


if __name__ == "__main__":
    main(*sys.argv[1:])
