"""Decentralized training with no server, no shared data and no stepsize to tune."""

from importlib import import_module
from typing import Any

from dnasa import core, rules, schedules
from dnasa.core import InputError, Network, Rule, unit
from dnasa.records import Result
from dnasa.solve import solve

__version__ = "0.1.0"
__all__ = ["InputError", "Network", "Result", "Rule", "core", "rules", "schedules", "solve", "unit"]

LATER = ("data", "experiments", "metrics", "networks", "optim", "plots", "problems", "topology")


def __getattr__(name: str) -> Any:
    """Rooms with heavy furniture (SciPy, networkx, torch, matplotlib) open when someone knocks."""
    if name in LATER:
        return import_module(f"dnasa.{name}")
    if name == "connect":
        return import_module("dnasa.networks").connect
    raise AttributeError(f"module 'dnasa' has no attribute '{name}'")
