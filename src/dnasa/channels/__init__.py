"""How messages travel: as they are, in 16 bits, compressed with memory, or lost. Every rule can use every channel."""

from typing import TYPE_CHECKING, Any

from dnasa.channels.compressed import Codec, choco
from dnasa.channels.exchange import exchange
from dnasa.channels.faulty import faulty
from dnasa.channels.named import compression
from dnasa.extras import needed_by

if TYPE_CHECKING:
    from dnasa.channels.codecs import sign, top_k
    from dnasa.channels.error_feedback import feedback
    from dnasa.channels.modular import moniqua

__all__ = ["Codec", "choco", "compression", "exchange", "faulty", "feedback", "moniqua", "sign", "top_k"]


def __getattr__(name: str) -> Any:
    """Compression needs torch, which is imported on first use."""
    if name in ("feedback", "moniqua", "sign", "top_k"):
        with needed_by("Compression"):
            from dnasa.channels import codecs, error_feedback, modular
        return getattr({"feedback": error_feedback, "moniqua": modular}.get(name, codecs), name)
    raise AttributeError(f"module 'dnasa.channels' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
