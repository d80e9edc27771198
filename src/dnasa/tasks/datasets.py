"""Known datasets, how the user's own were read, and how rows are divided among the nodes."""

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
    """Every known dataset: its source, size and class shares, or how to get it. Nothing is downloaded."""
    rows = []
    for name in DATASETS:
        available = name == "digits" or local_files(name) or list(cache_folder().glob(f"{name}-openml-*"))
        if not available:
            how = "says how to get it" if name == "shakespeare" else "downloads it"
            rows.append({"name": name, "source": f"missing: `dnasa data {name}` {how}"})
            continue
        try:
            data = load(name)
            rows.append({"name": name, "source": data.source} | sizes(data).iloc[0].to_dict())
        except InputError as error:
            rows.append({"name": name, "source": f"cannot be read: {error}"})
    return pd.DataFrame(rows).fillna("")


def sizes(data: Dataset) -> pd.DataFrame:
    """Rows, inputs and classes, in one row."""
    row = {
        "training rows": f"{len(data.labels):,}",
        "test rows": f"{len(data.test_labels):,}",
        "inputs": " x ".join(map(str, data.inputs.shape[1:])),
        "classes": str(data.classes),
        "class shares": "" if data.vocabulary else " ".join(f"{100 * share:.1f}" for share in _shares(data)) + " %",
    }
    return pd.DataFrame([row])


def _shares(data: Dataset) -> np.ndarray:
    return np.bincount(data.labels, minlength=data.classes) / len(data.labels)


# ---------------------------------------------------------------- the user's own rows


def reading(data: Dataset) -> dict[str, str]:
    """How a file or folder was read: its rows, its target, and what was done to its columns."""
    encoding = data.encoding
    assert encoding is not None
    counts = [sum(feature.kind == kind for feature in encoding.features) for kind in ("number", "text")]
    columns = f"{counts[0]} of numbers, {counts[1]} of text, and the target" if encoding.features else ""
    train, test = len(data.labels), sum(data.test_counts) or len(data.test_labels)
    rows = {
        "rows": f"{train + test:,}: {train:,} for training, {test:,} for testing{', of all nodes' * bool(data.test_counts)}",
        **({"columns": columns} if columns else {"one row": " x ".join(map(str, encoding.shape))}),
        "target": encoding.target,
        "task": encoding.task,
    }
    if encoding.task == "classification":
        shares = [f"{name} ({100 * share:.1f} %)" for name, share in zip(encoding.classes, _shares(data), strict=True)]
        rows["classes"] = f"{data.classes}: {first_of(shares, MOST_CLASSES)}"
    if encoding.target_mean is not None and encoding.target_scale is not None:
        rows["target's mean"] = f"{encoding.target_mean[0]:.5g}, standard deviation {encoding.target_scale[0]:.5g}"
    return rows | {"inputs of the model": " ".join(preparation(data)) or "bytes, from -2 to 2"}


# ---------------------------------------------------------------- the nodes' rows


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
        own = [encoding.target_values(data.labels[shard, 0]) for shard in shards]
        columns = {"mean target": [float(y.mean()) for y in own], "deviation": [float(y.std()) for y in own]}
    return pd.DataFrame({**nodes, **columns, "total": [len(shard) for shard in shards]})
