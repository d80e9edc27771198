"""Sensors find their own positions from the distances to their neighbours and four anchors.

    python examples/sensor_localisation.py [figure.png]

Forty sensors do not know where they are. Each measures its distances to the sensors in range, with noise, and those to
anchors in range, whose positions are known. x holds all positions; sensor i's loss is the mean of log(1 + (|p_i - p_j| - r)^2)
over its own measurements, which forgives some false ones. Torch differentiates the loss.
"""

import sys

import networkx as nx
import numpy as np
import torch

import dnasa
from dnasa.comparing.plots import panels, save_figure

NODES, RANGE, STEPS = 40, 3.2, 1000
generator = np.random.default_rng(3)
truth = generator.uniform(-4, 4, size=(NODES, 2))
anchors = np.array([[-4.0, -4.0], [-4.0, 4.0], [4.0, -4.0], [4.0, 4.0]])
everything = np.concatenate([truth, anchors])
apart = np.linalg.norm(truth[:, None] - everything, axis=-1)
measured = np.abs(apart + 0.05 * generator.standard_normal(apart.shape))
false = generator.random(apart.shape) < 0.03
measured[false] += generator.uniform(1, 3, size=false.sum())
in_range = (apart < RANGE) & (apart > 0)
DISTANCES, IN_RANGE = torch.from_numpy(measured), torch.from_numpy(in_range).double()
ANCHORS = torch.from_numpy(anchors)


def loss(x: torch.Tensor, nodes: np.ndarray, rngs: object) -> torch.Tensor:
    """Of every node at its own copy of all positions: (variants, seeds, nodes)."""
    positions = x.unflatten(-1, (NODES, 2))
    own = positions[..., range(len(nodes)), nodes, :]
    others = torch.cat([positions, ANCHORS.expand(*positions.shape[:-2], *ANCHORS.shape)], dim=-2)
    squares = ((own[..., None, :] - others) ** 2).sum(-1)
    residual = torch.sqrt(squares + 1e-9) - DISTANCES[nodes]
    return (IN_RANGE[nodes] * torch.log1p(residual**2)).sum(-1) / IN_RANGE[nodes].sum(-1)


def error(x: torch.Tensor) -> dict[str, float]:
    """The median distance of a sensor from its true position."""
    return {"error": float(np.median(np.linalg.norm(x.numpy().reshape(NODES, 2) - truth, axis=1)))}


def draw(graph: dnasa.topology.Topology, start: np.ndarray, found: np.ndarray, history: object, path: str) -> None:
    figure, axes = panels(2, width=5.6, height=5)
    left, right = axes[0]
    for i, j in graph.graph.edges:
        left.plot(*truth[[i, j]].T, color="0.88", zorder=0)
    left.plot(np.stack([truth, found])[..., 0], np.stack([truth, found])[..., 1], color="#d62728", lw=1)
    left.plot(*start.T, ".", color="0.6", ms=4, label="first guess")
    left.plot(*truth.T, "o", mfc="none", color="#1f77b4", ms=8, label="sensors and their links")
    left.plot(*found.T, ".", color="#d62728", ms=7, label="estimates")
    left.plot(*anchors.T, "^", color="black", ms=9, label="anchors")
    left.set(title="Positions", xlabel="x", ylabel="y", aspect="equal", ylim=(-5.2, 6.2))
    left.legend(fontsize=8, ncol=2, loc="upper center")
    right.semilogy(history.step, history.error, color="#d62728")  # type: ignore[attr-defined]
    right.set(xlabel="step", ylabel="median distance from the true position", title="AdaNASA, nothing tuned")
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    links = nx.from_numpy_array(in_range[:, :NODES].astype(int))
    graph = dnasa.topology.from_networkx(links, weights="metropolis")
    start = np.clip(truth + generator.normal(size=truth.shape), -4, 4)
    problem = dnasa.problems.Custom.from_loss(loss, start.ravel(), batched=True, evaluate=error)
    result = dnasa.solve(problem, graph, "adanasa", steps=STEPS)
    first, last = result.history.error.iloc[0], result.history.error.iloc[-1]
    print(f"median distance from the true position: {first:.3f} at the start, {last:.3f} at the end")
    draw(graph, start, result.mean.reshape(NODES, 2).numpy(), result.history, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sensor_localisation.png")
