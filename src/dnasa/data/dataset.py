"""What is trained on: rows for training and for testing."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnasa.data.encoding import Encoding
from dnasa.data.ledger import Ledger
from dnasa.data.summaries import Summary

TESTED = 64  # windows of each node, at most, in a test or a validation of tokens


class Dataset(NamedTuple):
    """Training and test rows with labels 0, 1, 2, ...

    Of a text, inputs and labels are windows of tokens, the labels one token further; a token is a position in `vocabulary`.
    Images of bytes stay bytes, and become floats a batch at a time. The labels of a regression are standardized targets
    `(rows, 1)`.

    Attributes:
        name: The name of the dataset, the file or the folder.
        inputs: The training inputs, a row for each sample, encoded and scaled already.
        labels: Their labels.
        test_inputs: The test inputs; where every node has its own, those of this process's nodes, one after the other.
        test_labels: Their labels.
        source: Where the rows come from, for messages.
        vocabulary: The characters of a text, or its tokens.
        encoding: How inputs and labels were made from the user's rows.
        test_counts: The number of test rows of each node of the network, where every node tests on its own.
        sites: Of shards and tokens, the names and training rows of all nodes, in other processes too; of shards, all that the
            sites told each other of their rows.
        warnings: Sentences about sites whose columns do not look like the others'.
        class_counts: Of shards, the training rows of each class at all nodes, in other processes too.
        ledger: Of a site's shard, what it has told of its rows.
        row_numbers: Of shards, where each row of `inputs`, then of `test_inputs`, is in its own file, from 1 below the header.
        shards: Of token files and folders of texts, which windows are whose.
        altered: What its files hold instead of the known rows: a sample, or images as JPEG.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    source: str = "arrays"
    vocabulary: Sequence[str] = ""
    encoding: Encoding | None = None
    test_counts: tuple[int, ...] = ()
    sites: tuple[Summary, ...] = ()
    warnings: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    ledger: Ledger | None = None
    row_numbers: Sequence[int] = ()
    shards: Sequence[np.ndarray] = ()
    altered: str = ""

    @property
    def training_rows(self) -> int:
        """How many training rows all nodes have, the same in all processes."""
        return sum(site.rows for site in self.sites) or len(self.labels)

    @property
    def informative(self) -> int:
        """How many training rows of all nodes are not in the most frequent class; of a regression, all."""
        sites = [Counter(site.target.rows_of_classes) for site in self.sites]
        counts = sum(sites, Counter()) if self.sites else Counter(self.labels.ravel().tolist())
        if self.encoding is not None and self.encoding.task == "regression":
            return self.training_rows
        return counts.total() - max(counts.values(), default=0)

    @property
    def title(self) -> str:
        """Its name, and of a sample or altered rows what they are and how many."""
        count = len(self.labels) + (sum(self.test_counts) or len(self.test_labels))
        return f"{self.name} ({self.altered}, {count:,} rows)" if self.altered else self.name

    @property
    def context(self) -> int:
        """The length of a text's windows; 0 of other data."""
        return self.labels.shape[1] if self.vocabulary else 0

    @property
    def task(self) -> str:
        return self.encoding.task if self.encoding else "classification"

    @property
    def strata(self) -> np.ndarray | None:
        """The classes of the training rows, where rows are held out by class: in classifications of the user's rows."""
        return self.labels if self.encoding and self.task == "classification" else None

    @property
    def classes(self) -> int:
        if self.encoding is not None:
            return len(self.encoding.classes)
        return len(self.vocabulary) or int(max(self.labels.max(), self.test_labels.max())) + 1

    @property
    def class_names(self) -> Sequence[Any]:
        return self.encoding.classes if self.encoding else range(self.classes)

    @property
    def baseline(self) -> float | None:
        """The test accuracy of the most frequent class; None without classes, or where other processes have test rows."""
        labels = np.asarray(self.test_labels)
        are_classes = labels.ndim == 1 and labels.dtype.kind in "iu"
        if sum(self.test_counts) > len(labels) or not len(labels) or not are_classes:
            return None
        return float(np.unique(labels, return_counts=True)[1].max() / len(labels))

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a row."""
        return self.encoding.outputs if self.encoding else self.classes
