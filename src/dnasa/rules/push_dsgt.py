"""Push-sum D-SGT: gradient tracking on directed graphs (Push-DIGing: Nedic, Olshevsky and Shi, 2017)."""

from dnasa.core import Rule, Schedule
from dnasa.rules.dsgt import dsgt
from dnasa.rules.push_sum import push_sum
from dnasa.rules.registry import rule


@rule(
    "push_dsgt",
    title="Push-sum D-SGT",
    color="#af814b",
    paper="Nedic et al., 2017, *Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs*, "
    "arXiv 1607.03218",
    equation=r"u' &= u + g(x / w) - v \\ x, u, w &\leftarrow P[x - \eta u',\; u',\; w] \\ v &\leftarrow g",
    checked="MidoAssran/maopy, Push-DIGing: the same",
)
def push_dsgt(eta: Schedule) -> Rule:
    """u <- u + g(x/w) - v; x, u, w <- P[x - eta u, u, w], P column-stochastic; the answer is x/w

    Push-DIGing with stochastic gradients. A node only needs to know how many nodes it sends to. On a symmetric W, w = 1 and
    this rule is D-SGT.

    Args:
        eta: The stepsize at t.
    """
    return push_sum(dsgt(eta))
