"""The loss after each number of steps, for `benchmarks.links`: the methods as rules of the simulator, on one GPU or core."""

from functools import partial
from math import cos, pi
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import dnasa
from benchmarks.links_node import METHODS, OURS, Method, cases, rows
from benchmarks.local_steps import DiLoCo, NoLoCo, partners
from dnasa import topology
from dnasa.core import Array, Exchange, Gradients, Messages, Rule, Schedule
from dnasa.data import partition
from dnasa.problems import Supervised
from dnasa.problems.supervised import cross_entropy
from dnasa.rules.dadam import moments
from dnasa.topology.types import Changing

DECAY, BETA1, BETA2, EPS = 0.01, 0.9, 0.999, 1e-8  # torch's constants of AdamW
PAIRINGS = 100


class State(NamedTuple):
    x: Array
    m: Array  # moments of AdamW
    v: Array
    phi: Array  # where the inner steps began; of DDP, the mean gradient
    delta: Array  # the outer momentum


def start(x: Array) -> State:
    return State(x, 0 * x, 0 * x, phi=x, delta=0 * x)


def adamw(s: State, g: Array, lr: float, t: int) -> State:
    m, v = moments(s.m, s.v, g, BETA1, BETA2)
    step = m / (1 - BETA1 ** (t + 1)) / ((v / (1 - BETA2 ** (t + 1))) ** 0.5 + EPS)
    return s._replace(x=(1 - lr * DECAY) * s.x - lr * step, m=m, v=v)


def ddp(lr: Schedule) -> Rule:
    """AdamW with the mean gradient, which all nodes get from an exchange."""

    def update(s: State, t: int) -> tuple[Messages, State]:
        return (), adamw(s, s.phi, lr(t), t)

    return Rule(
        start,
        send=lambda s, gradients, t: (gradients, s),
        receive=lambda s, mixed: s._replace(phi=mixed[0]),
        then=(Exchange(update, lambda s, mixed: s),),
    )


def local_steps(outer: Any, lr: Schedule, every: int) -> Rule:
    """AdamW at each node, and an outer step with others after every `every` steps."""

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        s = adamw(s, gradients[0], lr(t), t)
        return ((s.x - s.phi, s.phi) if (t + 1) % every == 0 else ()), s

    def receive(s: State, mixed: Messages) -> State:
        if not mixed:
            return s
        moved = outer(s, *mixed)
        return moved._replace(x=moved.phi)

    return Rule(start, send, receive)


def diloco(s: State, progress: Array, phi: Array) -> State:
    """Nesterov's momentum along the mean progress of all nodes, as torch's SGD has it."""
    delta = DiLoCo.momentum * s.delta + progress
    return s._replace(phi=s.phi + DiLoCo.lr * (progress + DiLoCo.momentum * delta), delta=delta)


def noloco(s: State, progress: Array, phi: Array) -> State:
    """The same with one partner, and towards it."""
    delta = NoLoCo.alpha * s.delta + NoLoCo.beta * progress - NoLoCo.gamma * (s.phi - phi)
    return s._replace(phi=s.phi + delta, delta=delta)


OUTER = {DiLoCo: diloco, NoLoCo: noloco}


def pairs(nodes: int) -> Changing:
    """NoLoCo's random partners, other ones at each outer step."""
    matrices = [(np.eye(nodes) + np.eye(nodes)[partners(nodes, k)]) / 2 for k in range(1, PAIRINGS + 1)]
    return Changing("pairs", each=tuple(topology.Topology("pairs", matrix) for matrix in matrices))


def curve(
    task: str, division: str, nodes: int, method: str, lr: float, steps: int, evaluate: int, device: str, seed: int = 0
) -> pd.DataFrame:
    """The test loss of the mean model, and the accuracy."""
    torch.set_num_threads(1)
    data, case, how = rows(task), cases()[task], METHODS[method]
    shards = partition(case.task.how(division), data.labels, nodes)
    options: Any = {"batch": case.task.batch, "train_metrics": False, "device": device}
    problem = Supervised(partial(case.model, data), cross_entropy, data, shards, **options)
    shared: Any = {"steps": steps, "evaluate": evaluate, "seed": seed, "progress": False}
    run = dnasa.solve(problem, **shared, **solve_options(how, nodes, lr, steps))
    found = run.history.rename(columns={"test_loss": "loss", "test_accuracy": "accuracy"})
    labels = {"task": task, "division": division, "method": method, "nodes": nodes, "lr": lr}
    return found[["step", "loss", "accuracy"]].assign(**labels)


def solve_options(how: Method, nodes: int, lr: float, steps: int) -> dict[str, Any]:
    """The rule on its graph. AdamW's learning rate goes to zero as a cosine."""
    if how.options is not None:
        given = OURS | how.options
        return given | {"topology": topology.make(given["topology"], nodes)}

    def rate(t: int) -> float:
        return lr * (1 + cos(pi * t / steps)) / 2

    if how.local is None:
        return {"rule": ddp(rate), "topology": topology.complete(nodes)}
    graph = pairs(nodes) if how.local is NoLoCo else topology.complete(nodes)
    return {"rule": local_steps(OUTER[how.local], rate, how.every), "topology": graph, "every": how.every}
