"""Sensors find the source of a sound together, with gradients of their own and no neural network.

    python examples/custom_gradient.py [picture.png]

Twenty sensors each hear how far away the source is, wrongly by a tenth and now and then by a lot (an echo). Sensor i's loss is
log(1 + (|p - s_i| - r_i)^2), which is nonconvex and forgives echoes. Nobody knows everyone's measurements; each talks to the
sensors within reach.
"""

import sys

import networkx as nx
import numpy as np

import dnasa
from dnasa.plots import panels, save_figure

SOURCE = np.array([2.5, -1.5])
generator = np.random.default_rng(4)
sensors = generator.uniform(-6, 6, size=(20, 2))
distances = np.linalg.norm(sensors - SOURCE, axis=1) + 0.1 * generator.standard_normal(20)


def gradient(p, node, rng):
    heard = distances[node] + 0.3 * rng.standard_normal() + (3 * rng.random() if rng.random() < 0.1 else 0)
    away = p - sensors[node]
    length = np.linalg.norm(away) + 1e-9
    off = length - heard
    return 2 * off / (1 + off**2) * away / length


def within_reach(radius: float = 4.5) -> dnasa.topology.Topology:
    graph = nx.random_geometric_graph(20, radius, pos=dict(enumerate(sensors)))
    return dnasa.topology.from_networkx(graph, weights="metropolis")


def main(picture: str) -> None:
    problem, graph = dnasa.problems.Custom(gradient, start=np.zeros(2)), within_reach()
    moments = [1, 3, 10, 30, 100, 300, 1000, 3000]
    paths = np.stack(
        [np.zeros((20, 2)), *(dnasa.solve(problem, graph, steps=t).x for t in moments)]
    )  # the same run, longer
    for t, x in zip(moments, paths[1:], strict=True):
        error = np.linalg.norm(x.mean(0) - SOURCE)
        print(f"step {t:4d}  error of the mean {error:.3f}  nodes apart {((x - x.mean(0)) ** 2).sum(1).mean():.1e}")

    figure, axes = panels(1, width=6, height=5)
    axis = axes[0, 0]
    for i, j in graph.graph.edges:
        axis.plot(*sensors[[i, j]].T, color="0.85", zorder=0)
    axis.plot(*sensors.T, "s", color="#1f77b4", label="sensors and who talks to whom")
    axis.plot(paths[:, :, 0], paths[:, :, 1], color="#d62728", alpha=0.4, linewidth=1)
    axis.plot([], [], color="#d62728", label="their estimates")
    axis.plot(*SOURCE, "*", color="black", markersize=14, label="the source")
    axis.set(title="Twenty sensors agree on a source", aspect="equal")
    axis.legend(loc="lower left", fontsize=8)
    print(f"Saved {save_figure(figure, picture)}.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localisation.png")
