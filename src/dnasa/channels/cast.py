"""Messages in 16 bits, while the state stays in full precision.

A node receives Q(x), its neighbour's numbers rounded. The exchange is then `x + (W - I) Q(x)` instead of `W x`: what
rounding removes stays with its owner, so the mean over the nodes, and with it mean(u) = mean(v), is preserved.
"""

from typing import Any

import numpy as np

from dnasa.core import Array, Channel, Memory, Messages, Multiply, choose
from dnasa.extras import needed_by

DTYPES = ("bfloat16", "float16")


def cast(dtype: str) -> Channel:
    """Messages travel in 16 bits.

    Args:
        dtype: "bfloat16" or "float16".
    """
    choose("message dtype", dtype, dict.fromkeys(DTYPES))
    with needed_by("A message dtype of 16 bits"):
        import torch  # noqa: F401

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        payloads = tuple(encode(m, dtype) for m in messages)
        decoders = [decoder(m, dtype) for m in messages]
        received = (decode(payload) for decode, payload in zip(decoders, payloads, strict=True))
        mixed = multiply(payloads, decoders)
        return tuple(w + (m - q) for w, m, q in zip(mixed, messages, received, strict=True)), memory

    return Channel(lambda message: (), exchange, settings=dtype, size=lambda m: 2 * m.shape[-1])


def encode(a: Array, dtype: str) -> Array:
    """Rounded to 16 bits; as int16 for NumPy, which has no bfloat16."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a
    if dtype == "float16":  # its range ends at 65504: the rest of a larger number stays with its owner too
        tensor = tensor.clamp(-65504, 65504)
    rounded = tensor.to(getattr(torch, dtype))
    return rounded.view(torch.int16).numpy() if isinstance(a, np.ndarray) else rounded


def decoder(like: Array, dtype: str) -> Any:
    """From 16 bits back to the library and dtype of `like`."""

    def decode(payload: Array) -> Array:
        if not isinstance(payload, np.ndarray):
            return payload.to(like.dtype)
        import torch

        return torch.from_numpy(payload).view(getattr(torch, dtype)).double().numpy().astype(like.dtype)

    return decode
