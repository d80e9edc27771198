"""A dry run sends what the real one sends, without anybody to send it to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import succeed
from thread_network import run_threads

import dnasa
from dnasa import topology
from dnasa.communication import Network
from dnasa.networks import dry_run
from dnasa.runs.journal import Audit

PROBLEM = dnasa.problems.Custom(lambda x, node, rng: x - node, start=np.zeros(50))
GRAPHS = [topology.ring(4), topology.star(5), topology.make("exact", 6)]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("compress", [None, "sign", "moniqua"])
def test_a_dry_run_counts_the_bytes_of_the_real_one(graph: Any, compress: str | None) -> None:
    if compress == "sign" and graph.period > 1:
        pytest.skip("CHOCO needs a fixed graph")
    channel = None if compress is None else dnasa.channels.compression(compress)

    def work(network: Network) -> Any:
        dnasa.solve(PROBLEM, network, steps=9, evaluate=4, progress=False)
        return {sending: counts for sending, counts in network.processes.traffic.sent.items() if sending.kind != "text"}

    real = run_threads(graph, work, channel=channel)
    for node in range(graph.nodes):
        assert work(dry_run.connect(graph, 1, channel, rank=node)) == real[node]


def test_the_command_shows_arrays_and_bytes_for_each_neighbour() -> None:
    done = succeed(
        *"train --problem least_squares --nodes 4 --topology ring --compress sign --steps 8 --dry-run".split(),
        "--checkpoint-every",
        4,
    )
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines() if "exchange" in line]
    assert [row[2] for row in rows] == ["node 1", "node 3"]
    assert all(row[3].startswith("uint8") and row[4] == "8" for row in rows)
    assert "Nothing was sent." in done.stdout


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    succeed(*"train --problem least_squares --dry-run --out runs/x".split(), cwd=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_site_keeps_the_checksum_of_its_rows_also_in_a_dry_run() -> None:
    for names in ((), "abcd"):
        network = dry_run.connect(GRAPHS[0], None, None, names)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PROBLEM, "node_fingerprint", lambda node: f"rows {node}")
            dnasa.solve(PROBLEM, network, steps=9, evaluate=4, progress=False)
        texts = [line["text"] for line in Audit(network.processes.traffic, network.processes.names).lines() if "text" in line]
        assert any("rows 0" in text for text in texts) == (not names)
