"""SGP: stochastic gradient push, D-SGD on directed graphs (Assran, Loizou, Ballas and Rabbat, 2019)."""

from dnasa.core import Rule, Schedule
from dnasa.rules.dsgd import dsgd
from dnasa.rules.push_sum import push_sum
from dnasa.rules.registry import rule


@rule(
    "sgp",
    title="SGP",
    color="#414200",
    paper="Assran et al., 2019, *Stochastic Gradient Push for Distributed Deep Learning*, arXiv 1811.10792",
    equation=r"x, w \leftarrow P[x - \eta\, g(x / w),\; w], \qquad w = 1 \text{ at the start}",
    checked="the authors' code, facebookresearch/stochastic_gradient_push: the same",
)
def sgp(eta: Schedule) -> Rule:
    """x, w <- P[x - eta g(x/w), w], P column-stochastic; the answer is x/w

    On a symmetric W, w = 1 and this rule is D-SGD.

    Args:
        eta: The stepsize at t.
    """
    return push_sum(dsgd(eta))
