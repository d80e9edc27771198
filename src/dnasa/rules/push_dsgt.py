"""Push-sum D-SGT: gradient tracking on directed graphs (Push-DIGing: Nedic, Olshevsky and Shi, 2017)."""

from dnasa.core import Rule, Schedule
from dnasa.rules.dsgt import dsgt
from dnasa.rules.push_sum import push_sum


def push_dsgt(eta: Schedule) -> Rule:
    """u <- u + g(x/w) - v; x, u, w <- P[x - eta u, u, w], P column-stochastic; the answer is x/w

    Args:
        eta: The stepsize at t.
    """
    return push_sum(dsgt(eta))
