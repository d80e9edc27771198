"""Known datasets, how data was read, and how its rows are divided among the nodes."""

from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from dnasa.checks import digits
from dnasa.data import DATASETS, Dataset
from dnasa.data.columns import MISSING
from dnasa.data.datasets import find_source
from dnasa.data.partitions import class_table
from dnasa.data.summaries import Moments, Summary
from dnasa.tasks.sources import first_of, preparation

MOST_CLASSES = 40  # that are listed


def datasets() -> pd.DataFrame:
    """Every known dataset, and where it is read from. Nothing is read or downloaded."""
    sources = {name: find_source(name) or f"missing: `dnasa data {name}` says how to get it" for name in DATASETS}
    return pd.DataFrame({"name": sources.keys(), "source": sources.values()})


def reading(data: Dataset) -> dict[str, str]:
    """How data was read: its rows, its target, and what was done to its columns."""
    encoding, shape = data.encoding, " x ".join(map(str, data.inputs.shape[1:]))
    train, test = len(data.labels), sum(data.test_counts) or len(data.test_labels)
    where = ", of all nodes" if data.test_counts else ""
    rows = {"rows": f"{train + test:,}: {train:,} for training, {test:,} for testing{where}", "one row": shape}
    if encoding is not None:
        if encoding.features:
            kinds = Counter(feature.kind for feature in encoding.features)
            rows["columns"] = f"{kinds['number']} of numbers, {kinds['text']} of text, and the target"
        rows |= {"target": encoding.target, "task": encoding.task}
        rows["inputs of the model"] = " ".join(preparation(data)) or "bytes, from -2 to 2"
    if data.task == "classification":
        rows["classes"] = f"{data.classes}: {first_of(_class_shares(data), MOST_CLASSES)}"
    elif encoding and encoding.target_mean is not None and encoding.target_scale is not None:
        rows["target's mean"] = f"{encoding.target_mean[0]:.5g}, standard deviation {encoding.target_scale[0]:.5g}"
    return rows


def _class_shares(data: Dataset) -> list[str]:
    """Each class with its share of the training rows; none for the characters of a text."""
    if data.vocabulary:
        return []
    shares = np.bincount(data.labels, minlength=data.classes) / len(data.labels)
    return [f"{name} ({100 * share:.1f} %)" for name, share in zip(data.class_names, shares, strict=True)]


def cohort(data: Dataset) -> pd.DataFrame:
    """What the sites told each other of their training rows: for each column a line, or one for each category and class."""
    sites = [*data.sites, reduce(Summary.merged, data.sites)._replace(name="all")]
    lines = {"training rows": [f"{site.rows:,}" for site in sites], "test rows": [f"{site.tests:,}" for site in sites]}

    def add(line: str, counts: list[int], none: str = "0") -> None:
        lines[line] = [f"{n:,} ({100 * n / site.rows:.1f} %)" if n else none for n, site in zip(counts, sites, strict=True)]

    def spread(name: str, moments: list[Moments]) -> None:
        if any(m.n for m in moments):
            texts = [f"{digits(m.mean, 4)} ({digits(m.deviation, 3)})" if m.n else "none" for m in moments]
            lines[f"{name}, mean (SD)"] = texts

    target = sites[0].target.name
    if data.task == "regression":
        spread(target, [site.target.moments for site in sites])
    for name in data.class_names if data.task == "classification" else ():
        add(f"{target}: {name}", [site.target.rows_of_classes.get(name, 0) for site in sites])
    for columns in zip(*(site.columns for site in sites), strict=True):
        name = columns[0].name
        spread(name, [column.moments for column in columns])
        for word in sorted({word for column in columns for word in column.counts}, key=lambda word: (word == MISSING, word)):
            title, none = (f"{name} missing", "0") if word == MISSING else (f"{name}: {word}", f"<{sites[0].min_count}")
            add(title, [column.counts.get(word, 0) for column in columns], none)
    return pd.DataFrame([[line, *cells] for line, cells in lines.items()], columns=["", *(site.name for site in sites)])


def division(data: Dataset, shards: list[np.ndarray]) -> pd.DataFrame:
    """How many rows of each class each node has; of a text, which windows; of a regression, its targets."""
    table: dict[str, Any] = {"site": [site.name for site in data.sites]} if data.sites else {"node": range(len(shards))}
    if data.vocabulary:
        table |= {"first": [shard[0] for shard in shards], "last": [shard[-1] for shard in shards]}
    elif data.task == "classification":
        counts = class_table(data.labels, shards, data.classes)
        table |= {str(name): counts[:, place] for place, name in enumerate(data.class_names)}
    elif data.encoding:
        targets = [data.encoding.target_values(data.labels[shard, 0]) for shard in shards]
        table |= {"mean target": [float(y.mean()) for y in targets], "deviation": [float(y.std()) for y in targets]}
    return pd.DataFrame({**table, "total": [len(shard) for shard in shards]})
