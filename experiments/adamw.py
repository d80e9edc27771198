"""AdamW with an all-reduce as a rule: on the complete graph, each node receives the average gradient.

dnasa train --data code --model gpt:12,768,512 --batch 8 --steps 800 --device cuda --topology complete \
    --plugin experiments/adamw.py --rule adamw --schedule linear-0.95 --eta 1.6e-3
"""

from typing import NamedTuple

from dnasa.arrays import minimum, nonzero, norm
from dnasa.core import Array, Gradients, Layout, Messages, Rule, Schedule, slices
from dnasa.rules import rule, schedules
from dnasa.rules.composition import moments
from dnasa.rules.schedules import ScheduleSpec

BETA1, EPS, DECAY, CLIP = 0.9, 1e-8, 0.1, 1.0  # matrices decay, vectors do not


class State(NamedTuple):
    x: Array
    m: Array
    v: Array
    rate: Array  # eta(t) of the step under way
    t: Array


SCHEDULES = {
    f"{schedule.__name__}-{beta2}": ScheduleSpec(
        lambda n, T, eta, schedule=schedule, beta2=beta2: (schedule(eta, T), schedules.constant(beta2)), "", needs_steps=True
    )
    for schedule in (schedules.linear, schedules.cosine)
    for beta2 in (0.95, 0.99, 0.999)
}


@rule("adamw", title="AdamW, all-reduce", color="#444444", schedules=SCHEDULES)
def adamw(eta: Schedule, beta2: Schedule, *, layout: Layout) -> Rule:
    """x <- (1 - eta decay) x - eta m' / (sqrt(v') + eps), with the moments m', v' of the average gradient, clipped at 1."""
    matrices = [place for (_, shape), place in zip(layout, slices(layout), strict=True) if len(shape) > 1]

    def init(x: Array) -> State:
        return State(x, 0 * x, 0 * x, 0 * x[..., :1], 0 * x[..., :1])

    b2 = beta2(0)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        return gradients, s._replace(rate=0 * s.t + eta(t), t=s.t + 1)

    def receive(s: State, mixed: Messages) -> State:
        (g,) = mixed
        m, v = moments(s.m, s.v, minimum(CLIP / nonzero(norm(g)), 1) * g, BETA1, b2)
        x = s.x - s.rate * m / (1 - BETA1**s.t) / ((v / (1 - b2**s.t)) ** 0.5 + EPS)
        for place in matrices:
            x[..., place] -= s.rate * DECAY * s.x[..., place]
        return s._replace(x=x, m=m, v=v)

    return Rule(init, send, receive)
