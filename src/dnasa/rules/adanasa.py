"""AdaNASA: tracked moving averages, second moments and a learned radius; for deep models, with no stepsize to tune.

What differs from D-NASA, with the measurements behind it, is on the page "AdaNASA" of the documentation.
"""

from functools import partial
from math import prod
from typing import NamedTuple

from dnasa.arrays import maximum, minimum, nonzero, norm, put, sample, total, whole_part
from dnasa.core import Array, Gradients, Layout, Messages, Needs, Rule, Schedule, size, slices
from dnasa.rules import schedules
from dnasa.rules.demuon import orthogonalized
from dnasa.rules.forms import Form, Radius, declare
from dnasa.rules.registry import rule
from dnasa.rules.schedules import ScheduleSpec

GROWTH = 6.0  # eta is at most this many radii
CANCELED = 0.1  # of the longest step: a shorter S is mostly rounding errors
SAMPLE = 10_000  # the radius is learned from at least this many coordinates, or from all
RARER = 2  # exchanges of y for each of x, if nodes do not exchange in every step
SHORTEST, LONGEST = 256, 8  # the least side of a hidden matrix, and its other side in multiples of that


class State(NamedTuple):
    x: Array
    y: Array  # trackers of z, mixed: mean(y) == mean(z)
    z: Array  # moving average of the node's own gradients
    m: Array  # second moments of the gradients, mixed
    start: Array  # x at the start, at a sample of the coordinates
    S: Array  # sum of lambda h/|h| there
    A: Array  # sum of lambda/|h| dot(g / sqrt(m'), x(0) - x), mixed
    r: Array  # radius: a lower bound on the distance to the solution
    average: Array  # of the iterates; empty where the last one is the answer


ADANASA = {
    "linear": ScheduleSpec(
        lambda n, T, eta: schedules.adanasa(n, T),
        "0.4 sqrt(n) min(2.5(t+1)/T, 1, (1 - t/T)/0.6)",
        needs_steps=True,
        ends=True,
    ),
    "averaged": ScheduleSpec(lambda n, T, eta: schedules.adanasa_averaged(n), "0.4 sqrt(n) min((t+1)/100, 10/sqrt(t+1))"),
}


