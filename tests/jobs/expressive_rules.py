"""Small rules, each using one capability of the interface, built-in ones that use several, and a problem. Not a test."""

from typing import Any, NamedTuple

import numpy as np

from dnasa import Result, channels, rules, solve, topology
from dnasa.communication import Network
from dnasa.core import Array, Exchange, Gradients, Messages, Rule
from dnasa.networks import simulated, with_timing
from dnasa.problems import Custom, Problem

ETA = 0.05
NODES, DIM = 4, 5
TARGETS = np.random.default_rng(1).standard_normal((NODES, DIM))
CURVATURES = np.random.default_rng(2).uniform(0.5, 1.5, (NODES, 1))


def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    """Of c_i |x - b_i|^2 / 2, with noise."""
    return CURVATURES[node] * (x - TARGETS[node]) + 0.1 * rng.standard_normal(DIM)


def problem(noise_free: bool = False) -> Custom:
    plain = lambda x, node, rng: CURVATURES[node] * (x - TARGETS[node])  # noqa: E731
    return Custom(plain if noise_free else gradient, start=np.zeros(DIM), fingerprint="quadratic")


class Momentum(NamedTuple):
    x: Array
    m: Array


def momentum() -> Rule:
    """m <- 0.9 m + g; x <- W[x - eta m]"""

    def send(s: Momentum, gradients: Gradients, t: int) -> tuple[Messages, Momentum]:
        m = 0.9 * s.m + gradients[0]
        return (s.x - 0.1 * ETA * m,), s._replace(m=m)

    return Rule(lambda x: Momentum(x, 0 * x), send, lambda s, mixed: s._replace(x=mixed[0]))


class TwoPoints(NamedTuple):
    x: Array
    x_old: Array
    v: Array


def two_points() -> Rule:
    """v <- g(x) + 0.9 (v - g(x_old)), both on one sample; x <- W[x - eta v]"""

    def send(s: TwoPoints, gradients: Gradients, t: int) -> tuple[Messages, TwoPoints]:
        g, g_old = gradients
        v = g + 0.9 * (s.v - g_old) if t else g
        return (s.x - ETA * v,), TwoPoints(s.x, x_old=s.x, v=v)

    return Rule(
        lambda x: TwoPoints(x, x, 0 * x),
        send,
        lambda s, mixed: s._replace(x=mixed[0]),
        points=lambda s, t: (s.x, s.x_old),
    )


class Tracked(NamedTuple):
    x: Array
    y: Array
    v: Array


def two_exchanges() -> Rule:
    """y <- W[y + g - v]; then x <- W[x - eta y] with the y just mixed"""

    def send(s: Tracked, gradients: Gradients, t: int) -> tuple[Messages, Tracked]:
        (g,) = gradients
        return (s.y + g - s.v,), s._replace(v=g)

    def send_x(s: Tracked, t: int) -> tuple[Messages, Tracked]:
        return (s.x - ETA * s.y,), s

    return Rule(
        lambda x: Tracked(x, 0 * x, 0 * x),
        send,
        lambda s, mixed: s._replace(y=mixed[0]),
        then=(Exchange(send_x, lambda s, mixed: s._replace(x=mixed[0])),),
        restart=lambda s: s._replace(y=s.v),
        estimate=lambda s: s.y,
    )


class Plain(NamedTuple):
    x: Array


def local_steps() -> Rule:
    """Three gradient steps alone, then one with an exchange."""

    def send(s: Plain, gradients: Gradients, t: int) -> tuple[Messages, Plain]:
        x = s.x - 0.2 * ETA * gradients[0]
        return ((x,), s) if t % 4 == 3 else ((), Plain(x))

    return Rule(Plain, send, lambda s, mixed: Plain(*mixed) if mixed else s)


class Averaged(NamedTuple):
    x: Array
    mean: Array
    count: Array  # a number per node


def averaged_answer() -> Rule:
    """D-SGD whose answer is the average of its iterates."""

    def receive(s: Averaged, mixed: Messages) -> Averaged:
        count = s.count + 1
        return Averaged(mixed[0], s.mean + (mixed[0] - s.mean) / count, count)

    return Rule(
        lambda x: Averaged(x, x, x[..., :1] * 0),
        lambda s, gradients, t: ((s.x - ETA * gradients[0],), s),
        receive,
        answer=lambda s: s.mean,
    )


class Scaled(NamedTuple):
    x: Array
    r: Array  # a number per node, exchanged


def number_on_the_wire() -> Rule:
    """r <- W[r + |g|^2]; x <- W[x - g / sqrt(1 + r)]: the same scale for all nodes, which travels along."""

    def send(s: Scaled, gradients: Gradients, t: int) -> tuple[Messages, Scaled]:
        (g,) = gradients
        r = s.r + (g * g).sum(-1)[..., None]
        return (s.x - g / (1 + r) ** 0.5, r), s

    return Rule(lambda x: Scaled(x, x[..., :1] * 0), send, lambda s, mixed: Scaled(*mixed))


def early_momentum() -> Rule:
    """x <- W[x - eta m] and m <- W[0.5 m + 0.5 g]: the next x does not need the gradient of the step."""
    return Rule(
        lambda x: Momentum(x, 0 * x),
        lambda s, gradients, t: ((0.5 * s.m + 0.5 * gradients[0],), s),
        lambda s, mixed: Momentum(*mixed),
        early=lambda s, t: (s.x - ETA * s.m,),
        estimate=lambda s: s.m,
    )


def sgd() -> Rule:
    return rules.dsgd(lambda t: ETA)


class Case(NamedTuple):
    """A rule with what it is run on: a graph of n nodes, a channel, and further options of `solve`."""

    rule: Any
    graph: Any = topology.ring
    channel: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed)


CASES = {
    "gt_hsgd": Case(lambda: rules.gt_hsgd(lambda t: ETA, lambda t: 0.1)),
    "sgp": Case(lambda: rules.sgp(lambda t: ETA), topology.directed_ring),
    "mt": Case(lambda: rules.mt(lambda t: 0.1 * ETA)),
    "momentum": Case(momentum),
    "two points": Case(two_points),
    "two exchanges": Case(two_exchanges),
    "local steps": Case(local_steps),
    "averaged answer": Case(averaged_answer),
    "number on the wire": Case(number_on_the_wire),
    "early": Case(early_momentum),
    "push-sum, tracking": Case(lambda: rules.push_sum(two_exchanges()), topology.directed_exponential),
    "compression": Case(sgd, channel=channels.choco(channels.top_k(0.4), gamma=0.3)),
    "moniqua": Case(early_momentum, channel=channels.moniqua("8,4/2")),
    "compression, early": Case(early_momentum, channel=channels.choco(channels.top_k(0.4), gamma=0.3)),
    "lost messages, early": Case(early_momentum, channel=channels.faulty(drop=0.2)),
    "node weights": Case(sgd, options={"node_weights": [1.0, 2.0, 3.0, 4.0]}),
}


def run(
    name: str,
    network: Network | None = None,
    task: Problem | None = None,
    steps: int = 30,
    overlap: bool = False,
    **options: Any,
) -> Result:
    case = CASES[name]
    graph = case.graph(NODES)
    network = with_timing(network or simulated.connect(graph, channel=case.channel), overlap=overlap)
    return solve(task or problem(), network, case.rule(), steps=steps, progress=False, **case.options | options)
