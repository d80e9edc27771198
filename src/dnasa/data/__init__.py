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
from dnasa.data.validation import divide, divide_validation, hold_out, hold_out_of_each

__all__ = [
    "CONTEXT",
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "by_label",
    "class_table",
    "contiguous",
    "dirichlet",
    "divide",
    "divide_validation",
    "from_arrays",
    "from_shards",
    "from_text",
    "from_torch",
    "hold_out",
    "hold_out_of_each",
    "iid",
    "load",
    "local_files",
    "partition",
]
