"""Datasets and how their rows are divided among the nodes."""

from dnasa.data.datasets import (
    CONTEXT,
    DATASETS,
    Dataset,
    from_arrays,
    from_shards,
    from_text,
    from_torch,
    load,
    local_files,
)
from dnasa.data.partitions import PARTITIONS, by_label, class_table, contiguous, dirichlet, iid, partition

__all__ = [
    "CONTEXT",
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "by_label",
    "class_table",
    "contiguous",
    "dirichlet",
    "from_arrays",
    "from_shards",
    "from_text",
    "from_torch",
    "iid",
    "load",
    "local_files",
    "partition",
]
