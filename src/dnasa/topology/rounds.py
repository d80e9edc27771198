"""Several exchanges in one step: which matrices they multiply by.

k exchanges on a fixed undirected graph can apply any polynomial p of degree k with p(1) = 1 to W. The best has the smallest
max |p(lambda)| over the other eigenvalues, and with as many rounds as these have different values it is 0: an exact average.
With the roots r of p, each exchange multiplies by (W - r I) / (1 - r), whose rows sum to 1.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.polynomial import chebyshev

from dnasa.checks import whole
from dnasa.core import InputError
from dnasa.topology import spectrum
from dnasa.topology.types import Changing, Topology, compact

EXACT = "exact"
SAME = 1e-9  # eigenvalues that differ by less are the same
MOST_VALUES = 300  # with more different eigenvalues, their range is as good


def count_rounds(topology: Topology, rounds: Any) -> int:
    """The number of mixing rounds per exchange; "exact" is as many as an exact average needs, None those of the graph."""
    if rounds is None:
        return topology.rounds
    if rounds != EXACT:
        return whole("rounds, unless it is 'exact',", rounds)
    if topology.period > 1 and topology.rho <= SAME:
        return topology.period
    if topology.period > 1 or topology.directed or _large(topology):
        raise InputError(
            f"No number of rounds is known to average exactly on {topology.name} with {topology.nodes:,} nodes: use the graph "
            "'exact', or give a number of rounds."
        )
    values = _eigenvalues(topology)
    least = 1 if np.abs(values).max(initial=0) <= SAME else 2  # one round multiplies by W itself
    return max(len(values), least)


def successive(topology: Topology, rounds: int) -> Topology:
    """The graphs whose matrices the exchanges of all steps multiply by in turn, `rounds` of them in each step.

    Of a changing graph these are its own, of a directed one always W, and of a fixed one those of the best polynomial.
    """
    if rounds == 1 or topology.period > 1 or topology.directed or topology.nodes == 1:
        return topology
    identity = sp.eye_array(topology.nodes)
    factors = [(topology.sparse - root * identity) / (1 - root) for root in roots(topology, rounds)]
    return Changing.of(topology.name, [Topology(topology.name, compact(sp.csr_array(factor))) for factor in factors])


def smallest_eigenvalue(topology: Topology, rounds: int) -> float:
    """The smallest eigenvalue of what a step multiplies by; NaN on a directed graph."""
    if rounds == 1 or topology.period > 1 or topology.directed:
        return topology.smallest_eigenvalue
    values = _eigenvalues(topology)
    return float(np.prod([(values - root) / (1 - root) for root in roots(topology, rounds)], axis=0).min(initial=1.0))


def roots(topology: Topology, rounds: int) -> list[float]:
    """The roots of the best polynomial of degree `rounds`, in an order in which rounding errors do not grow."""
    values = _eigenvalues(topology)
    few = not _large(topology) and len(values) <= MOST_VALUES
    if few and rounds >= len(values):
        return _leja(np.resize(values, rounds))
    return _leja(_best_roots(values, rounds, few))


def _large(topology: Topology) -> bool:
    return topology.nodes > spectrum.DENSE_EIGENVALUES


@spectrum.single_threaded
def _eigenvalues(topology: Topology) -> np.ndarray:
    """The different eigenvalues of W below 1, in ascending order; of a large graph the first and the last."""
    if _large(topology):
        return np.array(spectrum.extremes(topology.sparse))
    values = np.linalg.eigvalsh(topology.sparse.toarray())[:-1]
    return values[np.diff(values, prepend=-np.inf) > SAME]


def _best_roots(values: np.ndarray, degree: int, few: bool) -> np.ndarray:
    """The roots of the polynomial with p(1) = 1 and the smallest max |p(values)|, by a linear program for its coefficients.

    Chebyshev's polynomial, the best for the whole range of values, is used where it leaves only rounding errors, and where
    the program fails because values are too close together.
    """
    from scipy.optimize import linprog  # most runs do without it

    middle, radius = (values[0] + values[-1]) / 2, (values[-1] - values[0]) / 2
    at_values = chebyshev.chebvander((values - middle) / radius, degree)
    at_one = chebyshev.chebvander([(1 - middle) / radius], degree)[0]
    for_the_range = middle + radius * chebyshev.chebpts1(degree)
    if not few or at_one[-1] > 1 / SAME:
        return for_the_range
    best = linprog(  # the largest p(1) with |p(values)| <= 1 has the same roots, and its coefficients are of one size
        -at_one / at_one[-1],
        A_ub=np.vstack([at_values, -at_values]),
        b_ub=np.ones(2 * len(values)),
        bounds=(None, None),
    )
    return for_the_range if best.x is None else np.real(chebyshev.chebroots(best.x)) * radius + middle


def _leja(points: np.ndarray) -> list[float]:
    """Each point is the one with the largest product of distances to those before it."""
    left = sorted(map(float, points), key=abs)
    order = [left.pop()]
    while left:
        distances = [np.log(np.abs(np.subtract(point, order)) + np.finfo(float).tiny).sum() for point in left]
        order.append(left.pop(int(np.argmax(distances))))
    return order
