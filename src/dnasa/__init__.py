"""Decentralized training with no server, no shared data and no stepsize to tune."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnasa import core, rules
from dnasa.arrays import unit
from dnasa.communication import Channel, Network
from dnasa.core import InputError, Rule
from dnasa.extras import needed_by
from dnasa.rules import schedules

if TYPE_CHECKING:
    from dnasa import (
        channels,
        comparing,
        data,
        inference,
        networks,
        optim,
        problems,
        reproduce,
        sklearn,
        topology,
        trained,
    )
    from dnasa.engine.loop import solve
    from dnasa.engine.simulate import simulate
    from dnasa.networks import connect
    from dnasa.runs.history import Record
    from dnasa.runs.result import Result
    from dnasa.tasks.tasks import on_shards
    from dnasa.trained import load

__version__ = "0.3.0.dev0"
__all__ = [
    "Channel",
    "InputError",
    "Network",
    "Record",
    "Result",
    "Rule",
    "channels",
    "comparing",
    "connect",
    "core",
    "data",
    "inference",
    "load",
    "networks",
    "on_shards",
    "optim",
    "problems",
    "reproduce",
    "rules",
    "schedules",
    "simulate",
    "sklearn",
    "solve",
    "topology",
    "trained",
    "unit",
]

ELSEWHERE = {
    "Record": "dnasa.runs.history",
    "Result": "dnasa.runs.result",
    "connect": "dnasa.networks",
    "load": "dnasa.trained",
    "on_shards": "dnasa.tasks.tasks",
    "simulate": "dnasa.engine.simulate",
    "solve": "dnasa.engine.loop",
}


def __getattr__(name: str) -> Any:
    """Import on first use what not every program needs, or what needs SciPy, networkx, torch or matplotlib."""
    with needed_by(f"dnasa.{name}"):
        if name in ELSEWHERE:
            return getattr(import_module(ELSEWHERE[name]), name)
        if name in __all__:
            return import_module(f"dnasa.{name}")
    raise AttributeError(f"module 'dnasa' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
