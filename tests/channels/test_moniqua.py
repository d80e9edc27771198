"""Differences in a few bits: against a literal twin, and that the mean stays where it is, whatever is sent."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_network import run_threads

import dnasa
from dnasa import topology
from dnasa.arrays import compiled
from dnasa.channels import exchange, modular, moniqua
from dnasa.channels.modular import Entry
from dnasa.communication import Memory, Network
from dnasa.core import Array, InputError, Messages
from dnasa.networks import simulated
from dnasa.problems import Custom
from dnasa.randomness import Streams
from dnasa.topology import Topology

GRAPHS = {"exact": topology.exact(8), "odd": topology.exact(5), "ring": topology.ring(6), "star": topology.star(5)}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
PLAN = "8,4,8/3"
both = pytest.mark.parametrize("bits", [4, 8])


def connected(graph: Topology, plan: int | str) -> Network:
    return simulated.connect(graph, rounds=1, channel=moniqua(plan))


def twin(y: Array, largest: Array, W: Array, bits: int, t: int) -> tuple[Array, Array]:
    """One number after the other, in whole numbers without a limit on their size."""
    offset, more = Streams("moniqua").at(0, 0, t).random(2)
    n, blocks, levels = len(y), largest.shape[-1], 2**bits
    parts = [[y[i, 32 * b : 32 * b + 32] for b in range(blocks)] for i in range(n)]
    after, out = 0.8 * largest, y.copy()

    def exponent(i: int, b: int) -> int:
        wanted = max(largest[i, b] / 2 ** (bits // 2), 8 * np.finfo(y.dtype).eps * np.abs(parts[i][b]).max())
        return int(np.floor(np.log2(wanted))) + 1

    def code(value: float, power: int) -> int:
        return int(np.floor(value / ((1 + more) * 2.0**power) + offset)) % levels

    for i in range(n):
        for j in range(n):
            for b in range(blocks) if i != j and W[i, j] else ():
                mine, theirs = exponent(i, b), exponent(j, b)
                finer = min(mine, theirs)
                spacing = (1 + more) * 2.0**finer
                seen = [0]
                for k, (own, other) in enumerate(zip(parts[i][b], parts[j][b], strict=True)):
                    d = (code(other, theirs) * 2 ** (theirs - finer) - code(own, mine) * 2 ** (mine - finer)) % levels
                    d = 0 if d == levels // 2 else d - levels if d > levels // 2 else d
                    out[i, 32 * b + k] += W[i, j] * d * spacing
                    seen.append(abs(d))
                most = max(seen) * (2 if max(seen) >= 3 * levels // 8 else 1)
                after[i, b] = max(after[i, b], most * spacing, 2.0 ** (theirs + bits // 2 - 2))
    return out, after


@both
@every_graph
def test_an_exchange_is_that_of_the_twin(graph: Topology, bits: int) -> None:
    rng = np.random.default_rng(0)
    network = connected(graph, bits)
    y = 3 + rng.standard_normal((graph.nodes, 70)) * np.repeat([1, 1e-3, 10], [32, 32, 6])
    (largest,) = moniqua(bits).init(y)
    expected, memory = y, ((largest,),)
    for t in range(12):
        ahead = 0.1 * rng.standard_normal(y.shape)
        expected, largest = twin(expected + ahead, largest, graph.at(t).weights, bits, t)
        (y,), memory = exchange(network, memory, (y + ahead,), t)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(memory[0][0], largest, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), size=st.floats(-30, 30), spread=st.floats(0, 20), plan=st.sampled_from(["8,4/2", "4"]))
@every_graph
def test_the_mean_is_preserved_whatever_the_values(graph: Topology, seed: int, size: float, spread: float, plan: str) -> None:
    """Also where the nodes' numbers, or what they remember, differ by many powers of two, so that differences are misread."""
    rng = np.random.default_rng(seed)
    shape = (2, graph.nodes, 45)
    y = 10**size * np.exp(spread * rng.standard_normal(shape)) * rng.standard_normal(shape)
    seen = 10**size * np.exp(spread * rng.standard_normal((2, graph.nodes, 2)))
    network, mean, most = connected(graph, plan), y.mean(1), np.abs(y).max() + seen.max()
    messages: Messages = tuple(y)
    memory: Memory = tuple((each,) for each in seen)
    for t in range(4):
        messages, memory = exchange(network, memory, messages, t)
        np.testing.assert_allclose(np.mean(messages, 1), mean, rtol=0, atol=1e-13 * most * 2**8)


