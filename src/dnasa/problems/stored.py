"""Rows of data on a device, without using more memory than the source."""

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from dnasa.arrays import checksum
from dnasa.core import Array, InputError

CENTRE, SPREAD = 0.5, 0.25  # images of bytes become (x / 255 - CENTRE) / SPREAD


class DeviceRows:
    """The rows of an array. Overlapping windows of one array stay windows: only that array is copied to the device."""

    def __init__(self, name: str, array: Array, device: torch.device, dtype: torch.dtype):
        source = np.asarray(array)
        if not source.ndim or source.dtype.kind not in "fiub":
            raise InputError(f"{name} must be an array of numbers with a row for each sample, not {source.dtype}.")
        low, high = byte_bounds(source)
        self.windows = high - low < source.nbytes and min(source.strides) >= 0
        flat = as_strided(source, ((high - low) // source.itemsize,), (source.itemsize,)) if self.windows else source
        kept = as_tensor(flat)
        self.memory = kept.to(device, dtype if kept.is_floating_point() else kept.dtype)
        strides = [stride // source.itemsize for stride in source.strides]
        self.tensor = torch.as_strided(self.memory, source.shape, strides) if self.windows else self.memory

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Tensor) -> Tensor:
        chosen = self.tensor.index_select(0, rows.reshape(-1))  # copies whole rows: half the time of indexing
        return chosen.view(*rows.shape, *self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.tensor.shape[1:])

    def checksum(self, rows: np.ndarray) -> str:
        """The checksum of these rows; for windows, of their positions and the memory they cover."""
        if not self.windows:
            return checksum(self.tensor[torch.as_tensor(rows)])
        first, last = self.tensor[int(rows.min())], self.tensor[int(rows.max())]
        begin = first.storage_offset()
        end = last.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(last.shape, last.stride(), strict=True))
        return checksum(rows - rows.min(), str(self.shape), self.memory[begin:end])


def as_tensor(array: np.ndarray) -> Tensor:
    """Convert to a tensor; unsigned numbers above 8 bits become signed ones, since torch cannot compute with them."""
    if array.dtype.kind == "u" and array.itemsize > 1:
        return torch.from_numpy(array.astype(np.int32 if array.itemsize == 2 else np.int64))
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def as_inputs(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert rows to inputs: bytes are images, scaled to -2 to 2; other whole numbers are tokens."""
    if rows.dtype is torch.uint8:
        return (rows.to(dtype) / 255 - CENTRE) / SPREAD
    return rows if rows.is_floating_point() else rows.long()


def as_targets(rows: Tensor) -> Tensor:
    """Convert whole numbers to int64, which torch's losses want; other types stay."""
    return rows if rows.is_floating_point() or rows.dtype is torch.bool else rows.long()
