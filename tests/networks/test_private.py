"""Secure summation: the average is that of the numbers, nothing is lost, and what travels tells nobody anything else."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from thread_network import ThreadTransport, run_threads

import dnasa
from dnasa import topology
from dnasa.channels import exchange, feedback
from dnasa.channels.secure_sum import secure_sum
from dnasa.communication import Channel, Memory, Network
from dnasa.core import Array, InputError, RunError
from dnasa.engine.loop import check
from dnasa.engine.recovery import Position, received_state
from dnasa.networks import dry_run, masks, simulated
from dnasa.problems import Custom

GRAPH = topology.complete(4)


def twin(y: Array, anchor: Array, rest: Array, scale: Array) -> tuple[Array, Array, Array]:
    """One exchange of messages of up to 1024 numbers, with one scale for all; 0 if it is not known."""
    n, change = len(y), y - anchor + rest
    most, largest = 32767 // n, np.abs(change).max()
    if not scale:
        scale = 4 ** (np.ceil(np.log(largest) / np.log(4)) + 1) / most
    codes = np.clip(np.round(change / scale), -most, most)
    following = 0 if largest > (most + 0.5) * scale else scale if largest > most / 8 * scale else 7 / 8 * scale
    return anchor + codes.sum(0) * scale / n, change - codes * scale, following


def test_an_exchange_is_that_of_the_twin_and_scales_follow_the_numbers() -> None:
    rng, network = np.random.default_rng(0), simulated.connect(GRAPH, channel=secure_sum())
    y, scales = rng.standard_normal((4, 1000)), set[float]()
    memory, anchor, rest, scale = list[Any]([(), 0, 0, 0])
    for t, size in enumerate((1, 0.1, 0.1, 0.1, 0.1, 1e5, 1e5, 1)):
        anchor, rest, scale = twin(y, anchor, rest, scale)
        (x,), memory = exchange(network, memory, (y,), t)
        np.testing.assert_allclose(x, np.broadcast_to(anchor, x.shape), rtol=0, atol=1e-9)
        np.testing.assert_allclose(memory[0][1], rest, rtol=0, atol=1e-9)
        np.testing.assert_allclose(memory[0][2], scale, rtol=1e-12)
        y = x + size * rng.standard_normal(y.shape)
        scales.add(float(scale))
    assert len(scales) > 4
    assert 0 in scales  # once, numbers did not fit


@pytest.mark.parametrize("channel", [feedback(2), secure_sum()], ids=lambda channel: channel.name)
@given(st.integers(0, 999), st.floats(-15, 15), st.floats(0, 5), st.sampled_from([1, 3, 4, 5, 6]), st.integers(16, 3000))
@settings(max_examples=25, deadline=None)
def test_nodes_agree_and_lose_nothing(channel: Channel, seed: int, size: float, spread: float, nodes: int, width: int) -> None:
    rng, network = np.random.default_rng(seed), simulated.connect(topology.complete(nodes), channel=channel)
    y = 10**size * np.exp(spread * rng.standard_normal((nodes, width))) * rng.standard_normal((nodes, width))
    memory: Memory = ()
    kept, near = y.mean(0), np.abs(y).max() / 50
    for t in range(3):
        (x, short), memory = exchange(network, memory, (y, y[:, :1]), t)
        np.testing.assert_array_equal(x, np.broadcast_to(x[0], x.shape))
        np.testing.assert_allclose(x[0] + memory[0][1].mean(0), kept, rtol=0, atol=1e-8 * near)
        if t == 0:  # later, numbers may not fit at once
            np.testing.assert_allclose(x[0], kept, rtol=0, atol=near)
            np.testing.assert_allclose(short[0], kept[0], rtol=0, atol=near)
        y = x + 0.1 * 10**size * rng.standard_normal(y.shape)
        kept = y.mean(0) + memory[0][1].mean(0)


def test_a_number_that_is_not_finite_reaches_all_nodes_and_not_another_run() -> None:
    network = simulated.connect(GRAPH, channel=secure_sum())
    y = np.ones((2, 4, 5))
    (x,), memory = exchange(network, (), (y,), 0)
    y[0, 1, 2] = np.inf
    for t in (1, 2):
        (x,), memory = exchange(network, memory, (y,), t)
    assert np.isnan(x[0]).all()
    np.testing.assert_allclose(x[1], 1, atol=1e-3)


def solve(network: Network, **options: Any) -> Any:
    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        return x - node + 0.01 * rng.standard_normal(x.shape)

    def loss(x: Array, node: int) -> float:
        return float(((x - node) ** 2).mean())

    problem = Custom(gradient, np.linspace(-1, 1, 1500), loss, lambda x, node: x - node, fingerprint="x")
    return dnasa.solve(problem, network, "adanasa", steps=12, evaluate=4, progress=False, **options)


def travelled(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], dict[str, list[bytes]]]:
    """The results of all processes, and what rank 0 sent, by the call that sent it."""
    sent: dict[str, list[bytes]] = defaultdict(list)

    def spied(name: str, call: Any) -> Any:
        def record(transport: ThreadTransport, *args: Any) -> Any:
            arrays = [a for _, a in args[1]] if name == "start" else [args[-1]]
            sent[name] += [np.asarray(a).tobytes() for a in arrays if transport.rank == 0]
            return call(transport, *args)

        return record

    with monkeypatch.context() as patch:
        for name in ("start", "_sum", "copy"):
            patch.setattr(ThreadTransport, name, spied(name, getattr(ThreadTransport, name)))
        return run_threads(GRAPH, solve, channel=secure_sum()), sent


def test_iterates_are_those_without_masks_to_the_bit_and_what_is_added_up_looks_random(monkeypatch: pytest.MonkeyPatch) -> None:
    masked, sent = travelled(monkeypatch)
    monkeypatch.setattr(masks, "agreed", lambda rank, *_: masks.Masks(rank, {}))
    plain, open_to_all = travelled(monkeypatch)
    expected = solve(simulated.connect(GRAPH, channel=secure_sum()))
    for one, other in zip(masked, plain, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_allclose(one.x, expected.x, rtol=0, atol=1e-14)
        assert one.final().train_loss.item() == pytest.approx(expected.final().train_loss.item())
    parts = [[data for i, data in enumerate(each["start"]) if i // 3 % 2 == 0] for each in (sent, open_to_all)]
    sums = [[data for i, data in enumerate(each["start"]) if i // 3 % 2] for each in (sent, open_to_all)]
    assert sums[0] == sums[1]  # which all learn
    assert all(one == sums[0][3 * (i // 3)] for i, one in enumerate(sums[0]))  # everybody the same
    for hidden, shown in ((parts[0], parts[1]), (sent["_sum"], open_to_all["_sum"])):
        assert len(hidden) == len(shown) > 10
        assert all(one != other for one, other in zip(hidden, shown, strict=True))
        assert len({*hidden}) == len(hidden)
        every_byte = np.bincount(np.frombuffer(b"".join(hidden), np.uint8), minlength=256)
        assert chisquare(every_byte).pvalue > 1e-6
        assert chisquare(np.bincount(np.frombuffer(b"".join(shown), np.uint8), minlength=256)).pvalue < 1e-6
    assert not sent["copy"]


def test_no_stream_is_used_twice_and_a_key_that_cannot_be_used_names_its_sender() -> None:
    def pair(text: str) -> masks.Masks:
        return masks.agreed(0, lambda own: [own, text], lambda peer, reason: RunError(f"{peer}: {reason}"))

    own = pair("09" + 31 * "00")
    streams = []
    for each in (own, own.separate(), own.separate()):
        for purpose in (0, 1, 0, 1):
            codes = np.zeros(8, np.int64)
            each.add(codes, purpose)
            streams.append(codes.tobytes())
    assert len({*streams}) == 12
    columns = np.zeros((2, 3), np.int64).T  # not contiguous
    pair("09" + 31 * "00").add(columns, 0)
    assert columns.all()
    for text in ("", "xyz", 32 * "00"):
        with pytest.raises(RunError, match="1: its public key cannot be used"):
            pair(text)


def test_means_are_exact_and_not_a_number_where_a_node_has_none() -> None:
    values = np.array([[1e-9, 3.0, -2.5e9, 1.0], [2e-9, 1e11, 1.0, np.nan], [0.0, -1.0, 7.0, 1.0], [5e-9, 0.5, 0.1, 1.0]])
    for found in run_threads(GRAPH, lambda network: network.mean(values[[network.rank]]), channel=secure_sum()):
        np.testing.assert_allclose(found, values.mean(0), rtol=1e-12, atol=1e-15)
    for found in run_threads(
        GRAPH, lambda network: network.multiply((values[[network.rank], :3],), 0)[0], channel=secure_sum()
    ):
        np.testing.assert_allclose(found[0], values[:, :3].mean(0), rtol=1e-12, atol=1e-15)


def test_a_site_that_joins_begins_at_the_mean_of_the_others() -> None:
    values, rule = np.array([[1.0, 5.0], [2.0, -1.0], [9.0, 9.0], [6.0, 2.0]]), dnasa.rules.dsgd(lambda t: 0.1)
    positions = [Position(0, 3, rank == 2, {}) for rank in range(4)]

    def joined(network: Network) -> Any:
        return received_state(network, positions, rule, rule.init(values[[network.rank]])).x

    found = run_threads(GRAPH, joined, channel=secure_sum())
    np.testing.assert_allclose(found[2], [[3.0, 2.0]], rtol=1e-12)
    np.testing.assert_array_equal(found[0], values[[0]])


def test_what_would_show_one_node_is_refused(tmp_path: Path) -> None:
    channel, record = secure_sum(), dnasa.Record(checkpoint_every=4)
    sites, problem = dry_run.connect(GRAPH, None, channel, names="abcd"), Custom(lambda x, node, rng: x, np.zeros(2))
    check(problem, sites, "dnasa", steps=9, eta=None, seed=[0], folder=tmp_path, record=record)  # each writes its own
    with pytest.raises(InputError, match="needs 3 nodes or more"):
        dnasa.connect(topology.complete(2), private=True)
    with pytest.raises(InputError, match="averages over all nodes: use the graph 'complete' instead of ring"):
        dnasa.connect(topology.ring(4), private=True)
    with pytest.raises(InputError, match="private cannot be combined"):
        dnasa.connect(GRAPH, private=True, compress="sign")
    with pytest.raises(InputError, match="leave out site and late"):
        dnasa.connect(GRAPH, private=True, late=2)
    with pytest.raises(InputError, match="one process for each node"):
        run_threads(GRAPH, solve, 2, channel)
    with pytest.raises(InputError, match="collects no models"):
        run_threads(GRAPH, lambda network: solve(network, folder=tmp_path / "run", record=record), channel=channel)
    with pytest.raises(InputError, match="collects no models"):
        run_threads(GRAPH, lambda network: network.processes.gather(np.ones((1, 2))), channel=channel)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(InputError, match="does not hide statistics of batch norm"):
        run_threads(GRAPH, lambda network: dnasa.optim.Decentralized(model, network), channel=channel)
    for option in ("--compress sign", "--drop 0.1", "--late 2"):
        line = refused(*f"train --problem least_squares --nodes 4 --private {option}".split())
        assert "--private cannot be combined with --compress, --drop and --late" in line
