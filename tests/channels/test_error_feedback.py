"""The average of all nodes in a few bits: against a literal twin."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from thread_network import ThreadTransport, run_threads

import dnasa
from dnasa import topology
from dnasa.channels import exchange, feedback
from dnasa.core import Array, InputError
from dnasa.networks import simulated
from dnasa.problems import Custom

LEVELS = {1: 1.596, 2: 0.9957, 4: 0.3352}


def rounded(a: Array, bits: int) -> Array:
    """Blocks of 1024 numbers, each with its scale in bfloat16, of which a float32 has the upper half."""
    out = np.empty_like(a)
    for first in range(0, len(a), 1024):
        block = a[first : first + 1024]
        padded = np.concatenate([block, np.zeros(1024 - len(block))])
        scale = LEVELS[bits] * np.sqrt((padded**2).mean()) if bits < 8 else np.abs(block).max() / 127
        whole = int(np.float32(scale).view(np.uint32))
        scale = float(np.uint32((whole + 0x7FFF + (whole >> 16 & 1)) & 0xFFFF0000).view(np.float32))
        half = 2 ** (bits - 1)
        out[first : first + 1024] = (np.clip(np.floor(block / (scale or 1)), -half, half - 1) + 0.5) * scale
    return out


def twin(y: Array, anchor: Array, rest: Array, up: int, down: int) -> tuple[Array, Array]:
    n, part = len(y), -(-y.shape[1] // len(y))
    change = np.pad(y - anchor + rest, ((0, 0), (0, n * part - y.shape[1]))).reshape(n, n, part)
    out, left = np.empty((n, part)), np.empty_like(change)
    for j in range(n):
        sent = [change[i, j] if i == j else rounded(change[i, j], up) for i in range(n)]
        mean = sum(sent) / n
        out[j] = rounded(mean, down)
        left[:, j] = change[:, j] - sent
        left[j, j] = n * (mean - out[j])
    return anchor + out.ravel()[: y.shape[1]], left.reshape(n, -1)[:, : y.shape[1]]


@pytest.mark.parametrize("bits", LEVELS)
def test_an_exchange_is_that_of_the_twin(bits: int) -> None:
    rng, network = np.random.default_rng(0), simulated.connect(topology.complete(3), channel=feedback(bits))
    y, memory = rng.standard_normal((3, 4000)), tuple[Any, ...]()
    anchor = rest = 0 * y
    for t, left in enumerate((1.0, 1.0, 0.5, 0.3)):
        anchor, rest = twin(y, left * anchor, left * rest, *((1, bits) if t else (8, 8)))
        (x,), memory = exchange(network, memory, (y,), t, fading=(left,))
        np.testing.assert_allclose(x, anchor, rtol=0, atol=1e-12)
        np.testing.assert_allclose(memory[0][1], rest, rtol=0, atol=1e-12)
        y = x + 0.1 * rng.standard_normal(y.shape)


def test_processes_have_the_simulators_iterates_and_check_and_count_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[str] = []
    monkeypatch.setattr(
        ThreadTransport, "inspect", lambda self, peer, arrived, own: inspected.extend(str(a.dtype) for a in (*arrived, *own))
    )

    def gradient(x: Array, node: int, rng: Any) -> Array:
        return x - node + rng.standard_normal(x.shape)

    def run(network: Any) -> Any:
        network = replace(network, settings=replace(network.settings, every=2))
        problem = Custom(gradient, np.linspace(-1, 1, 4000), fingerprint="x")
        return dnasa.solve(problem, network, "adanasa", steps=20, progress=False)

    graph, channel = topology.complete(4), feedback(2)
    expected = run(simulated.connect(graph, channel=channel))
    for done in run_threads(graph, run, 2, channel):
        np.testing.assert_allclose(done.x, expected.x, rtol=0, atol=1e-12)
    assert {*inspected} == {"float64"}  # numbers, not the bytes they came in
    assert np.ptp(expected.x, axis=0).max() == 0
    per_message = 2 * 3 * 4000 * 1.5 / 8  # of 4 nodes, each (n - 1) / n of the numbers up and down
    assert expected.final().bytes.item() == pytest.approx(15 * per_message, rel=0.2)  # y 10 times, x 5 times


def test_it_needs_the_complete_graph_and_one_two_or_four_bits() -> None:
    assert dnasa.topology.graphs.default_name(4, channel=feedback(2))[0] == "complete"
    with pytest.raises(InputError, match=r"feedback:2 averages over all nodes: use the graph 'complete' instead of ring"):
        dnasa.connect(topology.ring(4), compress="feedback:2")
    with pytest.raises(InputError, match="feedback takes 1, 2 or 4 bits, not 3"):
        dnasa.connect(topology.complete(4), compress="feedback:3")
