import numpy as np
from benchopt import BaseSolver


class Solver(BaseSolver):
    """x_i <- sum_j W_ij (x_j - eta g_j), in NumPy: copy this file for a method of your own."""

    name = "DGD"
    parameters = {"eta": [0.1]}

    def skip(self, graph, **_):
        return (True, "DGD needs an undirected graph") if graph.directed else (False, None)

    def set_objective(self, gradient, graph, start, **_):
        self.gradient, self.graph, self.start = gradient, graph, start
        self.seed = self.get_seed(use_repetition=True)

    def run(self, steps):
        rng, n = np.random.default_rng(self.seed), self.graph.nodes
        self.x, self.sent = self.start, 0.0
        for t in range(steps):
            g = np.stack([self.gradient(self.x[i], i, rng) for i in range(n)])
            graph = self.graph.at(t)  # some graphs change in every step
            self.x = graph.weights @ (self.x - self.eta * g)
            self.sent += graph.messages * self.x[0].nbytes / n

    def get_result(self):
        return {"x": self.x, "sent": self.sent}
