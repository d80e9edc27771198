"""The tour: a graph, a run, a comparison, a picture.

python examples/quickstart.py [folder]
"""

import sys
from pathlib import Path

import dnasa
from dnasa.experiments.tasks import classification
from dnasa.plots import save_figure

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "quickstart")

# Who talks to whom. rho says how slowly news travels: 0 at once, 1 never.
ring = dnasa.topology.ring(8)
print(f"A ring of {ring.nodes} nodes, rho = {ring.rho:.3f}; node 0 talks to {ring.neighbours(0)}.")

# What is minimised: each node has its own eighth of the digits.
problem = classification("digits", nodes=8)

# No stepsize is given, because there is none to give.
run = dnasa.solve(problem, ring, steps=600)
print(run.final()[["step", "test_accuracy", "grad_norm", "consensus"]].to_string(index=False))

# The others need one. All rules, stepsizes and seeds run side by side as one array.
both = dnasa.solve(problem, ring, ["dsgd", "dnasa"], eta=[0.003, 0.03, 0.3], seed=range(3), steps=600)
print(both.final().groupby(["rule", "eta"], dropna=False).test_accuracy.mean().to_string())

# Everything about a run in one folder, and a picture of it.
run.save(folder)
print(f"Saved {save_figure(run.plot(), folder / 'history.png')} and the numbers beside it.")
