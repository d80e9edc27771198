"""Masks that cancel in the sum over all processes (Bonawitz et al., 2017, without recovery of those that drop out).

Each pair of processes agrees on a key by X25519, fresh for each view of a run, and expands it by ChaCha20. The first of the
pair adds the stream to what it sends, the second subtracts it, in integers modulo 2^16 or 2^64.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from dnasa.core import RunError
from dnasa.extras import needed_by

with needed_by("private"):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE = struct.Struct("<IIQ")  # the first block of the stream; the network and what is added up there; how often it was before
INFO = b"dnasa: masks of a sum"


@dataclass(frozen=True)
class Masks:
    """The keys that a process shares with each other one, and how often it has used them. No stream is used twice."""

    rank: int
    keys: dict[int, bytes] = field(repr=False)
    network: int = 0
    used: Counter[int] = field(default_factory=Counter)
    networks: Iterator[int] = field(default_factory=lambda: count(1))

    def separate(self) -> "Masks":
        """Masks of another network of the same processes, which all of them make in the same order."""
        return replace(self, network=next(self.networks), used=Counter())

    def add(self, codes: np.ndarray, purpose: int) -> None:
        """Add masks to integers, in place; all processes call it for the same sums of a purpose (0 to 3), in the same order."""
        nonce = NONCE.pack(0, 4 * self.network + purpose, self.used[purpose])
        self.used[purpose] += 1
        numbers = codes.view(f"u{codes.itemsize}")
        for peer, key in self.keys.items():
            stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(codes.nbytes))
            combine = np.add if self.rank < peer else np.subtract
            combine(numbers, np.frombuffer(stream, numbers.dtype).reshape(codes.shape), out=numbers)


def agreed(rank: int, allgather_text: Callable[[str], list[str]], blamed: Callable[[int, str], RunError]) -> Masks:
    """Agree with each other process on a key: all send their public keys, over connections that tell who sent them."""
    own, keys = X25519PrivateKey.generate(), {}
    texts = allgather_text(own.public_key().public_bytes_raw().hex())
    for peer, text in enumerate(texts):
        if peer == rank:
            continue
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(text)))
        except ValueError as error:
            raise blamed(peer, "its public key cannot be used") from error
        both = "".join(texts[process] for process in sorted((rank, peer)))
        keys[peer] = HKDF(SHA256(), 32, salt=None, info=INFO + both.encode()).derive(secret)
    return Masks(rank, keys)
