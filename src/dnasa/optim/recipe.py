"""The optimizer's rule, by name or the user's own."""

from typing import Any, NamedTuple

from dnasa.core import InputError, Layout, Rule, Schedule, whole
from dnasa.rules import registry
from dnasa.rules.registry import Variant


class Recipe(NamedTuple):
    """A rule with its schedules; none are known of the user's own rule."""

    name: str
    rule: Rule
    schedules: tuple[Schedule, ...] = ()
    steps: int | None = None  # after which its steps are 0


UNKNOWN_LENGTH = (
    "steps is how often step() will be called, a positive whole number, not {}: leave it out where you do not know "
    "(in Hugging Face's Trainer it is trainer.state.max_steps; args.max_steps is -1 when num_train_epochs counts)."
)


def make_rule(
    rule: str | Rule, eta: Any, schedule: str | None, steps: int | None, nodes: int, layout: Layout
) -> Recipe:
    if steps is not None and whole("steps", steps, low=-(2**62)) < 1:
        raise InputError(UNKNOWN_LENGTH.format(steps))
    if isinstance(rule, Rule):
        if eta is not None or schedule is not None:
            raise InputError("A rule of your own has its schedules inside: leave eta and schedule out.")
        return Recipe("a rule of the user's", rule)
    method = registry.find(rule)
    if eta is not None and not method.needs_eta:
        raise InputError(f"Rule '{rule}' takes no stepsize: leave eta out.")
    if schedule is None and steps is None and not method.needs_eta and ":" not in rule:
        schedule = next((name for name, made in method.schedules.items() if not made.needs_steps), None)
    variant: Variant = registry.variants(rule, [] if eta is None else [eta], schedule)[0]
    registry.check_used(schedule, [variant])
    schedules = registry.schedules_of(variant, nodes, steps)
    spec = variant.spec
    known = steps if spec and spec.needs_steps is not False else None
    ends = steps if spec and spec.ends else None
    made = registry.make(method, schedules, layout)
    return Recipe(str([*variant.label().values(), known]), made, schedules, ends)
