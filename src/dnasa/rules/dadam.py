"""D-Adam: a step of Adam at each node, then an average with the neighbors."""

from typing import NamedTuple

from dnasa.core import Array, Gradients, Messages, Rule, Schedule, assign, zeros
from dnasa.rules.composition import moments
from dnasa.rules.registry import rule
from dnasa.rules.schedules import COSINE_FIRST


class State(NamedTuple):
    x: Array
    m: Array  # first moments of the node's own gradients; moments are not exchanged
    v: Array  # second moments


@rule(
    "dadam",
    title="D-Adam",
    color="#ff7f0e",
    schedules=COSINE_FIRST,
    paper="Adam at each node: Kingma and Ba, 2015, *Adam: A Method for Stochastic Optimization*, arXiv 1412.6980",
    equation=r"""
        m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        m' &= \frac{m}{1 - \beta_1^{t+1}}, \quad v' = \frac{v}{1 - \beta_2^{t+1}} \\
        x &\leftarrow W\Big[x - \eta\, \frac{m'}{\sqrt{v'} + \epsilon}\Big]
    """,
    checked="epfml/quasi-global-momentum, decentralized_adam: the same; torch.optim.Adam, on one node: the same",
)
def dadam(eta: Schedule, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Rule:
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; x <- W[x - eta m' / (sqrt(v') + eps)], m', v' bias-corrected

    b1 and b2 are beta1 and beta2. DADAM (Nazari et al., 2019, arXiv 1901.09109) is another rule: x <- W[x] - eta m / sqrt(v'),
    where v' is an average of the largest second moments.

    Args:
        eta: The stepsize at t.
        beta1: The weight of the past in the first moments m.
        beta2: The weight of the past in the second moments v.
        eps: Added to sqrt(v'), so that the step stays finite where v' is 0.
    """

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m, v = moments(s.m, s.v, g, beta1, beta2)
        unbiased_m, unbiased_v = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))
        return (s.x - eta(t) * unbiased_m / (unbiased_v**0.5 + eps),), State(s.x, m, v)

    return Rule(
        zeros(State),
        send,
        assign("x"),
        restart=lambda s: s,  # moments must not start again at 0: t does not
        stepsize=lambda s, t: eta(t),
    )
