"""What a run remembers: a row of metrics per evaluation and run, and which runs have diverged."""

import time
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa import metrics
from dnasa.core import Array, Network
from dnasa.records import Result
from dnasa.rules import Variant

if TYPE_CHECKING:
    import pandas as pd

    from dnasa.problems import Problem
    from dnasa.topology import Topology


class Recorder:
    """Collects the history of all runs, and when each of them diverged."""

    def __init__(
        self,
        problem: "Problem",
        topology: "Topology",
        network: Network,
        variants: Sequence[Variant],
        seeds: Sequence[int],
        sizes: Sequence[int],
    ):
        """`sizes` are the bytes of one node's row in a message of each variant."""
        self.problem, self.network, self.variants, self.seeds, self.sizes = problem, network, variants, seeds, sizes
        self.name = topology.name
        self.eras = [
            (0, topology.nodes, topology.messages)
        ]  # since when there are so many nodes and messages per exchange
        self.lost: list[dict[str, Any]] = []
        self.diverged = np.full((len(variants), len(seeds)), -1)
        self.seen = self.diverged.copy()
        self.hopeless = False
        self.rows: list[dict[str, Any]] = []
        self.unseen: list[tuple[int, Array]] = []
        self.started = time.perf_counter()
        self.looking = 0.0

    def watch(self, g: Array, t: int) -> None:
        """A gradient that is no number means that the run is lost from here on; on a GPU, found out at the next look."""
        if getattr(g, "is_cuda", False):
            self.unseen.append((t, g.sum((-2, -1))))
        elif not isfinite(metrics.to_numpy(g).sum()):
            self._mark(np.isfinite(metrics.to_numpy(g.sum((-2, -1)))), t)

    def _mark(self, finite: np.ndarray, t: int) -> None:
        if not finite.all():
            self.diverged[(~finite) & (self.diverged < 0)] = t
            self._judge()

    def _judge(self) -> None:
        """Whether every run has diverged; real processes must stop together, so there only what an evaluation saw counts."""
        known = self.diverged if len(self.network.here) == self.network.nodes else self.seen
        self.hopeless = bool((known >= 0).all())

    def _see(self) -> None:
        if self.unseen:
            import torch

            totals = metrics.to_numpy(torch.stack([total for _, total in self.unseen]))
            for (t, _), total in zip(self.unseen, totals, strict=True):
                self._mark(np.isfinite(total), t)
            self.unseen.clear()

    def _learn_from_others(self, t: int) -> None:
        lost = np.ascontiguousarray((self.diverged >= 0).astype(np.float64))[..., None, None]
        self._mark(metrics.to_numpy(self.network.mean(lost))[..., 0] == 0, t)
        self.seen = self.diverged.copy()
        self._judge()

    def look(self, state: Any, t: int) -> float:
        """Measure all runs; returns the best current loss for the progress bar."""
        self._see()
        began = time.perf_counter()
        training = began - self.started - self.looking if t else 0.0
        row = self._measure(state)
        self._mark(np.isfinite(np.stack([value for name, value in row.items() if name != "tracking"])).all(0), t)
        self._learn_from_others(t)
        self.forget(t)
        for v, variant in enumerate(self.variants):
            for s, seed in enumerate(self.seeds):
                lost = self.diverged[v, s] >= 0
                values = {name: np.nan if lost else float(value[v, s]) for name, value in row.items()}
                self.rows.append(
                    {
                        "run": v * len(self.seeds) + s,
                        **variant._asdict(),
                        "seed": seed,
                        "step": t,
                        "nodes": self.network.nodes,
                        **values,
                        **self._counts(t, v),
                        "seconds": training,
                    }
                )
        self.looking += time.perf_counter() - began
        losses = row.get("train_loss", row.get("test_loss", row["consensus"]))[self.diverged < 0]
        return float(losses.min()) if losses.size else float("nan")

    def _measure(self, state: Any) -> dict[str, np.ndarray]:
        mean = self.network.mean(state.x)
        local = self.problem.evaluate(mean, self.network.here)
        evaluated = {
            name: self.network.mean(value[..., None, :] if name == "gradient" else value[..., None, None])
            for name, value in local.items()
        }
        evaluated = {name: value if name == "gradient" else value[..., 0] for name, value in evaluated.items()}
        return metrics.measure(state, mean, evaluated, self.network, getattr(self.problem, "loss_scale", 1.0))

    def _counts(self, t: int, variant: int) -> dict[str, Any]:
        ends = [begin for begin, _, _ in self.eras[1:]] + [t]
        steps = [end - begin for (begin, _, _), end in zip(self.eras, ends, strict=True)]
        samples = sum(k * nodes for k, (_, nodes, _) in zip(steps, self.eras, strict=True)) * self.problem.batch
        messages = sum(k * each for k, (_, _, each) in zip(steps, self.eras, strict=True)) * self.network.rounds
        counts: dict[str, Any] = {"samples": samples}
        if self.problem.epoch:
            counts["epochs"] = t * self.problem.batch / self.problem.epoch
        return counts | {"messages": messages, "bytes": messages * self.sizes[variant]}

    def forget(self, t: int) -> None:
        """An evaluation that was begun and is made again."""
        while self.rows and self.rows[-1]["step"] == t:
            self.rows.pop()

    def continue_without(self, network: Network, topology: "Topology", gone: Sequence[int], t: int) -> None:
        self.network = network
        self.eras.append((t, topology.nodes, topology.messages))
        self.lost.append({"step": t, "nodes": list(gone)})
        self._judge()

    def frame(self, last: bool = False) -> "pd.DataFrame":
        """All rows, or those of the last evaluation."""
        import pandas as pd

        rows = self.rows if not last else self.rows[-self.diverged.size :]
        table = pd.DataFrame(rows)
        return (
            table
            if any(variant.eta is not None for variant in self.variants)
            else table.drop(columns="eta", errors="ignore")
        )

    # ------------------------------------------------------------ for checkpoints

    def notes(self) -> dict[str, Any]:
        self._see()
        return {
            "diverged": self.diverged.tolist(),
            "seen": self.seen.tolist(),
            "seconds": time.perf_counter() - self.started - self.looking,
            "eras": self.eras,
            "lost": self.lost,
        }

    def restore(self, notes: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.diverged, self.seen = np.array(notes["diverged"]), np.array(notes["seen"])
        self._judge()
        self.started, self.looking = time.perf_counter() - notes["seconds"], 0.0
        self.eras, self.lost = [tuple(era) for era in notes["eras"]], notes["lost"]

    def result(self, x: Array, steps: int, timing: dict[str, float]) -> Result:
        import pandas as pd

        self._see()
        runs = pd.DataFrame([variant._asdict() | {"seed": seed} for variant in self.variants for seed in self.seeds])
        runs["diverged"] = pd.array([int(t) if t >= 0 else pd.NA for t in self.diverged.ravel()], dtype="Int64")
        settings = {"nodes": self.eras[0][1], "topology": self.name, "steps": steps, "timing": timing}
        if self.lost:
            settings["lost"] = self.lost
        flat = x.reshape(-1, *x.shape[-2:])
        return Result(flat[0] if len(flat) == 1 else flat, self.frame(), runs, settings, self.network.rank)
