"""A graph, a run, a comparison and a plot.

python examples/quickstart.py [folder]
"""

import sys
from pathlib import Path

import dnasa
from dnasa.comparing import draw_history, save_figure

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "quickstart")

# The graph: which nodes exchange messages. rho is between 0 (one exchange averages all nodes) and 1 (nothing spreads).
ring = dnasa.topology.ring(8)
print(f"A ring of {ring.nodes} nodes, rho = {ring.rho:.3f}; the neighbours of node 0 are {ring.neighbours(0)}.")

# The problem: each node has an eighth of the digits.
rows = dnasa.data.load("digits")
problem = dnasa.on_shards(rows, dnasa.data.partition("iid", rows.labels, nodes=8))

# D-NASA, the default rule with noise, needs no stepsize.
run = dnasa.solve(problem, ring, steps=600)
print(run.final()[["step", "test_accuracy", "grad_norm", "consensus"]].to_string(index=False))

# Other rules need one. All rules, stepsizes and seeds run side by side as one array.
both = dnasa.solve(problem, ring, ["dsgd", "dnasa"], eta=[0.003, 0.03, 0.3], seed=range(3), steps=600)
print(both.final().groupby(["rule", "eta"], dropna=False).test_accuracy.mean().to_string())

# The history, the iterates and a plot in one folder.
run.save(folder)
print(f"Saved {save_figure(draw_history(run.history), folder / 'history.png')} and the history next to it.")
