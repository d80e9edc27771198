"""Eigenvalues of mixing matrices.

BLAS adds in another order with another number of threads, so one thread computes them: W and rho then depend on the graph
alone.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh
from threadpoolctl import threadpool_limits

DENSE_EIGENVALUES = 1500  # symmetric matrices up to this size are solved exactly
DENSE_DIRECTED = 400  # likewise for the others, which take 40 times as long

Function = TypeVar("Function", bound=Callable[..., Any])
single_threaded: Callable[[Function], Function] = threadpool_limits.wrap(limits=1, user_api="blas")


@single_threaded
def largest_eigenvalue(matrix: sp.csr_array) -> float:
    dense = matrix.shape[0] <= DENSE_EIGENVALUES
    return float(np.linalg.eigvalsh(matrix.toarray())[-1]) if dense else _largest(matrix)


@single_threaded
def extremes(weights: sp.csr_array) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of W - 11'/n, for a symmetric W."""
    n = weights.shape[0]
    if n <= DENSE_EIGENVALUES:
        values = np.linalg.eigvalsh(weights.toarray() - 1 / n)
        return float(values[0]), float(values[-1])
    second = _second(eigsh, weights, lambda y: weights @ y - y.mean(), "LA", count=2).max()
    return 1 - _largest(sp.eye_array(n) - weights), float(second)


@single_threaded
def second_modulus(weights: sp.csr_array) -> float:
    """The second largest modulus of W's eigenvalues, for a column-stochastic W.

    W maps vectors that sum to 0 to such vectors, and the eigenvalue 1 is not among its eigenvalues there.
    """
    n = weights.shape[0]
    if n <= DENSE_DIRECTED:
        dense = weights.toarray()
        return float(np.abs(np.linalg.eigvals(dense - dense.mean(axis=1, keepdims=True))).max())
    return float(np.abs(_second(eigs, weights, lambda y: weights @ (y - y.mean()), "LM", count=3)).max())


@single_threaded
def product_norm(matrices: Sequence[sp.csr_array]) -> float:
    """The spectral norm of (the product of symmetric W's) - 11'/n."""
    n = matrices[0].shape[0]

    def product(y: np.ndarray) -> np.ndarray:
        return reduce(lambda y, matrix: matrix @ y, matrices, y - y.mean(axis=0))

    def square(y: np.ndarray) -> np.ndarray:
        return reduce(lambda y, matrix: matrix @ y, reversed(matrices), product(y))

    if n <= DENSE_EIGENVALUES:
        return float(np.linalg.norm(product(np.eye(n)), 2))
    if np.linalg.norm(product(_start(n))) < 1e-9:  # an exact average leaves Lanczos nothing to start from
        return 0.0
    return float(np.sqrt(_largest(_operator(n, square))))


def _operator(n: int, product: Any) -> LinearOperator:
    return LinearOperator((n, n), matvec=product, dtype=np.float64)


def _start(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)


def _largest(matrix: Any) -> float:
    """To 3 digits: the largest eigenvalues of a long path or ring are too close together for more."""
    n = matrix.shape[0]
    return float(eigsh(matrix, k=1, which="LA", tol=1e-3, v0=_start(n), return_eigenvectors=False)[0])


def _second(solve: Any, weights: sp.csr_array, centred: Any, which: str, count: int) -> np.ndarray:
    """Eigenvalues of W next to 1: by iterations with W - 11'/n, or by shift and invert where they cluster at 1.

    They do on graphs that mix slowly, such as long rings. A directed graph may have two of the same modulus.
    """
    options = {"v0": _start(weights.shape[0]), "return_eigenvectors": False}
    try:
        return solve(_operator(weights.shape[0], centred), k=1, which=which, maxiter=60, **options)
    except ArpackNoConvergence:
        values = solve(weights.tocsc(), k=count, sigma=1 + 1e-9, which="LM", **options)
        return np.delete(values, np.abs(values - 1).argmin())