@rule(
    "adanasa",
    title="AdaNASA",
    color="#dd3497",
    schedules=ADANASA,
    needs_eta=False,
    equation=r"""
        z' &= (1 - \alpha) z + \alpha g, \quad y' = y + z' - z, \quad m' = \beta m + (1 - \beta) g^2 \\
        x, y, m &\leftarrow W\Big[x - \lambda \frac{y'}{\max(\sqrt{m'}, |y'|)},\; y',\; m'\Big] \\
        & \text{in large matrices } x - \lambda\, 0.2 \sqrt{\text{longer side}} \operatorname{msgn}(y' + \alpha (g - z')) \\
        z &\leftarrow z', \quad \lambda = d^{-1/3} \min(\eta, 6 r)
    """,
    checked="docs/adanasa.md, which defines it",
)
def adanasa(
    eta: Schedule,
    alpha: Schedule,
    beta: Schedule,
    weight: Schedule | None = None,
    *,
    layout: Layout,
    radius: float = 1e-4,
    every: int = 1,
) -> Rule:
    """AdaNASA on d parameters.

    z' = (1 - alpha) z + alpha g; y' = y + z' - z; m' = beta m + (1 - beta) g^2;
    x, y, m <- W[x - lambda y' / max(sqrt(m'), |y'|), y', m'] with lambda = d^(-1/3) min(eta, 6 r),
    A <- W[A + lambda/|h| dot(g / sqrt(m'), x(0) - x)], S <- S + lambda h/|h| and r <- max(r, A / |S|), where
    h = c / max(sqrt(m'), |c|) and c = g + y - z estimates the average gradient of all nodes. In large models, A and S are of
    every k-th coordinate, and r <- max(r, sqrt(k) A / |S|).

    In large hidden matrices (`is_hidden`), the direction is 0.2 sqrt(longer side) msgn(y' + alpha (g - z')), as in Muon (Jordan
    et al., 2024). Nodes that do not exchange in every step exchange y and A, and x at every second exchange, and continue with
    z = y.

    Args:
        eta: The largest step at t, before the factor d^(-1/3).
        alpha: The weight of the newest gradient in z.
        beta: The weight of the past in the second moments m.
        weight: The weight of x in the average of the iterates, which is then the answer; None: the answer is the last x.
        layout: The names and shapes of the parts of x, d numbers in all.
        radius: r at the start, relative to 1 + |x|.
        every: Steps from one that exchanges to the next.
    """
    d = size(layout)
    k = max(1, d // SAMPLE)
    hidden = [(place, shape) for (_, shape), place in zip(layout, slices(layout), strict=True) if is_hidden(shape)]

    def init(x: Array) -> State:
        part = sample(x, k)
        average = x if weight else x[..., :0]
        length = norm(x)
        return State(x, 0 * x, 0 * x, 0 * x, part, 0 * part, 0 * length, r=radius * (1 + length), average=average)

    def step_length(s: State, t: int) -> Array:
        """lambda = d^(-1/3) min(eta, 6 r)"""
        return d ** (-1 / 3) * minimum(GROWTH * s.r, eta(t))

    def second_moments(m: Array, g: Array, t: int) -> Array:
        """m' = beta m + (1 - beta) g^2"""
        return beta(t) * m + (1 - beta(t)) * g**2

    def sums(s: State, step: Array, g: Array, t: int) -> tuple[Array, Array]:
        """S <- S + lambda h/|h|; A + lambda/|h| dot(g / sqrt(m'), x(0) - x), which is sent"""
        g = sample(g, k)
        m = second_moments(sample(s.m, k), g, t)
        h = scaled(g + sample(s.y, k) - sample(s.z, k), m)
        factor = step / nonzero(norm(h))
        return s.S + factor * h, s.A + factor * total(g / nonzero(m**0.5) * (s.start - sample(s.x, k)))

    def with_radius(s: State, A: Array) -> State:
        """r <- max(r, sqrt(k) A / |S|), with A as it was received; where directions have canceled, S says nothing"""
        length, least = norm(s.S), CANCELED * d ** (-1 / 3) * GROWTH * s.r
        return s._replace(A=A, r=maximum(s.r, k**0.5 * A * (length > least) / maximum(length, least)))

    def averaged(s: State, t: int) -> Array:
        return s.average + weight(t) * (s.x - s.average) if weight else s.average

    def with_orthogonal_parts(h: Array, y: Array) -> Array:
        """h, with 0.2 sqrt(longer side) msgn(y) in hidden matrices"""
        for place, shape in hidden:
            part = whole_part(y, place)
            matrices = orthogonalized(part.reshape(*part.shape[:-1], *shape))
            put(h, place, 0.2 * max(shape) ** 0.5 * matrices.reshape(part.shape))
        return h

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        (g,) = gradients
        z = (1 - alpha(t)) * s.z + alpha(t) * g
        y = s.y + z - s.z
        m = second_moments(s.m, g, t)
        step = step_length(s, t)
        S, A = sums(s, step, g, t)
        h = with_orthogonal_parts(scaled(y, m), y + alpha(t) * (g - z)) if hidden else scaled(y, m)
        x = s.x - step * h
        after = s._replace(z=z, S=S, average=averaged(s, t))
        if every == 1:
            return (x, y, m, A), after
        number, since = divmod(t + 1, every)
        messages = () if since else (y, A) if number % RARER else (y, A, x)
        return messages, after._replace(x=x, y=y, m=m, A=A)

    def receive(s: State, mixed: Messages) -> State:
        if not mixed:
            return s
        if every > 1:
            y, A, *rest = mixed
            return with_radius(s._replace(x=rest[0] if rest else s.x, y=y, z=y), A)
        x, y, m, A = mixed
        m = maximum(m, 0)  # rounded or compressed messages may make it negative
        return with_radius(s._replace(x=x, y=y, m=m), A)

    def fading(t: int) -> tuple[float, ...]:
        """Of y, what is left of it after the steps since the last exchange; A and x are sums."""
        return prod(1 - alpha(s) for s in range(max(0, t + 1 - every), t + 1)), 1, 1

    made = Rule(
        init,
        send,
        receive,
        answer=(lambda s: s.average) if weight else None,
        restart=lambda s: s._replace(y=s.z),
        estimate=lambda s: s.y,
        needs=Needs(doubly_stochastic=True, late=True),  # the radius is that of x itself, which push-sum scales
        fading=fading if every > 1 else None,
        stepsize=step_length,
    )
    if hidden or every > 1:
        return made
    # for the engine's fast paths only
    schedules = (eta, alpha, beta, weight) if weight else (eta, alpha, beta)
    make, learned = partial(adanasa, layout=layout, radius=radius), Radius(k, step_length, averaged, sums, with_radius)
    return declare(made, Form(make, schedules, ("x", "y", "m", "z"), radius=learned))


def is_hidden(shape: tuple[int, ...]) -> bool:
    """Whether it is a large matrix between hidden layers, as far as its shape tells: embeddings and outputs are longer."""
    return len(shape) == 2 and min(shape) >= SHORTEST and max(shape) <= LONGEST * min(shape)


def scaled(a: Array, m: Array) -> Array:
    """a / sqrt(m), at most 1: a node may have no second moment yet of what its neighbors send."""
    return a / nonzero(maximum(m**0.5, abs(a)))
