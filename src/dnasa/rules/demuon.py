"""DeMuon: tracked momentum, orthogonalized matrix by matrix (He, Ren, Mao and Larsson, 2025)."""

from typing import NamedTuple

from dnasa.arrays import nonzero, on_gpu, unit
from dnasa.checks import whole
from dnasa.core import Array, Exchange, Gradients, Layout, Messages, Rule, Schedule, assign, slices, zeros
from dnasa.rules.registry import rule

A, B, C = 3.4445, -4.7750, 2.0315  # Muon's coefficients (Jordan et al., 2024)


class State(NamedTuple):
    x: Array
    v: Array  # trackers of m, mixed: mean(v) == mean(m)
    m: Array  # momentum of the node's own gradients


@rule(
    "demuon",
    title="DeMuon",
    color="#393b79",
    paper="He et al., 2025, *DeMuon: A Decentralized Muon for Matrix Optimization over Graphs*, arXiv 2510.01377",
    equation=r"""
        m' &= (1 - \theta) m + \theta g \\
        v &\leftarrow W[v + m' - m] \\
        x &\leftarrow W[x - \eta \operatorname{msgn}(v)] \\
        m &\leftarrow m'
    """,
    checked="the authors' code, MozarTuring/DeMuon: the same, except that it always iterates in bfloat16",
)
def demuon(eta: Schedule, *, layout: Layout, theta: float = 0.2, iterations: int = 5) -> Rule:
    """m' = (1 - theta) m + theta g; v <- W[v + m' - m]; then x <- W[x - eta msgn(v)].

    msgn for each matrix of the layout by itself; vectors are normalized, each by itself.

    msgn(V) = U V' for V = U S V', with Muon's coefficients (Jordan et al., 2024). A convolution kernel is a matrix with one row
    per output, as in Muon. There is no factor for the shape of a matrix.

    Args:
        eta: The stepsize at t.
        layout: The names and shapes of the parts of x.
        theta: The weight of the newest gradient in the momentum m.
        iterations: The number of Newton-Schulz iterations that approximate msgn.
    """
    whole("iterations", iterations)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        m = (1 - theta) * s.m + theta * g
        return (s.v + m - s.m,), s._replace(m=m)

    def send_x(s: State, t: int) -> tuple[Messages, State]:
        return (s.x - eta(t) * direction(s.v, layout, iterations),), s

    return Rule(
        zeros(State),
        send,
        assign("v"),
        then=(Exchange(send_x, assign("x")),),
        restart=lambda s: s._replace(v=s.m),
        estimate=lambda s: s.v,
        stepsize=lambda s, t: eta(t),
    )


def direction(v: Array, layout: Layout, iterations: int) -> Array:
    """msgn of every matrix in v, z / |z| of every vector; kernels of convolutions are matrices of one row per output."""
    out = unit(v, layout)
    for (_, shape), place in zip(layout, slices(layout), strict=True):
        if len(shape) > 1:
            part = out[..., place]
            matrices = part.reshape(*part.shape[:-1], shape[0], -1)
            out[..., place] = orthogonalized(matrices, iterations).reshape(part.shape)
    return out


def orthogonalized(x: Array, iterations: int = 5) -> Array:
    """About msgn(x) = U V' for x = U S V', by Newton-Schulz; on GPUs in bfloat16.

    After five iterations, singular values above 0.002 |x| have become 0.68 to 1.2.
    """
    if x.shape[-2] > x.shape[-1]:
        return orthogonalized(x.swapaxes(-1, -2), iterations).swapaxes(-1, -2)
    x, dtype = x / nonzero((x * x).sum((-1, -2)) ** 0.5)[..., None, None], x.dtype
    if on_gpu(x):
        x = x.bfloat16()
    for _ in range(iterations):
        square = x @ x.swapaxes(-1, -2)
        x = A * x + (B * square + C * square @ square) @ x
    return x.to(dtype) if on_gpu(x) else x
