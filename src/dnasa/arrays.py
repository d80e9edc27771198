"""What NumPy and torch arrays share: norms, conversions, stacking; and the compiled kernels where they were built."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Any, Protocol

import numpy as np

from dnasa.core import Array, InputError, Layout, slices

try:
    from dnasa import compiled as compiled
except ImportError:  # no C compiler at install time: everything works without it, more slowly
    compiled = None  # type: ignore[assignment]

SMALL = 4096  # numbers below which the call of a NumPy function takes longer than its work


class Shards(Protocol):
    """What this process has of vectors that several processes hold together, in torch tensors."""

    def sum(self, a: Array) -> Array:
        """The sum over these processes; it may overwrite `a`."""

    def every(self, k: int) -> Array:
        """The indices here of every k-th number of the whole vector."""

    def find(self, place: slice) -> tuple[slice, slice]:
        """What this process has of a parameter at that place of the whole vector: where it is here, and in the parameter."""


_shards: ContextVar[Shards | None] = ContextVar("shards", default=None)


@contextmanager
def on_shards(shards: Shards) -> Iterator[None]:
    """A block in which the last axis is a shard: `total`, `norm`, `unit` and `sample` are those of the whole vectors."""
    token = _shards.set(shards)
    try:
        yield
    finally:
        _shards.reset(token)


def _current_shards(a: Array) -> Shards | None:
    if isinstance(a, np.ndarray):
        return None
    import torch

    return None if torch.compiler.is_compiling() else _shards.get()  # rules on shards are not compiled


def total(a: Array) -> Array:
    """Sum over the last axis, which stays as an axis of size one."""
    part, shards = a.sum(-1)[..., None], _current_shards(a)
    return part if shards is None else shards.sum(part)


def sample(a: Array, k: int) -> Array:
    """A copy of every k-th number of the last axis: a view would keep all of them in memory."""
    shards = _current_shards(a)
    return copied(a[..., ::k]) if shards is None or k == 1 else a[..., shards.every(k)]


def whole_part(a: Array, place: slice) -> Array:
    """The parameter at that place of the last axis, which the processes of a site may hold together."""
    shards = _current_shards(a)
    if shards is None:
        return a[..., place]
    (here, inside), width = shards.find(place), place.stop - place.start
    part = a.new_zeros((*a.shape[:-1], width))
    part[..., inside] = a[..., here]
    return shards.sum(part)


def put(a: Array, place: slice, part: Array) -> None:
    """Write a parameter to its place; the inverse of `whole_part`."""
    shards = _current_shards(a)
    here, inside = (place, slice(None)) if shards is None else shards.find(place)
    a[..., here] = part[..., inside]


def norm(z: Array) -> Array:
    """Euclidean norm over the last axis, which stays as an axis of size one; squares are summed in float64."""
    if isinstance(z, np.ndarray):
        return np.sqrt(np.einsum("...d,...d->...", z, z, dtype=np.float64))[..., None].astype(z.dtype)
    return _wide_norm(z).to(z.dtype)


def _wide_norm(z: Array) -> Array:
    """The norm of torch tensors, in float64."""
    import torch

    part, shards = torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64), _current_shards(z)
    return part if shards is None else shards.sum(part**2) ** 0.5


def unit(z: Array, layout: Layout | None = None) -> Array:
    """z / |z| over the last axis, and 0 where z = 0.

    Args:
        z: A NumPy array or a torch tensor `(..., d)`.
        layout: The names and shapes of the parts of x, each of which is then normalized by itself; by default, the whole
            parameter vector of a node is.
    """
    shards = _current_shards(z)
    if layout is not None:
        if shards is not None:
            raise InputError("This rule needs whole matrices, and FSDP divides them: choose another rule.")
        return concatenate([unit(z[..., place]) for place in slices(layout)], axis=-1)
    if shards is not None or (on_gpu(z) and z.dtype.itemsize == 4):  # squares of 32-bit numbers fit into 64 bits
        return (z / nonzero(_wide_norm(z))).to(z.dtype)
    length = norm(z)
    low, high = (1e-30, 1e30) if length.dtype.itemsize == 4 else (1e-140, 1e140)
    extreme = (length < low) | (length > high)  # the squares may have overflowed or underflowed
    if on_gpu(z) or extreme.any():  # on a GPU, waiting for `any` would cost more
        largest = _library(z).amax(abs(z), -1, keepdims=True)
        z = z / _library(z).where(extreme, nonzero(largest), length**0)
        length = norm(z)
    return z / nonzero(length)


def nonzero(length: Array) -> Array:
    return length + (length == 0)


def maximum(a: Array, b: Array) -> Array:
    """The larger of two, entry by entry; NaN where a is NaN."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) else a.clamp(min=b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller of two, entry by entry; NaN where a is NaN."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) else a.clamp(max=b)


