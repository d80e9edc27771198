"""Known datasets, how data was read, and how its rows are divided among the nodes."""

from typing import Any

import numpy as np
import pandas as pd

from dnasa.core import InputError
from dnasa.data import DATASETS, Dataset, load
from dnasa.data.datasets import cache_folder, local_files
from dnasa.data.partitions import class_table
from dnasa.tasks.sources import first_of, preparation

MOST_CLASSES = 40  # that are listed


def datasets() -> pd.DataFrame:
    """Every known dataset: its source and size, or how to get it. Nothing is downloaded."""
    rows = []
    for name in DATASETS:
        source, sizes = f"missing: `dnasa data {name}` gets it, or says how", {}
        if name == "digits" or local_files(name) or list(cache_folder().glob(f"{name}-openml-*")):
            try:
                data = load(name)
                source, sizes = data.source, reading(data)
            except InputError as error:
                source = f"cannot be read: {error}"
        rows.append({"name": name, "source": source} | sizes)
    return pd.DataFrame(rows).fillna("")


def reading(data: Dataset) -> dict[str, str]:
    """How data was read: its rows, its target, and what was done to its columns."""
    encoding, shape = data.encoding, " x ".join(map(str, data.inputs.shape[1:]))
    train, test = len(data.labels), sum(data.test_counts) or len(data.test_labels)
    of_all = ", of all nodes" * bool(data.test_counts)
    rows = {"rows": f"{train + test:,}: {train:,} for training, {test:,} for testing{of_all}", "one row": shape}
    if encoding is not None:
        counts = [sum(feature.kind == kind for feature in encoding.features) for kind in ("number", "text")]
        if encoding.features:
            rows["columns"] = f"{counts[0]} of numbers, {counts[1]} of text, and the target"
        rows |= {"target": encoding.target, "task": encoding.task}
        rows["inputs of the model"] = " ".join(preparation(data)) or "bytes, from -2 to 2"
    if data.task == "classification":
        names = encoding.classes if encoding else range(data.classes)
        counted: Any = [] if data.vocabulary else np.bincount(data.labels, minlength=data.classes) / train
        shares = [f"{name} ({100 * share:.1f} %)" for name, share in zip(names, counted, strict=False)]
        rows["classes"] = f"{data.classes}: {first_of(shares, MOST_CLASSES)}"
    elif encoding and encoding.target_mean is not None and encoding.target_scale is not None:
        rows["target's mean"] = f"{encoding.target_mean[0]:.5g}, standard deviation {encoding.target_scale[0]:.5g}"
    return rows


def division(data: Dataset, shards: list[np.ndarray]) -> pd.DataFrame:
    """How many rows of each class each node has; of a text, which windows; of a regression, its targets."""
    encoding, columns = data.encoding, dict[str, Any]()
    nodes: dict[str, Any] = {"site": [site.name for site in data.sites]} if data.sites else {"node": range(len(shards))}
    if data.vocabulary:
        columns = {"first": [shard[0] for shard in shards], "last": [shard[-1] for shard in shards]}
    elif data.task == "classification":
        names = encoding.classes if encoding else range(data.classes)
        counts = class_table(data.labels, shards, data.classes)
        columns = {str(name): counts[:, place] for place, name in enumerate(names)}
    elif encoding:
        targets = [encoding.target_values(data.labels[shard, 0]) for shard in shards]
        columns = {"mean target": [float(y.mean()) for y in targets], "deviation": [float(y.std()) for y in targets]}
    return pd.DataFrame({**nodes, **columns, "total": [len(shard) for shard in shards]})
