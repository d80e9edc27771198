"""Topologies from matrices, and the checks of W."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from dnasa.core import InputError, Rule
from dnasa.topology import spectrum
from dnasa.topology.rounds import smallest_eigenvalue
from dnasa.topology.types import TOLERANCE, Changing, Topology, compact


def from_matrix(weights: Any, name: str = "custom") -> Topology:
    """A topology from your own W.

    Args:
        weights: W, dense or sparse; W[i, j] is the weight with which node i receives from node j. It must be symmetric and
            doubly stochastic, or, for a directed graph, column-stochastic; its graph must be (strongly) connected and
            aperiodic, for which one positive entry on the diagonal is enough.
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
    try:
        given = list(topologies)
    except TypeError:
        raise InputError("A changing topology needs a list of topologies or matrices.") from None
    if not given:
        raise InputError("A changing topology needs at least one topology or matrix.")
    each = tuple(_part(number, part, name) for number, part in enumerate(given))
    sizes = sorted({graph.nodes for graph in each})
    if len(sizes) > 1:
        raise InputError(
            "All graphs of a changing topology must have the same size; "
            f"these have {' and '.join(map(str, sizes))} nodes."
        )
    result = Changing(name, each=each)
    _check_mixing(result.sparse)
    return result


def _part(number: int, part: Any, name: str) -> Topology:
    if isinstance(part, Changing):
        raise InputError(f"Graph {number} of the changing topology changes itself: list its graphs (`.each`) instead.")
    matrix = _matrix(part.sparse if isinstance(part, Topology) else part)
    if _asymmetry(matrix) is not None:
        raise InputError(
            f"Graph {number} of the changing topology is directed: a changing topology must be undirected."
        )
    _check_sums(matrix)
    return part if isinstance(part, Topology) else Topology(name, compact(matrix))


def _matrix(weights: Any) -> sp.csr_array:
    """A copy in CSR format with its entries checked; negative rounding errors become 0."""
    try:
        given = weights if sp.issparse(weights) else np.asarray(weights)
        if np.iscomplexobj(given):
            raise TypeError
        given = given.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # the last: a torch tensor that requires gradients
        raise InputError("W must be a matrix of real numbers.") from None
    if given.ndim != 2:
        raise InputError(f"W must be a matrix; this array has shape {given.shape}.")
    matrix = sp.csr_array(given, copy=True)
    matrix.sum_duplicates()
    _check_entries(matrix)
    matrix.data = np.maximum(matrix.data, 0)
    matrix.eliminate_zeros()
    return matrix


def _check_entries(matrix: sp.csr_array) -> None:
    rows, columns = matrix.shape
    if rows != columns:
        raise InputError(f"W must be square; this one is {rows} x {columns}.")
    if rows == 0:
        raise InputError("A network needs at least one node; W is empty.")
    entries = matrix.tocoo()
    bad = np.flatnonzero(~np.isfinite(entries.data))
    if len(bad):
        i, j = entries.row[bad[0]], entries.col[bad[0]]
        raise InputError(f"W must have finite entries; W[{i}, {j}] = {entries.data[bad[0]]:.6g}.")
    if entries.nnz and entries.data.min() < -TOLERANCE:
        worst = entries.data.argmin()
        i, j = entries.row[worst], entries.col[worst]
        raise InputError(f"W must not be negative; W[{i}, {j}] = {entries.data[worst]:.6g}.")


def _check_sums(matrix: sp.csr_array) -> None:
    """Doubly stochastic if symmetric, column-stochastic otherwise."""
    pair = _asymmetry(matrix)
    column, total = _worst_sum(matrix, axis=0)
    if abs(total - 1) <= TOLERANCE:
        return
    if pair is None:
        raise InputError(f"Every row of W must sum to 1; row {column} sums to {total:.6g}. Change its diagonal entry.")
    if abs(_worst_sum(matrix, axis=1)[1] - 1) <= TOLERANCE:
        raise InputError(
            "W is not symmetric, and its rows sum to 1 where its columns must, since W[i, j] is the weight with which "
            "i receives from j. Use its transpose, W.T."
        )
    i, j = pair
    raise InputError(
        f"W must be symmetric, or have columns that sum to 1 for a directed graph; W[{i}, {j}] = {matrix[i, j]:.6g} "
        f"but W[{j}, {i}] = {matrix[j, i]:.6g}, and column {column} sums to {total:.6g}."
    )


