"""QG-DSGDm: D-SGD with momentum taken from the averaged iterates, not from the node's own gradients (Lin et al., 2021)."""

from typing import NamedTuple

from dnasa.arrays import nonzero
from dnasa.core import Array, Gradients, Messages, Needs, Rule, Schedule
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    m: Array  # quasi-global momentum
    eta: Array  # of the last step, (..., k, 1)


@rule(
    "qg_dsgdm",
    title="QG-DSGDm",
    color="#bcbd22",
    schedules=COSINE_FIRST,
    paper="Lin et al., 2021, *Quasi-Global Momentum*, arXiv 2102.04761",
    equation=r"x' &= W[x - \eta (\beta m + g)] \\ m &\leftarrow \mu m + (1 - \mu) \frac{x - x'}{\eta} \\ x &\leftarrow x'",
    checked="the authors' code, epfml/quasi-global-momentum, without its Nesterov option: the same",
)
def qg_dsgdm(eta: Schedule, *, beta: float = 0.9, mu: float = 0.9) -> Rule:
    """x' = W[x - eta (beta m + g)]; m <- mu m + (1 - mu) (x - x') / eta

    Without Nesterov momentum. Stable for eigenvalues of W above -(1 + mu) / (1 + mu + 2 beta (1 - mu)). On directed graphs,
    which are refused too, the iterates grow without bound for small stepsizes.

    Args:
        eta: The stepsize at t.
        beta: The weight of the momentum m in the step.
        mu: The weight of the past in the momentum m.
    """
    stable = -(1 + mu) / (1 + mu + 2 * beta * (1 - mu))  # eigenvalues of W above it are damped as eta goes to 0

    def init(x: Array) -> State:
        return State(x, m=0 * x, eta=0 * x[..., :1])

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        return (s.x - eta(t) * (beta * s.m + g),), s._replace(eta=eta(t) + 0 * s.eta)

    def receive(s: State, mixed: Messages) -> State:
        (x,) = mixed
        return s._replace(x=x, m=mu * s.m + (1 - mu) * (s.x - x) / nonzero(s.eta))

    return Rule(
        init,
        send,
        receive,
        restart=lambda s: s,  # m is a past movement of x, which does not depend on the other nodes
        needs=Needs(smallest_eigenvalue=stable),
        stepsize=lambda s, t: eta(t),
    )
