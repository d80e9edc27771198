"""Random numbers: what node i draws at step t is a function of (seed, i, t) alone.

So the simulator, real processes and a resumed run use the same samples, however the nodes are distributed over processes.
Steps are drawn in blocks: each (seed, node, block) has its own SFC64 stream, whose initial state is a hash of the three.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dnasa.arrays import compiled
from dnasa.core import Array

if TYPE_CHECKING:
    from numpy.random import Generator

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment
MASK = (1 << 64) - 1
BLOCK = 64  # steps whose streams are hashed together
AT_ONCE = 1 << 17  # normal numbers that are drawn at a time: a megabyte stays in the cache until it is used
Draw = Callable[["Generator", int, int, int], np.ndarray]


def scramble(word: Any) -> Any:
    """SplitMix64's finalizer, for an int or an array of uint64: every output bit depends on every input bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Streams:
    """One generator that is reset to the stream of (seed, node, block): much cheaper than a generator for each stream.

    Streams of different purposes (up to 8 letters) are independent of each other. Where `rounded`, the words of their
    initial states have the 53 bits of a float64, as those of all published samples that are drawn in blocks.
    """

    def __init__(self, purpose: str, rounded: bool = False):
        self.rounded = rounded
        self.purpose = int.from_bytes(purpose.encode().ljust(8), "little")
        self.bits = np.random.SFC64(0)
        self.generator = np.random.Generator(self.bits)

    def at(self, seed: int, node: int, block: int) -> "Generator":
        """The generator at the start of this stream; valid until the next call."""
        return self._restarted(self.states(seed, node, block))

    def each(self, seed: int, nodes: Sequence[int], block: int) -> Iterator["Generator"]:
        """`at` for each of many nodes, with all streams hashed in one operation."""
        return map(self._restarted, self.states(seed, np.asarray(nodes, dtype=np.uint64), block))

    def states(self, seed: int, nodes: Any, blocks: Any) -> np.ndarray:
        """The states in which streams begin, four words along the last axis; nodes and blocks may be arrays that broadcast."""
        key = scramble((self.purpose + GOLDEN) & MASK)
        for part in (seed, blocks, nodes):
            key = scramble((key + GOLDEN & MASK) + part & MASK)
        words = (*(scramble(key + (j * GOLDEN & MASK) & MASK) for j in (1, 2, 3)), 1)
        kind = np.float64 if self.rounded else np.uint64
        return np.stack([word.astype(kind) for word in np.broadcast_arrays(*words)], -1).astype(np.uint64)

    def _restarted(self, words: np.ndarray) -> "Generator":
        restart(self.bits, words)
        return self.generator


class Generators:
    """A generator for each of these seeds and nodes; `at(t)` sets all of them to their streams of step t.

    `rngs[s][k]` is the generator of seed s and node k. A method of NumPy's generators draws from each of them at once:
    `rngs.standard_normal(3)` has shape (seeds, nodes, 3).
    """

    def __init__(self, purpose: str, seeds: Sequence[int], nodes: Sequence[int]):
        self.streams, self.seeds, self.nodes = Streams(purpose), seeds, nodes
        self.node_array = np.asarray(nodes)
        self._generators = [[np.random.Generator(np.random.SFC64(0)) for _ in nodes] for _ in seeds]
        self.block, self.block_states = -1, np.empty(0)
        self.states: np.ndarray = np.empty(0)  # of this step
        self.pending = False  # whether NumPy's generators are still to be set to these states

    def at(self, t: int) -> "Generators":
        block, row = divmod(t, BLOCK)
        if block != self.block:
            steps = np.arange(BLOCK * block, BLOCK * (block + 1), dtype=np.uint64)[:, None]
            nodes = self.node_array.astype(np.uint64)
            self.block = block
            self.block_states = np.concatenate([self.streams.states(seed, nodes, steps) for seed in self.seeds], axis=1)
        self.states, self.pending = self.block_states[row].copy(), True
        return self

    def __getitem__(self, seed: int) -> list["Generator"]:
        return self.generators[seed]

    @property
    def generators(self) -> list[list["Generator"]]:
        """NumPy's generators, set to the states of this step when they are first wanted in it."""
        if self.pending:
            every = (generator for row in self._generators for generator in row)
            for generator, words in zip(every, self.states, strict=True):
                restart(generator.bit_generator, words)
            self.pending = False
        return self._generators

    def standard_normal(self, size: int | tuple[int, ...] | None = None, **options: Any) -> np.ndarray:
        """All streams at once in compiled code where it is there: the same numbers in a tenth of the time."""
        if compiled is None or not self.pending or options:
            return self._draw("standard_normal", size, **options)
        shape = () if size is None else (size,) if isinstance(size, int) else size
        out = np.empty((len(self.seeds), len(self.nodes), *shape))
        compiled.normals(self.states, out, len(self.states), 1, True)
        return out

    def __getattr__(self, name: str) -> Callable[..., np.ndarray]:
        if name.startswith("_") or not callable(getattr(np.random.Generator, name, None)):
            raise AttributeError(f"NumPy's random generators have no method '{name}'.")
        return partial(self._draw, name)

    def _draw(self, name: str, *args: Any, **options: Any) -> np.ndarray:
        return np.array([[getattr(one, name)(*args, **options) for one in row] for row in self.generators])


