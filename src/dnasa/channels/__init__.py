"""How messages travel: as they are, in 16 bits, compressed with memory, lost or late. Every rule can use every channel."""

from dnasa.channels.cast import cast
from dnasa.channels.compressed import Codec, choco, top_k
from dnasa.channels.exchange import exchange
from dnasa.channels.faulty import faulty

__all__ = ["Codec", "cast", "choco", "exchange", "faulty", "top_k"]
