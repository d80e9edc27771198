"""Figure 4: test accuracy against the stepsize for a9a on four graphs."""

from dnasa import topology
from dnasa.reproduce import fig3
from dnasa.reproduce.experiment import Experiment, Found, Part
from dnasa.reproduce.network_tasks import Task
from dnasa.reproduce.report import Report

GRAPHS = {
    "ring": topology.ring,
    "random": topology.paper_random,
    "ladder": topology.ladder,
    "complete": topology.complete,
}
NODES = 8


def parts(quick: bool) -> list[Part]:
    """a9a, 8 nodes on ring, random, ladder and complete graph."""
    seeds, steps = (1, fig3.QUICK["a9a"]) if quick else (fig3.SEEDS, fig3.STEPS["a9a"])
    task = Task("a9a")
    return [Part(name, [fig3.search(make(NODES), steps, seeds)], task) for name, make in GRAPHS.items()]


def report(found: Found) -> Report:
    return fig3.against_stepsizes(found, "fig4", f"Figure 4: a9a, {NODES} nodes, {found.last_step:,} steps")


EXPERIMENT = Experiment("fig4", parts, report)
