"""Which runs have diverged, when, and at which node."""

from typing import Any

import numpy as np

from dnasa.arrays import adds_up, on_gpu, to_numpy
from dnasa.communication import Network
from dnasa.core import Array
from dnasa.runs.names import COLUMNS

EXPLODED = 1e6  # times the loss at the start, or 1 if that is larger: a run that ends there has diverged
KEPT = {*COLUMNS} - {"consensus"}  # what the rows of a diverged run have
MOST_PENDING = 1000  # checks left on a GPU: reading them takes little time, each of them some memory
LOSSES = ("train_loss", "test_loss", "grad_norm")  # the first that is measured tells whether a run has exploded
NOTES = ("diverged", "diverged_node", "agreed")  # in a checkpoint


class Divergence:
    """The step and the node at which each run diverged, both (variants, seeds), and -1 for a run that has not.

    `agreed` is what all processes know of `steps`.
    """

    def __init__(self, network: Network, variants: int, seeds: int):
        self.network = network
        self.steps = np.full((variants, seeds), -1)
        self.nodes = self.steps.copy()
        self.agreed = self.steps.copy()
        self.all_runs = False
        self.pending: list[tuple[Array, int, range]] = []  # checks whose results are still on a GPU

    def continue_with(self, network: Network) -> None:
        self.network = network
        self._update()

    def _update(self) -> None:
        """Real processes must stop together, so there only what all of them know counts."""
        self.all_runs = bool(((self.steps if self.network.simulated else self.agreed) >= 0).all())

    def check_gradient(self, g: Array, t: int, nodes: range | None = None) -> None:
        """Mark runs whose gradient is not finite, at these nodes or all local ones; results on a GPU are read later."""
        nodes = nodes or self.network.local_nodes
        if on_gpu(g):
            self.pending.append((g.isfinite().all(-1), t, nodes))
            if len(self.pending) == MOST_PENDING:
                self.read_pending()
        elif not adds_up(g):
            finite = np.isfinite(g) if isinstance(g, np.ndarray) else g.isfinite()
            self._mark(to_numpy(finite.all(-1)), t, nodes)

    def _mark(self, finite: np.ndarray, t: int, nodes: range) -> None:
        """Mark runs where `finite`, (variants, seeds, k), is false at one of the nodes."""
        bad = ~finite.all(-1) & (self.steps < 0)
        if bad.any():
            self.steps[bad] = t
            self.nodes[bad] = np.asarray(nodes)[finite[bad].argmin(-1)]
            self._update()

    def read_pending(self) -> None:
        for finite, t, nodes in self.pending:
            self._mark(to_numpy(finite), t, nodes)
        self.pending.clear()

    def check_metrics(self, metrics: list[np.ndarray], t: int) -> None:
        """Mark runs with a metric that is not finite, and tell the other processes of all that have diverged."""
        self.steps[~np.isfinite(np.stack(metrics)).all(0) & (self.steps < 0)] = t
        self._agree()

    def _agree(self) -> None:
        """Agree on the first step and node at which any process saw a run diverge."""
        changed = np.full((1, 1), float((self.steps != self.agreed).any()))
        if self.network.mean(changed)[0] > 0:
            shape, own = (2, *self.steps.shape), [self.steps.tolist(), self.nodes.tolist()]
            everyone = self.network.processes.allgather_json(own, lambda each: np.array(each, int).reshape(shape))
            for steps, nodes in everyone:
                earlier = (steps >= 0) & ((self.steps < 0) | (steps < self.steps))
                self.steps[earlier], self.nodes[earlier] = steps[earlier], nodes[earlier]
            self.agreed = self.steps.copy()
        self._update()

    def mark_exploded(self, history: list[dict[str, Any]]) -> None:
        """Mark runs whose loss is finite but absurd from some evaluation to the last, and blank their rows from there.

        With diminishing stepsizes a loss may rise that far and fall again, so an absurd loss before the end decides nothing.
        """
        for run in range(self.steps.size):
            rows = history[run :: self.steps.size]
            metric = next((name for name in LOSSES if rows and name in rows[0]), None)
            if metric is None or rows[0]["step"] != 0:
                continue
            limit = EXPLODED * max(1.0, abs(rows[0][metric]))
            for row in reversed(rows):
                if not row[metric] > limit:
                    break
                self.steps.flat[run] = row["step"]
                row |= dict.fromkeys(row.keys() - KEPT, np.nan)

    def notes(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        self.read_pending()
        tables = zip(NOTES, (self.steps, self.nodes, self.agreed), strict=True)
        return {name: table.tolist() for name, table in tables}

    def restore(self, notes: dict[str, Any]) -> None:
        shape = self.steps.shape
        self.steps, self.nodes, self.agreed = (np.array(notes[name], dtype=int).reshape(shape) for name in NOTES)
        self._update()
