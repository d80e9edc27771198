"""SGP: stochastic gradient push, D-SGD on directed graphs (Assran, Loizou, Ballas and Rabbat, 2019)."""

from dnasa.core import Rule, Schedule
from dnasa.rules.dsgd import dsgd
from dnasa.rules.push_sum import push_sum


def sgp(eta: Schedule) -> Rule:
    """x, w <- P[x - eta g(x/w), w], P column-stochastic; the answer is x/w

    Args:
        eta: The stepsize at t.
    """
    return push_sum(dsgd(eta))
