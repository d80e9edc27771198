"""The measurements behind docs/decisions.md: the cost of generators, and of methods to compute many gradients.

python -m benchmarks.choices
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.networks import BATCH, NODES, forward_backward, make_problem, medians
from dnasa.randomness import Restartable, Streams, set_state


def microseconds(call: Callable[[], object], times: int = 2000) -> float:
    call()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - began) / times


def generators() -> None:
    streams, numbers = Streams("choices"), np.empty(10_000)
    print(f"a fresh generator {microseconds(lambda: np.random.Generator(np.random.SFC64([1, 2, 3]))):.1f} us")
    print(f"one generator set to a stream {microseconds(lambda: streams.at(1, 2, 3)):.1f} us, hash included")
    one, words = Restartable(), np.ones(4, np.uint64)
    setter = microseconds(lambda: set_state(one.generator.bit_generator, words))
    print(
        f"its state set by NumPy's setter {setter:.1f} us, in its memory {microseconds(lambda: one.restart(words)):.1f} us"
    )
    for kind in (np.random.SFC64, np.random.Philox):
        generator = np.random.Generator(kind(0))
        each = microseconds(partial(generator.standard_normal, out=numbers), 200) / 10
        print(f"{kind.__name__}: {each:.1f} ns a normal number")


def gradients(name: str, rounds: int) -> None:
    problem = make_problem(name)
    flat = problem.start(0).expand(NODES, -1).contiguous()
    x = problem.inputs[: NODES * BATCH].unflatten(0, (NODES, BATCH))
    y = problem.labels[: NODES * BATCH].unflatten(0, (NODES, BATCH))
    mapped = make_problem(name).models
    mapped.stack = None
    plain, by_hand, by_vmap = medians(
        forward_backward(problem),
        lambda: problem.models.gradient(flat, x, y, 1 / BATCH),
        lambda: mapped.gradient(flat, x, y, 1 / BATCH),
        rounds=rounds,
    )
    print(
        f"{name}, gradients alone against forward/backward: by hand {by_hand / plain:.2f}, vmap(grad) {by_vmap / plain:.2f}"
    )


def products() -> None:
    x, weight = torch.randn(8, 32, 123), torch.randn(8, 64, 123)
    direct = microseconds(lambda: torch.bmm(x, weight.transpose(1, 2)), 300)
    copied = microseconds(lambda: torch.bmm(x, weight.transpose(1, 2).contiguous()), 300)
    print(f"batched product with a transposed factor {direct:.0f} us, with a contiguous copy of it {copied:.0f} us")


if __name__ == "__main__":
    generators()
    gradients("a9a network", 200)
    gradients("LeNet", 15)
    products()
