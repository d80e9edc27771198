"""Sites have the simulator's iterates, whatever the rule, the graph and the way messages travel."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import PATIENCE
from local_sites import local_sites
from safetensors.numpy import load_file

import dnasa
from dnasa import topology
from dnasa.channels import compression
from dnasa.channels.secure_sum import secure_sum
from dnasa.communication import Network
from dnasa.core import Array, InputError
from dnasa.networks import with_timing
from dnasa.networks.members import Members
from dnasa.networks.sites import SiteNetworks, described
from dnasa.rules.registry import RULES, example
from dnasa.sites.connecting import dials

NODES = 4


def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
    return np.sin(3 * x) + x - node + 0.1 * rng.standard_normal(x.shape)


def solve(network: Any, rule: str, **options: Any) -> Any:
    problem = dnasa.problems.Custom(gradient, start=np.linspace(-1, 1, 17), fingerprint="waves")
    eta = 0.05 if RULES[rule].needs_eta else None
    return dnasa.solve(problem, network, rule, eta=eta, steps=8, evaluate=[4, 8], progress=False, **options)


@contextmanager
def connected(
    folder: Path, graph: Any, rounds: Any = None, every: int = 1, hidden: Any = (), **how: Any
) -> Iterator[list[Network]]:
    channel = compression(how["compress"]) if "compress" in how else secure_sum() if "private" in how else None
    members = [
        Members(given, described(given, graph, rounds, channel, every), 60.0) for given in local_sites(folder, NODES, hidden)
    ]

    def connect(own: Members) -> Network:
        return SiteNetworks(own, graph, rounds, channel, every).first_network()

    try:
        yield in_threads(connect, members)
    finally:
        for own in members:
            own.mesh.close()


def in_threads(work: Any, each: Any) -> list[Any]:
    with ThreadPoolExecutor(NODES) as pool:
        return [future.result(timeout=PATIENCE) for future in [pool.submit(work, one) for one in each]]


def check(networks: list[Network], graph: Any, rule: str, overlap: bool = False, **messages: Any) -> None:
    own = in_threads(lambda network: solve(with_timing(network, overlap=overlap), rule), networks)
    expected = solve(dnasa.connect(graph, **messages), rule)
    for result in own:
        np.testing.assert_allclose(result.x, expected.x, rtol=1e-9, atol=1e-12)
        assert result.history.consensus.to_numpy() == pytest.approx(expected.history.consensus.to_numpy(), rel=1e-6)


def suitable(graph: Any) -> list[str]:
    """The rules that this graph suits."""
    found = []
    for name in RULES:
        try:
            topology.matrices.check_weights(example(name), graph, graph.rounds)
        except dnasa.InputError:
            continue
        found.append(name)
    return found


GRAPHS = {
    "ring": topology.ring(NODES),
    "lazy": topology.make("ring", NODES, "lazy"),
    "exact": topology.make("exact", NODES),
    "directed": topology.make("directed_ring", NODES),
}
HELD = {name: suitable(graph) for name, graph in GRAPHS.items()}
HELD["lazy"] = [rule for rule in HELD["lazy"] if rule not in HELD["ring"]]  # the others would exchange the same
HELD["exact"] = ["adanasa", "dnasa", "gt_hsgd"]  # one, early and two exchanges: what changes is the graph, not the rule


def test_every_rule_is_held() -> None:
    assert all(HELD.values())
    assert {rule for held in HELD.values() for rule in held} == set(RULES)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_rule_has_the_simulators_iterates(tmp_path: Path, name: str) -> None:
    graph = GRAPHS[name]
    with connected(tmp_path, graph) as networks:
        for rule in HELD[name]:
            check(networks, graph, rule)


@pytest.mark.parametrize(
    ("how", "rules"),
    [
        ({"compress": "sign"}, ["dnasa", "adanasa", "dsgd"]),
        ({"compress": "moniqua:8,4,8/8"}, ["adanasa"]),
        ({"compress": "bfloat16"}, ["dnasa"]),
        ({"rounds": 2}, ["dnasa", "adanasa"]),
        ({"every": 3}, ["dnasa", "adanasa"]),
        ({"every": 2, "compress": "feedback:2"}, ["adanasa"]),
        ({"private": True}, ["dnasa", "adanasa", "gt_hsgd"]),
    ],
)
def test_messages_that_are_compressed_rare_or_in_several_rounds(tmp_path: Path, how: dict[str, Any], rules: list[str]) -> None:
    graph = topology.complete(NODES) if "feedback" in how.get("compress", "") or "private" in how else GRAPHS["ring"]
    with connected(tmp_path, graph, **how) as networks:
        for rule in rules:
            check(networks, graph, rule, **how)


@pytest.mark.parametrize("how", [{}, {"compress": "sign"}, {"private": True}])
def test_sites_resume_together_each_from_its_own_node(tmp_path: Path, how: dict[str, Any]) -> None:
    record = dnasa.Record(checkpoint_every=3, callback=lambda evaluation: evaluation.step == 4)
    graph = topology.complete(NODES) if "private" in how else GRAPHS["ring"]

    def folder(network: Network) -> Path:
        return tmp_path / f"run-{network.rank}"

    with connected(tmp_path, graph, **how) as networks:
        in_threads(lambda network: solve(network, "dnasa", folder=folder(network), record=record), networks)
        for network in networks:
            (folder(network) / "status.json").write_text(json.dumps({"state": "interrupted", "step": 3, "steps": 8}))
            (file,) = (folder(network) / "checkpoints").iterdir()
            assert load_file(file)["0.state.x"].shape == (1, 1, 1, 17)
    record = dnasa.Record(checkpoint_every=3)
    expected = solve(dnasa.connect(graph, **how), "dnasa")
    with connected(tmp_path, graph, **how) as networks:
        for result in in_threads(lambda n: solve(n, "dnasa", folder=folder(n), resume=True, record=record), networks):
            np.testing.assert_allclose(result.x, expected.x, rtol=1e-9, atol=1e-12)


def test_hidden_exchanges(tmp_path: Path) -> None:
    with connected(tmp_path, GRAPHS["ring"]) as networks:
        for rule in ("dnasa", "dasagt"):
            check(networks, GRAPHS["ring"], rule, overlap=True)
    with connected(tmp_path, topology.complete(NODES), private=True) as networks:
        check(networks, topology.complete(NODES), "dnasa", overlap=True, private=True)


def test_a_site_that_accepts_no_connections_dials_out(tmp_path: Path) -> None:
    with connected(tmp_path, GRAPHS["ring"], hidden=("paris",)) as networks:
        check(networks, GRAPHS["ring"], "dnasa")


def test_of_two_sites_exactly_one_dials(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 3, hidden=("paris",))
    dialing = {(i, j) for i in range(3) for j in range(3) if i != j and dials(files[i], j)}
    assert dialing == {(0, 2), (1, 0), (1, 2)}
    files = local_sites(tmp_path, 3)
    assert {(i, j) for i in range(3) for j in range(3) if i != j and dials(files[i], j)} == {(0, 1), (0, 2), (2, 1)}


def test_sites_that_do_not_all_keep_a_folder_are_told_before_the_first_step(tmp_path: Path) -> None:
    graph = topology.ring(NODES)

    def train(network: Network) -> str:
        folder = None if network.rank == 1 else tmp_path / f"run-{network.rank}"
        with pytest.raises(InputError) as refused:
            solve(network, "dnasa", folder=folder)
        return str(refused.value)

    with connected(tmp_path, graph) as networks:
        for line in in_threads(train, networks):
            assert "folder is given at berlin and missing at paris" in line
