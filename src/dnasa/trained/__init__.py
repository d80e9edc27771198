"""Trained models: saved with a run, loaded, tested, used to predict, and exported."""

from dnasa.trained.files import load, save
from dnasa.trained.model import TrainedModel

__all__ = ["TrainedModel", "load", "save"]
