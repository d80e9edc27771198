"""Decentralized training with no server, no shared data and no stepsize to tune."""

from typing import TYPE_CHECKING

from dnasa import core, rules
from dnasa.arrays import unit
from dnasa.communication import Channel, Network
from dnasa.core import InputError, Rule
from dnasa.extras import on_first_use
from dnasa.rules import schedules

if TYPE_CHECKING:
    from dnasa import channels, comparing, data, inference, networks, optim, problems, reproduce, sklearn, topology, trained
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

PLACES = {
    "Record": "runs.history",
    "Result": "runs.result",
    "connect": "networks",
    "load": "trained",
    "on_shards": "tasks.tasks",
    "simulate": "engine.simulate",
    "solve": "engine.loop",
}
__getattr__, __dir__ = on_first_use(__name__, __all__, PLACES)
