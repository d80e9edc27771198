"""Rules that use the capabilities of the interface, each on what it is run on, and a problem. Not a test."""

from typing import Any, NamedTuple

import numpy as np

from dnasa import Result, channels, rules, solve, topology
from dnasa.communication import Network
from dnasa.core import Array, Rule
from dnasa.networks import simulated, with_timing
from dnasa.problems import Custom, Problem

ETA = 0.05
NODES, DIM = 4, 5
TARGETS = np.random.default_rng(1).standard_normal((NODES, DIM))
CURVATURES = np.random.default_rng(2).uniform(0.5, 1.5, (NODES, 1))


def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    """Of c_i |x - b_i|^2 / 2, with noise."""
    return CURVATURES[node] * (x - TARGETS[node]) + 0.1 * rng.standard_normal(DIM)


def problem() -> Custom:
    return Custom(gradient, start=np.zeros(DIM), fingerprint="quadratic")


def sgd() -> Rule:
    return rules.dsgd(lambda t: ETA)


def early() -> Rule:
    return rules.dasagt(lambda t: ETA, lambda t: 0.5)._replace(form=None)  # without the compiled steps, whose last bits differ


class Case(NamedTuple):
    """A rule with what it is run on: a graph of n nodes, a channel, and further options of `solve`."""

    rule: Any
    graph: Any = topology.ring
    channel: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed)


CASES = {
    "two points, two exchanges": Case(lambda: rules.gt_hsgd(lambda t: ETA, lambda t: 0.1)),
    "number on the wire": Case(lambda: rules.sgp(lambda t: ETA), topology.directed_ring),
    "tracking": Case(lambda: rules.mt(lambda t: 0.1 * ETA)),
    "local steps": Case(lambda: rules.kgt(lambda t: 0.2 * ETA)),
    "early": Case(early),
    "push-sum, tracking": Case(lambda: rules.push_dsgt(lambda t: ETA), topology.directed_exponential),
    "compression": Case(sgd, channel=channels.choco(channels.top_k(0.4), gamma=0.3)),
    "moniqua": Case(early, channel=channels.moniqua("8,4/2")),
    "compression, early": Case(early, channel=channels.choco(channels.top_k(0.4), gamma=0.3)),
    "lost messages, early": Case(early, channel=channels.faulty(drop=0.2)),
    "node weights": Case(sgd, options={"node_weights": [1.0, 2.0, 3.0, 4.0]}),
}


def run(
    name: str,
    network: Network | None = None,
    task: Problem | None = None,
    steps: int = 30,
    overlap: bool = False,
    **options: Any,
) -> Result:
    case = CASES[name]
    graph = case.graph(NODES)
    network = with_timing(network or simulated.connect(graph, channel=case.channel), overlap=overlap)
    return solve(task or problem(), network, case.rule(), steps=steps, progress=False, **case.options | options)
