"""The exchange is a product with W, whatever holds the arrays and however W is stored."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from thread_network import run_threads

from dnasa import topology
from dnasa.channels import compression, exchange
from dnasa.channels.exchange import row_bytes
from dnasa.communication import MessageSettings, Network
from dnasa.core import Messages, ProcessLost
from dnasa.networks import simulated, torchdist
from dnasa.networks.buffers import Buffers, Routes
from dnasa.runs.snapshots import Sent
from dnasa.topology import Topology


@pytest.fixture
def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((2, 3, 12, 5)) for _ in range(3)]


def mix(network: Network, *arrays: Any) -> Messages:
    return exchange(network, (), arrays, 0)[0]


def sparse(graph: Topology) -> Topology:
    return topology.Topology(graph.name, graph.sparse)


@pytest.mark.parametrize("kind", [lambda a: a, torch.from_numpy])
def test_no_other_memory_travels_in_the_padding_between_messages(kind: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(np, "empty", lambda size, dtype: np.full(size, 255, dtype))
    monkeypatch.setattr(torch, "empty", lambda size, **options: torch.zeros(size, **options) + 255)
    messages = kind(np.ones((1, 3))), kind(np.ones((1, 1)))  # 24 and 8 bytes
    buffers = Buffers(messages, Routes([], [(1, slice(None))]), carries_cuda=False)
    buffers.fill(messages)
    ((_, sent),) = buffers.sends
    assert np.asarray(sent).tobytes() == np.array([1.0, 1, 1, 0, 1]).tobytes()


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("kind", [lambda a: a, torch.from_numpy, lambda a: torch.from_numpy(a).float()])
def test_dense_equals_sparse(arrays: list[np.ndarray], rounds: int, kind: Callable[..., Any]) -> None:
    graph = topology.exponential(12)
    given = [kind(a) for a in arrays]
    dense = mix(simulated.connect(graph, rounds), *given)
    thin = mix(simulated.connect(sparse(graph), rounds), *given)
    for a, b in zip(dense, thin, strict=True):
        assert a.dtype == b.dtype == given[0].dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5 if a.dtype == torch.float32 else 1e-12)


def test_rounds_with_a_channel_and_on_a_directed_graph_are_powers_of_w(arrays: list[np.ndarray]) -> None:
    graph = topology.directed_ring(12)
    (twice,) = mix(simulated.connect(graph, rounds=2), arrays[0])
    network = simulated.connect(graph)
    np.testing.assert_allclose(twice, mix(network, *mix(network, arrays[0]))[0])
    sixteen = torch.from_numpy(arrays[0]).float()
    ring, channel = topology.ring(12), compression("bfloat16")
    (twice,) = mix(simulated.connect(ring, rounds=2, channel=channel), sixteen)
    once = simulated.connect(ring, channel=channel)
    torch.testing.assert_close(twice, mix(once, *mix(once, sixteen))[0])


@pytest.mark.parametrize("store", [lambda graph: graph, sparse])
@pytest.mark.parametrize("kind", [lambda a: a, torch.from_numpy])
def test_each_width_is_mixed_by_itself(arrays: list[np.ndarray], store: Callable[..., Any], kind: Callable[..., Any]) -> None:
    graph = topology.exponential(12)
    given = [kind(arrays[0]), kind(arrays[1][..., :1]), kind(arrays[2][..., :3])]
    for mixed, plain in zip(mix(simulated.connect(store(graph)), *given), given, strict=True):
        assert mixed.shape == plain.shape
        np.testing.assert_allclose(np.asarray(mixed), np.einsum("ij,...jd->...id", graph.weights, np.asarray(plain)))


@pytest.mark.parametrize("processes", [2, 3, 12])
def test_arrays_of_unequal_width_are_mixed_each_by_itself_between_processes(arrays: list[np.ndarray], processes: int) -> None:
    graph = topology.exponential(12)
    given = [arrays[0], arrays[1][..., :1], arrays[2][..., :3]]

    def work(network: Network) -> Messages:
        rows = slice(network.local_nodes.start, network.local_nodes.stop)
        return mix(network, *(a[..., rows, :] for a in given))

    parts = run_threads(graph, work, processes)
    for number, plain in enumerate(given):
        joined = np.concatenate([part[number] for part in parts], axis=-2)
        np.testing.assert_allclose(joined, np.einsum("ij,...jd->...id", graph.weights, plain))


@pytest.mark.parametrize("rounds", [1, 2, "exact"])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_complete_graph_is_one_all_reduce(arrays: list[np.ndarray], count: int, rounds: int | str) -> None:
    graph = topology.complete(12)
    given = [arrays[0], arrays[1][..., :1]]

    def work(network: Network) -> tuple[Messages, int]:
        rows = slice(network.local_nodes.start, network.local_nodes.stop)
        network.at(0).transport.start = None  # type: ignore[misc, union-attr] # no message is sent
        return mix(network, *(a[..., rows, :] for a in given)), network.processes.traffic.bytes

    done = run_threads(graph, work, count, rounds=rounds)
    for number, plain in enumerate(given):
        joined = np.concatenate([mixed[number] for mixed, _ in done], axis=-2)
        np.testing.assert_allclose(joined, np.broadcast_to(plain.mean(-2, keepdims=True), plain.shape), atol=1e-15)
        np.testing.assert_array_equal(joined, joined[..., :1, :].repeat(12, -2))
    assert {sent for _, sent in done} == {(2 if rounds == 2 else 1) * int(2 * (count - 1) * 6 * 6 * 8 / count)}


def test_numbers_of_16_bits_are_summed_in_32() -> None:
    x = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).bfloat16()

    def work(network: Network) -> tuple[Any, float, int]:
        mine = x[network.rank][None]
        sent, before = Sent(), network.processes.traffic.bytes
        (mixed,) = network.multiply((mine,), 0)
        sent.add(network, row_bytes(network, (mine,), 0), 0)
        return mixed, sent.bytes, network.processes.traffic.bytes - before

    for mixed, all_bytes, own in run_threads(topology.complete(4), work):
        assert mixed.dtype == torch.bfloat16
        torch.testing.assert_close(mixed[0].double(), x.double().mean(0), atol=0.01, rtol=0)
        assert all_bytes == 4 * own == 6 * 30 * 4


def test_bytes_are_those_of_an_all_reduce_where_it_is_one() -> None:
    def sent(graph: Topology, **more: Any) -> float:
        total = Sent()
        total.add(simulated.connect(graph, **more), 10.0, 0)
        return total.bytes

    assert sent(topology.complete(8)) == 2 * 7 * 10
    assert sent(topology.ring(3)) == 2 * 2 * 10  # with weights of 1/3, the complete graph
    assert sent(topology.complete(2)) == 2 * 10
    assert sent(topology.complete(8), channel=compression("bfloat16")) == 8 * 7 * 10
    assert sent(topology.complete(8, weights="lazy")) == 8 * 7 * 10
    both = topology.changing([topology.complete(8), topology.complete(8)])
    assert sent(both) == 8 * 7 * 10


def test_mean_averages_over_the_nodes(arrays: list[np.ndarray]) -> None:
    np.testing.assert_allclose(simulated.connect(topology.ring(12)).mean(arrays[0]), arrays[0].mean(2))


def test_after_a_loss_the_graph_of_the_others_is_exact_again() -> None:
    def work(network: Network) -> Any:
        if network.rank == 2:
            raise SystemExit
        x = np.full((1, 1), float(network.rank))
        with pytest.raises(ProcessLost):
            exchange(replace(network, settings=MessageSettings(network.topology.period)), (), (x,), 0)
        left = network.processes.membership.survivors()  # type: ignore[misc]
        for k in range(left.topology.period):
            (x,) = left.multiply((x,), k)
        return left.topology.name, x.item()

    done = [result for result in run_threads(topology.exact(5), work, survive=True) if result]
    assert done == [("exact", pytest.approx((0 + 1 + 3 + 4) / 4))] * 4


def test_torch_keeps_its_own_timeout_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_, **__: iter([(torch.distributed.HashStore(), 0, 1)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, timeout, **__: limits.append(timeout))
    torchdist.start_group(None, "cuda")
    torchdist.start_group(30.0, "cuda")
    assert limits == [None, timedelta(seconds=30)]


def test_processes_that_are_started_again_use_a_new_part_of_the_store() -> None:
    store = torch.distributed.HashStore()
    for size in (3, 3, 2, 4):  # machines leave and join
        with ThreadPoolExecutor(size) as pool:  # rank 0 comes last: the others find the store as it was before
            parts = [*pool.map(partial(torchdist.own_part, store, size=size), reversed(range(size)))]
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", str(size))
        assert [part.get("address") for part in parts] == [str(size).encode()] * size
