"""The methods, one file each, and the schedules each of them is run with."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnasa import schedules
from dnasa.core import Array, InputError, Rule, Schedule, choose, positive
from dnasa.rules.d2 import d2
from dnasa.rules.dasagt import dasagt
from dnasa.rules.dnasa import dnasa
from dnasa.rules.dsgd import dsgd
from dnasa.rules.dsgt import dsgt
from dnasa.rules.together import together

__all__ = ["RULES", "Method", "build", "d2", "dasagt", "dnasa", "dsgd", "dsgt", "together"]

# The schedules of a method, given the nodes n, the steps T and the stepsize eta; the first named is the default.
Schedules = Callable[[int, int, float], tuple[Schedule, ...]]


class Method(NamedTuple):
    """A rule's maker, the schedules it may be run with, and whether the user must give a stepsize."""

    make: Callable[..., Rule]
    schedules: dict[str, Schedules]
    needs_eta: bool = True
    title: str = ""


ETA: dict[str, Schedules] = {
    "diminishing": lambda n, T, eta: (schedules.root_decay(eta, n),),
    "fixed": lambda n, T, eta: (schedules.root_fixed(eta, n, T),),
    "constant": lambda n, T, eta: (schedules.constant(eta),),
}
PARAMETER_FREE: dict[str, Schedules] = {
    "parameter-free": lambda n, T, eta: (schedules.parameter_free(eta),),
    "parameter-free-fixed": lambda n, T, eta: (schedules.parameter_free_fixed(eta, T),),
}


def with_averaging(etas: Schedules) -> Schedules:
    return lambda n, T, eta: (*etas(n, T, eta), schedules.averaging(n))


RULES = {
    "dsgd": Method(dsgd, ETA, title="D-SGD"),
    "d2": Method(d2, ETA, title="D2"),
    "dsgt": Method(dsgt, ETA | PARAMETER_FREE, title="D-SGT"),
    "dasagt": Method(dasagt, {name: with_averaging(etas) for name, etas in ETA.items()}, title="D-ASAGT"),
    "dnasa": Method(
        dnasa,
        {
            "diminishing": lambda n, T, eta: schedules.diminishing(n),
            "fixed": lambda n, T, eta: schedules.fixed(n, T),
        },
        needs_eta=False,
        title="D-NASA",
    ),
}


class Variant(NamedTuple):
    """One way to run a rule: what a row of a comparison is labelled with."""

    rule: str
    schedule: str
    eta: float | None = None


def variants(rule: str, etas: Sequence[float] = (), schedule: str | Sequence[str] | None = None) -> list[Variant]:
    """Every stepsize with every schedule asked for; a rule without a stepsize comes once per schedule."""
    method: Method = choose("rule", rule, RULES)
    names = [schedule] if isinstance(schedule, str) else list(schedule or [next(iter(method.schedules))])
    for name in names:
        choose(f"schedule for {rule}", name, method.schedules)
    if not method.needs_eta:
        return [Variant(rule, name) for name in names]
    if not len(etas):
        raise InputError(f"Rule '{rule}' needs a stepsize: give eta, or use 'dnasa', which needs none.")
    for eta in etas:
        positive("eta", eta)
    return [Variant(rule, name, float(eta)) for name in names for eta in etas]


def build(runs: Sequence[Variant], nodes: int, steps: int, like: Array) -> Rule:
    """One rule for all variants, those of the same method side by side in one array, in the order given."""
    groups: list[list[Variant]] = []
    for run in runs:
        if groups and groups[-1][0].rule == run.rule:
            groups[-1].append(run)
        else:
            groups.append([run])
    made = [_side_by_side(group, nodes, steps, like) for group in groups]
    return made[0] if len(made) == 1 else together(made, [len(group) for group in groups])


def _side_by_side(group: Sequence[Variant], nodes: int, steps: int, like: Array) -> Rule:
    method = RULES[group[0].rule]
    each: list[tuple[Any, ...]] = [method.schedules[run.schedule](nodes, steps, run.eta or 0.0) for run in group]
    return method.make(*(schedules.side_by_side(column, like) for column in zip(*each, strict=True)))
