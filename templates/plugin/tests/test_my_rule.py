"""The rule against its twin, which is written from the equation, node by node."""

import numpy as np

import dnasa

GRAPH = dnasa.topology.ring(5)
TARGETS = np.random.default_rng(0).normal(size=(5, 3))  # node i minimises |x - TARGETS[i]|^2 / 2
STEPS, ETA, BETA = 30, 0.1, 0.9


def twin() -> np.ndarray:
    W, n = GRAPH.weights, GRAPH.nodes
    x, m = [np.zeros(3)] * n, [np.zeros(3)] * n
    for _ in range(STEPS):
        m = [BETA * m[i] + (1 - BETA) * (x[i] - TARGETS[i]) for i in range(n)]
        half = [x[i] - ETA * m[i] / np.linalg.norm(m[i]) for i in range(n)]
        x = [sum(W[i, j] * half[j] for j in range(n)) for i in range(n)]
    return np.array(x)


def test_the_rule_is_its_equation() -> None:
    problem = dnasa.problems.Custom(lambda x, node, rng: x - TARGETS[node], start=np.zeros(3))
    result = dnasa.solve(problem, GRAPH, "my_rule:constant", eta=ETA, steps=STEPS, progress=False)
    np.testing.assert_allclose(result.x, twin(), rtol=1e-10, atol=1e-12)
