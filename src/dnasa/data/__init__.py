"""Datasets and how their rows are divided among the nodes."""

from dnasa.data.dataset import Dataset
from dnasa.data.datasets import DATASETS
from dnasa.data.encoding import Encoding, Feature
from dnasa.data.loading import from_arrays, from_frame, load
from dnasa.data.partitions import class_table, divide, divide_validation, hold_out, partition
from dnasa.data.reading import from_text
from dnasa.data.shards import from_shards

__all__ = [
    "DATASETS",
    "Dataset",
    "Encoding",
    "Feature",
    "class_table",
    "divide",
    "divide_validation",
    "from_arrays",
    "from_frame",
    "from_shards",
    "from_text",
    "hold_out",
    "load",
    "partition",
]
