"""Unreliable networks, simulated: messages get lost, nodes are out of reach for a while, news comes late.

All of it is a function of the seed and the step, so a run repeats exactly.
"""

from collections import defaultdict, deque
from typing import Any

import numpy as np
import scipy.sparse as sp

from dnasa.core import Array, InputError, Network, whole
from dnasa.networks import wire as wires
from dnasa.networks.simulated import compact, product
from dnasa.randomness import Streams
from dnasa.topology import Changing, Topology

SPELL = 20  # steps for which a node that is away stays away


def connect(
    topology: Topology | Changing,
    drop: float = 0.0,
    away: float = 0.0,
    stale: int = 0,
    seed: int = 0,
    wire: str | None = None,
) -> Network:
    """All nodes in one process, on a network with faults.

    Each link fails in a step with probability `drop`; each node is out of reach for a share `away` of the time, in spells of
    20 steps, while it goes on with its own data. The weight of a lost message returns to both its ends, so that W stays
    symmetric and doubly stochastic. With `stale`, what a node hears of a neighbour is 0 to `stale` steps old, drawn anew for
    every node and step; then the mean over the nodes is no longer kept exactly.
    """
    for name, share in (("drop", drop), ("away", away)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be a probability from 0 to less than 1, not {share}.")
    faults = Faults(topology, drop, away, whole("stale", stale, low=0), whole("A seed", seed, low=0), wire)
    return Network(topology.nodes, faults.mix, lambda a: a.mean(-2), wire=wire, topology=topology, memory=faults)


class Faults:
    def __init__(
        self, topology: Topology | Changing, drop: float, away: float, stale: int, seed: int, wire: str | None
    ):
        wires.check(wire)
        self.topology, self.drop, self.away, self.stale, self.seed, self.wire = topology, drop, away, stale, seed, wire
        self.settings = {"drop": drop, "away": away, "stale": stale, "seed": seed}
        self.dropped, self.absent, self.late = (Streams(name) for name in ("dropped", "absent", "late"))
        self.now: tuple[int, Any] = (-1, None)
        self.calls = 0
        # what was sent at the last steps, the newest first, for each exchange of a step
        self.sent: dict[int, deque[tuple[Array, ...]]] = defaultdict(lambda: deque(maxlen=stale + 1))

    def weights(self, t: int) -> sp.csr_array:
        """W of step t."""
        base = self.topology.at(t) if isinstance(self.topology, Changing) else self.topology
        links = sp.triu(base.sparse, k=1).tocoo()
        gone = self.dropped.at(self.seed, 0, t).random(links.nnz) < self.drop
        away = self.absent.at(self.seed, 0, t // SPELL).random(base.nodes) < self.away
        gone |= away[links.row] | away[links.col]
        lost = links.data[gone]
        i, j = links.row[gone], links.col[gone]
        entries = np.concatenate([-lost, -lost, lost, lost])
        rows, columns = np.concatenate([i, j, i, j]), np.concatenate([j, i, i, j])
        change = sp.coo_array((entries, (rows, columns)), shape=links.shape)
        left = sp.csr_array(base.sparse + change)
        left.eliminate_zeros()
        return left

    def mix(self, *arrays: Array, t: int) -> tuple[Array, ...]:
        if self.now[0] != t:
            self.now, self.calls = (t, [product(compact(part)) for part in self._parts(self.weights(t))]), 0
        if self.stale:
            others, own = self.now[1]
            heard = tuple(wires.rounded(a, self.wire) for a in arrays) if self.wire else arrays
            late = self._late(heard, t)
            return tuple(a + b for a, b in zip(others(late), own(arrays), strict=True))
        (everyone,) = self.now[1]
        return wires.lean(everyone, arrays, self.wire) if self.wire else everyone(arrays)

    def _parts(self, weights: sp.csr_array) -> tuple[sp.csr_array, ...]:
        """W, or, where others' news may be older than one's own, what is for others and what is one's own."""
        if not self.stale:
            return (weights,)
        own = sp.dia_array((weights.diagonal()[None], [0]), shape=weights.shape).tocsr()
        return sp.csr_array(weights - own), own

    def _late(self, arrays: tuple[Array, ...], t: int) -> tuple[Array, ...]:
        """What everyone hears of each node: what it sent 0 to `stale` steps ago."""
        sent = self.sent[self.calls]
        self.calls += 1
        sent.appendleft(arrays)
        ages = self.late.at(self.seed, 0, t).integers(0, self.stale + 1, size=self.topology.nodes)
        ages = np.minimum(ages, len(sent) - 1)
        out = tuple(_copy(a) for a in arrays)
        for age in range(1, len(sent)):
            rows = np.flatnonzero(ages == age)
            for new, old in zip(out, sent[age], strict=True):
                new[..., rows, :] = old[..., rows, :]
        return out

    # ------------------------------------------------------------ for checkpoints

    def arrays(self) -> dict[str, Array]:
        """What is still under way."""
        return {
            f"{call}.{age}.{number}": a
            for call, sent in self.sent.items()
            for age, arrays in enumerate(sent)
            for number, a in enumerate(arrays)
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self.sent.clear()
        for key in sorted(arrays, key=lambda key: [int(part) for part in key.split(".")]):
            call, age, number = map(int, key.split("."))
            sent = self.sent[call]
            if number == 0:
                sent.append(())
            sent[age] += (arrays[key],)


def _copy(a: Array) -> Array:
    return a.copy() if isinstance(a, np.ndarray) else a.clone()
