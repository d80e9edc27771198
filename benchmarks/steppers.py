"""Steps as `solve` takes them, for the benchmarks."""

from dnasa.communication import Network
from dnasa.core import Array, Rule
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper
from dnasa.rules import registry
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline


def make_rule(nodes: int, x: Array, name: str = "dnasa") -> Rule:
    """A rule without a stepsize, with its default schedules; `x` has shape (1, runs, nodes, d)."""
    layout = (("x", tuple(x.shape[-1:])),)
    (group,) = registry.groups(registry.variants(name), nodes, steps=1000, like=x, layout=layout)
    return group.rule


def snapshot(rule: Rule, x: Array) -> Snapshot:
    return Snapshot(rule.init(x), {}, Sent())


def dnasa_stepper(network: Network, x: Array) -> Stepper:
    rule = make_rule(network.nodes, x)
    return make_stepper([rule], [1], network, [snapshot(rule, x)], Timeline())
