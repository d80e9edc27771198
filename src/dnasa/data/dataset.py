"""What is trained on: rows for training and for testing."""

from typing import NamedTuple

import numpy as np

from dnasa.data.encoding import Encoding


class Site(NamedTuple):
    """Where a node's rows come from: `name` is that of its file or folder, `rows` how many of them are for training."""

    name: str
    rows: int


class Dataset(NamedTuple):
    """Training and test rows with labels 0, 1, 2, ...; `name` is that of the dataset, the file or the folder.

    Of a text, inputs and labels are windows of character numbers, the labels one character further; a number is the position
    in `vocabulary`. Images of bytes stay bytes, and become floats a batch at a time. `encoding` says how inputs and labels
    were made from the user's rows: inputs are standardised already. The labels of a regression are standardised targets
    `(rows, 1)`, those of several labels zeros and ones `(rows, labels)`. `notes` are sentences about what was left out,
    `warnings` about sites whose columns do not look like the others'. Where every node tests on rows of its own,
    `test_counts` are their numbers at all nodes; the test rows here are those of the nodes of this process, one after the
    other. Of shards, `sites` and `class_counts`, the training rows of each class, are of all nodes, in other processes too.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    source: str = "arrays"
    vocabulary: str = ""
    encoding: Encoding | None = None
    notes: tuple[str, ...] = ()
    test_counts: tuple[int, ...] = ()
    sites: tuple[Site, ...] = ()
    warnings: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()

    def __repr__(self) -> str:
        what = f"{self.classes} classes" if self.task == "classification" else self.task
        rows = f"{len(self.labels):,} training and {len(self.test_labels):,} test rows"
        return f"Dataset {self.name}: {rows} of shape {self.inputs.shape[1:]}, {what}, from {self.source}"

    @property
    def task(self) -> str:
        return self.encoding.task if self.encoding else "classification"

    @property
    def classes(self) -> int:
        if self.encoding is not None:
            return len(self.encoding.classes)
        return len(self.vocabulary) or int(max(self.labels.max(), self.test_labels.max())) + 1

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a row."""
        return self.encoding.outputs if self.encoding else self.classes
