"""How messages travel: as they are, in 16 bits, compressed with memory, lost or late. Every rule can use every channel."""

from typing import TYPE_CHECKING, Any

from dnasa.channels.codec import Codec
from dnasa.channels.compressed import COMPRESSIONS, cast, choco, compression, register
from dnasa.channels.exchange import exchange
from dnasa.channels.faulty import faulty

if TYPE_CHECKING:
    from dnasa.channels.codecs import quantised, random_k, sign, top_k
    from dnasa.channels.modular import moniqua

__all__ = [
    "Codec",
    "cast",
    "choco",
    "compression",
    "exchange",
    "faulty",
    "moniqua",
    "quantised",
    "random_k",
    "register",
    "sign",
    "top_k",
]


def __getattr__(name: str) -> Any:
    """Compression needs torch, which is imported on first use."""
    for built_in in COMPRESSIONS.values():
        if built_in.function == name:
            return built_in.load()
    raise AttributeError(f"module 'dnasa.channels' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
