"""Gradients by JAX: `jax.grad`, mapped over the nodes and compiled; arrays are shared by DLPack without a copy.

    pip install jax
    python examples/jax_gradient.py [figure.png]

Sixteen nodes fit a small neural network to a curve of which each of them sees its own part. The samples are drawn with dnasa's
generators, so that a run is the same over MPI and when it is resumed.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dnasa
from dnasa.comparing.plots import panels, save_figure

NODES, HIDDEN, BATCH, STEPS = 16, 16, 16, 1500
jax.config.update("jax_enable_x64", True)  # as NumPy's float64
EDGES = np.linspace(-3, 3, NODES + 1)


def curve(inputs: Any) -> Any:
    return np.sin(2 * inputs) + 0.3 * inputs


def predicted(parameters: jax.Array, inputs: jax.Array) -> jax.Array:
    w, b, v = parameters.reshape(3, HIDDEN)
    return jnp.tanh(inputs[..., None] * w + b) @ v


def loss(parameters: jax.Array, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean((predicted(parameters, inputs) - targets) ** 2)


of_all_nodes = jax.jit(jax.vmap(jax.grad(loss)))


def gradient(x: np.ndarray, nodes: np.ndarray, rngs: Any) -> np.ndarray:
    low, high = EDGES[nodes, None], EDGES[nodes + 1, None]
    inputs = low + (high - low) * rngs.random(BATCH)  # (seeds, nodes, batch)
    targets = curve(inputs) + 0.1 * rngs.standard_normal(BATCH)
    inputs, targets = (np.broadcast_to(a, (*x.shape[:-1], BATCH)).reshape(-1, BATCH) for a in (inputs, targets))
    points = jax.dlpack.from_dlpack(x.reshape(-1, 3 * HIDDEN))
    return np.from_dlpack(of_all_nodes(points, inputs, targets)).reshape(x.shape)


def error(x: np.ndarray) -> dict[str, float]:
    inputs = np.linspace(-3, 3, 400)
    return {"error": float(np.mean((np.asarray(predicted(jnp.asarray(x), jnp.asarray(inputs))) - curve(inputs)) ** 2))}


def draw(result: dnasa.Result, path: str) -> None:
    figure, axes = panels(2, width=5, height=3.6)
    left, right = axes[0]
    left.semilogy(result.history.step, result.history.error, color="#e377c2")
    left.set(xlabel="step", ylabel="mean squared error", title=f"AdaNASA, {NODES} nodes on a ring")
    inputs = np.linspace(-3, 3, 400)
    right.plot(inputs, curve(inputs), color="0.6", lw=5, label="the curve")
    fitted = predicted(jnp.asarray(result.mean), jnp.asarray(inputs))
    right.plot(inputs, np.asarray(fitted), color="#e377c2", label="the network of all nodes")
    for edge in EDGES:
        right.axvline(edge, color="0.85", lw=0.8, zorder=0)
    right.set(xlabel="input (lines: what a node sees)", ylabel="output", title="The fit")
    right.legend(fontsize=8)
    print(f"Saved {save_figure(figure, path)}.")


def main(path: str) -> None:
    start = np.random.default_rng(0).normal(size=3 * HIDDEN)
    problem = dnasa.problems.Custom(gradient, start, batched=True, nodes=NODES, evaluate=error)
    result = dnasa.solve(problem, dnasa.topology.ring(NODES), "adanasa", steps=STEPS)
    print(f"mean squared error {result.history.error.iloc[0]:.3f} at the start, {result.history.error.iloc[-1]:.4f} at the end")
    draw(result, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "jax_gradient.png")
