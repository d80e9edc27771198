"""min (1/n) sum_i f_i(x): n nodes have rows of their own and send messages to their neighbours in a graph."""

import numpy as np
from benchopt import BaseObjective
from benchopt.stopping_criterion import StoppingCriterion
from scipy.special import expit

import dnasa

STEPS = 1024
# The loss of a row with target b and its derivative, as functions of the prediction p = a'x.
LOSSES = {
    "logistic": (lambda p, b: np.logaddexp(0, -b * p), lambda p, b: -b * expit(-b * p)),
    "least_squares": (lambda p, b: (p - b) ** 2 / 2, lambda p, b: p - b),
}


class Doubling(StoppingCriterion):
    """Runs of 0, 1, 2, 4, ..., STEPS steps for every solver: noise must not end a curve early."""

    def get_next_stop_val(self, steps):
        return 2 * steps or 1

    def check_convergence(self, curve):
        done = curve[-1]["stop_val"] / STEPS
        return done >= 1, done


class Objective(BaseObjective):
    name = "Decentralized"
    min_benchopt_version = "1.10"
    sampling_strategy = "iteration"  # every point is a run of its own: schedules may depend on the number of steps
    stopping_criterion = Doubling(key_to_monitor="value")  # where the value explodes, a solver has diverged
    parameters = {
        "loss": ["logistic", "least_squares"],
        "regularization": [0.01],
        "nodes": [8],
        "topology": ["ring"],
        "partition": ["by_label"],
        "batch": [8],  # rows that a node draws for a gradient; None: all its rows
    }

    def skip(self, X, y):
        """Leave out, with the reason, a topology or partition that is unknown or does not fit the data."""
        try:
            self.set_data(X, y)
        except dnasa.InputError as error:
            return True, str(error)
        return False, None

    def set_data(self, X, y):
        shards = dnasa.data.partition(self.partition, y, self.nodes, self.get_seed())
        self.shards = [(X[rows], y[rows]) for rows in shards]
        self.graph = dnasa.topology.make(self.topology, self.nodes)
        self.start = np.zeros((self.nodes, X.shape[1]))

    def value(self, x, node):
        """f_i(x)"""
        A, b = self.shards[node]
        return LOSSES[self.loss][0](A @ x, b).mean() + self.regularization / 2 * x @ x

    def gradient(self, x, node, rng=None):
        """The gradient of f_i at x, on `batch` rows drawn from `rng`; without it on all rows."""
        A, b = self.shards[node]
        if rng is not None and self.batch is not None:
            rows = rng.integers(len(b), size=self.batch)
            A, b = A[rows], b[rows]
        return LOSSES[self.loss][1](A @ x, b) @ A / len(b) + self.regularization * x

    def get_objective(self):
        return {"value": self.value, "gradient": self.gradient, "graph": self.graph, "start": self.start}

    def evaluate_result(self, x, sent):
        """x: the nodes' models, a row for each. sent: the bytes that a node has sent, the mean over the nodes."""
        mean = x.mean(0)
        return {
            "value": np.mean([self.value(mean, node) for node in range(self.nodes)]),
            "consensus": ((x - mean) ** 2).sum(1).mean(),  # mean squared distance of the nodes from their mean
            "bytes": sent,
        }

    def get_one_result(self):
        return {"x": self.start, "sent": 0.0}
