"""Topologies from matrices, and the checks of W."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from dnasa.core import InputError, Needs, Rule
from dnasa.topology import spectrum
from dnasa.topology.rounds import smallest_eigenvalue
from dnasa.topology.types import TOLERANCE, Changing, Topology, compact, is_symmetric


def from_matrix(weights: Any, name: str = "custom") -> Topology:
    """A topology from your own W.

    Args:
        weights: W, dense or sparse; W[i, j] is the weight with which node i receives from node j. It must be symmetric with
            rows that sum to 1, or, for a directed graph, column-stochastic; its graph must be (strongly) connected. Entries
            of a symmetric W may be negative if rho < 1; otherwise one positive entry on the diagonal is enough for that.
        name: For titles.
    """
    matrix = _matrix(weights)
    _check_sums(matrix)
    _check_mixing(matrix)
    return Topology(name, compact(matrix))


def changing(topologies: Sequence[Any], name: str = "changing") -> Changing:
    """A topology that changes with time: W(t) = topologies[t mod their number].

    Args:
        topologies: Undirected topologies or symmetric matrices of the same size, connected only all together.
        name: For titles.
    """
    if not isinstance(topologies, Sequence) or not topologies:
        raise InputError("A changing topology needs a list of topologies or matrices.")
    each = tuple(_part(number, part, name) for number, part in enumerate(topologies))
    if len({graph.nodes for graph in each}) > 1:
        raise InputError("All graphs of a changing topology must have the same number of nodes.")
    result = Changing.of(name, each)
    _check_mixing(result.sparse)
    return result


def _part(number: int, part: Any, name: str) -> Topology:
    graph = part if isinstance(part, Topology) else Topology(name, compact(_matrix(part)))
    if graph.directed or graph.period > 1:
        raise InputError(f"Graph {number} of a changing topology must be fixed and undirected; this one is not.")
    _check_sums(graph.sparse)
    return graph


def _matrix(weights: Any) -> sp.csr_array:
    """A copy in CSR format with its entries checked; small negative ones, by rounding, become 0."""
    try:
        dense = weights if sp.issparse(weights) else np.asarray(weights)
        if np.iscomplexobj(dense):
            raise TypeError
        dense = dense.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # the last: a torch tensor that requires gradients
        raise InputError("W must be a matrix of real numbers.") from None
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or not dense.shape[0]:
        raise InputError(f"W must be a square matrix of at least one node; this array has shape {dense.shape}.")
    matrix = sp.csr_array(dense, copy=True)
    matrix.sum_duplicates()
    entries = matrix.tocoo()
    negative = entries.data < -TOLERANCE
    bad = np.flatnonzero(~np.isfinite(entries.data) | (negative if negative.any() and not is_symmetric(matrix) else False))
    if len(bad):
        i, j = entries.row[bad[0]], entries.col[bad[0]]
        raise InputError(f"W must be finite, and symmetric if entries are negative; W[{i}, {j}] = {entries.data[bad[0]]:.6g}.")
    matrix.data[(matrix.data < 0) & (matrix.data >= -TOLERANCE)] = 0
    matrix.eliminate_zeros()
    return matrix


def _check_sums(matrix: sp.csr_array) -> None:
    """Doubly stochastic if symmetric, column-stochastic otherwise."""
    sums = matrix.sum(axis=0)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) <= TOLERANCE:
        return
    raise InputError(
        f"W must be symmetric with rows that sum to 1, or, for a directed graph, have columns that do (W[i, j] is the weight "
        f"with which i receives from j); column {worst} sums to {sums[worst]:.6g}."
    )


def _check_mixing(matrix: sp.csr_array) -> None:
    """Without negative weights, rho < 1 exactly when the graph is (strongly) connected and aperiodic."""
    parts, labels = csgraph.connected_components(matrix, connection="strong")
    if parts > 1:
        kind = "connected" if is_symmetric(matrix) else "strongly connected"
        first, other = (int(np.flatnonzero(labels == part)[0]) for part in range(2))
        raise InputError(f"The graph is not {kind}: add edges between its {parts} parts, such as nodes {first} and {other}.")
    if matrix.data.min() < 0 and (rho := max(map(abs, spectrum.extremes(matrix)))) >= 1 - TOLERANCE:
        raise InputError(f"rho = {rho:.4g}: with these negative weights, values do not come together. Use smaller ones.")
    if not matrix.diagonal().any() and not nx.is_aperiodic(nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph)):
        raise InputError("rho = 1: no node has a weight for itself, and values circulate forever. Use (I + W) / 2.")


def check_weights(rule: Rule, topology: Topology, rounds: int, name: str = "This rule", every: int = 1) -> None:
    """Refuse a topology that does not have what the rule needs of W. Errors call the rule `name`."""
    missing = _missing(rule.needs, topology, rounds, every)
    if missing:
        raise InputError(f"{name} needs {missing}.")


def _missing(needs: Needs, topology: Topology, rounds: int, every: int) -> str:
    """What a rule needs and does not get here, with the remedy; empty if it gets everything."""
    if topology.directed and not needs.directed:
        wrap = ", or wrap this one: rules.push_sum(rule)" if needs.allows_push_sum else ""
        return f"an undirected graph, and {topology.name} is directed. Use another, or the rules sgp or push_dsgt{wrap}"
    if needs.fixed_graph and rounds % topology.period:
        return f"a graph that stays the same, and {topology.name} changes. Use ring, or leave the rule out"
    if needs.fixed_graph and every > 1:
        return f"an exchange in every step: leave out every={every} (--every {every}), or use another rule"
    if needs.smallest_eigenvalue <= -1:
        return ""
    margin = 1e-9 if topology.nodes <= spectrum.DENSE_EIGENVALUES else 2e-3  # eigenvalues of large graphs have 3 digits
    smallest = smallest_eigenvalue(topology, rounds)
    if smallest > needs.smallest_eigenvalue + margin:  # not if it is NaN, as on a directed graph
        return ""
    bound = Fraction(needs.smallest_eigenvalue).limit_denominator(99)
    remedy = "one round" if rounds > 1 else "weights='lazy' (--weights lazy)"
    return (
        f"all eigenvalues of W above {bound}; the smallest of {topology.name} is {smallest:.4g}. Use {remedy}, "
        "or leave the rule out"
    )
