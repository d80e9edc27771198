"""Trained models: saved with a run, loaded, tested, used to predict, and exported."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnasa.extras import needed_by

if TYPE_CHECKING:
    from dnasa.trained.model import TrainedModel
    from dnasa.trained.saving import load, save

__all__ = ["TrainedModel", "load", "save"]

MODULES = {"TrainedModel": "model", "load": "saving", "save": "saving"}


def __getattr__(name: str) -> Any:
    """The tests of a trained model can be read without torch, which the model needs."""
    if name in MODULES:
        with needed_by("A trained model"):
            return getattr(import_module(f"dnasa.trained.{MODULES[name]}"), name)
    raise AttributeError(f"module 'dnasa.trained' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
