"""Small .npy and .npz files as bytes."""

import io
import zipfile

import numpy as np

from dnasa.core import Array


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: Array) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def archive(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


X, Y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
ENORMOUS = npy(X).replace(b"(10, 2), }            ", b"(10000000000000, 2), }")  # the header of 146 TiB
