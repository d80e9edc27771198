"""References on the joint batch of all nodes: AdamW, and Schedule-Free AdamW and Prodigy from their authors' packages."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dnasa.core import Array, Gradients, InputError, Messages, Rule, Schedule
from dnasa.reproduce.network_tasks import CENTRAL, PRODIGY, SCHEDULE_FREE
from dnasa.rules import schedules
from dnasa.rules.dadam import dadam
from dnasa.rules.weight_decay import with_weight_decay

WEIGHT_DECAY = 0.01  # torch's default


def adamw(eta: Schedule) -> Rule:
    """torch's AdamW: x <- (1 - eta decay) x - eta m' / (sqrt(v') + eps); Loshchilov and Hutter, 2019."""
    return with_weight_decay(dadam(eta), schedules.constant(WEIGHT_DECAY))


def rule_makers(steps: int) -> dict[str, Callable[[float, Any], Rule]]:
    """Each reference as a function of the stepsize; Prodigy has none."""

    def schedule_free(parameters: list[Any], eta: float) -> Any:
        package = _imported("schedulefree")
        return package.AdamWScheduleFree(parameters, lr=eta, weight_decay=WEIGHT_DECAY, warmup_steps=steps // 10)

    def prodigy(parameters: list[Any], eta: float) -> Any:
        options: Any = {"weight_decay": WEIGHT_DECAY, "safeguard_warmup": True, "use_bias_correction": True}
        return _imported("prodigyopt").Prodigy(parameters, lr=1.0, **options)

    return {
        CENTRAL: lambda eta, layout: adamw(schedules.cosine(eta, steps)),
        SCHEDULE_FREE: lambda eta, layout: of_optimizer(lambda x: schedule_free([x], eta)),
        PRODIGY: lambda eta, layout: of_optimizer(lambda x: prodigy([x], eta), schedules.cosine(1.0, steps)),
    }


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise InputError(f"This reference needs the package {name}: pip install {name}.") from error


class State(NamedTuple):
    x: Array


def of_optimizer(make: Callable[[Any], Any], factor: Schedule | None = None) -> Rule:
    """A torch optimizer as the rule of a single node. `factor` multiplies its stepsize; all but x stays in the optimizer.

    One with `train` and `eval`, as of schedulefree, is tested where `eval` moves the parameters.
    """
    held: list[Any] = []

    def init(x: Array) -> State:
        parameter = torch.nn.Parameter(x.clone())
        optimizer = make(parameter)
        held[:] = parameter, optimizer, [group["lr"] for group in optimizer.param_groups]
        if hasattr(optimizer, "train"):
            optimizer.train()
        return State(x)

    def send(s: State, gradients: Gradients, t: int) -> tuple[Messages, State]:
        parameter, optimizer, rates = held
        parameter.grad = gradients[0]
        if factor is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor(t)
        optimizer.step()
        return (), State(parameter.detach().clone())

    def answer(s: State) -> Array:
        parameter, optimizer, _ = held
        if not hasattr(optimizer, "eval"):
            return s.x
        optimizer.eval()
        tested = parameter.detach().clone()
        optimizer.train()
        return tested

    return Rule(init, send, lambda s, mixed: s, answer=answer)
