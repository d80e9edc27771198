"""Known datasets, and how a dataset is divided among the nodes: tables and a plot."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dnasa.core import InputError
from dnasa.data import DATASETS, Dataset, class_table, load
from dnasa.data.datasets import cache_folder, local_files
from dnasa.plots import finish, panels


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
            rows.append({"name": name, "source": data.source} | describe(data).iloc[0].to_dict())
        except InputError as error:
            rows.append({"name": name, "source": f"cannot be read: {error}"})
    return pd.DataFrame(rows).fillna("")


def describe(data: Dataset) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "training rows": f"{len(data.labels):,}",
                "test rows": f"{len(data.test_labels):,}",
                "inputs": " x ".join(map(str, data.inputs.shape[1:])),
                "classes": str(data.classes),
                "class shares": "" if data.vocabulary else _shares(data),
            }
        ]
    )


def _shares(data: Dataset) -> str:
    shares = np.bincount(data.labels, minlength=data.classes) / len(data.labels)
    return " ".join(f"{100 * share:.1f}" for share in shares) + " %"


def division(data: Dataset, shards: list[np.ndarray]) -> pd.DataFrame:
    """How many rows of each class each node has; of a text, which windows."""
    if data.vocabulary:
        ends = {"first": [shard[0] for shard in shards], "last": [shard[-1] for shard in shards]}
        return pd.DataFrame({"node": range(len(shards)), **ends, "total": [len(shard) for shard in shards]})
    counts = class_table(data.labels, shards, data.classes)
    table = pd.DataFrame(counts, columns=[str(c) for c in range(data.classes)])
    table.insert(0, "node", range(len(shards)))
    return table.assign(total=counts.sum(1))


def draw(table: pd.DataFrame, name: str, how: str) -> Figure:
    figure, axes = panels(1, width=6.5)
    axis, bottom = axes[0, 0], np.zeros(len(table))
    for column in table.columns[1:-1]:
        axis.bar(table.node, table[column], bottom=bottom, label=f"class {column}")
        bottom += table[column].to_numpy()
    finish(axis, "node", "training rows")
    axis.set_title(f"{name}, {how}")
    axis.legend(fontsize=7, ncol=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
