"""Trained models: saved with a run, loaded, tested, used to predict, and exported."""

from typing import TYPE_CHECKING

from dnasa.extras import on_first_use

if TYPE_CHECKING:
    from dnasa.trained.model import TrainedModel
    from dnasa.trained.saving import load, save

__all__ = ["TrainedModel", "load", "save"]
PLACES = {"TrainedModel": "model", "load": "saving", "save": "saving"}  # torch is not needed to read the tests of a model
__getattr__, __dir__ = on_first_use(__name__, __all__, PLACES, "A trained model")