def restart(bits: Any, words: np.ndarray) -> None:
    bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}


class Samples:
    """Samples of all steps, drawn in blocks with `draw(generator, node, seed, length) -> (length, ...)`.

    `size` is how many numbers one sample has.
    """

    def __init__(self, purpose: str, draw: Draw, size: int):
        self.streams, self.draw = Streams(purpose, rounded=True), draw
        # The length of a block depends on the size of a sample alone, not on how many nodes this process holds.
        self.length = max(1, min(64, 65536 // max(1, size)))
        self.cached: tuple[object, Array] = (None, None)

    def at(
        self, seeds: Sequence[int], nodes: Sequence[int], t: int, ready: Callable[[np.ndarray], Array] = np.asarray
    ) -> Array:
        """The samples of step t, (seeds, nodes, ...); `ready` converts a whole block once, e.g. to a device."""
        block, row = divmod(t, self.length)
        key = (tuple(seeds), tuple(nodes), block)
        if self.cached[0] != key:
            self.cached = (key, ready(self._block(seeds, nodes, block)))
        return self.cached[1][row]

    def _block(self, seeds: Sequence[int], nodes: Sequence[int], block: int) -> np.ndarray:
        """(length, seeds, nodes, ...): the samples of a step are contiguous."""
        drawn = [
            self.draw(generator, node, seed, self.length)
            for seed in seeds
            for node, generator in zip(nodes, self.streams.each(seed, nodes, block), strict=True)
        ]
        every = np.stack(drawn, axis=1)
        return every.reshape(self.length, len(seeds), len(nodes), *every.shape[2:])


class Normals(Samples):
    """Standard normal samples of this shape; the same numbers with and without compiled code."""

    def __init__(self, purpose: str, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype = shape, dtype
        self.size = int(np.prod(shape))
        self.words = np.empty(0)  # the states of the streams after what is drawn
        self.begin, self.end = 0, 0  # the steps of a block that are drawn
        super().__init__(purpose, self._normal, self.size)

    def _normal(self, generator: "Generator", node: int, seed: int, length: int) -> np.ndarray:
        return generator.standard_normal((length, *self.shape), dtype=self.dtype.type)

    def at(
        self, seeds: Sequence[int], nodes: Sequence[int], t: int, ready: Callable[[np.ndarray], Array] = np.asarray
    ) -> Array:
        """As for all samples; compiled code draws only as many steps at a time as fit in a cache, and continues from there."""
        if compiled is None:
            return super().at(seeds, nodes, t, ready)
        block, row = divmod(t, self.length)
        key = tuple(seeds), tuple(nodes), block
        if self.cached[0] != key or not self.begin <= row < self.end:
            continued, self.cached = self.cached[0] == key and row >= self.end, (None, None)  # also if this is interrupted
            if not continued:
                self.words = np.concatenate([self.streams.states(seed, np.asarray(nodes, np.uint64), block) for seed in seeds])
                self.end = 0
            streams, wide = len(self.words), self.dtype.itemsize == 8
            length = max(1, AT_ONCE // (streams * self.size)) if wide else self.length  # a float32 may leave half a word
            while self.end <= row:
                self.begin, self.end = self.end, min(self.end + length, self.length)
                out = np.empty((self.end - self.begin, len(seeds), len(nodes), *self.shape), self.dtype)
                compiled.normals(self.words, out, streams, len(out), wide)
            self.cached = key, ready(out)
        return self.cached[1][row - self.begin]
