"""D-NASA's steps as `solve` takes them, for the benchmarks."""

from dnasa.core import Array, Network, Rule, Sent, Snapshot
from dnasa.engine.side_by_side import make_stepper
from dnasa.engine.steppers import Stepper
from dnasa.rules import registry
from dnasa.runs.timing import Timeline


def make_rule(nodes: int, x: Array) -> Rule:
    """D-NASA with its default schedules; `x` has shape (1, runs, nodes, d)."""
    (group,) = registry.groups(registry.variants("dnasa"), nodes, steps=1000, like=x, layout=())
    return group.rule


def snapshot(rule: Rule, x: Array) -> Snapshot:
    return Snapshot(rule.init(x), {}, Sent())


def dnasa_stepper(network: Network, x: Array) -> Stepper:
    rule = make_rule(network.nodes, x)
    return make_stepper([rule], [1], network, [snapshot(rule, x)], Timeline())
