"""Labelled data, ready for training: float inputs, integer labels, a training and a test part."""

from typing import NamedTuple

import numpy as np

from dnasa.core import choose


class Dataset(NamedTuple):
    name: str
    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray

    @property
    def classes(self) -> int:
        return int(max(self.labels.max(), self.test_labels.max())) + 1


def digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    inputs = (inputs / 16).astype(np.float32)
    test = np.arange(len(labels)) % 5 == 4
    return Dataset("digits", inputs[~test], labels[~test], inputs[test], labels[test])


DATASETS = {"digits": digits}


def load(name: str) -> Dataset:
    """The dataset of that name."""
    return choose("data", name, DATASETS)()