def like(a: Array, other: Array) -> Array:
    """Convert `a` to the library, dtype and device of the other."""
    if isinstance(other, np.ndarray) and isinstance(a, (np.ndarray, list, tuple, float, int)):
        return np.asarray(a, other.dtype)
    import torch

    if isinstance(other, np.ndarray):
        return a.detach().to("cpu", torch.from_numpy(other[..., :0]).dtype).numpy()
    return torch.as_tensor(a, dtype=other.dtype, device=other.device)


def empty_like(a: Array, shape: tuple[int, ...]) -> Array:
    return np.empty(shape, a.dtype) if isinstance(a, np.ndarray) else a.new_empty(shape)


def stack(arrays: Sequence[Array]) -> Array:
    return _library(arrays[0]).stack(list(arrays))


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    return _library(arrays[0]).concatenate(list(arrays), axis)


def _library(a: Array) -> Any:
    """NumPy or torch, whichever the array belongs to."""
    if isinstance(a, np.ndarray):
        return np
    import torch

    return torch


def adds_up(a: Array) -> bool:
    """Whether a sum over all numbers is finite: if it is, they are; if not, they may also be large."""
    if isinstance(a, np.ndarray) and a.size < SMALL:
        return isfinite(np.vdot(a, a))  # half the time of `sum`
    return isfinite(a.sum())


def moderate(x: Array) -> Array:
    """Whether each row is far from overflow, below 1e51 (float32: 1e6): a function that is not finite there has a bug."""
    limit = float(np.finfo(dtype_name(x)).max) ** (1 / 6)
    return (abs(x) < limit).all(-1)


def to_numpy(a: Array) -> np.ndarray:
    return a if isinstance(a, np.ndarray) else a.detach().cpu().numpy()


def copied(a: Array) -> Array:
    """A copy, detached from autograd."""
    if isinstance(a, np.ndarray):
        return a.copy()
    return a.detach().clone() if hasattr(a, "detach") else np.array(a)


def contiguous(a: Array) -> Array:
    """C-contiguous and detached; what is not an array becomes a NumPy array."""
    if not hasattr(a, "detach"):
        return np.ascontiguousarray(a)
    return a if a.is_contiguous() and not a.requires_grad else a.detach().contiguous()


def overlap(a: Array, b: Array) -> bool:
    """Whether writing to b, which is contiguous and of the same library, may change a."""
    if isinstance(a, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return bool(0 <= a.data_ptr() - b.data_ptr() < b.nbytes)


def crc32(*parts: Array | bytes, start: int = 0) -> int:
    """The CRC-32 of the bytes of these arrays, one after the other, continued from `start`."""
    for part in parts:
        start = zlib.crc32(part if isinstance(part, bytes) else _memory(part), start)
    return start


def checksum(*parts: Array | str) -> str:
    """The CRC-32 of texts and of arrays with their dtypes and shapes, in hexadecimal digits; the same in every process."""
    value = 0
    for part in parts:
        if isinstance(part, str):
            value = crc32(f"{part}\n".encode(), start=value)
        else:
            value = crc32(f"{dtype_name(part)} {tuple(part.shape)}\n".encode(), part, start=value)
    return f"{value:08x}"


def _memory(a: Array) -> memoryview:
    """The bytes of an array, whatever its dtype."""
    if isinstance(a, np.ndarray):
        return np.ascontiguousarray(a).reshape(-1).view(np.uint8).data
    import torch

    return a.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().data


def on_gpu(a: Array) -> bool:
    return bool(getattr(a, "is_cuda", False))


def dtype_name(a: Array) -> str:
    """The name of the dtype, such as "float32", in both libraries."""
    return str(a.dtype).removeprefix("torch.")


def as_floats(a: Array) -> Array:
    """Convert whole numbers to float64 and detach from autograd; other numbers stay as they are."""
    if isinstance(a, np.ndarray):
        return a if a.dtype.kind == "f" else a.astype(np.float64)
    return a.detach() if a.is_floating_point() else a.double()
