"""A trained model together with what its inputs and outputs mean."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dnasa.core import InputError
from dnasa.data import Dataset, Encoding
from dnasa.data.encoding import ARRAYS
from dnasa.data.reading import read_rows
from dnasa.problems.stored import CENTRE, SPREAD, as_inputs

ROWS = 1024  # computed at a time


class TrainedModel:
    """Predicts for the user's rows.

    Args:
        network: Takes inputs that `encoding` has encoded and scaled.
        encoding: How inputs and labels were made from the user's rows.
        kind: The kind of the inputs: "numbers", "bytes" (images, 0 to 255) or "tokens" (a text).
        threshold: Of two classes, the probability from which the second is predicted.
    """

    def __init__(self, network: nn.Module, encoding: Encoding, kind: str = "numbers", threshold: float = 0.5):
        self.network = network.eval()
        self.encoding = encoding
        self.kind = kind
        self.threshold = threshold
        self.dtype = _dtype(network)

    @property
    def task(self) -> str:
        """classification or regression"""
        return self.encoding.task

    @property
    def classes(self) -> np.ndarray:
        """The names of the classes, in the order of the outputs."""
        return np.array(self.encoding.classes)

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of a table that the model uses."""
        return tuple(feature.name for feature in self.encoding.features)

    def predict(self, rows: Any) -> np.ndarray:
        """The class of each row; the value, in a regression.

        Args:
            rows: A frame with the columns of the training data, in any order, or an array.
        """
        if self.task == "regression":
            return self.encoding.target_values(self._outputs(rows))[:, 0]
        return self.decided(self.predict_proba(rows))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """(rows, classes): the probability of each class.

        Args:
            rows: A frame with the columns of the training data, in any order, or an array.
        """
        if self.task == "regression":
            raise InputError("A regression has no probabilities: use predict.")
        return self.probabilities(self._outputs(rows))

    def decided(self, p: np.ndarray) -> np.ndarray:
        """The class of each row of probabilities.

        Args:
            p: The probability of each class.
        """
        return self.classes[(p[:, 1] >= self.threshold).astype(int) if p.shape[1] == 2 else p.argmax(1)]

    def to_torch(self) -> nn.Module:
        """A module from encoded rows, as `encoding.encode` makes them, to logits; in a regression, to values.

        The scaling of inputs and values is part of it.
        """
        return Scaled(copy.deepcopy(self.network), self.encoding, self.kind).eval()

    def check_takes_rows(self) -> None:
        """Refuse a model of a text, which has no rows to predict."""
        if self.kind == "tokens":
            raise InputError("This model continues a text and predicts no rows: use its torch module, .to_torch().")

    def _outputs(self, rows: Any) -> np.ndarray:
        self.check_takes_rows()
        if self.kind == "bytes" and np.asarray(rows).dtype != np.uint8:
            raise InputError("This model was trained on images of bytes, 0 to 255: give rows of type uint8.")
        if self.encoding.recode is not None and isinstance(rows, pd.DataFrame):
            rows = self.encoding.recode.table(rows)
        for sentence in self.encoding.doubts(rows):
            warnings.warn(sentence, stacklevel=4)
        return self.outputs(self.encoding.transform(rows))

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        """The model's outputs, `(rows, outputs)` in double precision.

        Args:
            inputs: Inputs that are encoded and scaled.
        """
        with torch.no_grad():
            parts = [self.network(part).double().cpu().numpy() for part in self._parts(inputs)]
        return np.concatenate(parts)[:, : self.encoding.outputs]

    def _parts(self, inputs: np.ndarray) -> Iterator[Tensor]:
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        for first in range(0, max(1, len(inputs)), ROWS):
            part = as_inputs(torch.tensor(inputs[first : first + ROWS]), self.dtype)
            yield part.to(device, self.dtype if part.is_floating_point() else part.dtype)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """The probability of each class.

        Args:
            outputs: The outputs of the model.
        """
        return torch.from_numpy(outputs).softmax(1).numpy()


class Scaled(nn.Module):
    """A module that takes inputs before they are scaled, and gives values in the units of the target."""

    mean: Tensor | None
    scale: Tensor
    target_mean: Tensor | None
    target_scale: Tensor

    def __init__(self, network: nn.Module, encoding: Encoding, kind: str):
        super().__init__()
        self.network = network
        self.dtype = _dtype(network)
        constants = {name: getattr(encoding, name) for name in ARRAYS}
        if kind == "bytes":
            constants["mean"], constants["scale"] = 255 * CENTRE, 255 * SPREAD
        for name, value in constants.items():
            self.register_buffer(name, None if value is None else torch.tensor(value, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is not None:
            x = (x.double() - self.mean) / self.scale
        outputs: Tensor = self.network(x.to(self.dtype) if x.is_floating_point() else x)
        if self.target_mean is not None:
            outputs = (outputs * self.target_scale + self.target_mean).to(self.dtype)
        return outputs


def _dtype(network: nn.Module) -> torch.dtype:
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)


def encoding_of(rows: Dataset) -> Encoding:
    """The encoding of the data; data without one is used as it is, with classes 0, 1, 2, ... or the characters of a text."""
    if rows.encoding is not None:
        return rows.encoding
    classes = tuple(rows.vocabulary or range(rows.classes))
    target = "next token" if rows.vocabulary else "class"
    return Encoding("classification", (), rows.inputs.shape[1:], target, classes)


def kind_of(rows: Dataset) -> str:
    if rows.vocabulary:
        return "tokens"
    return "bytes" if rows.inputs.dtype == np.uint8 else "numbers"


def predict_file(model: TrainedModel, path: Path) -> pd.DataFrame:
    """A row for each row of the file; the first column has the names of images, or the model's `id_column`."""
    model.check_takes_rows()
    rows, names = read_rows(path, model.encoding)
    id_column = model.encoding.id_column
    if id_column and not names:
        warnings.warn(f"{path.name} has no column '{id_column}': predictions are in the order of its rows.", stacklevel=2)
    predicted = _table(model, rows)
    if names:
        predicted.insert(0, "file" if path.is_dir() else str(id_column), names, allow_duplicates=True)
    return predicted


def _table(model: TrainedModel, rows: Any) -> pd.DataFrame:
    """`prediction`, and the probability `p_CLASS` of each class."""
    if model.task == "regression":
        return pd.DataFrame({"prediction": model.predict(rows)})
    p = model.predict_proba(rows)
    probabilities = pd.DataFrame(p, columns=[f"p_{name}" for name in model.classes])
    probabilities.insert(0, "prediction", model.decided(p))
    return probabilities
