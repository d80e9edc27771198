"""Messages in 16 bits, while the state stays in full precision.

A node receives Q(x), its neighbour's numbers rounded. The exchange is then `x + (W - I) Q(x)` instead of `W x`: what
rounding removes stays with its owner, so the mean over the nodes, and with it mean(u) = mean(v), is preserved.
"""

from dnasa.channels.codec import transmit
from dnasa.core import Channel, Memory, Messages, Multiply, choose
from dnasa.extras import needed_by

DTYPES = ("bfloat16", "float16")


def cast(dtype: str) -> Channel:
    """Messages travel in 16 bits.

    Args:
        dtype: "bfloat16" or "float16".
    """
    choose("message dtype", dtype, dict.fromkeys(DTYPES))
    with needed_by("A message dtype of 16 bits"):
        from dnasa.channels.codecs import rounded
    codec = rounded(dtype)

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        sent, mixed = transmit(codec, messages, multiply, t)
        return tuple(w + (m - q) for w, m, q in zip(mixed, messages, sent, strict=True)), memory

    return Channel(lambda message: (), exchange, settings=dtype, size=codec.size)
