"""Random numbers: what node i draws at step t is a function of (seed, i, t) alone.

So the simulator, real processes and a resumed run use the same samples, however the nodes are distributed over processes.
Steps are drawn in blocks: each (seed, node, block) has its own SFC64 stream, whose initial state is a hash of the three.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dnasa.arrays import compiled
from dnasa.core import Array

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment
MASK = (1 << 64) - 1


def scramble(word: Any) -> Any:
    """SplitMix64's finaliser, for an int or an array of uint64: every output bit depends on every input bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Streams:
    """One generator that is reset to the stream of (seed, node, block): much cheaper than a generator for each stream.

    Streams of different purposes (batches, test data, ...) are independent of each other.
    """

    def __init__(self, purpose: str):
        self.purpose = int.from_bytes(purpose.encode()[:8].ljust(8), "little")
        self.bits = np.random.SFC64(0)
        self.generator = np.random.Generator(self.bits)

    def at(self, seed: int, node: int, block: int) -> np.random.Generator:
        """The generator at the start of this stream; valid until the next call."""
        return self._set(np.array(self._words(seed, node, block), dtype=np.uint64))

    def each(self, seed: int, nodes: Sequence[int], block: int) -> Iterator[np.random.Generator]:
        """`at` for each of many nodes, with all streams hashed in one operation."""
        return map(self._set, self.words(seed, nodes, block))

    def words(self, seed: int, nodes: Sequence[int], block: int) -> np.ndarray:
        """The initial states of the streams of these nodes, (nodes, 4)."""
        words = self._words(seed, np.asarray(nodes, dtype=np.uint64), block)
        return np.stack(np.broadcast_arrays(*words), axis=-1).astype(np.uint64)

    def _words(self, seed: int, node: Any, block: int) -> tuple[Any, ...]:
        key = scramble((self.purpose + GOLDEN) & MASK)
        for part in (seed, block, node):
            key = scramble((key + GOLDEN & MASK) + part & MASK)
        return (*(scramble(key + (j * GOLDEN & MASK) & MASK) for j in (1, 2, 3)), 1)

    def _set(self, words: np.ndarray) -> np.random.Generator:
        self.bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
        return self.generator


class Samples:
    """Samples of all steps, drawn in blocks with `draw(generator, node, length) -> (length, ...)`.

    `size` is how many numbers one sample has.
    """

    def __init__(self, purpose: str, draw: Callable[[np.random.Generator, int, int], np.ndarray], size: int):
        self.streams = Streams(purpose)
        self.draw = draw
        # The length of a block depends on the size of a sample alone, not on how many nodes this process holds.
        self.length = max(1, min(64, 65536 // max(1, size)))
        self.cached: tuple[object, Array] = (None, None)

    def at(self, seeds: Sequence[int], nodes: Sequence[int], t: int, ready: Callable = lambda block: block) -> Array:
        """The samples of step t, (seeds, nodes, ...); `ready` converts a whole block once, e.g. to a device."""
        block, row = divmod(t, self.length)
        key = (tuple(seeds), tuple(nodes) if not isinstance(nodes, range) else nodes, block)
        if self.cached[0] != key:
            self.cached = (key, ready(self._block(seeds, nodes, block)))
        return self.cached[1][row]

    def _block(self, seeds: Sequence[int], nodes: Sequence[int], block: int) -> np.ndarray:
        """(length, seeds, nodes, ...): the samples of a step are contiguous."""
        out: Any = None
        for s, seed in enumerate(seeds):
            for k, (generator, node) in enumerate(zip(self.streams.each(seed, nodes, block), nodes, strict=True)):
                drawn = self.draw(generator, node, self.length)
                if out is None:
                    out = np.empty((self.length, len(seeds), len(nodes), *drawn.shape[1:]), drawn.dtype)
                out[:, s, k] = drawn
        return out


class Normals(Samples):
    """Standard normal samples of this shape; the same numbers with and without compiled code."""

    def __init__(self, purpose: str, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype = shape, dtype
        super().__init__(purpose, self._normal, int(np.prod(shape)))

    def _normal(self, generator: np.random.Generator, node: int, length: int) -> np.ndarray:
        return generator.standard_normal((length, *self.shape), dtype=self.dtype.type)

    def _block(self, seeds: Sequence[int], nodes: Sequence[int], block: int) -> np.ndarray:
        if compiled is None:
            return super()._block(seeds, nodes, block)
        words = np.concatenate([self.streams.words(seed, nodes, block) for seed in seeds])
        out = np.empty((self.length, len(seeds), len(nodes), *self.shape), self.dtype)
        compiled.normals(words, out, len(words), self.length, self.dtype.itemsize == 8)
        return out
