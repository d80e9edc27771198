"""Weight decay that is decoupled from the gradient, as in AdamW (Loshchilov and Hutter, 2019)."""

from dnasa.core import Array, Gradients, InputError, Messages, Rule, Schedule, State, with_x
from dnasa.rules.forms import declare


def check_weight_decay(rule: Rule, name: str) -> None:
    """Refuse a rule that does not say how far it steps."""
    if rule.stepsize is None:
        raise InputError(f"{name} has no weight decay: leave weight_decay out, or add an L2 term to the loss.")


def with_weight_decay(rule: Rule, decay: Schedule) -> Rule:
    """x <- (1 - stepsize decay) x, then the rule's own step, with the gradients taken before.

    Gradients, moments and trackers contain nothing of the decay, and nodes that agree still do.

    Args:
        rule: The rule, which says how far it steps.
        decay: A schedule of a number, or of a row with one for each parameter; None: no decay. It must be constant.
    """

    def shrink(s: State, t: int) -> Array | None:
        rate = decay(t)
        return None if rate is None else 1 - rule.stepsize(s, t) * rate  # type: ignore[misc]

    def shrunk(s: State, t: int) -> State:
        factor = shrink(s, t)
        return s if factor is None else with_x(s, factor * s.x)

    def early(s: State, t: int) -> Messages:
        return rule.early_messages(shrunk(s, t), t)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        return rule.send(shrunk(s, t), gradients, t)

    form = rule.form
    made = rule._replace(early=rule.early and early, send=send, form=None)
    if form is None:
        return made
    return declare(made, form._replace(shrink=shrink, make=lambda *schedules: with_weight_decay(form.make(*schedules), decay)))
