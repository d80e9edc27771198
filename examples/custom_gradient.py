"""Sensors locate the source of a sound together, with gradients of their own and no neural network.

    python examples/custom_gradient.py [figure.png]

Twenty sensors each measure their distance from the source, with noise and sometimes with an echo. Sensor i's loss is
log(1 + (|p - s_i| - r_i)^2), which is nonconvex and robust to echoes. No sensor sees the others' measurements; each exchanges
messages with the sensors in range.
"""

import sys

import networkx as nx
import numpy as np

import dnasa
from dnasa.comparing.plots import panels, save_figure

SOURCE = np.array([2.5, -1.5])
STEPS = (1, 3, 10, 30, 100, 300, 1000, 3000)
generator = np.random.default_rng(4)
sensors = generator.uniform(-6, 6, size=(20, 2))
distances = np.linalg.norm(sensors - SOURCE, axis=1) + 0.1 * generator.standard_normal(20)


def gradient(p: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    measured = distances[node] + 0.3 * rng.standard_normal() + (3 * rng.random() if rng.random() < 0.1 else 0)
    difference = p - sensors[node]
    distance = np.linalg.norm(difference) + 1e-9
    residual = distance - measured
    return 2 * residual / (1 + residual**2) * difference / distance


def sensors_in_range(radius: float = 4.5) -> dnasa.topology.Topology:
    graph = nx.random_geometric_graph(20, radius, pos=dict(enumerate(sensors)))
    return dnasa.topology.from_networkx(graph, weights="metropolis")


def draw(graph: dnasa.topology.Topology, estimates: np.ndarray, path: str) -> None:
    figure, axes = panels(1, width=6, height=5)
    axis = axes[0, 0]
    for i, j in graph.graph.edges:
        axis.plot(*sensors[[i, j]].T, color="0.85", zorder=0)
    axis.plot(*sensors.T, "s", color="#1f77b4", label="sensors and their links")
    axis.plot(estimates[:, :, 0], estimates[:, :, 1], color="#d62728", alpha=0.4, linewidth=1)
    axis.plot([], [], color="#d62728", label="their estimates")
    axis.plot(*SOURCE, "*", color="black", markersize=14, label="the source")
    axis.set(title="Twenty sensors agree on a source", aspect="equal")
    axis.legend(loc="lower left", fontsize=8)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    problem, graph = dnasa.problems.Custom(gradient, start=np.zeros(2)), sensors_in_range()
    estimates = [np.zeros((20, 2))]
    for steps in STEPS:  # the same run each time, only longer
        x = dnasa.solve(problem, graph, steps=steps).x
        error, consensus = np.linalg.norm(x.mean(0) - SOURCE), ((x - x.mean(0)) ** 2).sum(1).mean()
        print(f"step {steps:4d}  error of the mean {error:.3f}  consensus error {consensus:.1e}")
        estimates.append(x)
    draw(graph, np.stack(estimates), path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localisation.png")
