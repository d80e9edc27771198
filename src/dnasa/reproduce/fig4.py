"""Figure 4: test accuracy against the stepsize for a9a on four graphs, each beside a drawing of its graph."""

from dnasa import topology
from dnasa.plots import draw_topology, panels
from dnasa.reproduce import fig3
from dnasa.reproduce.report import Report

GRAPHS = {
    "ring": topology.ring,
    "random": topology.paper_random,
    "ladder": topology.ladder,
    "complete": topology.complete,
}
NODES = 8
STEPS = 1000


def run(quick: bool = False, progress: bool | None = None, device: str = "cpu") -> Report:
    """a9a, 8 nodes on ring, random, ladder and complete graph."""
    seeds, steps = (1, 300) if quick else (fig3.SEEDS, STEPS)
    report = Report("fig4", f"Figure 4: a9a, {NODES} nodes, {steps:,} steps, {seeds} seeds")
    figure, axes = panels(4, 2, width=4.2, height=3.0)
    for i, (name, make) in enumerate(GRAPHS.items()):
        graph = make(NODES)
        left, right = axes[i // 2, 2 * (i % 2) : 2 * (i % 2) + 2]
        table = fig3.grid_search("a9a", graph, steps, seeds, progress, device)
        draw_topology(left, graph)
        fig3.draw(right, table, name)
        report.tables[f"fig4-{name}"] = fig3.summary(table)
        report.data[f"fig4-{name}-grid"] = table
        report.findings.append(f"{name}: {fig3.sentence(table)}")
    figure.suptitle(f"a9a on four graphs, {steps:,} steps" + (" (quick run)" if quick else ""))
    report.figures["fig4"] = figure
    return report
