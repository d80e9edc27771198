"""Weight decay that is decoupled from the gradient, as in AdamW (Loshchilov and Hutter, 2019)."""

from dnasa.core import Array, Gradients, InputError, Messages, Rule, Schedule, State, with_x


def check_weight_decay(rule: Rule, name: str) -> None:
    """Refuse a rule that does not say how far it steps."""
    if rule.stepsize is None:
        raise InputError(f"{name} has no weight decay: leave weight_decay out, or add an L2 term to the loss.")


def with_weight_decay(rule: Rule, decay: Schedule) -> Rule:
    """x <- (1 - stepsize decay) x, then the rule's own step, with the gradients taken before.

    Gradients, moments and trackers contain nothing of the decay, and nodes that agree still do. `decay(t)`, which does not
    depend on t, is a number or a row of one for each parameter; None: no decay.
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

    out, form = rule._replace(early=rule.early and early, send=send), rule.form
    if form is None:
        return out
    return out._replace(
        form=form._replace(shrink=shrink, make=lambda *schedules: with_weight_decay(form.make(*schedules), decay))
    )
