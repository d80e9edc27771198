from itertools import product

from benchopt import BaseSolver

import dnasa


class Solver(BaseSolver):
    """All rules of dnasa by name. D-NASA and AdaNASA need no stepsize."""

    name = "dnasa"
    parameters = {
        "rule, eta": [
            ("dnasa", None),
            ("adanasa", None),
            *product(["dsgd", "dsgt", "dadam"], [0.01, 0.1, 1.0]),
        ]
    }

    def skip(self, **objective):
        """Leave out, with the reason, a rule that is unknown, needs another graph or lacks a stepsize."""
        self.set_objective(**objective)
        try:
            self.run(steps=1)
        except dnasa.InputError as error:
            return True, str(error)
        return False, None

    def set_objective(self, gradient, graph, start, **_):
        self.problem = dnasa.problems.Custom(gradient, start[0])
        self.graph, self.start, self.seed = graph, start, self.get_seed(use_repetition=True)

    def run(self, steps):
        self.x, self.sent = self.start, 0.0
        if steps:
            options = {"steps": steps, "seed": self.seed, "evaluate": [steps], "progress": False}
            result = dnasa.solve(self.problem, self.graph, self.rule, eta=self.eta, **options)
            self.x, self.sent = result.x, result.final().bytes.item() / self.graph.nodes

    def get_result(self):
        return {"x": self.x, "sent": self.sent}
