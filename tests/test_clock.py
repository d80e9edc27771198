"""The seconds that a clock predicts, against a literal twin and against what must hold for every network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnasa
from dnasa import problems, topology
from dnasa.clock import read_links
from dnasa.core import InputError
from dnasa.topology import Topology

DIM = 5
BYTE = 8e-6 * 1514 / 1448  # Mbit of a byte in an Ethernet frame of TCP
MESSAGE = 8 * DIM * BYTE  # float64
HOME: dict[str, Any] = {"compute": 0.05, "bandwidth": 0.02, "latency": 30}
UNEVEN: dict[str, Any] = {
    "compute": [0.1, 0.2, 0.3, 0.4, 0.05, 0.6],
    "bandwidth": [0.02, 0.01, 0.04, 0.02, 0.05, 0.03],
    "latency": 20,
}
GRAPHS = {
    "ring": topology.ring(6),
    "star": topology.star(6),
    "exact": topology.exact(6),
    "directed": topology.directed_exponential(6),
}


def predicted(
    graph: Topology, clock: Any, rule: str = "dsgd", steps: int = 7, evaluate: Any = 1, **messages: Any
) -> list[float]:
    problem = problems.Custom(lambda x, node, rng: x, start=np.ones(DIM), nodes=graph.nodes)
    eta = 0.01 if dnasa.rules.RULES[rule].needs_eta else None
    network = dnasa.connect(graph, clock=clock, **messages)
    run = dnasa.solve(problem, network, rule, eta=eta, steps=steps, evaluate=evaluate, progress=False)
    return run.history.clock_seconds.tolist()


def exchanged(times: list[float], links: Mapping[str, Any], graph: Topology, size: float) -> list[float]:
    """Node by node: i waits for its own messages and for those of each j that it receives from."""
    W, nodes = graph.sparse.toarray(), range(graph.nodes)
    sending = []
    for j in nodes:
        receivers = [i for i in nodes if i != j and W[i, j] != 0]
        sending.append(len(receivers) * size / links["bandwidth"][j])
    after = []
    for i in nodes:
        done = times[i] + sending[i]
        for j in nodes:
            if i != j and W[i, j] != 0:
                latency = links["latency"] / 1000
                done = max(done, max(times[j], times[i] + latency) + sending[j] + latency)
        after.append(done)
    return after


def twin(graph: Topology, links: Mapping[str, Any], size: float, rounds: int, gradients: int, then: int) -> list[float]:
    times, out = [0.0] * graph.nodes, [0.0]
    for t in range(7):
        times = [time + gradients * own for time, own in zip(times, links["compute"], strict=True)]
        for _ in range(1 + then):
            for k in range(t * rounds, (t + 1) * rounds):
                times = exchanged(times, links, graph.at(k), size)
        out.append(max(times))
    return out


@pytest.mark.parametrize("graph", ["ring", "star", "exact"])
@pytest.mark.parametrize(
    ("rule", "messages", "gradients", "then"),
    [("dsgd", 1, 1, 0), ("dsgt", 2, 1, 0), ("dnasa", 3, 1, 0), ("gt_nsgdm", 1, 1, 1), ("gt_hsgd", 1, 2, 1)],
)
def test_the_clock_is_its_twin(graph: str, rule: str, messages: int, gradients: int, then: int) -> None:
    for rounds in (1, 2):
        expected = twin(GRAPHS[graph], UNEVEN, messages * MESSAGE, rounds, gradients, then)
        assert predicted(GRAPHS[graph], UNEVEN, rule, rounds=rounds) == pytest.approx(expected)


def test_hidden_exchanges_cost_what_outlasts_the_gradient() -> None:
    graph, times, expected = GRAPHS["ring"], [0.0] * 6, [0.0]
    for _ in range(7):
        arrived = exchanged(exchanged(times, UNEVEN, graph, 2 * MESSAGE), UNEVEN, graph, MESSAGE)
        times = [max(t + own, a) for t, own, a in zip(times, UNEVEN["compute"], arrived, strict=True)]
        expected.append(max(times))
    assert predicted(graph, UNEVEN, "dnasa", overlap=True) == pytest.approx(expected)
    fast = HOME | {"bandwidth": 1000, "latency": 1}
    assert predicted(graph, fast, "dnasa", overlap=True)[-1] == pytest.approx(7 * 0.05)


@pytest.mark.parametrize("name", ["ring", "torus", "exponential", "hypercube", "exact"])
def test_equal_nodes_on_a_regular_graph_have_a_closed_form(name: str) -> None:
    graph = topology.make(name, 16)
    degree = graph.at(0).degrees[0]
    step = 0.05 + 2 * 0.03 + degree * MESSAGE / 0.02
    assert predicted(graph, HOME, rounds=1) == pytest.approx([t * step for t in range(8)])


def test_the_complete_graph_is_a_ring_all_reduce() -> None:
    step = 0.05 + 2 * 5 * (0.03 + MESSAGE / 6 / 0.02)
    assert predicted(topology.complete(6), HOME) == pytest.approx([t * step for t in range(8)])
    slow = HOME | {"bandwidth": [0.02] * 5 + [0.005]}
    step = 0.05 + 2 * 5 * (0.03 + MESSAGE / 6 / 0.005)
    assert predicted(topology.complete(6), slow) == pytest.approx([t * step for t in range(8)])


@settings(max_examples=30, deadline=None)
@given(
    graph=st.sampled_from(sorted(GRAPHS)),
    values=st.lists(st.floats(0.01, 10), min_size=12, max_size=12),
    node=st.integers(0, 5),
    factor=st.floats(1.0, 100),
)
def test_faster_nodes_and_links_never_take_longer(graph: str, values: list[float], node: int, factor: float) -> None:
    compute, bandwidth = values[:6], values[6:]
    rule = "sgp" if graph == "directed" else "dsgd"
    slow = predicted(GRAPHS[graph], {"compute": compute, "bandwidth": bandwidth, "latency": 10}, rule, steps=3)
    bandwidth[node] *= factor
    fast = predicted(GRAPHS[graph], {"compute": compute, "bandwidth": bandwidth, "latency": 10}, rule, steps=3)
    assert all(a <= b * (1 + 1e-12) for a, b in zip(fast, slow, strict=True))
    assert slow[-1] >= 3 * max(compute)


def test_compressed_messages_take_the_seconds_of_their_bytes() -> None:
    plain, compressed = (predicted(GRAPHS["ring"], HOME, compress=compress)[-1] for compress in (None, "sign"))
    assert compressed < plain
    history = dnasa.solve(
        problems.Custom(lambda x, node, rng: x, start=np.ones(DIM), nodes=6),
        dnasa.connect(GRAPHS["ring"], compress="sign", clock=HOME),
        "dsgd",
        steps=7,
        eta=0.01,
        progress=False,
    ).history
    sent = history.bytes.iloc[-1] / 6 * BYTE / 0.02
    assert compressed == pytest.approx(7 * (0.05 + 0.06) + sent)


def test_rules_side_by_side_have_their_own_times() -> None:
    problem = problems.Custom(lambda x, node, rng: x, start=np.ones(DIM), nodes=6)
    network = dnasa.connect(GRAPHS["ring"], clock=UNEVEN)
    options: Any = {"steps": 7, "eta": 0.01, "progress": False}
    together = dnasa.solve(problem, network, ["dsgd", "gt_hsgd"], **options).history
    for rule in ("dsgd", "gt_hsgd"):
        alone = dnasa.solve(problem, network, rule, **options).history
        assert together[together.rule == rule].clock_seconds.tolist() == alone.clock_seconds.tolist()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_continues_its_clock(overlap: bool, tmp_path: Path) -> None:
    problem = problems.Custom(lambda x, node, rng: x, start=np.ones(DIM), nodes=6)

    def run(folder: Path, stop_at: int | None = None, clock: Any = UNEVEN, resume: bool = False) -> Any:
        def callback(evaluation: Any) -> None:
            if evaluation.step == stop_at:
                raise KeyboardInterrupt

        options: Any = {"steps": 8, "evaluate": 1, "progress": False, "folder": folder, "resume": resume}
        network = dnasa.connect(GRAPHS["ring"], overlap=overlap, clock=clock)
        record = dnasa.Record(callback=callback, checkpoint_every=3)
        return dnasa.solve(problem, network, record=record, **options).history

    whole = run(tmp_path / "whole").clock_seconds.tolist()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "halves", stop_at=5)
    with pytest.raises(InputError, match="clock was"):
        run(tmp_path / "halves", resume=True, clock=HOME)
    assert run(tmp_path / "halves", resume=True).clock_seconds.tolist() == whole


def test_a_file_and_a_dictionary_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text("compute = [0.1, 0.2, 0.3]\nbandwidth = 20\nlatency = 30  # ms\n")
    found = read_links(path, 3)
    assert (found.compute, found.bandwidth, found.latency) == ([0.1, 0.2, 0.3], [20], 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 3}, "speed is not known. Links have compute"),
        ({"compute": None}, "compute is missing"),
        ({"bandwidth": None, "bandwith": 3}, "bandwith is not known. Links have compute"),
        ({"compute": -1}, "compute must be at least 0"),
        ({"compute": [1, 2]}, "compute has 2 numbers for 6 nodes: give one for each, or one for all."),
        ({"bandwidth": 0}, "bandwidth must be greater than 0"),
        ({"bandwidth": True}, "bandwidth must be a number"),
        ({"latency": "20 ms"}, "latency must be a number"),
    ],
)
def test_wrong_links_are_refused(change: dict[str, Any], message: str) -> None:
    links = {key: value for key, value in (HOME | change).items() if value is not None}
    with pytest.raises(InputError, match=message):
        read_links(links, 6)


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    with pytest.raises(InputError, match=r"Cannot read the links in .*links\.toml: No such file"):
        read_links(path, 2)
    path.write_text("compute = ")
    with pytest.raises(InputError, match=r"links\.toml is not TOML"):
        read_links(path, 2)
    path.write_text("compute = 1")
    with pytest.raises(InputError, match=r"links\.toml: bandwidth is missing"):
        read_links(path, 2)
