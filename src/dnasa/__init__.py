"""Decentralized training with no server, no shared data and no stepsize to tune."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnasa import core, prox, rules
from dnasa.arrays import unit
from dnasa.core import Channel, InputError, Network, Rule
from dnasa.engine.loop import solve
from dnasa.rules import schedules
from dnasa.runs.result import Result

if TYPE_CHECKING:
    from dnasa import channels, data, networks, optim, plots, problems, studies, topology
    from dnasa.networks import connect

__version__ = "0.2.0"
__all__ = [
    "Channel",
    "InputError",
    "Network",
    "Result",
    "Rule",
    "channels",
    "connect",
    "core",
    "data",
    "networks",
    "optim",
    "plots",
    "problems",
    "prox",
    "rules",
    "schedules",
    "solve",
    "studies",
    "topology",
    "unit",
]

LAZY = ("channels", "data", "networks", "optim", "plots", "problems", "studies", "topology")


def __getattr__(name: str) -> Any:
    """Modules that need SciPy, networkx, torch or matplotlib are imported on first use."""
    if name in LAZY:
        return import_module(f"dnasa.{name}")
    if name == "connect":
        return import_module("dnasa.networks").connect
    raise AttributeError(f"module 'dnasa' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
