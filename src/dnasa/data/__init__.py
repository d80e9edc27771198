"""Datasets and how their rows are divided among the nodes."""

from dnasa.data.datasets import DATASETS, Dataset, load
from dnasa.data.partitions import iid

__all__ = ["DATASETS", "Dataset", "iid", "load"]
