"""Checksums of arrays, which identify data and messages in all processes."""

import zlib

import numpy as np
import pytest
import torch

from dnasa.arrays import checksum, crc32
from dnasa.core import Array


def test_the_crc_of_arrays_is_that_of_their_bytes() -> None:
    numbers = np.arange(12.0).reshape(3, 4).T
    tensor = torch.arange(5).bfloat16()
    bits = tensor.view(torch.int16).numpy()
    expected = zlib.crc32(numbers.tobytes() + bits.tobytes() + b"end")
    assert crc32(numbers, tensor, b"end") == expected
    assert crc32(tensor, b"end", start=crc32(torch.tensor(numbers))) == expected


@pytest.mark.parametrize("other", [np.arange(6.0) + 1, np.arange(6.0).reshape(2, 3), np.arange(6, dtype=np.float32), "text"])
def test_checksums_see_numbers_shapes_and_dtypes(other: Array) -> None:
    assert checksum(np.arange(6.0), "a") == checksum(torch.arange(6.0, dtype=torch.float64), "a")
    assert checksum(other, "a") != checksum(np.arange(6.0), "a") != checksum(np.arange(6.0), "b")
