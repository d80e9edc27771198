"""Robots learn one feedback gain by policy gradients, each from its own trials.

    python examples/lqr_robots.py [figure.png]

Twelve robots have different masses and friction. All use the same controller, u = -k1 position - k2 velocity, and want the
gains that are best on average (linear-quadratic regulation). A robot only knows the cost of its own trials: eight starts drawn
at random in every step. Torch differentiates the trial. The robots exchange gains and gradients, never trials.
"""

import sys
from typing import Any

import numpy as np
import torch

import dnasa
from dnasa.comparing.plots import panels, save_figure

NODES, HORIZON, DT, TRIALS, STEPS = 12, 40, 0.1, 8, 200
generator = np.random.default_rng(0)
MASS = torch.from_numpy(generator.uniform(0.6, 1.8, NODES))
FRICTION = torch.from_numpy(generator.uniform(0.0, 0.6, NODES))
START = np.array([0.5, 0.2])


def trial(gains: torch.Tensor, starts: torch.Tensor, nodes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cost and positions of trials from (..., trials, 2) with one pair of gains per robot, (..., 2)."""
    mass, friction = MASS[nodes][..., None], FRICTION[nodes][..., None]
    position, velocity = torch.broadcast_tensors(*starts.unbind(-1), gains[..., :1] * mass)[:2]
    cost, positions = torch.zeros_like(position), [position]
    for _ in range(HORIZON):
        force = -gains[..., :1] * position - gains[..., 1:] * velocity
        cost = cost + DT * (position**2 + 0.1 * velocity**2 + 0.1 * force**2)
        position = position + DT * velocity
        velocity = velocity + DT * (force - friction * velocity) / mass
        positions.append(position)
    return cost.mean(-1), torch.stack(positions, -1)


def loss(x: torch.Tensor, nodes: np.ndarray, rngs: Any) -> torch.Tensor:
    return trial(x, torch.from_numpy(rngs.standard_normal((TRIALS, 2))), nodes)[0]


def average_cost(gains: np.ndarray) -> np.ndarray:
    """Over all robots, for starts with mean 0 and covariance I: the cost is quadratic in the start."""
    both = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    points = torch.as_tensor(gains)[..., None, :]
    return 2 * trial(points, both, np.arange(NODES))[0].mean(-1).numpy()


def draw(gains: np.ndarray, path: str) -> None:
    figure, axes = panels(2, width=5.4, height=4.2)
    left, right = axes[0]
    k1, k2 = np.linspace(0, 5, 60), np.linspace(0, 5, 60)
    cost = average_cost(np.stack(np.meshgrid(k1, k2), axis=-1))
    levels = cost.min() * 1.1 ** np.arange(0.2, 12)
    contours = left.contour(k1, k2, cost, levels, colors="0.5", linewidths=0.8)
    left.clabel(contours, levels[::3], fontsize=7, colors="0.2", fmt="%.2f")
    best = np.unravel_index(cost.argmin(), cost.shape)
    left.plot(*gains.T, ".-", color="#d62728", ms=4, label="mean gains of D-NASA")
    left.plot(k1[best[1]], k2[best[0]], "k*", ms=12, mec="white", label="best gains on average")
    left.set(xlabel="gain of the position, $k_1$", ylabel="gain of the velocity, $k_2$", title="Average cost")
    seconds = DT * np.arange(HORIZON + 1)
    for pair, colour, name in ((START, "0.65", "first gains"), (gains[-1], "#d62728", "learned gains")):
        pushed = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        positions = trial(torch.from_numpy(pair).expand(NODES, 2), pushed, np.arange(NODES))[1][:, 0]
        right.plot(seconds, positions.T, color=colour, lw=1)
        right.plot([], [], color=colour, label=f"{name}: {pair[0]:.2f}, {pair[1]:.2f}")
    right.set(xlabel="seconds", ylabel="position after a push", title="All robots")
    figure.legend(loc="outside lower center", ncols=4)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    problem = dnasa.problems.Custom.from_loss(
        loss, START, batched=True, nodes=NODES, evaluate=lambda x: {"cost": average_cost(x.numpy())}
    )
    gains: list[np.ndarray] = []

    def remember(evaluation: Any) -> None:
        gains.append(evaluation.mean[0].numpy().copy())

    result = dnasa.solve(problem, dnasa.topology.grid(NODES), steps=STEPS, evaluate=5, record=dnasa.Record(callback=remember))
    first, last = result.history.cost.iloc[0], result.history.cost.iloc[-1]
    print(f"average cost {first:.3f} with the first gains, {last:.3f} with the learned ones, {gains[-1].round(2)}")
    draw(np.array(gains), path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lqr_robots.png")
