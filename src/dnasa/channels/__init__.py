"""How messages travel: as they are, in 16 bits, compressed with memory, or lost. Every rule can use every channel."""

from typing import TYPE_CHECKING

from dnasa.channels.compressed import Codec, choco
from dnasa.channels.exchange import exchange
from dnasa.channels.faulty import faulty
from dnasa.channels.named import compression
from dnasa.extras import on_first_use

if TYPE_CHECKING:
    from dnasa.channels.codecs import sign, top_k
    from dnasa.channels.error_feedback import feedback
    from dnasa.channels.modular import moniqua

__all__ = ["Codec", "choco", "compression", "exchange", "faulty", "feedback", "moniqua", "sign", "top_k"]

PLACES = {"feedback": "error_feedback", "moniqua": "modular", "sign": "codecs", "top_k": "codecs"}
__getattr__, __dir__ = on_first_use(__name__, __all__, PLACES, "Compression")