@pytest.mark.parametrize("first", [0, 1])
def test_a_plan_gives_each_message_its_bits_and_its_steps(first: int) -> None:
    rng = np.random.default_rng(0)
    plan, alone = moniqua("8,4,8/3"), [(8, 1), (4, 1), (8, 3), (8, 3)][first:]
    network = simulated.connect(GRAPHS["exact"], rounds=1, channel=plan)
    messages: Messages = tuple(rng.standard_normal((len(alone), 8, 40)))
    memory: Memory = ()
    for t in range(12):
        expected = []
        for number, (message, (bits, every)) in enumerate(zip(messages, alone, strict=True)):
            sent = every == 1 or t in (2, 5, 7, 10)
            kept = memory[number : number + 1]
            expected.append(exchange(connected(GRAPHS["exact"], bits), kept, (message,), t)[0][0] if sent else message)
            assert plan.size is not None
            assert plan.size(message, first + number, t) == sent * (2 + 40 * bits // 8)
        messages, memory = exchange(network, memory, messages, t, first)
        np.testing.assert_array_equal(messages, expected)


@pytest.mark.parametrize("every", [2, 3, 6, 8])
def test_every_kth_step_falls_on_every_graph_of_a_period_equally_often(every: int) -> None:
    steps = np.array([t for t in range(6000) if Entry(8, every).is_sent(t)])
    assert set(np.diff(steps)) == {every - 1, every}
    for period in range(2, 13):
        shares = np.bincount(steps % period) / len(steps)
        np.testing.assert_allclose(shares, 1 / period, atol=0.01)


@both
def test_a_difference_within_the_limit_is_off_by_less_than_a_spacing(bits: int) -> None:
    rng = np.random.default_rng(0)
    network = connected(topology.exact(2), bits)
    for t in range(20):
        y = 100 + rng.uniform(-1, 1, (2, 320))
        (mixed,), _ = exchange(network, ((np.full((2, 10), 2.0),),), (y,), t)
        spacing = 2 * 2 * 2.0 / 2 ** (bits // 2)  # at most twice for the power of two, and twice for the factor
        assert np.abs(mixed - y.mean(0)).max() <= spacing / 2


@both
def test_rounding_is_unbiased(bits: int) -> None:
    y = np.array([[0.0, 0.05, 1.0], [0.013, 0.0, 0.2]])
    network, memory = connected(topology.exact(2), bits), ((np.ones((2, 1)),),)
    mixed = np.mean([exchange(network, memory, (y,), t)[0][0] for t in range(800)], 0)
    np.testing.assert_allclose(mixed, y.mean(0) + 0 * y, atol=0.02)


@both
@every_graph
def test_misread_differences_are_found_and_the_nodes_agree(graph: Topology, bits: int) -> None:
    """The nodes remember that they were close: differences are millions of spacings."""
    y = np.random.default_rng(0).standard_normal((graph.nodes, 64))
    mean, network, memory = y.mean(0), connected(graph, bits), ((np.full((graph.nodes, 2), 1e-6),),)
    for t in range(300):
        (y,), memory = exchange(network, memory, (y,), t)
    np.testing.assert_allclose(y, mean + 0 * y, rtol=0, atol=1e-3)


@both
def test_numpy_and_torch_give_the_same_bits(bits: int) -> None:
    y = np.random.default_rng(0).standard_normal((2, 8, 100)).astype(np.float32)
    network, memory, other = connected(GRAPHS["exact"], bits), (), ()
    mixed, tensor = y, torch.from_numpy(y)
    for t in range(5):
        (mixed,), memory = exchange(network, memory, (mixed,), t)
        (tensor,), other = exchange(network, other, (tensor,), t)
    np.testing.assert_array_equal(mixed, tensor.numpy())


@pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 31, 32, 33, 70, 20_001])
@both
def test_kernels_give_equal_bits(bits: int, width: int, dtype: type[np.floating[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    shape, sizes, spreads = (5, 3, width), np.array([1, 1e-30, 1e30, 1, 1]), np.array([0, 1, 5, 30, 0])
    with np.errstate(over="ignore"):
        spread = np.exp(spreads[:, None, None] * rng.standard_normal(shape))
        y = (sizes[:, None, None] * spread * rng.standard_normal(shape)).astype(dtype)
    y[4].flat[:: width // 5 + 1] = [3e38, 0, np.nan, np.inf, -np.inf]  # as often as it fits
    largest = (sizes[:, None, None] * rng.exponential(1, (5, 3, -(-width // 32)))).astype(dtype)
    largest[4, 0, 0] = np.nan
    grid = modular.Grid(bits, 0.3, 1.7)
    any_bytes = rng.integers(0, 202, (5, 3, modular.row_bytes(width, bits)), np.uint8)

    def exchanged() -> list[Array]:
        payload = modular.encode(grid, y, largest)
        links = [(np.array([0.3, 0.5, 0.1]), theirs) for theirs in (payload[:, [1, 2, 0]], any_bytes)]
        return [payload, *modular.mix(grid, y, largest, payload, links)]

    quick = exchanged()
    monkeypatch.setattr(modular, "compiled", None)
    for ours, plain in zip(quick, exchanged(), strict=True):
        np.testing.assert_array_equal(ours, plain, strict=True)


def quadratic() -> Custom:
    targets = np.random.default_rng(1).standard_normal((8, 90))
    noise = 0.1
    return Custom(
        lambda x, node, rng: x - targets[node] + noise * rng.standard_normal(90), start=np.zeros(90), fingerprint="quadratic"
    )


def solve(network: Network | None = None, **options: Any) -> dnasa.Result:
    network = network or dnasa.connect(GRAPHS["exact"], compress=f"moniqua:{PLAN}")
    chosen: Any = {"steps": 40, "evaluate": [40], "progress": False} | options
    return dnasa.solve(quadratic(), network, "adanasa", **chosen)


def test_processes_give_the_simulators_iterates_on_a_changing_graph() -> None:
    results = run_threads(GRAPHS["exact"], lambda net: solve(net), processes=3, channel=moniqua(PLAN), rounds=2)
    simulation = solve()
    np.testing.assert_allclose(results[0].x, simulation.x, rtol=0, atol=1e-10)
    # the third message, and the fourth with a single number: 15 times in 40 steps
    numbers, spacings = (40 + 20) * 90 + 15 * (90 + 1), (40 + 40 + 15) * 3 + 15
    for run in (results[0], simulation):
        assert run.final().bytes.tolist() == [2 * GRAPHS["exact"].at(0).messages * (numbers + spacings)]


def test_steps_that_send_nothing_count_no_messages_and_the_second_exchange_has_the_second_entry() -> None:
    network = simulated.connect(topology.ring(6), channel=moniqua("4/3,8/3"))
    done = dnasa.solve(quadratic(), network, dnasa.rules.gt_nsgdm(lambda t: 0.05, lambda t: 0.9), steps=9, progress=False)
    assert done.final().messages.tolist() == [3 * 2 * 12]
    assert done.final().bytes.tolist() == [3 * 12 * (3 + 45 + 3 + 90)]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not suit directed_ring, which is directed"):
        connected(topology.directed_ring(4), 8)


@pytest.mark.parametrize("plan", [3, "8,", "8/0", "8/1.5", "x"])
def test_a_malformed_plan_is_refused(plan: int | str) -> None:
    with pytest.raises(InputError, match=f"takes 8 or 4 bits .* moniqua:8,4,8/8; not '{plan}'"):
        moniqua(plan)