def _asymmetry(matrix: sp.csr_array) -> tuple[int, int] | None:
    """Where W and its transpose differ most; None if W is symmetric."""
    difference = abs(matrix - matrix.T).tocoo()
    if difference.max() <= TOLERANCE:
        return None
    worst = difference.data.argmax()
    return int(difference.row[worst]), int(difference.col[worst])


def _worst_sum(matrix: sp.csr_array, axis: int) -> tuple[int, float]:
    """The column (axis 0) or row (axis 1) whose sum is farthest from 1, and the sum."""
    sums = matrix.sum(axis=axis)
    worst = int(np.abs(sums - 1).argmax())
    return worst, float(sums[worst])


def _check_mixing(matrix: sp.csr_array) -> None:
    """rho < 1 exactly when the graph is (strongly) connected and aperiodic; both are properties of the graph."""
    parts, labels = csgraph.connected_components(matrix, connection="strong")
    if parts > 1:
        kind = "connected" if _asymmetry(matrix) is None else "strongly connected"
        first, other = (int(np.flatnonzero(labels == part)[0]) for part in range(2))
        raise InputError(
            f"The graph is not {kind}: add edges between its {parts} parts, such as nodes {first} and {other}."
        )
    if not matrix.diagonal().any() and (period := _period(matrix)) > 1:
        raise InputError(
            f"rho = 1: no node has a weight for itself and the length of every cycle is a multiple of {period}, so values "
            "circulate forever. Use (I + W) / 2 instead of W."
        )


def _period(matrix: sp.csr_array) -> int:
    """The greatest common divisor of the lengths of all cycles of a strongly connected graph."""
    distance = csgraph.dijkstra(matrix, unweighted=True, indices=0).astype(np.int64)
    edges = matrix.tocoo()
    return int(np.gcd.reduce(distance[edges.row] + 1 - distance[edges.col]))


def check_weights(rule: Rule, topology: Topology, rounds: int, name: str = "This rule", every: int = 1) -> None:
    """Refuse a topology that does not have what the rule needs of W.

    The eigenvalues of large graphs are known to three digits only.

    Args:
        rule: The rule, whose `needs` count.
        topology: The graph it would run on.
        rounds: Mixing rounds per exchange.
        name: What the error message calls the rule.
        every: Steps from one that exchanges to the next.

    Raises:
        InputError: If the graph is directed or changes, or W has too small an eigenvalue for the rule.
    """
    needs = rule.needs
    if topology.directed and not needs.directed:
        wrap = ", or wrap this one: rules.push_sum(rule)" if needs.allows_push_sum else ""
        raise InputError(
            f"{name} needs an undirected graph, and {topology.name} is directed. Use an undirected one, or the rules sgp or "
            f"push_dsgt{wrap}."
        )
    if needs.fixed_graph and rounds % topology.period:
        raise InputError(
            f"{name} needs a graph that stays the same, and {topology.name} changes. Use ring or another fixed graph, or leave "
            "the rule out."
        )
    if needs.fixed_graph and every > 1:
        raise InputError(
            f"{name} cannot skip exchanges: leave out every={every} (--every {every}), or use another rule."
        )
    if needs.smallest_eigenvalue <= -1:
        return
    if topology.directed:
        raise InputError(
            f"{name} needs all eigenvalues of W real and above {_short(needs.smallest_eigenvalue)}, "
            f"and {topology.name} is directed. Use an undirected graph or another rule."
        )
    margin = 1e-9 if topology.nodes <= spectrum.DENSE_EIGENVALUES else 2e-3
    smallest = smallest_eigenvalue(topology, rounds)
    if smallest <= needs.smallest_eigenvalue + margin:
        several, remedy = (
            (f" with {rounds} rounds", "one round") if rounds > 1 else ("", "weights='lazy' (--weights lazy)")
        )
        raise InputError(
            f"{name} needs all eigenvalues of W above {_short(needs.smallest_eigenvalue)}; the smallest of this "
            f"{topology.name}{several}, {_short(smallest)}, is not above. Use {remedy}, or leave the rule "
            "out."
        )


def _short(value: float) -> str:
    """The number as a fraction of small numbers, such as -1/3, where it is one."""
    near = Fraction(value).limit_denominator(9)
    return str(near) if abs(near - value) < 1e-9 else f"{value:.4g}"
